//! Gradients of 32 bits beside parameters of 16: sums, copies and steps of every system, and their bytes.

use crate::{
    machine::{GPT, data},
    setup::{Setup, losses_are_near},
    shared::{cases, tied},
    systems::{STEPS, UNITS, all_devices, both},
};
use spipe_base::Bytes;
use spipe_cost::{GradientFormat, Optimizer};
use spipe_exec::{Backend, Gradient, Options, Report, RunError, run, save_initial_weights};
use spipe_model::{Model, Precision};
use spipe_plan::{Knob, System};
use spipe_schedule::{Content, Program};
use std::{fs, ops::ControlFlow, path::Path};

const WIDE: Option<GradientFormat> = Some(GradientFormat::F32);

/// Two stages: their boundary is rounded to 16 bits, and all systems round the same.
const PAIR: [&str; 2] = ["gpu0 0..1", "gpu1 2..4"];

fn wide<'a>() -> Setup<'a> {
    Setup { precision: Precision::Bf16, gradients: WIDE, ..Setup::default() }
}

fn narrow<'a>(setup: &Setup<'a>) -> Setup<'a> {
    Setup { gradients: None, ..setup.clone() }
}

fn try_run(setup: &Setup<'_>, options: &Options) -> Result<Report, RunError> {
    let (plan, program) = setup.build();
    run(&plan, &program, &data(&plan), options, &mut |_| ControlFlow::Continue(()))
}

fn train(setup: &Setup<'_>, options: &Options) -> Report {
    try_run(setup, options).unwrap_or_else(|error| panic!("{setup:?}: {error}"))
}

fn with_drive(setup: &Setup<'_>, steps: u32, folder: &Path) -> Options {
    let drives = [("nvme0".to_owned(), folder.to_owned())].into();
    Options { drives, ..all_devices(setup, Backend::Ndarray, steps) }
}

fn bits(report: &Report) -> Vec<u64> {
    report.losses.iter().map(|loss| loss.to_bits()).collect()
}

fn numbers(gradients: &[Gradient]) -> Vec<u32> {
    gradients.iter().flat_map(|gradient| &gradient.values).map(|number| number.to_bits()).collect()
}

/// Systems that cut the model into the same two stages; all of them add up microbatches in ascending order.
fn systems() -> Vec<Setup<'static>> {
    let of = |system, stages| Setup { system, stages, ..wide() };
    let sockets: &[&str] = &["gpu0 0..1 socket", "gpu1 2..4 socket"];
    let one: &[&str] = &["gpu0 0..1 socket", "gpu0 2..4 socket"];
    let streamed: &[&str] = &["gpu0 0..1 streamed", "gpu0 2..4 streamed"];
    let recomputed: &[&str] = &["gpu0 0..1 streamed recompute", "gpu1 2..4 streamed recompute"];
    vec![
        of(System::OneForwardOneBackward, &PAIR),
        of(System::GpuOnly, &PAIR),
        of(System::ZbH1, &PAIR),
        of(System::OneForwardOneBackward, sockets),
        of(System::ZeroOffload, one),
        Setup { knobs: &[(Knob::GradientsLeave, 1)], ..of(System::ZeroOffload, one) },
        of(System::ZeroOffload, &["gpu0 0..1 socket drive", "gpu0 2..4 socket drive"]),
        of(System::Superpipeline, streamed),
        of(System::Superpipeline, &["gpu0 0..1 streamed drive", "gpu0 2..4 streamed-from-drive"]),
        of(System::Mobius, recomputed),
        Setup { backward: recomputed, ..of(System::Spipe, &["gpu0 0..1 streamed", "gpu1 2..4 streamed"]) },
        of(System::Fsdp, &["gpu0 0..1", "gpu0 2..4 recompute"]),
        of(System::Fsdp, one),
    ]
}

/// All systems have the same losses and first gradients, bit for bit: nothing between a backward and a step rounds.
#[test]
fn systems_agree_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for (precision, clip_norm) in [(Precision::Bf16, None), (Precision::Fp16, Some(0.1))] {
        let of = |setup: Setup<'static>| Setup { precision, clip_norm, ..setup };
        let all: Vec<Setup<'_>> = systems().into_iter().map(of).collect();
        let reports = all.iter().map(|setup| train(setup, &with_drive(setup, STEPS, folder.path())));
        let reports: Vec<Report> = reports.collect();
        for (setup, report) in all.iter().zip(&reports) {
            assert_eq!(bits(report), bits(&reports[0]), "{setup:?}: {:?} {:?}", report.losses, reports[0].losses);
            assert_eq!(numbers(&report.gradients), numbers(&reports[0].gradients), "{setup:?}");
            let rounded = train(&narrow(setup), &with_drive(setup, STEPS, folder.path()));
            assert_ne!(bits(report), bits(&rounded), "{setup:?}: sums in 16 bits are the same");
        }
        assert!(reports[0].losses[STEPS as usize - 1] < reports[0].losses[0], "{:?}", reports[0].losses);
    }
}

/// Two microbatches are one round of two GPUs, whose sums are in the same order; offloaded activations are rounded
/// where they are offloaded.
#[test]
fn rounds_and_offloaded_activations() {
    let folder = tempfile::tempdir().expect("a folder");
    let agree = |setups: &[Setup<'_>]| {
        let go = |setup: &Setup<'_>| bits(&train(setup, &with_drive(setup, 6, folder.path())));
        let first = go(&setups[0]);
        setups.iter().for_each(|setup| assert_eq!(go(setup), first, "{setup:?}"));
        assert_ne!(go(&narrow(&setups[0])), first, "{:?}", setups[0]);
    };
    let of = |system, stages| Setup { system, stages, microbatches: 2, ..wide() };
    agree(&[
        of(System::OneForwardOneBackward, &PAIR),
        of(System::ZeroInfinity, &["gpu0 0..1 streamed", "gpu0 2..4 streamed recompute"]),
        of(System::ZeroInfinity, &["gpu0 0..1 streamed socket drive", "gpu0 2..4 streamed socket drive"]),
        of(System::ZeroInfinity, &["gpu0 0..1 streamed-from-drive socket drive", "gpu0 2..4 streamed socket"]),
    ]);
    agree(&[
        of(System::OneForwardOneBackward, &["gpu0 0..1 offload", "gpu1 2..4 offload"]),
        of(System::PoF, &["gpu0 0..1 offload", "gpu1 2..4 offload"]),
        of(System::PoH, &["gpu0 0..1 offload-to-drive", "gpu1 2..4 offload"]),
    ]);
    // Each layer is a chunk of its own.
    let units = UNITS.map(|stage| stage.replace("gpu0", "gpu1").replace("streamed", "streamed recompute"));
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    agree(&[of(System::Superpipeline, &UNITS), of(System::NaiveSwap, &UNITS), of(System::Mobius, &units)]);
}

/// Weights that 16 bits hold exactly.
fn rounded_weights(folder: &Path) {
    let model = Model::from_toml("model.toml", Setup::default().model).expect("a model");
    save_initial_weights(&model, 7, folder).expect("weights");
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("weights");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("a header")) as usize;
    for number in bytes[8 + header..].as_chunks_mut::<4>().0 {
        let wide = f32::from_le_bytes(*number);
        *number = burn::tensor::bf16::from_f32(wide).to_f32().to_le_bytes();
    }
    fs::write(path, bytes).expect("weights");
}

/// With parameters that 16 bits hold, the first gradients of one stage are those of a run in f32, however many
/// microbatches they are sums of. Sums in 16 bits are off, and more so with more microbatches.
#[test]
fn sums_are_those_of_a_run_in_f32() {
    let folder = tempfile::tempdir().expect("a folder");
    rounded_weights(folder.path());
    let mut off = Vec::new();
    for microbatches in [2, 8, 64] {
        let first = |setup: &Setup<'_>| {
            let setup = Setup { microbatches, ..setup.clone() };
            let options = all_devices(&setup, Backend::Ndarray, 1);
            train(&setup, &Options { weights: Some(folder.path().into()), ..options })
        };
        let expected = first(&Setup::default());
        for system in [System::GpuOnly, System::ZeroOffload, System::Fsdp] {
            let stages: &[&str] = if system == System::ZeroOffload { &["gpu0 0..4 socket"] } else { &["gpu0 0..4"] };
            // Each GPU adds up microbatches of its own: another order where there are more than two.
            let knobs: &[(Knob, u64)] = if system == System::Fsdp { &[(Knob::Shards, 1)] } else { &[] };
            let found = first(&Setup { system, stages, knobs, ..wide() });
            assert_eq!(bits(&found), bits(&expected), "{system}");
            assert_eq!(numbers(&found.gradients), numbers(&expected.gradients), "{system}, {microbatches}");
        }
        let all = |report: &Report| -> Vec<f32> {
            report.gradients.iter().flat_map(|gradient| gradient.values.clone()).collect()
        };
        let (ours, theirs) = (all(&first(&narrow(&wide()))), all(&expected));
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
        let apart = norm(&mut ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs));
        off.push(apart / norm(&mut theirs.iter().copied()));
    }
    // One rounding to 8 significant bits is off by at most 2⁻⁹, and by 2⁻⁹/√3 to the square mean.
    assert!(off[0] > 5e-4 && off.is_sorted() && off[2] > 2.0 * off[0], "{off:?}");
}

/// The bytes of all gradients of parameters in a program, in memories whose name begins with `memory`.
fn gradient_bytes(program: &Program, memory: &str) -> u64 {
    let is_one = |content| matches!(content, Content::Gradients(_) | Content::SharedGradients(_));
    let here = program.buffers().iter().filter(|buffer| is_one(buffer.content));
    let here = here.filter(|buffer| program.memories()[buffer.memory].name.starts_with(memory));
    here.map(|buffer| buffer.bytes.get()).sum()
}

/// A number of a gradient has 4 bytes, as planned and as held, on devices and on the host.
#[test]
fn they_have_four_bytes_for_each_parameter() {
    let sum = |setup: &Setup<'_>| {
        let (plan, _) = setup.build();
        let context = plan.context();
        (0..5).map(|layer| context.cost.trained_parameters(layer.into())).sum::<u64>()
    };
    for (system, stage, memories) in
        [(System::GpuOnly, "gpu0 0..4", &["gpu0"][..]), (System::ZeroOffload, "gpu0 0..4 socket", &["gpu0", "dram0"])]
    {
        let stages = &[stage];
        let setup = Setup { system, stages, ..wide() };
        let parameters = sum(&setup);
        let (ours, theirs) =
            [&setup, &narrow(&setup)].map(|setup| train(setup, &all_devices(setup, Backend::Ndarray, 3))).into();
        for memory in memories {
            assert_eq!(gradient_bytes(&setup.build().1, memory), 4 * parameters, "{setup:?} {memory}");
            assert_eq!(gradient_bytes(&narrow(&setup).build().1, memory), 2 * parameters, "{setup:?} {memory}");
            let of = |report: &Report| {
                let found = report.memories.iter().find(|known| known.name == *memory).expect("a memory");
                (found.held, found.planned)
            };
            let (ours, theirs) = (of(&ours), of(&theirs));
            let more = Bytes::new(2 * parameters);
            assert_eq!((ours.0 - theirs.0, ours.1 - theirs.1), (more, more), "{setup:?} {memory}");
        }
    }
}

/// Embedding and head in different stages: the gradients of the table come from two places in 32 bits.
#[test]
fn tables_of_two_stages() {
    let model = tied();
    for setup in cases(&model).into_iter().map(|setup| Setup { precision: Precision::Bf16, gradients: WIDE, ..setup }) {
        let is_shared = |content| matches!(content, Content::SharedGradients(_));
        for buffer in setup.build().1.buffers().iter().filter(|buffer| is_shared(buffer.content)) {
            assert_eq!(buffer.bytes * u64::from(buffer.part.map_or(1, |part| part.of)), Bytes::new(4 * 256 * 32));
        }
        let (plain, report) = both(&setup, Backend::Ndarray, 6);
        losses_are_near(&setup, &report.losses, &plain.losses, 0.02);
        assert_ne!(bits(&report), bits(&both(&narrow(&setup), Backend::Ndarray, 6).1), "{setup:?}");
    }
    // On a device or on the host, both are added up in 32 bits.
    let first = |system, stages| {
        let setup = Setup { system, stages, model: &model, ..wide() };
        let report = train(&setup, &all_devices(&setup, Backend::Ndarray, 6));
        (bits(&report), numbers(&report.gradients))
    };
    let expected = first(System::OneForwardOneBackward, &["gpu0 0..1", "gpu1 2..3"]);
    for (system, stages) in [
        (System::ZeroOffload, &["gpu0 0..1 socket", "gpu1 2..3 socket"]),
        (System::Superpipeline, &["gpu0 0..1 streamed", "gpu0 2..3 streamed"]),
        (System::Mobius, &["gpu0 0..1 recompute", "gpu1 2..3 recompute"]),
        (System::Fsdp, &["gpu0 0..1", "gpu0 2..3"]),
    ] {
        assert!(first(system, stages) == expected, "{system}");
    }
}

/// Every optimizer reads them, and steps are undone with them.
#[test]
fn optimizers_and_undone_steps() {
    for optimizer in [Optimizer::Adamw, Optimizer::Adamw8bit, Optimizer::Adafactor, Optimizer::Lion, Optimizer::Sgd] {
        let one = Setup { optimizer, stages: &PAIR, ..wide() };
        let other =
            Setup { system: System::ZeroOffload, stages: &["gpu0 0..1 socket", "gpu1 2..4 socket"], ..one.clone() };
        let [one, other] = [&one, &other].map(|setup| bits(&train(setup, &all_devices(setup, Backend::Ndarray, 6))));
        assert_eq!(one, other, "{optimizer}");
    }
    let backward = &["gpu0 0..1 streamed recompute", "gpu1 2..4 streamed recompute"];
    let stages = &["gpu0 0..1 streamed", "gpu1 2..4 streamed"];
    let undone = |knobs| {
        let setup = Setup { system: System::Spipe, stages, backward, knobs, clip_norm: Some(0.1), ..wide() };
        train(&setup, &all_devices(&setup, Backend::Ndarray, 6)).losses
    };
    losses_are_near(&"arithmetic", &undone(&[(Knob::ArithmeticUndo, 1)]), &undone(&[]), 0.02);
}

/// Where gradients have 32 bits anyway, the choice changes no bit: in f32, and of adapters.
#[test]
fn where_they_are_wide_anyway() {
    for (precision, lora, model) in [
        (Precision::Fp32, None, Setup::default().model),
        (Precision::Fp32, None, GPT),
        (Precision::Bf16, Some("rank=3"), Setup::default().model),
    ] {
        for (system, stage) in [(System::GpuOnly, "gpu0 0..3"), (System::ZeroOffload, "gpu0 0..3 socket")] {
            let stage = if model == GPT { stage.to_owned() } else { stage.replace("0..3", "0..4") };
            let setup = Setup { system, stages: &[&stage], precision, lora, model, ..wide() };
            let [ours, theirs] = [&setup, &narrow(&setup)].map(|setup| both(setup, Backend::Ndarray, 5).1);
            assert_eq!(bits(&ours), bits(&theirs), "{setup:?}");
            assert_eq!(numbers(&ours.gradients), numbers(&theirs.gradients), "{setup:?}");
        }
    }
}

#[test]
fn sixteen_bits_beside_wide_parameters_are_planned_only() {
    let setup = Setup { gradients: Some(GradientFormat::Bf16), ..Setup::default() };
    let refused =
        try_run(&setup, &all_devices(&setup, Backend::Ndarray, 1)).expect_err("it is planned only").to_string();
    assert!(refused.contains("the plan has gradients in bf16, which is planned and simulated only"), "{refused}");
}
