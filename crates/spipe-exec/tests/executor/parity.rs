//! Every schedule yields the losses and gradients of plain training, bit for bit.

use crate::machine::{Case, GPT, text};
use spipe_exec::{Backend, reference, run};
use spipe_plan::System;
use std::ops::ControlFlow;

/// Runs a case and compares five steps with the reference.
fn check(case: &Case<'_>, backend: Backend) {
    let (plan, program) = case.build();
    let (data, options) = (text(), case.options(backend, 5));
    let plain = reference(&plan, &program, &data, &options).unwrap_or_else(|error| panic!("{error}"));
    let mut seen = Vec::new();
    let report = run(&plan, &program, &data, &options, &mut |step| {
        seen.push(step.loss);
        ControlFlow::Continue(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&report.losses), bits(&plain.losses), "{case:?}: {:?} {:?}", report.losses, plain.losses);
    assert_eq!(bits(&seen), bits(&report.losses));
    assert!(report.losses[4] < report.losses[0], "it learns: {:?}", report.losses);
    assert_eq!(report.gradients.len(), plain.gradients.len());
    for (ours, theirs) in report.gradients.iter().zip(&plain.gradients) {
        assert_eq!((&ours.layer, &ours.tensor), (&theirs.layer, &theirs.tensor));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&ours.values) == bits(&theirs.values), "{case:?}: {} {}", ours.layer, ours.tensor);
        assert!(ours.values.iter().any(|value| *value != 0.0), "{} {} is zero", ours.layer, ours.tensor);
    }
}

fn on_both(case: &Case<'_>) {
    for backend in Backend::ALL {
        check(case, backend);
    }
}

#[test]
fn one_stage() {
    on_both(&Case { stages: &[("cpu0", "0..4", 0)], ..Case::default() });
    on_both(&Case { stages: &[("gpu0", "0..4", 2)], system: System::Gpipe, ..Case::default() });
    on_both(&Case { stages: &[("gpu0", "0..4", 5)], ..Case::default() });
}

#[test]
fn two_stages() {
    on_both(&Case::default());
    on_both(&Case { system: System::Gpipe, ..Case::default() });
    on_both(&Case { stages: &[("gpu0", "0..2", 2), ("cpu0", "3..4", 1)], ..Case::default() });
}

#[test]
fn three_stages() {
    let stages = [("gpu0", "0..1", 0), ("gpu1", "2..3", 2), ("cpu0", "4..4", 0)];
    on_both(&Case { stages: &stages, ..Case::default() });
    on_both(&Case { stages: &stages, system: System::Gpipe, microbatches: 3, ..Case::default() });
    let recomputed = [("gpu0", "0..1", 1), ("gpu1", "2..3", 1), ("cpu0", "4..4", 1)];
    on_both(&Case { stages: &recomputed, microbatches: 5, ..Case::default() });
}

#[test]
fn a_head_start() {
    for head_start in 1..3 {
        let stages = [("cpu0", "0..1", 0), ("gpu0", "2..3", 1), ("gpu1", "4..4", 0)];
        on_both(&Case { stages: &stages, system: System::Hybrid, head_start, microbatches: 5, ..Case::default() });
    }
}

#[test]
fn biases_learned_positions_and_layer_norms() {
    on_both(&Case { model: GPT, stages: &[("gpu0", "0..1", 1), ("cpu0", "2..3", 0)], ..Case::default() });
}

#[test]
fn libraries_differ_within_rounding() {
    let case = Case::default();
    let (plan, program) = case.build();
    let losses = |backend| reference(&plan, &program, &text(), &case.options(backend, 3)).unwrap().losses;
    for (flex, ndarray) in losses(Backend::Flex).iter().zip(losses(Backend::Ndarray)) {
        assert!((flex - ndarray).abs() < 1e-4 * flex.abs(), "{flex} {ndarray}");
    }
}
