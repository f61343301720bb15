//! Tests of devices with a memory of their own, where optimizers keep their state. CPU cores play
//! them, and compute in f32 also what they store in 16 bits.

use crate::{
    device::Backend,
    options::Options,
    persist::checkpoint::{Checkpoint, Checkpoints},
    report::Report,
    runtime::{Hooks, run_with},
    testing::{
        machine::text,
        setup::{BACKWARD, FORWARD, Setup, losses_are_near},
    },
};
use spipe_base::LayerId;
use spipe_cost::GradientFormat;
use spipe_model::Precision;
use spipe_plan::System;
use std::ops::ControlFlow;

fn train(setup: &Setup<'_>, options: &Options, hooks: &Hooks<'_>) -> Report {
    let (plan, program) = setup.build();
    let report = run_with((&plan, &program), &text(), options, &mut |_| ControlFlow::Continue(()), hooks);
    report.unwrap_or_else(|error| panic!("{setup:?}: {error}"))
}

const DISCRETE: Hooks<'_> = Hooks { discrete_memory: true, ..Hooks::NONE };

const WIDE: Option<GradientFormat> = Some(GradientFormat::F32);

/// Plans whose optimizer runs on the devices, on the host, or in part on each.
fn setups(precision: Precision) -> [Setup<'static>; 7] {
    let of = |system, stages| Setup { system, stages, precision, ..Setup::default() };
    [
        of(System::GpuOnly, &["gpu0 0..4"]),
        of(System::OneForwardOneBackward, &["gpu0 0..2", "gpu1 3..4 socket"]),
        of(System::PoF, &["gpu0 0..1 offload", "gpu1 2..2 offload", "gpu0 3..3 offload", "gpu1 4..4 offload"]),
        of(System::ZeroOffload, &["gpu0 0..4 socket"]),
        of(System::Fsdp, &["gpu0 0..1 recompute", "gpu0 2..4"]),
        of(System::Superpipeline, &["gpu0 0..1 streamed", "gpu0 2..2 streamed recompute", "gpu0 3..4 streamed"]),
        Setup { backward: &BACKWARD, ..of(System::Spipe, &FORWARD) },
    ]
}

/// Widths of parameters and of gradients, with 32 bits of the latter beside `half`, and the share by which losses may
/// differ.
const fn widths(half: Precision) -> [(Precision, Option<GradientFormat>, f64); 4] {
    [(Precision::Fp32, None, 1e-5), (Precision::Bf16, None, 2e-2), (Precision::Fp16, None, 2e-2), (half, WIDE, 2e-2)]
}

#[test]
fn they_train_as_cores_do() {
    // In 16 bits the norm is summed in another order.
    for (precision, gradients, share) in widths(Precision::Bf16) {
        for setup in setups(precision).map(|setup| Setup { gradients, ..setup }) {
            let options = Setup::options(Backend::Ndarray, 6);
            let (ours, theirs) = (train(&setup, &options, &DISCRETE), train(&setup, &options, &Hooks::NONE));
            losses_are_near(&setup, &ours.losses, &theirs.losses, share);
            assert!(ours.losses[5] < ours.losses[0], "it learns: {:?}", ours.losses);
        }
    }
}

/// Checkpoints hold optimizer state of devices like that of the host.
#[test]
fn checkpoints_hold_what_is_in_their_memory() {
    for (precision, gradients) in [(Precision::Fp32, None), (Precision::Bf16, None), (Precision::Bf16, WIDE)] {
        let setup = Setup { precision, gradients, stages: &["gpu0 0..2", "gpu1 3..4"], ..Setup::default() };
        let folder = tempfile::tempdir().unwrap();
        let options = |steps, resume| {
            let checkpoints = Some(Checkpoints { folder: folder.path().into(), every: 2 });
            Options { checkpoints, resume, keep_gradients: false, ..Setup::options(Backend::Ndarray, steps) }
        };
        let whole = train(&setup, &Setup::options(Backend::Ndarray, 6), &DISCRETE).losses;
        train(&setup, &options(4, None), &DISCRETE);
        let resume = Checkpoint::newest(folder.path()).unwrap().checkpoint;
        assert!(resume.is_some());
        assert_eq!(train(&setup, &options(6, resume), &DISCRETE).losses, whole[4..], "{precision}");
    }
}

/// Norms of such devices are summed in f32.
#[test]
fn they_clip_as_cores_do() {
    for (precision, gradients, share) in widths(Precision::Fp16) {
        for setup in setups(precision).map(|setup| Setup { gradients, ..setup }) {
            let options = Setup::options(Backend::Ndarray, 6);
            let losses = |clip_norm, hooks| train(&Setup { clip_norm, ..setup.clone() }, &options, hooks).losses;
            let ours = losses(Some(0.1), &DISCRETE);
            losses_are_near(&setup, &ours, &losses(Some(0.1), &Hooks::NONE), share);
            assert_ne!(ours, losses(None, &DISCRETE), "{setup:?}");
        }
    }
}

#[test]
fn a_step_with_gradients_that_are_not_finite_is_left_out_or_ends_the_run() {
    let setup = |precision| Setup { precision, ..Setup::default() };
    let inject_nan = |step, layer: LayerId| step == 2 && layer.index() == 1;
    let hooks = Hooks { inject_nan, ..DISCRETE };
    let options = Setup::options(Backend::Ndarray, 6);
    let losses = train(&setup(Precision::Fp16), &options, &hooks).losses;
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    let (plan, program) = setup(Precision::Fp32).build();
    let result = run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks);
    let error = result.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the gradients of layers 0..4 are not finite"), "{error}");
}
