//! A run takes its host memory before its first step: from the third step on, the threads that copy, update and
//! use drives touch no new page and allocate nothing large.
//!
//! The only test of its process, because it counts all allocations and turns huge pages off.

#![cfg(target_os = "linux")]

#[path = "../executor/machine.rs"]
#[expect(dead_code, reason = "models and data that this test does not need")]
mod machine;
#[path = "../executor/setup.rs"]
#[expect(dead_code, reason = "comparisons that this test does not need")]
mod setup;

use setup::Setup;
use spipe_base::{Bytes, LaneRole};
use spipe_cost::GradientFormat;
use spipe_exec::{Allocator, Backend, Options, Step, run};
use spipe_model::Precision;
use spipe_plan::System;
use std::{collections::BTreeMap, ops::ControlFlow};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Four blocks, most matrices of which have more than 1 MiB in 16 bits, and all of them in 32.
const BLOCKS: &str = r#"
format-version = 1
kind = "transformer"
name = "four-blocks"
vocabulary = 256
seq-len = 16
hidden = 640
layers = 4
heads = 10
intermediate = 1728
"#;

/// Every layer is a chunk of its own with streamed parameters.
const UNITS: [&str; 6] = [
    "gpu0 0..0 streamed",
    "gpu0 1..1 streamed",
    "gpu0 2..2 streamed recompute",
    "gpu0 3..3 streamed",
    "gpu0 4..4 streamed",
    "gpu0 5..5 streamed",
];

/// Page faults that a thread may make in a step: threads begin, stacks grow, the allocator's small blocks move.
const FEW: u64 = 1000;
/// Page faults of a thread that computes, whose tensors the library of the device allocates.
const MANY: u64 = 50_000;

fn setups() -> Vec<Setup<'static>> {
    let plain =
        Setup { model: BLOCKS, precision: Precision::Bf16, microbatches: 2, memory: "2 GiB", ..Setup::default() };
    let with = |system, stages| Setup { system, stages, ..plain.clone() };
    let wide = |setup| Setup { gradients: Some(GradientFormat::F32), ..setup };
    vec![
        with(System::ZeroOffload, &["gpu0 0..2 socket", "gpu0 3..5 socket"]),
        with(System::Superpipeline, &UNITS),
        Setup {
            backward: &["gpu0 0..1 streamed recompute", "gpu0 2..3 streamed recompute", "gpu0 4..5 streamed recompute"],
            ..with(System::Spipe, &["gpu0 0..2 streamed", "gpu0 3..5 streamed"])
        },
        with(System::Mobius, &UNITS),
        with(System::PoF, &["gpu0 0..2 offload", "gpu0 3..5 offload"]),
        with(System::ZeroInfinity, &["gpu0 0..2 streamed socket", "gpu0 3..5 streamed socket recompute"]),
        with(System::ZeroInfinity, &["gpu0 0..2 streamed socket drive", "gpu0 3..5 streamed socket drive"]),
        with(System::Fsdp, &["gpu0 0..2 socket", "gpu0 3..5 socket"]),
        wide(with(System::ZeroOffload, &["gpu0 0..2 socket", "gpu0 3..5 socket"])),
        wide(with(System::ZeroInfinity, &["gpu0 0..2 streamed socket", "gpu0 3..5 streamed socket recompute"])),
        wide(with(System::Fsdp, &["gpu0 0..2 socket", "gpu0 3..5 socket"])),
    ]
}

/// Counts of a run of `setup`, from its third step on.
fn holds(setup: &Setup<'_>) {
    let (plan, program) = setup.build();
    let folder = tempfile::tempdir().expect("a folder");
    let drives = BTreeMap::from([("nvme0".to_owned(), folder.path().to_path_buf())]);
    let options = Options { drives, keep_gradients: false, ..Setup::options(Backend::Ndarray, 3) };
    let mut steps: Vec<Step> = Vec::new();
    let run = run(&plan, &program, &machine::text(), &options, &mut |step| {
        steps.push(step.clone());
        ControlFlow::Continue(())
    });
    run.unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    let role = |name: &str| program.lanes().iter().find(|lane| lane.name == name).map(|lane| lane.role);
    for step in &steps[2..] {
        for thread in &step.work {
            let (work, of) =
                (thread.work, format!("{:?}, step {}, {}: {:?}", setup.system, step.index, thread.name, thread.work));
            assert!(work.faults < if thread.computes { MANY } else { FEW }, "{of}");
            if thread.computes {
                continue;
            }
            assert_eq!(work.allocations, 0, "{of}");
            match role(&thread.name) {
                Some(LaneRole::D2h) => assert_eq!(work.copied, Bytes::ZERO, "{of}"),
                _ => assert!(work.copied <= work.moved, "{of}"),
            }
        }
    }
    // Everything is counted: whole matrices are moved, and the library allocates whole matrices. Summed over all
    // steps, since a step computes before the last one has ended where their copies overlap.
    let work = || steps.iter().flat_map(|step| &step.work);
    let moved: Bytes = work().map(|thread| thread.work.moved).sum();
    let large: u64 = work().filter(|thread| thread.computes).map(|thread| thread.work.allocations).sum();
    assert!(moved > Bytes::mib(1) && large > 0, "{:?}: {moved} {large}", setup.system);
}

#[test]
fn steps_take_no_new_host_memory() {
    setups().iter().for_each(holds);
    // SAFETY: only numbers go in, and other processes are not touched.
    #[expect(unsafe_code, reason = "a call of the C library")]
    let refused = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    assert_eq!(refused, 0, "huge pages can be turned off");
    setups().iter().for_each(holds);
}
