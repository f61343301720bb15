//! Every system yields the losses and gradients of plain training.

use crate::machine::{GPT, LLAMA, machine, text};
use spipe_base::{Bytes, LayerRange};
use spipe_cost::{Mode, Optimizer, Workload};
use spipe_exec::{Backend, Options, Reference, Report, reference, run};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Knobs, Placement, Plan, Stage, System};
use spipe_schedule::{Program, lower};
use std::ops::ControlFlow;

/// What a test varies. A stage is `DEVICE LAYERS` and any of `recompute:N`, `offload`, `socket`, `streamed`.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub system: System,
    pub stages: &'a [&'a str],
    pub backward: &'a [&'a str],
    pub knobs: Knobs,
    pub microbatches: u64,
    pub mode: Mode,
    pub precision: Precision,
    pub model: &'a str,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            system: System::OneForwardOneBackward,
            stages: &["gpu0 0..4"],
            backward: &[],
            knobs: Knobs::default(),
            microbatches: 4,
            mode: Mode::Train,
            precision: Precision::Fp32,
            model: LLAMA,
        }
    }
}

fn stage(hardware: &Hardware, text: &str) -> Stage {
    let mut words = text.split(' ');
    let device = |name: &str| hardware.device(name).unwrap_or_else(|| panic!("no `{name}`"));
    let first = device(words.next().expect("a device"));
    let layers: LayerRange = words.next().expect("layers").parse().expect("a range");
    let (socket, dram) = (device("cpu0"), hardware.memory("dram0").expect("a host"));
    words.fold(Stage::new(first, layers), |stage, word| match word {
        "offload" => stage.with_activations_in(dram),
        "socket" => stage.with_optimizer_on(socket),
        "streamed" => stage.with_weights_in(dram),
        "recompute" => stage.with_everything_recomputed(),
        other => stage.with_recomputed(other.strip_prefix("recompute:").expect("a word").parse().expect("a number")),
    })
}

impl Setup<'_> {
    /// The plan, accepted by the checker, and its program.
    pub fn build(&self) -> (Plan, Program) {
        let model = Model::from_toml("model.toml", self.model).unwrap_or_else(|faults| panic!("{faults}"));
        let hardware = Hardware::from_toml("machine.toml", &machine("256 MiB", "4 GB/s"))
            .unwrap_or_else(|faults| panic!("{faults}"));
        let stages = |texts: &[&str]| texts.iter().map(|text| stage(&hardware, text)).collect::<Vec<_>>();
        let placement = Placement::new(self.system, stages(self.stages)).with_knobs(self.knobs);
        let placement = placement.with_backward(stages(self.backward));
        let workload = Workload {
            mode: self.mode,
            seq_len: 16,
            microbatch: 2,
            microbatches: self.microbatches,
            precision: self.precision,
            optimizer: Optimizer::Adamw,
            attention: Attention::Materialised,
        };
        let plan =
            Plan::new(model, hardware, workload, placement).unwrap_or_else(|faults| panic!("{self:?}: {faults}"));
        let program = lower(&plan.context(), plan.placement()).unwrap_or_else(|faults| panic!("{self:?}: {faults}"));
        (plan, program)
    }

    /// Every device on one thread of `backend`.
    pub fn options(backend: Backend, steps: u32) -> Options {
        let bind = |(device, kind): (&str, &str)| format!("{device}={kind}:{backend}@0").parse().expect("a binding");
        let bindings = [("gpu0", "emulated:0"), ("gpu1", "emulated:1"), ("cpu0", "cpu:0")].map(bind);
        Options { steps, seed: 7, keep_gradients: true, ..Options::new(bindings.into()) }
    }

    /// What plain training and the program come to.
    fn both(&self, backend: Backend, steps: u32) -> (Reference, Report) {
        let (plan, program) = self.build();
        let (data, options) = (text(), Self::options(backend, steps));
        let plain = reference(&plan, &program, &data, &options).unwrap_or_else(|error| panic!("{error}"));
        let report = run(&plan, &program, &data, &options, &mut |_| ControlFlow::Continue(()))
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        for memory in &report.memories {
            assert!(memory.planned <= memory.capacity.unwrap_or(Bytes::new(u64::MAX)), "{self:?}: {memory:?}");
            assert!(memory.held > Bytes::ZERO, "{self:?}: {memory:?}");
        }
        (plain, report)
    }
}

/// The same losses and first gradients to the last bit.
fn equal(setup: &Setup<'_>, (plain, report): &(Reference, Report)) {
    let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&report.losses), bits(&plain.losses), "{setup:?}: {:?} {:?}", report.losses, plain.losses);
    assert_eq!(report.gradients.len(), plain.gradients.len(), "{setup:?}");
    for (ours, theirs) in report.gradients.iter().zip(&plain.gradients) {
        assert_eq!((&ours.layer, &ours.tensor), (&theirs.layer, &theirs.tensor));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&ours.values) == bits(&theirs.values), "{setup:?}: {} {}", ours.layer, ours.tensor);
    }
}

fn exactly(setup: &Setup<'_>) {
    for backend in Backend::ALL {
        let both = setup.both(backend, 5);
        equal(setup, &both);
        assert!(both.1.losses[4] < both.1.losses[0], "it learns: {:?}", both.1.losses);
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
fn optimizers_on_a_socket() {
    for system in [System::ZeroOffload, System::ZeroOffloadDelayed] {
        exactly(&Setup { system, stages: &["gpu0 0..4 socket recompute:2"], ..Setup::default() });
        let stages = &["gpu0 0..0 socket", "gpu0 1..2 socket recompute:1", "gpu1 3..4 socket"];
        exactly(&Setup { system, stages, ..Setup::default() });
    }
}

#[test]
fn offloaded_activations() {
    let stages = &["gpu0 0..1 offload", "gpu1 2..2 offload", "gpu0 3..3 offload recompute", "gpu1 4..4 offload"];
    for system in [System::PoH, System::PoF] {
        exactly(&Setup { system, stages, ..Setup::default() });
    }
    let stages = &["gpu0 0..1 offload", "gpu1 2..3"];
    exactly(&Setup { system: System::PoH, model: GPT, stages, microbatches: 6, ..Setup::default() });
}

#[test]
fn what_is_offloaded_is_in_host_memory() {
    let stages = |words: &'static str| {
        ["gpu0 0..1", "gpu1 2..2", "gpu0 3..3", "gpu1 4..4"].map(|stage| format!("{stage}{words}"))
    };
    let held = |system, words: &'static str| {
        let stages = stages(words);
        let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
        let (_, report) = Setup { system, stages: &stages, microbatches: 8, ..Setup::default() }.both(Backend::Flex, 1);
        let of = |name: &str| report.memories.iter().find(|memory| memory.name == name).map(|memory| memory.held);
        (of("gpu0").expect("it computes"), of("dram0").unwrap_or(Bytes::ZERO))
    };
    let (stays, leaves) = (held(System::Interleaved, ""), held(System::PoF, " offload"));
    assert_eq!(stays.1, Bytes::ZERO);
    // Outputs of the seven products of one block on one microbatch at least, each of 32 tokens, in f32.
    let block = Bytes::new(4 * 32 * (32 + 2 * 16 + 32 + 2 * 48 + 32));
    assert!(leaves.1 >= block && leaves.0 < stays.0, "{stays:?} {leaves:?}");
}

pub const UNITS: [&str; 5] = [
    "gpu0 0..0 streamed",
    "gpu0 1..1 streamed",
    "gpu0 2..2 streamed recompute",
    "gpu0 3..3 streamed",
    "gpu0 4..4 streamed",
];

#[test]
fn parameters_from_the_host() {
    for (resident, swap) in [(1, 1), (2, 1), (3, 2), (5, 5)] {
        for (write_back, sequential) in [(false, false), (true, true)] {
            let knobs =
                Knobs { resident: Some(resident), swap: Some(swap), write_back, sequential, ..Knobs::default() };
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

pub const FORWARD: [&str; 2] = ["gpu0 0..1 streamed", "gpu1 2..4 streamed"];
pub const BACKWARD: [&str; 4] = [
    "gpu0 0..0 streamed recompute",
    "gpu1 1..2 streamed recompute",
    "gpu0 3..3 streamed recompute",
    "gpu1 4..4 streamed recompute",
];

#[test]
fn passes_with_chunks_of_their_own() {
    let setup = Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() };
    exactly(&setup);
    let knobs = Knobs { synchronous_optimizer: true, synchronous_checkpoints: true, ..Knobs::default() };
    exactly(&Setup { knobs, ..setup.clone() });
    // The backward of layer 2 begins on the device that the forward passes its input to anyway.
    let backward = &[
        "gpu1 0..0 streamed recompute",
        "gpu0 1..1 streamed recompute",
        "gpu1 2..2 streamed recompute",
        "gpu0 3..4 streamed recompute",
    ];
    for knobs in [Knobs::default(), knobs] {
        exactly(&Setup { backward, knobs, ..setup.clone() });
    }
}

#[test]
fn everything_shared_by_two() {
    let stages = &["gpu0 0..1 recompute", "gpu0 2..3", "gpu0 4..4"];
    exactly(&Setup { system: System::Fsdp, stages, microbatches: 4, ..Setup::default() });
    let stepped = &["gpu0 0..1 socket", "gpu0 2..4 socket recompute:1"];
    exactly(&Setup { system: System::Fsdp, stages: stepped, ..Setup::default() });
    let one_round = &["gpu0 0..1 streamed recompute", "gpu0 2..3 streamed", "gpu0 4..4 streamed"];
    exactly(&Setup { system: System::ZeroInfinity, stages: one_round, microbatches: 2, ..Setup::default() });
}

#[test]
fn sums_of_rounds_differ_within_rounding() {
    let stages = &["gpu0 0..1 streamed", "gpu0 2..4 streamed"];
    let setup = Setup { system: System::ZeroInfinity, stages, microbatches: 6, ..Setup::default() };
    let (plain, report) = setup.both(Backend::Flex, 5);
    for (ours, theirs) in report.losses.iter().zip(&plain.losses) {
        assert!((ours - theirs).abs() < 1e-5 * theirs.abs(), "{ours} {theirs}");
    }
    for (ours, theirs) in report.gradients.iter().zip(&plain.gradients) {
        let largest = theirs.values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let off = ours.values.iter().zip(&theirs.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= 1e-5 * largest, "{} {}: {off} of {largest}", ours.layer, ours.tensor);
    }
}

#[test]
fn forwards_alone() {
    let mode = Mode::Infer;
    let first = |setup: &Setup<'_>| {
        let (plan, program) = setup.build();
        let options = Setup::options(Backend::Flex, 3);
        let plain = reference(
            &plan,
            &program,
            &text(),
            &Options { optimizer: spipe_exec::AdamW { lr: 0.0, ..options.optimizer }, ..options.clone() },
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
