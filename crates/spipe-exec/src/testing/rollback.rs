//! Tests of speculative steps and their rollback.

use crate::{
    device::Backend,
    error::RunError,
    options::Options,
    persist::checkpoint::{Checkpoint, Checkpoints},
    report::Step,
    runtime::{Hooks, run_with},
    task_error::NotFinite,
    testing::{
        machine::text,
        setup::{BACKWARD, FORWARD, Setup},
    },
};
use spipe_base::LayerId;
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use std::ops::ControlFlow;

/// The losses of six steps, some of whose gradients are NaN.
fn losses(knobs: &[(Knob, u64)], inject_nan: fn(u32, LayerId) -> bool) -> Vec<f64> {
    let setup = Setup {
        system: System::Spipe,
        stages: &FORWARD,
        backward: &BACKWARD,
        precision: Precision::Fp16,
        knobs,
        ..Setup::default()
    };
    let (plan, program) = setup.build();
    assert!(program.actions().iter().any(|action| action.guard.is_some()), "nothing is undone");
    let hooks = Hooks { inject_nan, ..Hooks::NONE };
    let options = Setup::options(Backend::Ndarray, 6);
    let report = run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks);
    report.unwrap_or_else(|error| panic!("{error}")).losses
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn a_step_that_is_rolled_back_has_not_happened() {
    let none = losses(&[], |_, _| false);
    // Every chunk skips its own step: nothing has to be undone.
    let skipped = losses(&[], |step, _| step == 2);
    assert_eq!(bits(&skipped[..3]), bits(&none[..3]));
    assert_ne!(bits(&skipped[3..]), bits(&none[3..]));
    // One chunk skips its step; the steps of the others are undone from their logs.
    for inject_nan in
        [|step, layer: LayerId| step == 2 && layer.index() == 4, |step, layer: LayerId| step == 2 && layer.index() == 0]
    {
        let undone = losses(&[], inject_nan);
        assert_eq!(bits(&undone), bits(&skipped), "{undone:?} {skipped:?}");
    }
}

/// Steps that wait for the norm of all gradients are skipped if it is not finite; without a loss
/// scale the run fails.
#[test]
fn a_norm_that_is_not_finite_leaves_out_all_steps_or_ends_the_run() {
    let plain = Setup::default();
    let socket = &["gpu0 0..2 socket", "gpu1 3..4 socket"];
    let streamed = &["gpu0 0..1 streamed", "gpu0 2..4 streamed"];
    let delayed = Setup { system: System::ZeroOffloadDelayed, stages: socket, ..plain.clone() };
    for clip_norm in [None, Some(0.1)] {
        let of = |setup: &Setup<'static>| Setup { clip_norm, ..setup.clone() };
        leaves_out_all(&of(&Setup { stages: &["gpu0 0..1", "gpu1 2..4 socket"], ..plain.clone() }));
        leaves_out_all(&of(&Setup { stages: &["gpu0 0..2", "cpu0 3..4"], ..plain.clone() }));
        leaves_out_all(&of(&Setup { system: System::Fsdp, stages: &["gpu0 0..1", "gpu0 2..4"], ..plain.clone() }));
        leaves_out_all(&of(&Setup { system: System::Superpipeline, stages: streamed, ..plain.clone() }));
        leaves_out_all(&of(&delayed));
    }
}

fn leaves_out_all(setup: &Setup<'_>) {
    let left_out = std::cell::RefCell::new(Vec::new());
    let run = |precision, inject_nan: fn(u32, LayerId) -> bool| {
        let setup = Setup { precision, ..setup.clone() };
        let (plan, program) = setup.build();
        let hooks = Hooks { inject_nan, ..Hooks::NONE };
        let options = Setup::options(Backend::Ndarray, 6);
        left_out.take();
        let mut on_step = |step: &Step| {
            left_out.borrow_mut().push(step.left_out);
            ControlFlow::Continue(())
        };
        run_with((&plan, &program), &text(), &options, &mut on_step, &hooks)
    };
    let none = run(Precision::Fp16, |_, _| false).unwrap().losses;
    assert_eq!(left_out.take(), [false; 6], "{setup:?}");
    let one = run(Precision::Fp16, |step, layer| step == 2 && layer.index() == 1).unwrap().losses;
    assert_eq!(left_out.take(), [false, false, true, false, false, false], "{setup:?}");
    let all = run(Precision::Fp16, |step, _| step == 2).unwrap().losses;
    assert_eq!(bits(&one[..3]), bits(&none[..3]));
    assert_ne!(bits(&one[3..]), bits(&none[3..]));
    assert_eq!(bits(&one), bits(&all));
    if setup.clip_norm.is_some() {
        match run(Precision::Fp32, |step, layer| step == 2 && layer.index() == 1) {
            Err(RunError::Lane { error, .. }) => assert_eq!(error, NotFinite::Norm.into()),
            other => panic!("{other:?}"),
        }
    }
}

/// A loss scale of one is not halved any further.
#[test]
fn gradients_that_are_never_finite_end_the_run() {
    let (plan, program) = Setup { precision: Precision::Fp16, ..Setup::default() }.build();
    let hooks = Hooks { inject_nan: |_, layer| layer.index() == 1, ..Hooks::NONE };
    let options = Setup::options(Backend::Ndarray, 30);
    match run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks) {
        Err(RunError::Lane { action, error, .. }) => {
            assert_eq!(error.to_string(), "the norm of all gradients is not finite");
            // 65536 is halved 16 times.
            assert!(action.ends_with("of step 16"), "{action}");
        }
        other => panic!("{other:?}"),
    }
}

/// A delayed gradient carries the scale of its own loss, not that of the next one.
#[test]
fn late_steps_go_on_behind_an_overflow() {
    let stages = &["gpu0 0..2 socket", "gpu1 3..4 socket"];
    let precision = Precision::Fp16;
    let (plan, program) = Setup { system: System::ZeroOffloadDelayed, stages, precision, ..Setup::default() }.build();
    let folder = tempfile::tempdir().unwrap();
    let run = |options: &Options, inject_nan| {
        let hooks = Hooks { inject_nan, ..Hooks::NONE };
        let report = run_with((&plan, &program), &text(), options, &mut |_| ControlFlow::Continue(()), &hooks);
        report.unwrap_or_else(|error| panic!("{error}")).losses
    };
    let overflows: fn(u32, LayerId) -> bool = |step, layer| step == 2 && layer.index() == 1;
    let whole = run(&Setup::options(Backend::Ndarray, 6), overflows);
    let checkpoints = Some(Checkpoints { folder: folder.path().into(), every: 3 });
    run(&Options { checkpoints, ..Setup::options(Backend::Ndarray, 3) }, overflows);
    let resume = Checkpoint::newest(folder.path()).unwrap().checkpoint;
    let rest = run(&Options { resume, ..Setup::options(Backend::Ndarray, 6) }, |_, _| false);
    assert_eq!(bits(&rest), bits(&whole[3..]));
}

/// Without a check and without a loss scale the run fails.
#[test]
fn a_gradient_that_is_not_finite_ends_a_run_that_checks_nothing() {
    let inject_nan = |step, layer: LayerId| step == 2 && layer.index() == 1;
    let run = |setup: &Setup<'_>| {
        let (plan, program) = setup.build();
        let hooks = Hooks { inject_nan, ..Hooks::NONE };
        let options = Setup::options(Backend::Ndarray, 6);
        run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks)
    };
    let stages = &["gpu0 0..2 socket", "gpu1 3..4 socket"];
    let setup = Setup { system: System::ZeroOffload, stages, ..Setup::default() };
    match run(&setup) {
        Err(RunError::Lane { lane, action, error }) => {
            assert_eq!(
                (lane.as_str(), error.to_string().as_str()),
                ("cpu0.optimizer", "the gradients of layers 0..2 are not finite")
            );
            assert!(action.ends_with("of step 2"), "{action}");
        }
        other => panic!("{other:?}"),
    }
    // A scaled loss may overflow: that step is skipped.
    let losses = run(&Setup { precision: Precision::Fp16, ..setup }).map(|report| report.losses);
    assert!(losses.is_ok_and(|losses| losses.len() == 6 && losses.iter().all(|loss| loss.is_finite())));
}

/// No scale explains a loss that is not finite.
#[test]
fn a_loss_that_is_not_finite_ends_a_run_that_undoes_steps() {
    let setup = Setup {
        system: System::Spipe,
        stages: &FORWARD,
        backward: &BACKWARD,
        precision: Precision::Fp16,
        ..Setup::default()
    };
    let (plan, program) = setup.build();
    let options = Setup::options(Backend::Ndarray, 20);
    let options = crate::options::Options {
        optimizer: crate::optimizer::StepSettings { lr: 1e6, ..options.optimizer },
        ..options
    };
    let report = run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &Hooks::NONE);
    assert!(
        matches!(&report, Err(RunError::NotFinite { what }) if what.starts_with("the loss of step ")),
        "{report:?}"
    );
}

#[test]
fn arithmetic_takes_a_step_back_but_for_rounding() {
    let knobs = &[(Knob::ArithmeticUndo, 1)];
    let skipped = losses(knobs, |step, _| step == 2);
    let undone = losses(knobs, |step, layer| step == 2 && layer.index() == 4);
    for (undone, skipped) in undone.iter().zip(&skipped) {
        assert!((undone - skipped).abs() < 1e-3 * skipped, "{undone} {skipped}");
    }
}
