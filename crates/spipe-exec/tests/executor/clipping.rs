//! Gradient clipping: every system steps with the same clipped gradients as plain training.

use crate::{
    machine::text,
    setup::{BACKWARD, FORWARD, Setup, losses_are_near},
    shared::{cases, tied},
    systems::{KEPT, STEPS, UNITS, both, equal, exactly, within_rounding},
};
use spipe_base::ActionKind;
use spipe_exec::{Backend, Decay, Options, Schedule, reference, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use std::ops::ControlFlow;

/// Less than the norm of every step.
const SHORT: Option<f64> = Some(0.1);
/// More than the norm of any step.
const LONG: Option<f64> = Some(1e4);

fn spipe() -> Setup<'static> {
    Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() }
}

/// Optimizer steps on accelerators and sockets; of stages, chunks and shards; immediate, delayed
/// and speculative.
fn systems() -> Vec<Setup<'static>> {
    let of = |system, stages| Setup { system, stages, ..Setup::default() };
    let pair: &[&str] = &["gpu0 0..1", "gpu1 2..4"];
    let socket: &[&str] = &["gpu0 0..0 socket", "gpu0 1..2 socket recompute:1", "gpu1 3..4 socket"];
    let leave = &[(Knob::GradientsLeave, 1)];
    let shards: &[&str] = &["gpu0 0..1 socket", "gpu0 2..2", "gpu0 3..4 socket recompute:1"];
    let streamed: &[&str] = &["gpu0 0..1 streamed recompute", "gpu0 2..4 streamed"];
    let mobius: &[&str] = &["gpu0 0..1 streamed recompute", "gpu1 2..3 streamed recompute", "gpu0 4..4 recompute"];
    let synchronous = &[(Knob::SynchronousOptimizer, 1)];
    vec![
        of(System::CpuOnly, &["cpu0 0..4"]),
        of(System::OneForwardOneBackward, pair),
        of(System::Hybrid, &["gpu0 0..2 recompute:2", "cpu0 3..4"]),
        of(System::Zb2p, pair),
        of(System::ZbV, &["gpu0 0..1", "gpu1 2..2 recompute", "gpu1 3..3", "gpu0 4..4"]),
        of(System::PoF, &["gpu0 0..1 offload", "gpu1 2..2 offload", "gpu0 3..3 offload", "gpu1 4..4 offload"]),
        of(System::ZeroOffload, socket),
        Setup { knobs: synchronous, ..of(System::ZeroOffload, socket) },
        Setup { knobs: &[(Knob::GradientsLeave, 1), (Knob::UrgentSteps, 1)], ..of(System::ZeroOffload, socket) },
        of(System::ZeroOffloadDelayed, socket),
        Setup { knobs: leave, ..of(System::ZeroOffloadDelayed, socket) },
        of(System::Fsdp, shards),
        Setup { knobs: synchronous, ..of(System::Fsdp, shards) },
        Setup { microbatches: 2, ..of(System::ZeroInfinity, streamed) },
        of(System::Superpipeline, &UNITS),
        of(System::Superpipeline, &KEPT[0]),
        of(System::Mobius, mobius),
        Setup { knobs: synchronous, ..spipe() },
        spipe(),
    ]
}

#[test]
fn all_systems_clip_alike() {
    for setup in systems() {
        exactly(&Setup { clip_norm: SHORT, ..setup });
    }
}

/// A tied weight counts once in the norm, with the gradients of both uses.
#[test]
fn shared_parameters_count_once() {
    for setup in cases(&tied()) {
        let setup = Setup { clip_norm: SHORT, ..setup };
        within_rounding(&setup, &both(&setup, Backend::Ndarray, 5));
    }
}

#[test]
fn frozen_layers_do_not_count() {
    for setup in systems() {
        let setup = Setup { clip_norm: SHORT, frozen: &["0..0", "2..2"], ..setup };
        equal(&setup, &both(&setup, Backend::Ndarray, 5));
    }
}

fn losses(setup: &Setup<'_>) -> Vec<f64> {
    both(setup, Backend::Ndarray, STEPS).1.losses
}

#[test]
fn short_gradients_stay_as_they_are() {
    for setup in systems() {
        let [plain, long, short] = [None, LONG, SHORT].map(|clip_norm| losses(&Setup { clip_norm, ..setup.clone() }));
        assert_eq!(plain, long, "{setup:?}");
        assert_ne!(plain, short, "{setup:?}");
    }
}

/// Speculative steps are undone and repeated: with a log bit for bit, by arithmetic almost so.
#[test]
fn a_norm_that_is_found_later_undoes_steps() {
    let (_, program) = Setup { clip_norm: SHORT, ..spipe() }.build();
    let guarded =
        |kind| program.actions().iter().filter(|action| action.kind == kind && action.guard.is_some()).count();
    assert_eq!([guarded(ActionKind::Rollback), guarded(ActionKind::OptimizerStep)], [BACKWARD.len(); 2]);
    assert!(program.actions().iter().all(|action| action.kind != ActionKind::Norm), "nothing waits for a norm");
    let knobs = &[(Knob::ArithmeticUndo, 1)];
    let setup = Setup { clip_norm: SHORT, knobs, ..spipe() };
    let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
    losses_are_near(&setup, &report.losses, &plain.losses, 1e-4);
}

/// Every step has the learning rate of its number, also if it is delayed or repeated.
#[test]
fn learning_rates_are_those_of_the_steps() {
    let schedule = Schedule { warmup_steps: 3, decay: Decay::Cosine };
    for setup in systems() {
        for clip_norm in [None, SHORT] {
            let setup = Setup { clip_norm, ..setup.clone() };
            let (plan, program) = setup.build();
            let options = Options { schedule, ..Setup::options(Backend::Ndarray, 8) };
            let plain = reference(&plan, &program, &text(), &options).unwrap_or_else(|error| panic!("{error}"));
            let report = run(&plan, &program, &text(), &options, &mut |_| ControlFlow::Continue(()))
                .unwrap_or_else(|error| panic!("{setup:?}: {error}"));
            equal(&setup, &(plain, report));
        }
    }
}

/// Norms are those of unscaled gradients.
#[test]
fn scaled_losses_change_no_norm() {
    for setup in systems() {
        for precision in [Precision::Fp16, Precision::Bf16] {
            let setup = Setup { clip_norm: SHORT, precision, ..setup.clone() };
            let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
            losses_are_near(&setup, &report.losses, &plain.losses, 0.02);
        }
    }
}
