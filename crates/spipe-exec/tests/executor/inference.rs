//! Inference finds the same as plain passes without caches.

use crate::{
    machine::{GPT, UNET, VIT, data},
    setup::{Setup, losses_are_near},
    systems::UNITS,
};
use spipe_base::Bytes;
use spipe_cost::Mode;
use spipe_exec::{Backend, Checkpoints, Inferred, Options, Outputs, Report, RunError, inferred, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use std::ops::ControlFlow;

const MODES: [Mode; 2] = [Mode::Infer, Mode::Generate];

fn ran(setup: &Setup<'_>, options: &Options) -> Result<Report, RunError> {
    let (plan, program) = setup.build();
    run(&plan, &program, &data(&plan), options, &mut |_| ControlFlow::Continue(()))
}

pub fn both(setup: &Setup<'_>, backend: Backend, steps: u32) -> (Report, Inferred) {
    let (plan, program) = setup.build();
    let options = Setup::options(backend, steps);
    let plain = inferred(&plan, &program, &data(&plan), &options).unwrap_or_else(|error| panic!("{error}"));
    let report = ran(setup, &options).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    for memory in &report.memories {
        assert!(memory.planned <= memory.capacity.unwrap_or(Bytes::ZERO), "{setup:?}: {memory:?}");
        assert!(memory.held > Bytes::ZERO && memory.held <= memory.planned, "{setup:?}: {memory:?}");
    }
    assert_eq!(report.losses.len(), steps as usize);
    losses_are_near(setup, &report.losses, &plain.losses, 1e-5);
    (report, plain)
}

/// The tokens found, which are the same.
fn tokens(setup: &Setup<'_>, backend: Backend, steps: u32) -> Vec<Vec<i32>> {
    let (report, plain) = both(setup, backend, steps);
    let (Some(Outputs::Tokens { prompts, tokens, per_token }), Outputs::Tokens { tokens: wanted, prompts: before, .. }) =
        (report.outputs, plain.outputs)
    else {
        panic!("no tokens")
    };
    assert_eq!(tokens, wanted, "{setup:?}");
    assert_eq!(prompts, before, "{setup:?}");
    assert_eq!((tokens.len(), tokens[0].len()), (2 * setup.microbatches as usize, steps as usize));
    let long = if setup.mode == Mode::Infer { 16 } else { 17 - steps as usize };
    assert!(prompts.iter().all(|prompt| prompt.len() == long), "{prompts:?}");
    assert_eq!(per_token.is_some(), steps > 1);
    tokens
}

#[test]
fn text_goes_on_as_without_a_cache() {
    let setups = [
        Setup { stages: &["cpu0 0..4"], system: System::Gpipe, ..Setup::default() },
        Setup { stages: &["gpu0 0..1", "gpu1 2..4"], system: System::Gpipe, ..Setup::default() },
        Setup { stages: &["gpu0 0..0", "gpu1 1..2", "cpu0 3..4"], microbatches: 3, ..Setup::default() },
    ];
    for setup in setups {
        for mode in MODES {
            let found = tokens(&Setup { mode, ..setup.clone() }, Backend::Ndarray, 7);
            let mut all: Vec<i32> = found.concat();
            all.sort_unstable();
            all.dedup();
            assert!(all.len() > 5, "hardly anything is found: {found:?}");
        }
    }
    // Prompts alone.
    tokens(&Setup { mode: Mode::Infer, ..Setup::default() }, Backend::Ndarray, 1);
}

#[test]
fn parameters_from_the_host_generate_too() {
    for mode in MODES {
        for (resident, swap) in [(1, 1), (3, 2), (5, 5)] {
            let knobs = &[(Knob::Resident, resident), (Knob::Swap, swap)];
            let setup = Setup { system: System::Superpipeline, stages: &UNITS, knobs, mode, ..Setup::default() };
            tokens(&setup, Backend::Ndarray, 4);
        }
        tokens(
            &Setup { system: System::Superpipeline, stages: &crate::systems::KEPT[1], mode, ..Setup::default() },
            Backend::Ndarray,
            4,
        );
        let stages = &["gpu0 0..1 streamed", "gpu1 2..2 streamed", "gpu0 3..3 streamed", "gpu1 4..4 streamed"];
        tokens(&Setup { system: System::Mobius, stages, mode, ..Setup::default() }, Backend::Ndarray, 4);
        tokens(
            &Setup { system: System::Fsdp, stages: &["gpu0 0..2", "gpu0 3..4"], mode, ..Setup::default() },
            Backend::Ndarray,
            4,
        );
    }
}

#[test]
fn tied_heads_generate_without_dropout() {
    let model = &GPT.replace("places = 16", "places = 16\ntied = true\ndropout = true");
    let setup = Setup { model, stages: &["gpu0 0..3"], mode: Mode::Generate, ..Setup::default() };
    tokens(&setup, Backend::Ndarray, 5);
    // The head projects with a copy of the table, or with that of its own device.
    for mode in [Mode::Generate, Mode::Infer] {
        let prompts = if mode == Mode::Generate { 5 } else { 1 };
        tokens(&Setup { stages: &["gpu0 0..1", "cpu0 2..3"], mode, ..setup.clone() }, Backend::Ndarray, prompts);
        tokens(&Setup { stages: &["gpu0 0..1", "gpu0 2..3"], mode, ..setup.clone() }, Backend::Ndarray, prompts);
        let stages = &["gpu0 0..0 streamed", "gpu0 1..2 streamed", "gpu0 3..3 streamed"];
        tokens(&Setup { system: System::Superpipeline, stages, mode, ..setup.clone() }, Backend::Ndarray, prompts);
    }
}

/// A stage with an embedding alone has no cache, from which the next position would follow.
#[test]
fn learned_positions_go_on_in_a_stage_of_their_own() {
    let setup = Setup { model: GPT, mode: Mode::Generate, ..Setup::default() };
    tokens(&Setup { stages: &["gpu0 0..0", "gpu1 1..3"], ..setup.clone() }, Backend::Ndarray, 5);
    let stages = &["gpu0 0..0 streamed", "gpu0 1..2 streamed", "gpu0 3..3 streamed"];
    tokens(&Setup { system: System::Superpipeline, stages, ..setup }, Backend::Ndarray, 5);
}

#[test]
fn learned_positions_end() {
    let setup = Setup { model: GPT, stages: &["gpu0 0..1", "cpu0 2..3"], mode: Mode::Generate, ..Setup::default() };
    tokens(&setup, Backend::Ndarray, 16);
    let refused = |setup: &Setup<'_>, steps| {
        let error = ran(setup, &Setup::options(Backend::Ndarray, steps)).map(|_| ()).unwrap_err();
        assert!(matches!(error, RunError::Unsupported(_)), "{error}");
        error.to_string()
    };
    let long = refused(&setup, 17);
    assert!(long.contains("sequences of 16 tokens have no room for a prompt and 17 tokens"), "{long}");
    let beyond = refused(&Setup { mode: Mode::Infer, ..setup }, 2);
    assert!(beyond.contains("`small-gpt` has 16 positions, prompts of 16 tokens and 2 more take 17"), "{beyond}");
}

/// The rows of images, which are the same up to rounding.
fn rows(setup: &Setup<'_>, steps: u32) -> (usize, Vec<f32>) {
    let (report, plain) = both(setup, Backend::Ndarray, steps);
    let (Some(Outputs::Images { width, rows }), Outputs::Images { width: columns, rows: wanted }) =
        (report.outputs, plain.outputs)
    else {
        panic!("no images")
    };
    assert_eq!((width, rows.len()), (columns, wanted.len()));
    let most = wanted.iter().fold(0.0f32, |most, number| most.max(number.abs()));
    let apart = rows.iter().zip(&wanted).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
    assert!(apart <= 1e-4 * most && most > 0.0, "{setup:?}: {apart} of {most}");
    (width, rows)
}

#[test]
fn images_become_vectors() {
    for mode in MODES {
        let setup = Setup { model: VIT, stages: &["gpu0 0..1", "cpu0 2..3"], mode, ..Setup::default() };
        let (width, found) = rows(&setup, 3);
        assert_eq!((width, found.len()), (32, 3 * 8 * 32), "three steps of eight images");
        assert!(found[..32] != found[32..64] && found[..256] != found[256..512]);
    }
}

#[test]
fn noise_is_taken_from_images_step_by_step() {
    for mode in MODES {
        let stages = &["gpu0 0..3", "gpu1 4..8", "cpu0 9..12"];
        let setup = Setup { model: UNET, stages, mode, ..Setup::default() };
        let (width, found) = rows(&setup, 3);
        assert_eq!((width, found.len()), (2 * 7 * 7, 8 * 2 * 7 * 7));
        assert!(found != rows(&setup, 4).1);
    }
}

#[test]
fn sixteen_bits_generate_within_rounding() {
    let setup = Setup {
        stages: &["gpu0 0..1", "gpu1 2..4"],
        precision: Precision::Bf16,
        mode: Mode::Infer,
        ..Setup::default()
    };
    let (plan, program) = setup.build();
    let options = Setup::options(Backend::Ndarray, 2);
    let plain = inferred(&plan, &program, &data(&plan), &options).unwrap();
    let report = ran(&setup, &options).unwrap();
    losses_are_near(&setup, &report.losses, &plain.losses, 0.02);
    assert!(report.losses != plain.losses, "nothing was rounded");
    assert!(report.memories.iter().all(|memory| memory.held <= memory.planned), "{:?}", report.memories);
}

#[test]
fn an_inference_that_is_stopped_has_what_was_found() {
    let setup = Setup { mode: Mode::Infer, ..Setup::default() };
    let (plan, program) = setup.build();
    let mut steps = Vec::new();
    let report = run(&plan, &program, &data(&plan), &Setup::options(Backend::Ndarray, 1000), &mut |step| {
        steps.push(step.index);
        if step.index == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(steps, (0..steps.len() as u32).collect::<Vec<_>>());
    let Some(Outputs::Tokens { tokens, .. }) = report.outputs else { panic!("no tokens") };
    assert!(tokens.iter().all(|tokens| tokens.len() == report.losses.len()), "{tokens:?}");
}

#[test]
fn nothing_is_kept_where_nothing_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Some(Checkpoints { folder: folder.path().join("kept"), every: 1 });
    let options = Options { checkpoints, ..Setup::options(Backend::Ndarray, 2) };
    for (model, stages) in [(VIT, &["cpu0 0..3"]), (crate::machine::LLAMA, &["cpu0 0..4"])] {
        let setup = Setup { model, stages, mode: Mode::Infer, ..Setup::default() };
        let error = ran(&setup, &options).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("error: nothing is trained that a checkpoint or saved weights could hold"),
            "{error}"
        );
    }
    assert!(!folder.path().join("kept").exists());
}
