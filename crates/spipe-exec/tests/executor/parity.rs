//! Every schedule yields the losses and gradients of plain training, bit for bit if the order of
//! the arithmetic is the same.

use crate::{
    machine::{Case, GPT, UNET, VIT, data},
    setup::losses_are_near,
};
use spipe_exec::{Backend, Gradient, Reference, Report, reference, run};
use spipe_plan::System;
use std::ops::ControlFlow;

/// Runs some steps of a case, and of plain training.
fn both(case: &Case<'_>, backend: Backend, steps: u32) -> (Report, Reference) {
    let (plan, program) = case.build();
    let (data, options) = (data(&plan), case.options(backend, steps));
    let plain = reference(&plan, &program, &data, &options).unwrap_or_else(|error| panic!("{error}"));
    let mut seen = Vec::new();
    let report = run(&plan, &program, &data, &options, &mut |step| {
        seen.push(step.loss);
        ControlFlow::Continue(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(bits(&seen), bits(&report.losses));
    (report, plain)
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Gradients of the same tensors, none of which is zero.
fn pairs<'a>(report: &'a Report, plain: &'a Reference) -> impl Iterator<Item = (&'a Gradient, &'a Gradient)> {
    assert_eq!(report.gradients.len(), plain.gradients.len());
    report.gradients.iter().zip(&plain.gradients).inspect(|(ours, theirs)| {
        assert_eq!((&ours.layer, &ours.tensor), (&theirs.layer, &theirs.tensor));
        assert!(ours.values.iter().any(|value| *value != 0.0), "{} {} is zero", ours.layer, ours.tensor);
    })
}

fn check(case: &Case<'_>, backend: Backend) {
    let (report, plain) = both(case, backend, 20);
    assert_eq!(bits(&report.losses), bits(&plain.losses), "{case:?}: {:?} {:?}", report.losses, plain.losses);
    for (ours, theirs) in pairs(&report, &plain) {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&ours.values) == bits(&theirs.values), "{case:?}: {} {}", ours.layer, ours.tensor);
    }
}

/// If several layers after a cut read one before it, their gradients are added in another order.
fn check_within_rounding(case: &Case<'_>, backend: Backend, steps: u32) {
    let (report, plain) = both(case, backend, steps);
    losses_are_near(case, &report.losses, &plain.losses, 1e-5);
    for (ours, theirs) in pairs(&report, &plain) {
        let most = theirs.values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let apart = ours.values.iter().zip(&theirs.values).map(|(ours, theirs)| (ours - theirs).abs());
        let apart = apart.fold(0.0f32, f32::max);
        assert!(apart <= 1e-4 * most + 1e-7, "{case:?}: {} {} {apart} {most}", ours.layer, ours.tensor);
    }
}

fn on_all(case: &Case<'_>) {
    for backend in Backend::ALL {
        check(case, backend);
    }
}

#[test]
fn one_stage() {
    on_all(&Case { stages: &[("cpu0", "0..4", 0)], ..Case::default() });
    on_all(&Case { stages: &[("gpu0", "0..4", 2)], system: System::Gpipe, ..Case::default() });
    on_all(&Case { stages: &[("gpu0", "0..4", 5)], ..Case::default() });
}

#[test]
fn two_stages() {
    on_all(&Case::default());
    on_all(&Case { system: System::Gpipe, ..Case::default() });
    on_all(&Case { stages: &[("gpu0", "0..2", 2), ("cpu0", "3..4", 1)], ..Case::default() });
}

#[test]
fn three_stages() {
    let stages = [("gpu0", "0..1", 0), ("gpu1", "2..3", 2), ("cpu0", "4..4", 0)];
    on_all(&Case { stages: &stages, ..Case::default() });
    on_all(&Case { stages: &stages, system: System::Gpipe, microbatches: 3, ..Case::default() });
    let recomputed = [("gpu0", "0..1", 1), ("gpu1", "2..3", 1), ("cpu0", "4..4", 1)];
    on_all(&Case { stages: &recomputed, microbatches: 5, ..Case::default() });
}

#[test]
fn a_head_start() {
    for head_start in 1..3 {
        let stages = [("cpu0", "0..1", 0), ("gpu0", "2..3", 1), ("gpu1", "4..4", 0)];
        on_all(&Case { stages: &stages, system: System::Hybrid, head_start, microbatches: 5, ..Case::default() });
    }
}

#[test]
fn biases_learned_positions_and_layer_norms() {
    on_all(&Case { model: GPT, stages: &[("gpu0", "0..1", 1), ("cpu0", "2..3", 0)], ..Case::default() });
}

#[test]
fn image_encoders() {
    on_all(&Case { model: VIT, stages: &[("gpu0", "0..1", 1), ("cpu0", "2..3", 0)], ..Case::default() });
    on_all(&Case { model: VIT, stages: &[("cpu0", "0..3", 2)], ..Case::default() });
}

#[test]
fn denoising_networks() {
    on_all(&Case { model: UNET, stages: &[("cpu0", "0..12", 0)], ..Case::default() });
    for backend in Backend::ALL {
        // Cuts between conditioning and image, on the way down, in the middle, and on the way up.
        for (first, second) in [("0..0", "1..12"), ("0..3", "4..12"), ("0..6", "7..12"), ("0..9", "10..12")] {
            let stages = [("gpu0", first, 0), ("cpu0", second, 0)];
            check_within_rounding(&Case { model: UNET, stages: &stages, ..Case::default() }, backend, 5);
        }
        let recomputed = [("gpu0", "0..4", 5), ("gpu1", "5..8", 2), ("cpu0", "9..12", 0)];
        check_within_rounding(&Case { model: UNET, stages: &recomputed, ..Case::default() }, backend, 20);
    }
}

/// The mean loss of ten steps at the start and at the end of sixty.
fn learns(case: &Case<'_>) -> [f64; 2] {
    let (plan, program) = case.build();
    let options = case.options(Backend::Ndarray, 60);
    let report = run(&plan, &program, &data(&plan), &options, &mut |_| ControlFlow::Continue(()))
        .unwrap_or_else(|error| panic!("{error}"));
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    [mean(&report.losses[..10]), mean(&report.losses[50..])]
}

#[test]
fn every_kind_of_model_learns() {
    let text = learns(&Case::default());
    assert!(text[1] < 0.8 * text[0], "{text:?}");
    let classes = learns(&Case { model: VIT, stages: &[("gpu0", "0..1", 0), ("cpu0", "2..3", 0)], ..Case::default() });
    assert!(classes[0] < 1.6 && classes[1] < 0.5 * classes[0], "{classes:?}");
    let noise = learns(&Case { model: UNET, stages: &[("gpu0", "0..6", 0), ("cpu0", "7..12", 0)], ..Case::default() });
    assert!(noise[0] < 3.0 && noise[1] < 0.8 * noise[0], "{noise:?}");
}
