//! Optimizers: twenty steps beside those of their own libraries, and pipelined runs beside plain training.

use crate::{
    machine::LLAMA,
    setup::{BACKWARD, FORWARD, Setup, losses_are_near},
    systems::{UNITS, all_devices, both, equal, within_rounding},
};
use burn::tensor::bf16;
use safetensors::SafeTensors;
use spipe_cost::Optimizer as Kind;
use spipe_exec::{Backend, Checkpoint, Checkpoints, Extent, Numbers, Optimizer, Options, StepSettings, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use std::ops::ControlFlow;

/// The tensors of the fixture, which `tests/python/optimizers.py` has made.
const SHAPES: [(&str, [usize; 2]); 3] = [("tall", [70, 61]), ("wide", [40, 64]), ("vector", [1, 96])];

const FIXTURE: &[u8] = include_bytes!("../fixtures/optimizers.safetensors");

/// The script's numbers: multiples of a power of two, which f32 holds exactly.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |index: usize| {
        let fraction = ((index * 7919 + seed * 104_729) % 2048) as f32 - 1024.0;
        fraction / 2048.0 * (-3.0 * ((index / 61) % 5) as f32).exp2()
    };
    (0..count).map(number).collect()
}

fn found(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data();
    data.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// Parameters and state after the twenty steps of the script.
fn trained(kind: Kind, (place, shape): (usize, [usize; 2])) -> (Vec<f32>, spipe_exec::TensorState) {
    let optimizer = Optimizer::new(kind, StepSettings { lr: 1e-2, weight_decay: 0.1 }).expect("it is executed");
    let count = shape[0] * shape[1];
    let (mut parameters, mut state) = (numbers(count, 1000 + place), optimizer.state(&Extent::whole(shape)));
    for step in 0..20 {
        let gradients = numbers(count, 10 * step + place);
        optimizer.step(&mut parameters, (Numbers::F32(&gradients), 1.0), &mut state);
    }
    assert_eq!(state.steps(), 20);
    (parameters, state)
}

/// The codes of 8-bit moments are those of bitsandbytes, and their constants within rounding.
#[test]
fn codes_are_those_of_bitsandbytes() {
    let file = SafeTensors::deserialize(FIXTURE).unwrap();
    let (_, state) = trained(Kind::Adamw8bit, (0, SHAPES[0].1));
    assert_eq!(state.bytes(), 2 * (4270 + 4 * 17));
    for (index, moments) in state.codes().into_iter().enumerate() {
        let (codes, constants) = moments.expect("it is large enough for 8 bits");
        assert!(codes == file.tensor(&format!("adamw-8bit.state{}", index + 1)).unwrap().data(), "{index}");
        let expected = found(&file, &format!("adamw-8bit.absmax{}", index + 1));
        assert_eq!(constants.len(), expected.len());
        let near = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= 1e-6 * theirs;
        assert!(constants.iter().zip(&expected).all(near), "{constants:?} {expected:?}");
    }
    assert!(trained(Kind::Adamw8bit, (1, SHAPES[1].1)).1.codes().iter().all(Option::is_none));
}

#[test]
fn twenty_steps_are_those_of_their_libraries() {
    let file = SafeTensors::deserialize(FIXTURE).unwrap();
    for kind in Optimizer::EXECUTED {
        for (place, (name, shape)) in SHAPES.into_iter().enumerate() {
            let expected = found(&file, &format!("{kind}.{name}"));
            let (ours, _) = trained(kind, (place, shape));
            let start = numbers(ours.len(), 1000 + place);
            let moved = start.iter().zip(&expected).map(|(before, after)| (before - after).abs()).fold(0.0, f32::max);
            assert!(moved > 0.01, "{kind} {name}: the fixture moves by {moved}");
            for (index, (ours, theirs)) in ours.iter().zip(&expected).enumerate() {
                // Relative to the parameter, or to the way of a step where it ends near zero.
                let tolerance = 1e-4 * theirs.abs().max(1e-2);
                assert!((ours - theirs).abs() <= tolerance, "{kind} {name}[{index}]: {ours} {theirs}");
            }
        }
    }
}

/// Gradients in 16 bits, times a factor, are the same gradients in 32 bits.
#[test]
fn gradients_of_any_width_are_scaled() {
    for kind in Optimizer::EXECUTED {
        let optimizer = Optimizer::new(kind, StepSettings::default()).unwrap();
        for shape in [[70, 61], [1, 300]] {
            let count = shape[0] * shape[1];
            let wide = numbers(count, 3);
            let narrow: Vec<bf16> = wide.iter().map(|number| bf16::from_f32(*number)).collect();
            let halved: Vec<f32> = narrow.iter().map(|number| number.to_f32() * 0.5).collect();
            let step = |gradients: (Numbers<'_>, f32)| {
                let (mut parameters, mut state) = (numbers(count, 9), optimizer.state(&Extent::whole(shape)));
                optimizer.step(&mut parameters, gradients, &mut state);
                (parameters, state)
            };
            assert!(step((Numbers::Bf16(&narrow), 0.5)) == step((Numbers::F32(&halved), 1.0)), "{kind} {shape:?}");
        }
    }
}

#[test]
fn threads_change_nothing() {
    for kind in Optimizer::EXECUTED {
        let optimizer = Optimizer::new(kind, StepSettings::default()).unwrap();
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let shape = [701, 300];
                let count = shape[0] * shape[1];
                let (mut parameters, mut state) = (numbers(count, 1), optimizer.state(&Extent::whole(shape)));
                for step in 0..3 {
                    optimizer.step(&mut parameters, (Numbers::F32(&numbers(count, step)), 1.0), &mut state);
                }
                (parameters, state)
            })
        };
        assert!(on(1) == on(3), "{kind}");
    }
}

/// Plans of each way in which data moves.
fn setups(optimizer: Kind) -> [Setup<'static>; 7] {
    let of = |system, stages| Setup { system, stages, optimizer, ..Setup::default() };
    [
        of(System::OneForwardOneBackward, &["gpu0 0..1", "cpu0 2..4"]),
        of(System::ZbH1, &["gpu0 0..1", "gpu1 2..4"]),
        of(System::ZeroOffload, &["gpu0 0..2 socket recompute:1", "gpu1 3..4 socket"]),
        of(System::PoF, &["gpu0 0..1 offload", "gpu1 2..4 offload"]),
        of(System::Superpipeline, &UNITS),
        of(System::Fsdp, &["gpu0 0..1 recompute", "gpu0 2..4"]),
        Setup { backward: &BACKWARD, ..of(System::Spipe, &FORWARD) },
    ]
}

#[test]
fn pipelined_runs_are_plain_training() {
    for kind in Optimizer::EXECUTED {
        // Adafactor sums over whole tensors.
        let runs = |setup: &Setup<'_>| !(kind == Kind::Adafactor && setup.system == System::Fsdp);
        for setup in setups(kind).into_iter().filter(runs) {
            equal(&setup, &both(&setup, Backend::Ndarray, 4));
            if matches!(setup.system, System::ZeroOffload | System::Spipe) {
                let clipped = Setup { clip_norm: Some(0.5), ..setup };
                within_rounding(&clipped, &both(&clipped, Backend::Ndarray, 4));
            }
        }
    }
}

/// Adapters, of which one is large enough for moments in 8 bits.
#[test]
fn adapters_are_stepped_as_in_plain_training() {
    let large = &LLAMA.replace("vocabulary = 256", "vocabulary = 512");
    for kind in Optimizer::EXECUTED {
        let runs = |setup: &Setup<'_>| !(kind == Kind::Adafactor && setup.system == System::Fsdp);
        for setup in setups(kind).into_iter().filter(runs) {
            let setup = Setup { model: large, lora: Some("rank=16,targets=q,down,lm_head"), ..setup };
            equal(&setup, &both(&setup, Backend::Ndarray, 3));
        }
    }
}

/// Accelerators that store 16 bits have a master copy beside any optimizer's state, and no memory
/// holds more than planned.
#[test]
fn sixteen_bits_have_a_master_copy() {
    for optimizer in Optimizer::EXECUTED {
        let setups = [
            Setup { stages: &["gpu0 0..2", "gpu1 3..4 socket"], ..Setup::default() },
            Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], ..Setup::default() },
            Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() },
        ];
        for setup in setups.map(|setup| Setup { precision: Precision::Bf16, optimizer, ..setup }) {
            let (plain, report) = both(&setup, Backend::Ndarray, 5);
            losses_are_near(&setup, &report.losses, &plain.losses, 0.03);
        }
    }
}

/// A run that was stopped goes on bit for bit, and not with another optimizer.
#[test]
fn checkpoints_hold_their_states() {
    let large = &LLAMA.replace("vocabulary = 256", "vocabulary = 512");
    for kind in Optimizer::EXECUTED {
        let setup = Setup { optimizer: kind, model: large, stages: &["gpu0 0..2", "gpu1 3..4"], ..Setup::default() };
        let folder = tempfile::tempdir().unwrap();
        let train = |setup: &Setup<'_>, steps, resume: bool| {
            let (plan, program) = setup.build();
            let resume = if resume { Checkpoint::newest(folder.path()).unwrap().checkpoint } else { None };
            let checkpoints = Some(Checkpoints { folder: folder.path().into(), every: 100 });
            let options = Options { checkpoints, resume, ..all_devices(setup, Backend::Ndarray, steps) };
            run(&plan, &program, &crate::machine::text(), &options, &mut |_| ControlFlow::Continue(()))
        };
        let whole = both(&setup, Backend::Ndarray, 6).1.losses;
        train(&setup, 3, false).unwrap();
        let other = if kind == Kind::Lion { Kind::Sgd } else { Kind::Lion };
        let error = train(&Setup { optimizer: other, ..setup.clone() }, 6, true).unwrap_err().to_string();
        assert!(error.contains(&format!("its optimizer is `{kind}`, this one is `{other}`")), "{error}");
        let elsewhere = Setup { stages: &["gpu0 0..1", "gpu1 2..3", "cpu0 4..4"], ..setup.clone() };
        assert_eq!(train(&elsewhere, 5, true).unwrap().losses, whole[3..5], "{kind}");
        assert_eq!(train(&setup, 6, true).unwrap().losses, whole[5..], "{kind}");
    }
}

#[test]
fn what_an_optimizer_cannot_do_is_refused() {
    let refusal = |setup: Setup<'_>| {
        let (plan, program) = setup.build();
        let options = all_devices(&setup, Backend::Ndarray, 1);
        let ran = run(&plan, &program, &crate::machine::text(), &options, &mut |_| ControlFlow::Continue(()));
        ran.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let muon = refusal(Setup { optimizer: Kind::Muon, ..Setup::default() });
    assert!(muon.contains("the optimizer `muon` instead of adamw,"), "{muon}");
    let knobs = &[(Knob::ArithmeticUndo, 1)];
    let backwards = |optimizer| {
        let spipe = Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() };
        refusal(Setup { knobs, optimizer, clip_norm: Some(1.0), ..spipe })
    };
    let shared = refusal(Setup { optimizer: Kind::Adafactor, ..setups(Kind::Adafactor)[5].clone() });
    assert!(shared.contains("a step of `adafactor` needs whole tensors"), "{shared}");
    assert!(backwards(Kind::Lion).contains("a step of `lion` has no inverse"), "{}", backwards(Kind::Lion));
    assert_eq!(backwards(Kind::Sgd), "");
}
