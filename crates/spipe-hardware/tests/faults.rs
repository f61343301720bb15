//! Messages about invalid hardware files: all faults, each with its position.

use insta::assert_snapshot;
use spipe_hardware::{Hardware, HardwareFile};

/// A valid machine, which the tests change.
const GOOD: &str = r#"format-version = 1
name = "m"
[[socket]]
name = "cpu0"
cores = 16
peak = { f32 = "1.5 TFLOP/s" }
optimizer-rate = "2 Gparam/s"
dram = { name = "dram0", capacity = "128 GiB", bandwidth = "80 GB/s" }
source = "s"
[[gpu]]
name = "gpu0"
memory = "24 GiB"
memory-bandwidth = "1008 GB/s"
peak = { bf16 = "165 TFLOP/s" }
source = "s"
[[link]]
name = "pcie0"
between = ["gpu0", "root0"]
bandwidth = "25 GB/s"
[[link]]
name = "root0-dram0"
between = ["root0", "dram0"]
bandwidth = "50 GB/s"
"#;

fn faults(text: &str) -> String {
    match Hardware::from_toml("m.toml", text) {
        Ok(machine) => format!("fine\n{}", machine.warnings()),
        Err(faults) => faults.to_string(),
    }
}

/// The messages after each `from` is replaced by `to`.
fn spoiled(changes: &[(&str, &str)]) -> String {
    let spoil = |text: String, (from, to): &(&str, &str)| {
        assert!(text.contains(from), "{from} is in the text");
        text.replacen(from, to, 1)
    };
    faults(&changes.iter().fold(GOOD.to_string(), spoil))
}

#[test]
fn the_good_machine_is_good() {
    assert_eq!(faults(GOOD), "fine\n");
}

#[test]
fn all_faults_are_reported_at_once() {
    let said = spoiled(&[
        ("cores = 16", "corse = 16"),
        ("\"128 GiB\"", "128"),
        ("\"24 GiB\"", "\"0 GiB\""),
        ("\"1008 GB/s\"", "\"1008 GiB\""),
        ("bf16 =", "bf61 ="),
        ("bandwidth = \"25 GB/s\"", "up = \"-25 GB/s\""),
        ("[\"root0\", \"dram0\"]", "[\"rooot0\", \"dram0\"]"),
    ]);
    assert_snapshot!(said, @r#"
    error: socket `cpu0` has no `cores`
      --> m.toml:3:1
    hint: write `cores =` and a whole number
    error: a socket has no key `corse`
      --> m.toml:5:1
    hint: did you mean `cores`
    error: expected a size like "24 GiB", found the bare number 128
      --> m.toml:8:37
    error: gpu `gpu0` has no memory
      --> m.toml:12:10
    error: `GiB` is not a unit of bandwidth (known: B/s, KB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s, PB/s, EB/s, Mb/s, Gb/s)
      --> m.toml:13:20
    error: unknown data type `bf61` (known: f32, tf32, f16, bf16, fp8, int8)
      --> m.toml:14:10
    hint: did you mean `bf16`
    error: `-25 GB/s` is out of range for a bandwidth (1 B/s to 1 EB/s)
      --> m.toml:19:6
    error: link `pcie0` has an `up` but no `down`
      --> m.toml:19:6
    error: link `root0-dram0` ends at `rooot0`, which appears nowhere else
      --> m.toml:22:12
    hint: did you mean `root0`
    "#);
}

#[test]
fn a_device_needs_memory_and_its_memory_some_room() {
    assert_snapshot!(spoiled(&[("memory = \"24 GiB\"\n", "")]), @r#"
    error: gpu `gpu0` has no `memory`
      --> m.toml:10:1
    hint: write `memory =` and a size like "24 GiB"
    "#);
    assert_snapshot!(spoiled(&[("\"24 GiB\"", "\"24 GiB\"\nreserved = \"24 GiB\"")]), @"
    error: gpu `gpu0` reserves 24.0 GiB of 24.0 GiB, which leaves nothing
      --> m.toml:13:12
    ");
    assert_snapshot!(spoiled(&[("\"128 GiB\"", "\"0 B\""), ("cores = 16", "cores = 0")]), @"
    error: socket `cpu0` has no cores: `cores` must be at least 1
      --> m.toml:5:9
    error: dram `dram0` has no memory
      --> m.toml:8:37
    ");
    assert_snapshot!(spoiled(&[("dram = { name = \"dram0\", capacity = \"128 GiB\", bandwidth = \"80 GB/s\" }\n", "")]), @"
    error: socket `cpu0` has no `dram`
      --> m.toml:3:1
    hint: write `dram =` and a table of a dram
    ");
}

#[test]
fn names_mean_one_thing() {
    assert_snapshot!(spoiled(&[("name = \"gpu0\"", "name = \"dram0\""), ("\"gpu0\", \"root0\"", "\"dram0\", \"root0\"")]), @"
    error: the name `dram0` is used twice
      --> m.toml:8:17
    ");
    assert_snapshot!(spoiled(&[("\"root0-dram0\"", "\"pcie0\"")]), @"
    error: the link name `pcie0` is used twice
      --> m.toml:21:8
    ");
    assert_snapshot!(spoiled(&[("name = \"cpu0\"", "name = \"cpu 0\"")]), @"
    error: `cpu 0` cannot be a name
      --> m.toml:4:8
    hint: use letters, digits, `-` and `_`
    ");
    assert_snapshot!(spoiled(&[("[\"root0\", \"dram0\"]", "[\"root0\", \"dram0-pageable\"]")]), @"
    error: link `root0-dram0` ends at `dram0-pageable`, which is only a view of a DRAM
      --> m.toml:22:21
    ");
}

#[test]
fn links_end_somewhere_and_join_everything() {
    assert_snapshot!(spoiled(&[("[\"gpu0\", \"root0\"]", "[\"gpu1\", \"root0\"]")]), @"
    error: link `pcie0` ends at `gpu1`, which appears nowhere else
      --> m.toml:18:12
    hint: did you mean `gpu0`
    ");
    assert_snapshot!(spoiled(&[("[\"gpu0\", \"root0\"]", "[\"gpu0\", \"gpu0\"]")]), @"
    error: link `pcie0` joins `gpu0` with itself
      --> m.toml:18:11
    error: link `root0-dram0` ends at `root0`, which appears nowhere else
      --> m.toml:22:12
    hint: name a device, a memory or a node of another link, or declare it (`[[root-complex]]`, `[[switch]]`, `[[nic]]`)
    ");
    let two_sockets =
        GOOD.replace("[[gpu]]\nname = \"gpu0\"", "[[gpu]]\nname = \"gpu{0..1}\"").replace("cpu0\"", "cpu{0..1}\"");
    let two_sockets = two_sockets.replace("name = \"dram0\"", "name = \"dram{0..1}\"");
    assert_snapshot!(faults(&two_sockets), @"
    error: `dram1` cannot reach `gpu0`, `dram0`
      --> m.toml:3:1
    hint: join the two with a `[[link]]`, for example between two sockets
    error: gpu `gpu1` has no route to any DRAM
      --> m.toml:10:1
    hint: add a `[[link]]` between it and a root complex, and one from there to the DRAM
    ");
}

#[test]
fn rates_are_stated_once_per_direction() {
    assert_snapshot!(spoiled(&[("bandwidth = \"25 GB/s\"", "up = \"25 GB/s\"")]), @"
    error: link `pcie0` has an `up` but no `down`
      --> m.toml:19:6
    ");
    assert_snapshot!(spoiled(&[("bandwidth = \"25 GB/s\"\n", "")]), @"
    error: link `pcie0` has neither `up` and `down` nor `bandwidth`
      --> m.toml:17:8
    ");
    assert_snapshot!(spoiled(&[("bandwidth = \"25 GB/s\"", "bandwidth = \"25 GB/s\"\nup = \"25 GB/s\"")]), @"
    error: link `pcie0` has both `bandwidth` and `up` or `down`
      --> m.toml:19:13
    ");
    assert_snapshot!(spoiled(&[("\"25 GB/s\"", "\"0 GB/s\"")]), @"
    error: `0 GB/s` is out of range for a bandwidth (1 B/s to 1 EB/s)
      --> m.toml:19:13
    ");
}

#[test]
fn curves_ascend_and_fractions_are_fractions() {
    let curve =
        "bf16 = \"165 TFLOP/s\" }\nmatmul = { bf16 = [[\"4 GFLOP\", \"90 TFLOP/s\"], [\"1 GFLOP\", \"60 TFLOP/s\"]] }";
    assert_snapshot!(spoiled(&[("bf16 = \"165 TFLOP/s\" }", curve)]), @"
    error: gpu `gpu0` has points of `matmul bf16` whose sizes are not positive and ascending
      --> m.toml:15:19
    ");
    let too_fast = "bf16 = \"165 TFLOP/s\" }\nmatmul = { bf16 = [[\"4 GFLOP\", \"190 TFLOP/s\"]] }";
    assert_snapshot!(spoiled(&[("bf16 = \"165 TFLOP/s\" }", too_fast)]), @"
    fine
    warning: gpu `gpu0`: a measured bf16 rate of 190.0 TFLOP/s exceeds its peak of 165.0 TFLOP/s
      --> m.toml:15:19
    ");
    let odd = "peak = { bf16 = \"165 TFLOP/s\" }\nefficiency = { matmul-fraction = 70, elementwise-fraction = \"a\" }\ncores = 2";
    assert_snapshot!(spoiled(&[("peak = { bf16 = \"165 TFLOP/s\" }", odd)]), @r#"
    error: gpu `gpu0` has a `matmul-fraction` of 70, which is not above 0 and at most 1.2
      --> m.toml:15:34
    error: expected a number, found the text "a"
      --> m.toml:15:61
    error: gpu `gpu0` has `cores`, which only emulated GPUs have (`emulated = true`)
      --> m.toml:16:9
    "#);
}

#[test]
fn syntax_and_versions() {
    assert_snapshot!(faults("format-version = 1\nname = \"m\n"), @r#"
    error: invalid basic string, expected `"`
      --> m.toml:2:10
    "#);
    assert_snapshot!(spoiled(&[("format-version = 1", "format-version = 2")]), @"
    error: unknown format version 2
      --> m.toml:1:18
    hint: this program reads `format-version = 1`
    ");
    assert_snapshot!(faults("format-version = 1\nname = \"m\""), @"
    error: the machine has no device
      --> m.toml:2:8
    hint: add a `[[socket]]`, and a `[[gpu]]` with a `[[link]]` for each card
    ");
    assert_snapshot!(faults(""), @"
    error: hardware file has no `format-version`
      --> m.toml:1:1
    hint: write `format-version =` and a whole number
    error: hardware file has no `name`
      --> m.toml:1:1
    hint: write `name =` and a text in quotes
    error: the machine has no device
      --> m.toml:1:1
    hint: add a `[[socket]]`, and a `[[gpu]]` with a `[[link]]` for each card
    ");
}

#[test]
fn missing_sources_and_odd_ranges() {
    assert_snapshot!(spoiled(&[("source = \"s\"\n", "")]), @r#"
    fine
    warning: socket `cpu0` does not state the source of its numbers
      --> m.toml:3:1
    hint: write `source = "…"` with the data sheet, or "estimate: …" with the reason
    "#);
    assert_snapshot!(spoiled(&[("\"gpu0\"", "\"gpu{0..x}\"")]), @"
    error: `gpu{0..x}` has an invalid range (write one like `gpu{0..3}`, or `gpu{0..6/2}` for every second)
      --> m.toml:10:1
    error: link `pcie0` ends at `gpu0`, which appears nowhere else
      --> m.toml:18:12
    hint: did you mean `cpu0`
    ");
    assert_snapshot!(spoiled(&[("[\"gpu0\", \"root0\"]", "[\"gpu0\", \"root{0..1}\"]"), ("\"pcie0\"", "\"pcie{0..2}\"")]), @"
    error: `pcie{0..2}` has 3 elements, but another range of this table has 2
      --> m.toml:16:1
    error: link `pcie1` ends at `root1`, which appears nowhere else
      --> m.toml:18:20
    hint: did you mean `root0`
    ");
    assert_snapshot!(spoiled(&[("[\"gpu0\", \"root0\"]", "\"gpu0\"")]), @r#"
    error: expected a list of two names like ["gpu0", "root0"], found the text "gpu0"
      --> m.toml:18:11
    "#);
}

#[test]
fn a_machine_that_was_not_read_from_text_is_checked_too() {
    let error = Hardware::from_file("calibrated", HardwareFile::new("m")).unwrap_err();
    assert_snapshot!(error, @"
    error: the machine has no device
      --> calibrated:1:1
    hint: add a `[[socket]]`, and a `[[gpu]]` with a `[[link]]` for each card
    ");
}
