//! Execution traces of Chakra: files, and messages between devices.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::LayerRange;
use spipe_cost::{Mode, Workload};
use spipe_export::chakra;
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Placement, Plan, Stage, System};
use spipe_schedule::lower;
use std::collections::BTreeMap;

const MODEL: &str = "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 64\nseq-len = 16\nhidden = 32\n\
                     layers = 6\nheads = 4\nintermediate = 48\n";

const MACHINE: &str = r#"
format-version = 1
name = "test"
[[socket]]
name = "cpu0"
cores = 4
peak = { f32 = "50 GFLOP/s" }
optimizer-rate = "0.2 Gparam/s"
dram = { name = "dram0", capacity = "16 GiB", bandwidth = "10 GB/s" }
source = "estimate: a test"
[[gpu]]
name = "gpu0"
memory = "4 GiB"
memory-bandwidth = "100 GB/s"
peak = { f32 = "10 TFLOP/s" }
source = "estimate: a test"
[[link]]
name = "pcie0"
between = ["gpu0", "dram0"]
bandwidth = "10 GB/s"
latency = "10 us"
source = "estimate: a test"
"#;

/// A plan of two stages on a GPU and a socket, and its files.
fn exported() -> BTreeMap<String, Vec<u8>> {
    let (model, hardware) =
        (Model::from_toml("m.toml", MODEL).unwrap(), Hardware::from_toml("h.toml", MACHINE).unwrap());
    let stage = |device, first: usize, last: usize| {
        Stage::new(hardware.device(device).unwrap(), LayerRange::new(first.into(), last.into()).unwrap())
    };
    let placement = Placement::new(System::OneForwardOneBackward, vec![stage("gpu0", 0, 4), stage("cpu0", 5, 7)]);
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 16,
        microbatch: 1,
        microbatches: 4,
        precision: Precision::Fp32,
        attention: Attention::Materialised,
        ..Workload::PLAIN
    };
    let plan = Plan::new(model, hardware.clone(), workload, placement).unwrap();
    let program = lower(&plan.context(), plan.placement()).unwrap();
    chakra(&plan, &program)
}

/// The lengths of the messages of a stream, which end where it ends.
fn lengths(mut stream: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    while !stream.is_empty() {
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = stream[0];
            stream = &stream[1..];
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        stream = &stream[length..];
        found.push(length);
    }
    found
}

#[test]
fn each_device_has_a_file_of_messages() {
    let files = exported();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["README.md", "trace.0.et", "trace.1.et"]);
    for name in ["trace.0.et", "trace.1.et"] {
        // Metadata, and at least a node for each forward, backward and message of four microbatches.
        assert!(lengths(&files[name]).len() > 4 * 4, "{name}");
    }
    let readme = String::from_utf8(files["README.md"].clone()).unwrap();
    assert!(readme.contains("| trace.0.et | gpu0 |") && readme.contains("| trace.1.et | cpu0 |"), "{readme}");
    assert_eq!(files, exported(), "the same plan gives the same bytes");
}
