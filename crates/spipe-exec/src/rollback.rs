//! Tests of steps that are taken on trust and undone.

use crate::{
    Backend, RunError,
    failures::{
        machine::text,
        setup::{BACKWARD, FORWARD, Setup},
    },
    run::{Hooks, run_with},
};
use spipe_base::LayerId;
use spipe_model::Precision;
use spipe_plan::{Knobs, System};
use std::ops::ControlFlow;

/// The losses of six steps in which some gradients are spoilt.
fn losses(knobs: Knobs, spoils: fn(u32, LayerId) -> bool) -> Vec<f64> {
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
    let hooks = Hooks { spoils, ..Hooks::NONE };
    let options = Setup::options(Backend::Flex, 6);
    let report = run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks);
    report.unwrap_or_else(|error| panic!("{error}")).losses
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn a_step_that_is_rolled_back_has_not_happened() {
    let none = losses(Knobs::default(), |_, _| false);
    // Every chunk refuses to step by itself: nothing has to be undone.
    let skipped = losses(Knobs::default(), |step, _| step == 2);
    assert_eq!(bits(&skipped[..3]), bits(&none[..3]));
    assert_ne!(bits(&skipped[3..]), bits(&none[3..]));
    // One chunk refuses; the steps of the others are undone from their logs.
    for spoils in
        [|step, layer: LayerId| step == 2 && layer.index() == 4, |step, layer: LayerId| step == 2 && layer.index() == 0]
    {
        let undone = losses(Knobs::default(), spoils);
        assert_eq!(bits(&undone), bits(&skipped), "{undone:?} {skipped:?}");
    }
}

/// Who waits for the norm of all gradients steps nothing if some are not finite; without a scale something is wrong.
#[test]
fn a_norm_that_is_not_finite_leaves_out_all_steps_or_ends_the_run() {
    let on_devices: &[&str] = &["gpu0 0..1", "gpu1 2..4 socket"];
    let on_cores: &[&str] = &["gpu0 0..2", "cpu0 3..4"];
    for stages in [on_devices, on_cores] {
        leaves_out_all(stages);
    }
}

fn leaves_out_all(stages: &[&str]) {
    let run = |precision, spoils: fn(u32, LayerId) -> bool| {
        let setup = Setup { stages, precision, clip_norm: Some(0.1), ..Setup::default() };
        let (plan, program) = setup.build();
        let hooks = Hooks { spoils, ..Hooks::NONE };
        let options = Setup::options(Backend::Flex, 6);
        run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks)
    };
    let none = run(Precision::Fp16, |_, _| false).unwrap().losses;
    let one = run(Precision::Fp16, |step, layer| step == 2 && layer.index() == 1).unwrap().losses;
    let all = run(Precision::Fp16, |step, _| step == 2).unwrap().losses;
    assert_eq!(bits(&one[..3]), bits(&none[..3]));
    assert_ne!(bits(&one[3..]), bits(&none[3..]));
    assert_eq!(bits(&one), bits(&all));
    match run(Precision::Fp32, |step, layer| step == 2 && layer.index() == 1) {
        Err(RunError::Lane { message, .. }) => assert_eq!(message, "the norm of all gradients is not finite"),
        other => panic!("{other:?}"),
    }
}

/// Without a norm each stage leaves out its own step, one on cores too.
#[test]
fn a_scaled_gradient_that_is_not_finite_reaches_no_parameter() {
    let setup = Setup { stages: &["gpu0 0..2", "cpu0 3..4"], precision: Precision::Fp16, ..Setup::default() };
    let (plan, program) = setup.build();
    let hooks = Hooks { spoils: |step, layer| step == 2 && layer.index() == 3, ..Hooks::NONE };
    let options = Setup::options(Backend::Flex, 6);
    let report = run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks).unwrap();
    assert!(report.losses.iter().all(|loss| loss.is_finite()), "{:?}", report.losses);
}

/// Nothing undoes it and no scale explains it: something is wrong.
#[test]
fn a_gradient_that_is_not_finite_ends_a_run_that_checks_nothing() {
    let spoils = |step, layer: LayerId| step == 2 && layer.index() == 1;
    let run = |setup: &Setup<'_>| {
        let (plan, program) = setup.build();
        let hooks = Hooks { spoils, ..Hooks::NONE };
        let options = Setup::options(Backend::Flex, 6);
        run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &hooks)
    };
    let stages = &["gpu0 0..2 socket", "gpu1 3..4 socket"];
    let setup = Setup { system: System::ZeroOffload, stages, ..Setup::default() };
    match run(&setup) {
        Err(RunError::Lane { lane, action, message }) => {
            assert_eq!(
                (lane.as_str(), message.as_str()),
                ("cpu0.optimizer", "the gradients of layers 0..2 are not finite")
            );
            assert!(action.ends_with("of step 2"), "{action}");
        }
        other => panic!("{other:?}"),
    }
    // A loss that is scaled may overflow: that step is left out.
    let losses = run(&Setup { precision: Precision::Fp16, ..setup }).map(|report| report.losses);
    assert!(losses.is_ok_and(|losses| losses.len() == 6 && losses.iter().all(|loss| loss.is_finite())));
}

/// No scale explains a loss that is not finite, though steps are undone.
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
    let options = Setup::options(Backend::Flex, 20);
    let options = crate::Options { optimizer: crate::AdamW { lr: 1e6, ..options.optimizer }, ..options };
    let report = run_with((&plan, &program), &text(), &options, &mut |_| ControlFlow::Continue(()), &Hooks::NONE);
    assert!(
        matches!(&report, Err(RunError::NotFinite { what }) if what.starts_with("the loss of step ")),
        "{report:?}"
    );
}

#[test]
fn arithmetic_takes_a_step_back_but_for_rounding() {
    let knobs = Knobs { arithmetic_undo: true, ..Knobs::default() };
    let skipped = losses(knobs, |step, _| step == 2);
    let undone = losses(knobs, |step, layer| step == 2 && layer.index() == 4);
    for (undone, skipped) in undone.iter().zip(&skipped) {
        assert!((undone - skipped).abs() < 1e-3 * skipped, "{undone} {skipped}");
    }
}
