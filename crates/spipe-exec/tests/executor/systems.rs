//! Every system yields the losses and gradients of plain training.

use crate::{
    machine::{GPT, LLAMA, UNET, VIT, data, text},
    setup::{BACKWARD, FORWARD, Setup, losses_are_near},
};
use spipe_base::Bytes;
use spipe_cost::Mode;
use spipe_exec::{Backend, Options, Reference, Report, StepSettings, reference, run};
use spipe_model::Precision;
use spipe_plan::{Exchange, Knob, OrderKind, System, Update, Vee};
use std::ops::ControlFlow;

/// Every layer is a chunk of its own with streamed parameters.
pub const UNITS: [&str; 5] = [
    "gpu0 0..0 streamed",
    "gpu0 1..1 streamed",
    "gpu0 2..2 streamed recompute",
    "gpu0 3..3 streamed",
    "gpu0 4..4 streamed",
];

/// Number of steps whose losses are compared.
pub const STEPS: u32 = 20;

/// Every device of the setup's machine on one thread of `backend`.
pub fn all_devices(setup: &Setup<'_>, backend: Backend, steps: u32) -> Options {
    let mut options = Setup::options(backend, steps);
    let more = (2..setup.gpus).map(|gpu| format!("gpu{gpu}=emulated:{gpu}:{backend}@0").parse().expect("a binding"));
    options.bindings.extend(more);
    options
}

/// Results of plain training and of the program.
pub fn both(setup: &Setup<'_>, backend: Backend, steps: u32) -> (Reference, Report) {
    let (plan, program) = setup.build();
    let (data, options) = (data(&plan), all_devices(setup, backend, steps));
    let plain = reference(&plan, &program, &data, &options).unwrap_or_else(|error| panic!("{error}"));
    let report = run(&plan, &program, &data, &options, &mut |_| ControlFlow::Continue(()))
        .unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    for memory in &report.memories {
        assert!(memory.planned <= memory.capacity.unwrap_or(Bytes::new(u64::MAX)), "{setup:?}: {memory:?}");
        assert!(memory.held > Bytes::ZERO, "{setup:?}: {memory:?}");
        // The size of graphs is an estimate; everything else holds no byte more than the program
        // states.
        let graphs = setup.stages.iter().any(|stage| stage.contains("cpu0") || stage.contains("offload"));
        if memory.name == "dram0" && !graphs {
            let track = report.trace.memories.iter().find(|track| track.name == memory.name);
            let holders = track.map(|track| &track.holders);
            assert!(memory.held <= memory.planned, "{setup:?}: {memory:?} {holders:?}");
        }
    }
    (plain, report)
}

/// The same losses and first gradients, bit for bit.
pub fn equal(setup: &Setup<'_>, (plain, report): &(Reference, Report)) {
    let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&report.losses), bits(&plain.losses), "{setup:?}: {:?} {:?}", report.losses, plain.losses);
    assert_eq!(report.gradients.len(), plain.gradients.len(), "{setup:?}");
    for (ours, theirs) in report.gradients.iter().zip(&plain.gradients) {
        assert_eq!((&ours.layer, &ours.tensor), (&theirs.layer, &theirs.tensor));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&ours.values) == bits(&theirs.values), "{setup:?}: {} {}", ours.layer, ours.tensor);
    }
}

/// A comparison of a run with plain training.
type Judge = fn(&Setup<'_>, &(Reference, Report));

pub fn exactly(setup: &Setup<'_>) {
    exactly_for(STEPS, setup);
}

fn exactly_for(steps: u32, setup: &Setup<'_>) {
    for backend in Backend::ALL {
        let results = both(setup, backend, steps);
        equal(setup, &results);
        assert!(results.1.losses[steps as usize - 1] < results.1.losses[0], "it learns: {:?}", results.1.losses);
    }
}

#[test]
fn split_backwards() {
    for system in [System::ZbH1, System::ZbH2, System::Zb1p, System::Zb2p] {
        exactly(&Setup { system, stages: &["gpu0 0..1", "gpu1 2..4"], microbatches: 5, ..Setup::default() });
    }
    let stages = &["gpu0 0..2 recompute:2", "gpu1 3..4 recompute:2"];
    exactly(&Setup { system: System::ZbH1, stages, ..Setup::default() });
    let stages = &["gpu0 0..1 recompute", "cpu0 2..3"];
    exactly(&Setup { system: System::ZbH2, model: GPT, stages, ..Setup::default() });
}

/// Deferred weight gradients and streamed weights of convolutions and patches. Layers of a
/// denoising network with several consumers sum gradients in the order of a shorter graph.
#[test]
fn images() {
    let judges: [(&str, &str, Judge); 2] = [(VIT, "0..3", equal), (UNET, "0..12", within_rounding)];
    for (model, all, judge) in judges {
        let with = |words: &str| format!("gpu0 {all}{words}");
        let (plain, offloaded, streamed) = (with(""), with(" offload"), with(" streamed"));
        for (system, stage) in [(System::ZbH1, plain), (System::PoH, offloaded), (System::Superpipeline, streamed)] {
            for frozen in [&[][..], &["2..2"]] {
                let setup = Setup { system, stages: &[&stage], model, frozen, ..Setup::default() };
                Backend::ALL.iter().for_each(|backend| judge(&setup, &both(&setup, *backend, 5)));
            }
        }
    }
    let stages = &["gpu0 0..1 streamed", "gpu0 2..2 streamed recompute", "gpu0 3..3 streamed"];
    exactly(&Setup { system: System::Superpipeline, model: VIT, stages, ..Setup::default() });
    exactly(&Setup { system: System::Zb2p, model: VIT, stages: &["gpu0 0..1", "gpu1 2..3"], ..Setup::default() });
    let stages = &["gpu0 0..3", "gpu1 4..12"];
    for system in [System::ZbH2, System::Zb1p] {
        let setup = Setup { system, model: UNET, stages, ..Setup::default() };
        within_rounding(&setup, &both(&setup, Backend::Ndarray, 5));
    }
}

#[test]
fn several_stages_per_device() {
    let vee = &["gpu0 0..1", "gpu1 2..2 recompute", "gpu1 3..3", "gpu0 4..4"];
    for system in [System::ZbV, System::VHalf, System::VMin] {
        exactly(&Setup { system, stages: vee, ..Setup::default() });
    }
    let dealt = &["gpu0 0..1", "gpu1 2..2", "gpu0 3..3 recompute", "gpu1 4..4"];
    for system in [System::Interleaved, System::Gis, System::GisH] {
        exactly(&Setup { system, stages: dealt, ..Setup::default() });
    }
}

#[test]
fn one_kind_of_device() {
    let stages = &["gpu0 0..2 recompute", "gpu1 3..4 recompute"];
    exactly(&Setup { system: System::Checkpointing, stages, ..Setup::default() });
    exactly(&Setup { system: System::GpuOnly, stages: &["gpu0 0..1", "gpu1 2..4"], ..Setup::default() });
    exactly(&Setup { system: System::CpuOnly, stages: &["cpu0 0..4"], ..Setup::default() });
}

#[test]
fn optimizers_on_a_socket() {
    for system in [System::ZeroOffload, System::ZeroOffloadDelayed] {
        exactly(&Setup { system, stages: &["gpu0 0..4 socket recompute:2"], ..Setup::default() });
        let stages = &["gpu0 0..0 socket", "gpu0 1..2 socket recompute:1", "gpu1 3..4 socket"];
        for urgent_steps in [false, !system.is_stale()] {
            let knobs = &[(Knob::UrgentSteps, u64::from(urgent_steps))];
            exactly(&Setup { system, stages, knobs, ..Setup::default() });
        }
        let knobs = &[(Knob::SynchronousOptimizer, u64::from(!system.is_stale()))];
        exactly(&Setup { system, stages, knobs, ..Setup::default() });
        let knobs = &[(Knob::GradientsLeave, 1)];
        for microbatches in [1, 4] {
            exactly(&Setup { system, stages, knobs, microbatches, ..Setup::default() });
        }
    }
}

/// Plans that fit no preset: orders with the optimizer on the host, steps in a phase of their own, exchanges in
/// another order of steps.
#[test]
fn answers_that_no_preset_has() {
    let (ready, phase) = (Update::AsReady { urgent: false }, Update::Phase { urgent: true });
    let vee = &["gpu0 0..1 socket", "gpu1 2..2 socket recompute", "gpu1 3..3", "gpu0 4..4 socket"];
    for update in [ready, phase] {
        let mixed = Some((OrderKind::Vee { memory: Vee::Full }, update));
        exactly(&Setup { mixed, stages: vee, ..Setup::default() });
    }
    let dealt = &["gpu0 0..1 socket", "gpu1 2..2 socket", "gpu0 3..3 recompute", "gpu1 4..4"];
    for order in [OrderKind::Interleaved { group: None }, OrderKind::Grouped { group: Some(1), half: false }] {
        let knobs = &[(Knob::GradientsLeave, 1)];
        exactly(&Setup { mixed: Some((order, ready)), knobs, stages: dealt, ..Setup::default() });
    }
    let all = &["gpu0 0..1 socket", "gpu1 2..4 socket"];
    exactly(&Setup { mixed: Some((OrderKind::Gpipe, Update::Delayed)), stages: all, ..Setup::default() });
    let kept = &["gpu0 0..0 streamed", "gpu0 1..1 streamed recompute", "gpu0 2..3", "gpu0 4..4"];
    let exchange = Exchange { resident: Some(2), swap: Some(2), sequential: true, ..Exchange::default() };
    let mixed = Some((OrderKind::Rounds(exchange), Update::AfterBackward));
    exactly(&Setup { mixed, stages: kept, ..Setup::default() });
}

#[test]
fn offloaded_activations() {
    let stages = &["gpu0 0..1 offload", "gpu1 2..2 offload", "gpu0 3..3 offload recompute", "gpu1 4..4 offload"];
    for system in [System::PoH, System::PoF] {
        exactly(&Setup { system, stages, ..Setup::default() });
    }
    let stages = &["gpu0 0..1 offload", "gpu1 2..3"];
    exactly(&Setup { system: System::PoH, model: GPT, stages, microbatches: 6, ..Setup::default() });
    let stages = &["gpu0 0..1 offload", "gpu1 2..4 offload"];
    exactly(&Setup { system: System::PoF, stages, frozen: &["2..2"], ..Setup::default() });
    // Consecutive stages of a device share its slots, two or more in each direction.
    let stages = &["gpu0 0..0 offload", "gpu0 1..1 offload", "gpu0 2..2 offload", "gpu1 3..4"];
    for offload_slots in [2, 4] {
        let knobs = &[(Knob::OffloadSlots, offload_slots)];
        exactly(&Setup { knobs, stages, microbatches: 6, ..Setup::default() });
    }
}

#[test]
fn what_is_offloaded_is_in_host_memory() {
    let stages = |words: &'static str| {
        ["gpu0 0..1", "gpu1 2..2", "gpu0 3..3", "gpu1 4..4"].map(|stage| format!("{stage}{words}"))
    };
    let memories = |precision, system, words: &'static str| {
        let stages = stages(words);
        let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
        let setup = Setup { system, stages: &stages, microbatches: 8, precision, ..Setup::default() };
        both(&setup, Backend::Ndarray, 1).1.memories
    };
    let held = |system, words| {
        let memories = memories(Precision::Fp32, system, words);
        let of = |name: &str| memories.iter().find(|memory| memory.name == name).map(|memory| memory.held);
        (of("gpu0").expect("it computes"), of("dram0").unwrap_or(Bytes::ZERO))
    };
    let (stays, leaves) = (held(System::Interleaved, ""), held(System::PoF, " offload"));
    assert_eq!(stays.1, Bytes::ZERO);
    // At least the outputs of the seven products of one block for one microbatch, of 32 tokens
    // each, in f32.
    let block = Bytes::new(4 * 32 * (32 + 2 * 16 + 32 + 2 * 48 + 32));
    assert!(leaves.1 >= block && leaves.0 < stays.0, "{stays:?} {leaves:?}");
    // In 16 bits it is at most the plan's count in 16 bits.
    let narrow = memories(Precision::Bf16, System::PoF, " offload");
    let host = narrow.iter().find(|memory| memory.name == "dram0").expect("something leaves");
    assert!(host.held > Bytes::ZERO && host.held <= host.planned, "{host:?}");
}

#[test]
fn parameters_from_the_host() {
    for (resident, swap) in [(1, 1), (2, 1), (3, 2), (5, 5)] {
        for (write_back, sequential) in [(false, false), (true, true)] {
            let knobs = &[
                (Knob::Resident, resident),
                (Knob::Swap, swap),
                (Knob::WriteBack, u64::from(write_back)),
                (Knob::Sequential, u64::from(sequential)),
            ];
            exactly(&Setup { system: System::Superpipeline, stages: &UNITS, knobs, ..Setup::default() });
        }
    }
    exactly(&Setup { system: System::NaiveSwap, stages: &UNITS, ..Setup::default() });
    let stages = &[
        "gpu0 0..1 streamed recompute",
        "gpu1 2..2 streamed recompute",
        "gpu0 3..3 streamed recompute",
        "gpu1 4..4 streamed recompute",
    ];
    exactly(&Setup { system: System::Mobius, stages, ..Setup::default() });
}

/// Chunks some of which keep their parameters, on one device and on two.
pub const KEPT: [[&str; 4]; 3] = [
    ["gpu0 0..0", "gpu0 1..2 streamed", "gpu0 3..3 recompute", "gpu0 4..4 streamed recompute"],
    ["gpu0 0..1 recompute", "gpu1 2..2 streamed", "gpu0 3..3 streamed recompute", "gpu1 4..4"],
    ["gpu1 0..0 recompute", "gpu0 1..2", "gpu1 3..3", "gpu0 4..4 recompute"],
];

#[test]
fn some_parameters_from_the_host() {
    for stages in &KEPT {
        for system in [System::Superpipeline, System::Mobius] {
            exactly(&Setup { system, stages, ..Setup::default() });
            exactly_for(5, &Setup { system, stages, frozen: &["0..2"], ..Setup::default() });
        }
    }
}

#[test]
fn passes_with_chunks_of_their_own() {
    let setup = Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() };
    exactly(&setup);
    // A forward chunk begins within a backward chunk, and layers differ much in size.
    let large = LLAMA.replace("vocabulary = 256", "vocabulary = 4096");
    exactly_for(5, &Setup { model: &large, ..setup.clone() });
    let knobs = &[(Knob::SynchronousOptimizer, 1), (Knob::SynchronousCheckpoints, 1)];
    exactly(&Setup { knobs, ..setup.clone() });
    // The backward of layer 2 begins on the device to which the forward sends its input anyway.
    let backward = &[
        "gpu1 0..0 streamed recompute",
        "gpu0 1..1 streamed recompute",
        "gpu1 2..2 streamed recompute",
        "gpu0 3..4 streamed recompute",
    ];
    for knobs in [&[][..], knobs] {
        exactly(&Setup { backward, knobs, ..setup.clone() });
    }
}

#[test]
fn everything_shared_by_two() {
    let stages = &["gpu0 0..1 recompute", "gpu0 2..3", "gpu0 4..4"];
    exactly(&Setup { system: System::Fsdp, stages, microbatches: 4, ..Setup::default() });
    let stepped = &["gpu0 0..1 socket", "gpu0 2..4 socket recompute:1"];
    exactly(&Setup { system: System::Fsdp, stages: stepped, ..Setup::default() });
    let knobs = &[(Knob::UrgentSteps, 1), (Knob::SynchronousOptimizer, 1)];
    exactly(&Setup { system: System::Fsdp, stages: stepped, knobs, ..Setup::default() });
    let one_round = &["gpu0 0..1 streamed recompute", "gpu0 2..3 streamed", "gpu0 4..4 streamed"];
    exactly(&Setup { system: System::ZeroInfinity, stages: one_round, microbatches: 2, ..Setup::default() });
}

/// Some stages are gathered once for two uses; a single accelerator gathers nothing.
#[test]
fn stages_that_are_still_there() {
    let stages = &["gpu0 0..1 recompute", "gpu0 2..3", "gpu0 4..4"];
    let streamed = &["gpu0 0..0 streamed", "gpu0 1..1 streamed recompute", "gpu0 2..3 streamed", "gpu0 4..4 streamed"];
    for resident in [3, 4] {
        let knobs = &[(Knob::Resident, resident)];
        exactly(&Setup { system: System::Fsdp, stages, knobs, ..Setup::default() });
        let knobs = &[(Knob::Resident, resident), (Knob::Shards, 1)];
        let setup = Setup { system: System::ZeroInfinity, stages: streamed, knobs, ..Setup::default() };
        exactly(&Setup { clip_norm: Some(0.5), ..setup.clone() });
        exactly(&setup);
    }
}

#[test]
fn sums_of_rounds_differ_within_rounding() {
    let stages = &["gpu0 0..1 streamed", "gpu0 2..4 streamed"];
    let setup = Setup { system: System::ZeroInfinity, stages, microbatches: 6, ..Setup::default() };
    within_rounding(&setup, &both(&setup, Backend::Ndarray, STEPS));
}

/// The same losses and first gradients, except for sums in another order.
pub fn within_rounding(setup: &Setup<'_>, (plain, report): &(Reference, Report)) {
    losses_are_near(setup, &report.losses, &plain.losses, 1e-5);
    assert_eq!(report.gradients.len(), plain.gradients.len(), "{setup:?}");
    for (ours, theirs) in report.gradients.iter().zip(&plain.gradients) {
        let largest = theirs.values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let off = ours.values.iter().zip(&theirs.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= 1e-5 * largest, "{setup:?}: {} {}: {off} of {largest}", ours.layer, ours.tensor);
    }
}

#[test]
fn forwards_alone() {
    let mode = Mode::Infer;
    let first = |setup: &Setup<'_>| {
        let (plan, program) = setup.build();
        let options = Setup::options(Backend::Ndarray, 1);
        let plain = reference(
            &plan,
            &program,
            &text(),
            &Options { optimizer: StepSettings { lr: 0.0, ..options.optimizer }, ..options.clone() },
        )
        .unwrap();
        let report = run(&plan, &program, &text(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(report.losses, plain.losses, "{setup:?}");
        assert!(report.gradients.is_empty());
    };
    first(&Setup { system: System::Gpipe, stages: &["gpu0 0..1", "gpu1 2..4"], mode, ..Setup::default() });
    first(&Setup { system: System::Superpipeline, stages: &UNITS, mode, ..Setup::default() });
    first(&Setup { system: System::Fsdp, stages: &["gpu0 0..2", "gpu0 3..4"], mode, ..Setup::default() });
}

/// The head projects with the embedding's table, and both add to its gradient.
#[test]
fn tied_embeddings() {
    let model = &GPT.replace("places = 16", "places = 16\ntied = true");
    for (system, stage) in [
        (System::CpuOnly, "cpu0 0..3"),
        (System::Checkpointing, "gpu0 0..3 recompute"),
        (System::OneForwardOneBackward, "gpu0 0..3 recompute:1"),
        (System::OneForwardOneBackward, "cpu0 0..3 recompute:3"),
        (System::ZeroOffload, "gpu0 0..3 socket recompute:2"),
        (System::Fsdp, "gpu0 0..3"),
    ] {
        for frozen in [&[][..], &["0..0"], &["0..1"]] {
            exactly_for(5, &Setup { system, stages: &[stage], model, frozen, ..Setup::default() });
        }
    }
}

#[test]
fn frozen_layers() {
    let stages = &["gpu0 0..1", "gpu1 2..4"];
    for frozen in [&["0..0"][..], &["0..2"], &["2..2"], &["0..0", "3..3"]] {
        exactly_for(5, &Setup { stages, frozen, ..Setup::default() });
        exactly_for(5, &Setup { system: System::ZbH1, stages, frozen, ..Setup::default() });
        exactly_for(
            5,
            &Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4 recompute"], frozen, ..Setup::default() },
        );
        exactly_for(5, &Setup { stages: &["gpu0 0..3 recompute:1", "cpu0 4..4"], frozen, ..Setup::default() });
        exactly_for(5, &Setup { system: System::Superpipeline, stages: &UNITS, frozen, ..Setup::default() });
        exactly_for(
            5,
            &Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], frozen, ..Setup::default() },
        );
        exactly_for(
            5,
            &Setup {
                system: System::ZeroOffload,
                stages: &["gpu0 0..1 socket", "gpu0 2..4 socket"],
                knobs: &[(Knob::GradientsLeave, 1)],
                frozen,
                ..Setup::default()
            },
        );
        exactly_for(
            5,
            &Setup { system: System::Fsdp, stages: &["gpu0 0..1", "gpu0 2..4"], frozen, ..Setup::default() },
        );
        exactly_for(
            5,
            &Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, frozen, ..Setup::default() },
        );
    }
}

/// Parameters, activations and gradients of accelerators are rounded to 8 or 11 significant bits:
/// gradients are within a twentieth or a hundredth of their norm, losses within a fiftieth or a
/// two-hundredth.
#[test]
fn sixteen_bits() {
    for (precision, of_gradients, of_losses) in [(Precision::Bf16, 0.05, 0.02), (Precision::Fp16, 0.01, 0.005)] {
        let setups = [
            Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4"], ..Setup::default() },
            Setup { system: System::ZbH1, stages: &["gpu0 0..1", "gpu1 2..4"], ..Setup::default() },
            Setup { stages: &["gpu0 0..1 offload", "gpu1 2..4 offload"], ..Setup::default() },
            Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], ..Setup::default() },
            Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() },
            Setup { system: System::Superpipeline, stages: &KEPT[1], ..Setup::default() },
            Setup { system: System::Fsdp, stages: &["gpu0 0..1", "gpu0 2..4"], ..Setup::default() },
            Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() },
        ];
        for setup in setups.map(|setup| Setup { precision, ..setup }) {
            let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
            losses_are_near(&setup, &report.losses, &plain.losses, of_losses);
            assert!(report.losses != plain.losses, "{setup:?}: nothing was rounded");
            for (ours, theirs) in report.gradients.iter().zip(&plain.gradients) {
                let norm =
                    |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
                let off = norm(&mut ours.values.iter().zip(&theirs.values).map(|(a, b)| a - b));
                let all = norm(&mut theirs.values.iter().copied());
                assert!(off <= of_gradients * all, "{setup:?}: {} {}: {off} of {all}", ours.layer, ours.tensor);
            }
        }
    }
}

/// Frozen layers have no f32 copy beside that in 16 bits, which would exceed the plan.
#[test]
fn sixteen_bits_of_frozen_layers() {
    let setups = [
        Setup { stages: &["gpu0 0..2 socket", "gpu1 3..4 socket"], ..Setup::default() },
        Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], ..Setup::default() },
        Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() },
        Setup { system: System::Fsdp, stages: &["gpu0 0..1 socket", "gpu0 2..4 socket"], ..Setup::default() },
        Setup {
            system: System::ZeroOffload,
            stages: &["gpu0 0..1 socket", "gpu0 2..2 socket", "gpu0 3..4 socket"],
            ..Setup::default()
        },
        Setup {
            system: System::Fsdp,
            stages: &["gpu0 0..1 socket", "gpu0 2..2 socket", "gpu0 3..4 socket"],
            ..Setup::default()
        },
        Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() },
    ];
    for setup in setups {
        for (precision, frozen) in
            [(Precision::Bf16, &["0..1"]), (Precision::Fp16, &["1..2"]), (Precision::Bf16, &["2..2"])]
        {
            let setup = Setup { precision, frozen, ..setup.clone() };
            let (plain, report) = both(&setup, Backend::Ndarray, 5);
            losses_are_near(&setup, &report.losses, &plain.losses, 0.02);
        }
    }
}
