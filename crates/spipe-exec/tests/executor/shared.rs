//! Tied weights in different stages: gradients of embedding and head add up before the step, and
//! the head's copy of the table is updated. Microbatches are summed before the two uses, so that
//! gradients differ from plain training by rounding.

use crate::{
    machine::{GPT, text},
    setup::{Setup, losses_are_near},
    systems::{STEPS, all_devices, both, within_rounding},
};
use spipe_base::{ActionKind, Bytes, Payload};
use spipe_cost::Mode;
use spipe_exec::{Backend, Options, Report, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use spipe_schedule::{Content, Program};
use std::ops::ControlFlow;

/// Embedding, two blocks, head.
pub fn tied() -> String {
    GPT.replace("places = 16", "places = 16\ntied = true")
}

/// Every system with its stages.
pub fn cases(model: &str) -> Vec<Setup<'_>> {
    let pair: &[&str] = &["gpu0 0..1", "gpu1 2..3"];
    let of = |system, stages| Setup { system, stages, model, ..Setup::default() };
    let vee: &[&str] = &["gpu0 0..0", "gpu1 1..1", "gpu1 2..2", "gpu0 3..3"];
    let dealt: &[&str] = &["gpu0 0..0", "gpu1 1..1", "gpu0 2..2", "gpu1 3..3 recompute"];
    let units: &[&str] =
        &["gpu0 0..0 streamed", "gpu0 1..1 streamed", "gpu0 2..2 streamed recompute", "gpu0 3..3 streamed"];
    let kept: &[&str] = &["gpu0 0..0", "gpu0 1..1 streamed", "gpu0 2..2 streamed recompute", "gpu0 3..3"];
    let kept_apart: &[&str] = &["gpu0 0..0", "gpu1 1..1 streamed", "gpu0 2..2 streamed recompute", "gpu1 3..3"];
    let knobs = &[(Knob::Resident, 2), (Knob::Swap, 1)];
    let four: &[&str] = &["gpu0 0..0", "gpu1 1..1", "gpu2 2..2", "gpu3 3..3"];
    vec![
        of(System::OneForwardOneBackward, pair),
        Setup { gpus: 4, ..of(System::OneForwardOneBackward, four) },
        of(System::Gpipe, &["gpu0 0..1 recompute", "gpu1 2..3 recompute"]),
        of(System::Gpipe, &["gpu0 0..2 recompute", "gpu1 3..3 recompute"]),
        of(System::Zb2p, pair),
        of(System::ZbH1, &["gpu0 0..0", "gpu1 1..3 recompute:3"]),
        of(System::ZbV, vee),
        of(System::Interleaved, dealt),
        of(System::Hybrid, &["gpu0 0..1", "cpu0 2..3"]),
        Setup { knobs: &[(Knob::HeadStart, 1)], ..of(System::Hybrid, &["cpu0 0..0", "gpu0 1..3"]) },
        of(System::PoF, &["gpu0 0..0", "gpu1 1..1 offload", "gpu0 2..2", "gpu1 3..3 offload"]),
        of(System::ZeroOffload, &["gpu0 0..1 socket", "gpu1 2..3 socket recompute:1"]),
        of(System::OneForwardOneBackward, &["gpu0 0..1", "gpu1 2..3 socket"]),
        of(System::ZeroOffloadDelayed, &["gpu0 0..1 socket", "gpu1 2..3 socket"]),
        Setup {
            knobs: &[(Knob::GradientsLeave, 1)],
            ..of(System::ZeroOffload, &["gpu0 0..0 socket", "gpu0 1..1 socket", "gpu1 2..2 socket", "gpu1 3..3 socket"])
        },
        Setup { knobs, ..of(System::Superpipeline, units) },
        Setup {
            knobs: &[(Knob::Resident, 2), (Knob::Swap, 1), (Knob::WriteBack, 1)],
            ..of(System::Superpipeline, units)
        },
        Setup { knobs, ..of(System::Superpipeline, kept) },
        of(System::Superpipeline, kept_apart),
        of(System::NaiveSwap, units),
        of(System::Mobius, &["gpu0 0..1 streamed recompute", "gpu1 2..3 streamed recompute"]),
        of(System::Mobius, &["gpu0 0..1 recompute", "gpu1 2..3 recompute"]),
        spipe(model),
        of(System::Fsdp, &["gpu0 0..1", "gpu0 2..3 recompute"]),
        of(System::Fsdp, &["gpu0 0..0 socket", "gpu0 1..2", "gpu0 3..3 socket"]),
        of(System::ZeroInfinity, &["gpu0 0..1 streamed", "gpu0 2..3 streamed recompute:1"]),
    ]
}

/// Forward and backward are cut differently; the head is never beside the embedding.
fn spipe(model: &str) -> Setup<'_> {
    let stages = &["gpu0 0..1 streamed", "gpu1 2..3 streamed"];
    let backward = &["gpu0 0..0 streamed recompute", "gpu1 1..1 streamed recompute", "gpu0 2..3 streamed recompute"];
    Setup { system: System::Spipe, stages, backward, model, ..Setup::default() }
}

fn adds(program: &Program) -> usize {
    program.actions().iter().filter(|action| action.kind == ActionKind::Accumulate).count()
}

#[test]
fn every_system_sums_both_gradients() {
    for setup in cases(&tied()) {
        let devices = if matches!(setup.system, System::Fsdp | System::ZeroInfinity) { 2 } else { 1 };
        assert_eq!(adds(&setup.build().1), devices, "{setup:?}");
        let results = both(&setup, Backend::Ndarray, STEPS);
        within_rounding(&setup, &results);
        assert!(results.1.losses[STEPS as usize - 1] < results.1.losses[0], "it learns: {:?}", results.1.losses);
    }
}

/// Without an update of the head's copy, later losses would differ; without its gradients, the
/// first step would.
#[test]
fn both_backends_and_frozen_layers() {
    let model = tied();
    let pair: &[&str] = &["gpu0 0..1", "gpu1 2..3"];
    for system in [System::OneForwardOneBackward, System::ZbH1] {
        let setup = Setup { system, stages: pair, model: &model, ..Setup::default() };
        within_rounding(&setup, &both(&setup, Backend::Ndarray, STEPS));
        for frozen in [&["3..3"][..], &["0..0"], &["0..1"], &["1..2"]] {
            let setup = Setup { frozen, ..setup.clone() };
            let table_trains = !frozen[0].starts_with('0');
            assert_eq!(adds(&setup.build().1), usize::from(table_trains), "{setup:?}");
            within_rounding(&setup, &both(&setup, Backend::Ndarray, 5));
        }
    }
}

/// On one device both stages read one table, and no copy of it is made.
#[test]
fn stages_of_one_device_share_one_table() {
    let model = tied();
    let all = cases(&model);
    let is_kept = |setup: &&Setup<'_>| setup.system == System::Superpipeline && setup.stages[3] == "gpu0 3..3";
    let [vee, kept] = [all.iter().find(|setup| setup.system == System::ZbV), all.iter().find(is_kept)];
    // The two blocks between them run twice, in a forward and a backward, except the one at the
    // turn.
    for (setup, moves) in [(vee.unwrap(), 0), (kept.unwrap(), 2 + 2)] {
        let (_, program) = setup.build();
        assert!(!program.buffers().iter().any(|buffer| matches!(buffer.content, Content::Shared(_))));
        let moved = |action: &&spipe_schedule::Action| {
            matches!(action.kind, ActionKind::Copy(Payload::WeightsIn | Payload::GradientsOut))
        };
        assert_eq!(program.actions().iter().filter(moved).count(), moves, "{setup:?}");
    }
}

/// Gradients within a twentieth or a hundredth of their norm, losses within a fiftieth or a
/// two-hundredth, as for tables that are not tied.
#[test]
fn sixteen_bits() {
    let model = tied();
    for (precision, of_losses) in [(Precision::Bf16, 0.02), (Precision::Fp16, 0.005)] {
        let all = cases(&model).into_iter().chain([Setup { knobs: &[(Knob::ArithmeticUndo, 1)], ..spipe(&model) }]);
        for setup in all.map(|setup| Setup { precision, ..setup }) {
            let (plain, report) = both(&setup, Backend::Ndarray, 6);
            losses_are_near(&setup, &report.losses, &plain.losses, of_losses);
        }
    }
}

fn train(setup: &Setup<'_>, options: &Options) -> Report {
    let (plan, program) = setup.build();
    run(&plan, &program, &text(), options, &mut |_| ControlFlow::Continue(()))
        .unwrap_or_else(|error| panic!("{setup:?}: {error}"))
}

/// The table is saved once, and both stages start from it.
#[test]
fn the_table_is_saved_once() {
    let model = tied();
    let first = |setup: &Setup<'_>, weights: &std::path::Path| {
        let options = Options { weights: Some(weights.into()), ..all_devices(setup, Backend::Ndarray, 1) };
        train(setup, &options).losses[0]
    };
    let whole = Setup { stages: &["gpu0 0..3"], model: &model, ..Setup::default() };
    let mut seen = Vec::new();
    for setup in cases(&model) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { save_weights: Some(folder.path().into()), ..all_devices(&setup, Backend::Ndarray, 2) };
        train(&setup, &options);
        let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
        let header =
            String::from_utf8_lossy(&bytes[8..8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize]);
        assert!(header.contains("transformer.wte.weight") && !header.contains("lm_head.weight"), "{header}");
        let (parted, plain) = (first(&setup, folder.path()), first(&whole, folder.path()));
        assert_eq!(parted.to_bits(), plain.to_bits(), "{setup:?}");
        seen.push(parted);
    }
    assert!(seen.iter().all(|loss| *loss > 0.0));
}

/// The head's copy takes a table and its gradients, and nothing else.
#[test]
fn the_copy_is_counted_where_it_is() {
    let parted = tied();
    let held = |model: &str, stages: &[&str]| {
        let report = train(&Setup { model, stages, ..Setup::default() }, &Setup::options(Backend::Ndarray, 2));
        let of = |name: &str| report.memories.iter().find(|memory| memory.name == name).map(|memory| memory.held);
        of("gpu1").unwrap_or(Bytes::ZERO)
    };
    let (table, stages) = (256 * 32 * 4, &["gpu0 0..1", "gpu1 2..3"]);
    let (shared, own) = (held(&parted, stages), held(GPT, stages));
    // An untied head has two moments beside a table and its gradients.
    assert!(shared < own && own - shared <= Bytes::new(2 * table) + Bytes::kib(4), "{shared} {own}");
}

#[test]
fn forwards_read_the_copy() {
    let model = tied();
    let loss = |setup: &Setup<'_>| train(setup, &all_devices(setup, Backend::Ndarray, 1)).losses[0];
    let setup = |system, stages| Setup { system, stages, model: &model, mode: Mode::Infer, ..Setup::default() };
    let one = loss(&setup(System::Gpipe, &["gpu0 0..3"]));
    let two = setup(System::Gpipe, &["gpu0 0..1", "gpu1 2..3"]);
    assert_eq!(adds(&two.build().1), 0);
    assert_eq!(one.to_bits(), loss(&two).to_bits());
    let units: &[&str] = &["gpu0 0..1 streamed", "gpu0 2..2 streamed", "gpu0 3..3 streamed"];
    assert_eq!(one.to_bits(), loss(&setup(System::Superpipeline, units)).to_bits());
    let kept: [&[&str]; 2] =
        [&["gpu0 0..0", "gpu0 1..2 streamed", "gpu0 3..3"], &["gpu0 0..0", "gpu0 1..2 streamed", "gpu1 3..3"]];
    for kept in kept {
        assert_eq!(one.to_bits(), loss(&setup(System::Superpipeline, kept)).to_bits());
    }
}
