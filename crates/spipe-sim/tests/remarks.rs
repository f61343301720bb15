//! Warnings about hybrid placements.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::LayerRange;
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Placement, Stage, System, hybrid_remarks};

const MODEL: &str = r#"
format-version = 1
kind = "profiled"
name = "three"
microbatch = 1
seq-len = 1024
[[layer]]
name = "embed"
parameters = 1000
boundary-activation = "8 MiB"
saved-activation = "8 MiB"
time = { gpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" }, cpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" } }
[[layer]]
name = "block"
count = 2
parameters = 1000
boundary-activation = "8 MiB"
saved-activation = "8 MiB"
time = { gpu = { forward = "2 ms", backward-input = "2 ms", backward-weight = "2 ms" }, cpu = { forward = "40 ms", backward-input = "40 ms", backward-weight = "40 ms" } }
[[layer]]
name = "norm"
parameters = 1000
boundary-activation = "1 GiB"
saved-activation = "1 GiB"
time = { gpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" }, cpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" } }
[[layer]]
name = "head"
parameters = 1000
boundary-activation = "1 MiB"
saved-activation = "1 MiB"
time = { gpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" }, cpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" } }
"#;

/// The warnings about a placement in which each device has the layers up to the given one,
/// included.
fn said(stages: &[(&str, usize)]) -> Vec<String> {
    let model = Model::from_toml("three.toml", MODEL).unwrap();
    let machine = "rtx3090-x4-two-sockets";
    let text = spipe_hardware::shipped().iter().find(|(name, _)| *name == machine).unwrap().1;
    let hardware = Hardware::from_toml(machine, text).unwrap();
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 1024,
        microbatch: 1,
        microbatches: 4,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    };
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let mut first = 0;
    let placed = stages.iter().map(|(device, last)| {
        let range = LayerRange::new(first.into(), (*last).into()).unwrap();
        first = last + 1;
        Stage::new(hardware.device(device).unwrap(), range)
    });
    let placement = Placement::new(System::Hybrid, placed.collect::<Vec<_>>());
    hybrid_remarks(&context, &placement).into_iter().map(|remark| remark.to_string()).collect()
}

#[test]
fn a_balanced_hybrid_has_no_warnings() {
    assert_eq!(said(&[("cpu0", 0), ("gpu0", 4)]), Vec::<String>::new());
    assert_eq!(said(&[("gpu0", 1), ("gpu2", 4)]), Vec::<String>::new());
}

#[test]
fn every_pitfall_has_a_warning() {
    let starved = said(&[("gpu0", 1), ("cpu0", 4)]);
    assert!(starved[0].contains("`cpu0` computes") && starved[0].contains("the GPU starves"), "{starved:?}");
    assert!(starved[0].contains("move layer l2 (`block.1`) to a GPU"), "{starved:?}");
    let far = said(&[("cpu1", 0), ("gpu0", 4)]);
    assert!(far[0].contains("`cpu1` is not the socket nearest to `gpu0`"), "{far:?}");
    assert!(far[0].contains("put the stage on `cpu0`"), "{far:?}");
    let split = said(&[("gpu0", 2), ("cpu0", 3), ("cpu1", 4)]);
    assert!(split.iter().any(|it| it.contains("stages `s1` and `s2` are both on CPUs")), "{split:?}");
    let wide = said(&[("gpu0", 3), ("cpu0", 4)]);
    assert!(wide[0].contains("longer than one of the two stages computes"), "{wide:?}");
}
