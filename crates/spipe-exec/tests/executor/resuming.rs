//! Every system resumes from its own checkpoints, and from those of plain training on one device,
//! bit for bit.

use crate::{
    machine::text,
    setup::{BACKWARD, FORWARD, Setup},
    systems::UNITS,
};
use spipe_cost::GradientFormat;
use spipe_exec::{Backend, Checkpoint, Checkpoints, Options, Report, RunError, Schedule, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use std::{ops::ControlFlow, path::Path};

fn train(setup: &Setup<'_>, options: &Options) -> Result<Report, RunError> {
    let (plan, program) = setup.build();
    run(&plan, &program, &text(), options, &mut |_| ControlFlow::Continue(()))
}

fn options(steps: u32, folder: &Path) -> Options {
    let checkpoints = Some(Checkpoints { folder: folder.into(), every: 2 });
    Options { checkpoints, ..rising(steps) }
}

/// A warm-up that has not ended when the checkpoint is written.
fn rising(steps: u32) -> Options {
    let schedule = Schedule { warmup_steps: 4, ..Schedule::default() };
    Options { schedule, ..Setup::options(Backend::Ndarray, steps) }
}

fn bits(report: &Report) -> Vec<u64> {
    report.losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Compares five steps with three steps and two more from the checkpoint after the third.
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn goes_on(setup: &Setup<'_>) {
    let go = |options: &Options| train(setup, options).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    let whole = bits(&go(&rising(5)));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(bits(&go(&options(3, folder.path()))), whole[..3], "{setup:?}");
    let resume = Checkpoint::newest(folder.path()).unwrap().checkpoint;
    assert_eq!(resume.as_ref().map(Checkpoint::step), Some(3));
    assert_eq!(bits(&go(&Options { resume, ..options(5, folder.path()) })), whole[3..], "{setup:?}");
}

#[test]
fn parameters_that_stay() {
    let pair = &["gpu0 0..1", "gpu1 2..4"];
    goes_on(&Setup { stages: pair, ..Setup::default() });
    goes_on(&Setup { system: System::Zb2p, stages: pair, ..Setup::default() });
    let vee = &["gpu0 0..1", "gpu1 2..2 recompute", "gpu1 3..3", "gpu0 4..4"];
    goes_on(&Setup { system: System::ZbV, stages: vee, ..Setup::default() });
    goes_on(&Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket recompute:2"], ..Setup::default() });
    let knobs = &[(Knob::GradientsLeave, 1)];
    for system in [System::ZeroOffload, System::ZeroOffloadDelayed] {
        goes_on(&Setup { system, stages: &["gpu0 0..1 socket", "gpu0 2..4 socket"], knobs, ..Setup::default() });
    }
}

#[test]
fn parameters_in_host_memory() {
    let knobs = &[(Knob::Resident, 2), (Knob::Swap, 1)];
    goes_on(&Setup { system: System::Superpipeline, stages: &UNITS, knobs, ..Setup::default() });
    for precision in [Precision::Fp32, Precision::Bf16] {
        goes_on(&Setup {
            system: System::Superpipeline,
            stages: &crate::systems::KEPT[1],
            precision,
            ..Setup::default()
        });
    }
    let knobs = &[(Knob::SynchronousOptimizer, 1), (Knob::SynchronousCheckpoints, 1)];
    goes_on(&Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, knobs, ..Setup::default() });
}

#[test]
fn parameters_that_are_shared_out() {
    let stages = &["gpu0 0..1 recompute", "gpu0 2..3", "gpu0 4..4"];
    goes_on(&Setup { system: System::Fsdp, stages, microbatches: 4, ..Setup::default() });
    let streamed = &["gpu0 0..1 streamed recompute", "gpu0 2..3 streamed", "gpu0 4..4 streamed"];
    goes_on(&Setup { system: System::ZeroInfinity, stages: streamed, microbatches: 2, ..Setup::default() });
}

/// Adapters, on a plain base and on one that is quantised anew from its own numbers.
#[test]
fn adapters_go_on() {
    for base in [None, Some("nf4"), Some("int8")] {
        for setup in [
            Setup { stages: &["gpu0 0..1", "cpu0 2..4"], ..Setup::default() },
            Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket recompute:2"], ..Setup::default() },
            Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() },
            Setup { system: System::Fsdp, stages: &["gpu0 0..1 recompute", "gpu0 2..4"], ..Setup::default() },
        ] {
            goes_on(&Setup { lora: Some("rank=3"), base, ..setup });
        }
    }
}

/// Gradients of 32 bits beside parameters of 16, among them those that wait for a delayed step.
#[test]
fn wide_gradients() {
    let wide = Setup { precision: Precision::Bf16, gradients: Some(GradientFormat::F32), ..Setup::default() };
    let socket = &["gpu0 0..1 socket", "gpu1 2..4 socket recompute:1"];
    let of = |system, stages| Setup { system, stages, ..wide.clone() };
    goes_on(&of(System::OneForwardOneBackward, &["gpu0 0..1", "gpu1 2..4"]));
    goes_on(&of(System::ZeroOffload, socket));
    let knobs = &[(Knob::GradientsLeave, 1)];
    for precision in [Precision::Bf16, Precision::Fp16] {
        goes_on(&Setup { precision, ..of(System::ZeroOffloadDelayed, socket) });
        goes_on(&Setup { precision, knobs, ..of(System::ZeroOffloadDelayed, socket) });
    }
    goes_on(&of(System::Superpipeline, &UNITS));
    goes_on(&Setup { backward: &BACKWARD, ..of(System::Spipe, &FORWARD) });
    goes_on(&of(System::Fsdp, &["gpu0 0..1 recompute", "gpu0 2..4"]));
    let model = &crate::shared::tied();
    goes_on(&Setup { model, ..of(System::ZeroOffloadDelayed, &["gpu0 0..1 socket", "gpu1 2..3 socket"]) });
}

#[test]
fn other_systems_go_on_from_the_same_checkpoint() {
    let one = Setup { stages: &["gpu0 0..4"], ..Setup::default() };
    let whole = bits(&train(&one, &rising(4)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    train(&one, &options(2, folder.path())).unwrap();
    let resume = Checkpoint::newest(folder.path()).unwrap().checkpoint;
    let knobs = &[(Knob::Resident, 2), (Knob::Swap, 1)];
    for other in [
        Setup { system: System::Zb1p, stages: &["gpu0 0..2", "gpu1 3..4"], ..Setup::default() },
        Setup { system: System::Superpipeline, stages: &UNITS, knobs, ..Setup::default() },
        Setup { system: System::Fsdp, stages: &["gpu0 0..2", "gpu0 3..4"], ..Setup::default() },
    ] {
        let go_on = Options { resume: resume.clone(), checkpoints: None, ..options(4, folder.path()) };
        let report = train(&other, &go_on).unwrap_or_else(|error| panic!("{other:?}: {error}"));
        assert_eq!(bits(&report), whole[2..], "{other:?}");
    }
}

#[test]
fn steps_that_wait_for_the_next_iteration() {
    for (precision, frozen) in [(Precision::Fp32, &[][..]), (Precision::Fp32, &["0..1"]), (Precision::Bf16, &[])] {
        let stages = &["gpu0 0..1 socket", "gpu1 2..4 socket recompute:1"];
        goes_on(&Setup { system: System::ZeroOffloadDelayed, stages, precision, frozen, ..Setup::default() });
    }
}

/// Norms of gradients that a delayed step left in the checkpoint are computed again.
#[test]
fn norms_of_gradients() {
    let (clip_norm, socket) = (Some(0.1), &["gpu0 0..1 socket", "gpu1 2..4 socket"]);
    let knobs = &[(Knob::GradientsLeave, 1)];
    for precision in [Precision::Fp32, Precision::Fp16] {
        let of = |system, stages| Setup { system, stages, precision, clip_norm, ..Setup::default() };
        goes_on(&of(System::OneForwardOneBackward, &["gpu0 0..1", "gpu1 2..4"]));
        goes_on(&of(System::ZeroOffloadDelayed, socket));
        goes_on(&Setup { knobs, ..of(System::ZeroOffloadDelayed, socket) });
        goes_on(&Setup { backward: &BACKWARD, ..of(System::Spipe, &FORWARD) });
    }
}

#[test]
fn tables_of_two_stages() {
    let model = &crate::machine::GPT.replace("places = 16", "places = 16\ntied = true");
    for precision in [Precision::Fp32, Precision::Bf16] {
        let stages = &["gpu0 0..1", "gpu1 2..3"];
        goes_on(&Setup { model, stages, precision, ..Setup::default() });
        let stages = &["gpu0 0..1 socket", "gpu1 2..3 socket"];
        goes_on(&Setup { system: System::ZeroOffloadDelayed, model, stages, precision, ..Setup::default() });
        let stages = &["gpu0 0..1 streamed", "gpu0 2..2 streamed", "gpu0 3..3 streamed"];
        goes_on(&Setup { system: System::Superpipeline, model, stages, precision, ..Setup::default() });
        // A device that computes in f32 resumes from a 16-bit copy.
        let stages = &["gpu0 0..1", "cpu0 2..3"];
        goes_on(&Setup { system: System::Hybrid, model, stages, precision, ..Setup::default() });
    }
}

#[test]
fn layers_that_were_frozen_begin_with_moments_of_zero() {
    let stages = &["gpu0 0..1", "gpu1 2..4"];
    let (frozen, free) =
        (Setup { stages, frozen: &["0..1"], ..Setup::default() }, Setup { stages, ..Setup::default() });
    let folder = tempfile::tempdir().unwrap();
    train(&frozen, &options(2, folder.path())).unwrap();
    let resume = Checkpoint::newest(folder.path()).unwrap().checkpoint;
    let report = train(&free, &Options { resume, checkpoints: None, ..options(4, folder.path()) }).unwrap();
    assert_eq!(report.losses.len(), 2);
    let told = |warning: &String| warning.contains("did not train layer `embedding` and 1 more");
    assert!(report.warnings.iter().any(told), "{:?}", report.warnings);
}

#[test]
fn losses_that_are_scaled() {
    let precision = Precision::Fp16;
    goes_on(&Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, precision, ..Setup::default() });
    goes_on(&Setup { stages: &["gpu0 0..2", "cpu0 3..4"], precision, ..Setup::default() });
}
