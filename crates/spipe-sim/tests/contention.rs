//! Contention of copies on a machine with two sockets, against results computed by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, SimTime};
use spipe_hardware::Hardware;
use spipe_schedule::Share;
use spipe_sim::{Transfer, transfers};

/// Two GPUs on one root complex with a 25 GB/s uplink, one on another socket's; 10 GB/s between the
/// sockets, 8 GB/s for memory that is not pinned, 40 GB/s of DRAM bandwidth.
const MACHINE: &str = r#"
format-version = 1
name = "two-sockets"
[[socket]]
name = "cpu{0..1}"
cores = 8
peak = { f32 = "1 TFLOP/s" }
optimizer-rate = "1 Gparam/s"
source = "made up"
dram = { name = "dram{0..1}", capacity = "256 GiB", bandwidth = "40 GB/s", pageable-bandwidth = "8 GB/s" }
[[gpu]]
name = "gpu{0..2}"
memory = "24 GiB"
memory-bandwidth = "900 GB/s"
peak = { f32 = "30 TFLOP/s" }
source = "made up"
[[root-complex]]
name = "root{0..1}"
[[link]]
name = "pcie{0..1}"
between = ["gpu{0..1}", "root0"]
bandwidth = "25 GB/s"
[[link]]
name = "pcie2"
between = ["gpu2", "root1"]
bandwidth = "25 GB/s"
[[link]]
name = "root{0..1}-dram{0..1}"
between = ["root{0..1}", "dram{0..1}"]
bandwidth = "25 GB/s"
[[link]]
name = "interconnect"
between = ["dram0", "dram1"]
bandwidth = "10 GB/s"
"#;

/// The end of each copy in seconds, all starting at once. Amounts are in GB.
fn finish(copies: &[(&str, &str, u64)]) -> Vec<f64> {
    finish_with(copies, &[])
}

/// The same with the given priorities and weights of the first copies.
fn finish_with(copies: &[(&str, &str, u64)], shares: &[(u8, u32)]) -> Vec<f64> {
    let shares =
        shares.iter().map(|(priority, weight)| Share { priority: *priority, weight: (*weight).try_into().unwrap() });
    let hardware = Hardware::from_toml("machine.toml", MACHINE).unwrap_or_else(|faults| panic!("{faults}"));
    let memory = |name: &str| hardware.memory(name).unwrap();
    let copies: Vec<Transfer> = copies
        .iter()
        .zip(shares.chain(std::iter::repeat(Share::default())))
        .map(|((from, to, gigabytes), share)| Transfer {
            from: memory(from),
            to: memory(to),
            bytes: Bytes::new(gigabytes * 1_000_000_000),
            start: SimTime::ZERO,
            share,
        })
        .collect();
    transfers(&hardware, &copies).unwrap().iter().map(|end| (end.to_ms() / 10.0).round() / 100.0).collect()
}

#[test]
fn two_gpus_under_one_root_complex_get_half_each() {
    assert_eq!(finish(&[("dram0", "gpu0", 25)]), [1.0]);
    assert_eq!(finish(&[("dram0", "gpu0", 25), ("dram0", "gpu1", 25)]), [2.0, 2.0]);
    // After the shorter one, the other has the whole uplink.
    assert_eq!(finish(&[("dram0", "gpu0", 25), ("dram0", "gpu1", 50)]), [2.0, 3.0]);
}

#[test]
fn rates_follow_weights_among_flows_of_one_priority() {
    let both = [("dram0", "gpu0", 20), ("dram0", "gpu1", 20)];
    // 20 and 5 GB/s for one second; then the second one has the uplink to itself.
    assert_eq!(finish_with(&both, &[(0, 4)]), [1.0, 1.6]);
    // The second one waits.
    assert_eq!(finish_with(&both, &[(1, 1)]), [0.8, 1.6]);
    assert_eq!(finish_with(&both, &[(0, 1), (3, 1)]), [1.6, 0.8]);
    // If the first one is limited elsewhere, the second one gets the rest, at any priority.
    let across = [("dram1", "gpu0", 10), ("dram0", "gpu1", 30)];
    assert_eq!(finish_with(&across, &[(9, 7)]), [1.0, 1.6]);
    assert_eq!(finish_with(&across, &[(0, 3), (0, 1)]), [1.0, 1.6]);
}

#[test]
fn directions_and_root_complexes_do_not_share() {
    assert_eq!(finish(&[("dram0", "gpu0", 25), ("dram1", "gpu2", 25)]), [1.0, 1.0]);
    // Both directions use the channels of the DRAM: 40 GB/s together.
    assert_eq!(finish(&[("dram0", "gpu0", 20), ("gpu1", "dram0", 20)]), [1.0, 1.0]);
}

#[test]
fn a_copy_across_the_sockets_is_as_slow_as_their_link() {
    assert_eq!(finish(&[("dram1", "gpu0", 25)]), [2.5]);
    // It leaves 15 GB/s of the uplink to a neighbour, which then is alone on it: 37.5 GB in 2.5 s.
    assert_eq!(finish(&[("dram1", "gpu0", 25), ("dram0", "gpu1", 50)]), [2.5, 3.0]);
}

#[test]
fn pageable_memory_is_slower() {
    assert_eq!(finish(&[("dram0-pageable", "gpu0", 24)]), [3.0]);
    // Max–min: it keeps its 8 GB/s, and the pinned copy gets the other 17.
    assert_eq!(finish(&[("dram0-pageable", "gpu0", 24), ("dram0", "gpu1", 51)]), [3.0, 3.0]);
}
