//! Small plans of every system.

use super::machine::{LLAMA, machine_with};
use spipe_base::LayerRange;
use spipe_cost::{GradientFormat, Mode, Optimizer, Workload};
use spipe_exec::{Backend, Options};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Lora, Model, Precision};
use spipe_plan::{Knob, Mesh, OrderKind, Placement, Plan, Sharding, Stage, System, Update};
use spipe_schedule::{Program, lower_all_replicas};
use std::fmt::Debug;

/// The parameters of a test. A stage is `DEVICE LAYERS` and any of `recompute:N`, `offload`,
/// `socket`, `streamed`, `drive`, `offload-to-drive`,
/// `streamed-from-drive`.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub system: System,
    pub stages: &'a [&'a str],
    pub backward: &'a [&'a str],
    pub knobs: &'a [(Knob, u64)],
    /// Answers that no preset has.
    pub mixed: Option<(OrderKind, Update)>,
    pub microbatches: u64,
    pub mode: Mode,
    pub precision: Precision,
    pub model: &'a str,
    /// Layers that are not trained.
    pub frozen: &'a [&'a str],
    /// Adapters, as `--lora` takes them.
    pub lora: Option<&'a str>,
    /// The storage of frozen matrices, as `--base` takes it.
    pub base: Option<&'a str>,
    /// The storage of gradients, if it is not that of the parameters.
    pub gradients: Option<GradientFormat>,
    /// Accelerators of the machine.
    pub gpus: u32,
    /// The memory of each.
    pub memory: &'a str,
    /// The threshold of gradient clipping.
    pub clip_norm: Option<f64>,
    pub optimizer: Optimizer,
    /// By replica, the devices of its stages; none for one replica.
    pub replicas: &'a [&'a str],
    /// The sharding among the replicas.
    pub sharding: Sharding,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            system: System::OneForwardOneBackward,
            stages: &["gpu0 0..4"],
            backward: &[],
            knobs: &[],
            mixed: None,
            microbatches: 4,
            mode: Mode::Train,
            precision: Precision::Fp32,
            model: LLAMA,
            frozen: &[],
            lora: None,
            base: None,
            gradients: None,
            gpus: 2,
            memory: "256 MiB",
            clip_norm: None,
            optimizer: Optimizer::Adamw,
            replicas: &[],
            sharding: Sharding::None,
        }
    }
}

fn stage(hardware: &Hardware, text: &str) -> Stage {
    let mut words = text.split(' ');
    let device = |name: &str| hardware.device(name).unwrap_or_else(|| panic!("no `{name}`"));
    let first = device(words.next().expect("a device"));
    let layers: LayerRange = words.next().expect("layers").parse().expect("a range");
    let memory = |name: &str| hardware.memory(name).unwrap_or_else(|| panic!("no `{name}`"));
    let (socket, dram) = (device("cpu0"), memory("dram0"));
    words.fold(Stage::new(first, layers), |stage, word| match word {
        "offload" => stage.with_activations_in(dram),
        "socket" => stage.with_optimizer_on(socket),
        "drive" => stage.with_state_on(memory("nvme0")),
        "offload-to-drive" => stage.with_activations_in(memory("nvme0")),
        "streamed" => stage.with_weights_in(dram),
        "streamed-from-drive" => stage.with_weights_in(memory("nvme0")),
        "recompute" => stage.with_everything_recomputed(),
        other => stage.with_recomputed(other.strip_prefix("recompute:").expect("a word").parse().expect("a number")),
    })
}

impl Setup<'_> {
    /// The checked plan and its program.
    pub fn build(&self) -> (Plan, Program) {
        let model = Model::from_toml("model.toml", self.model).unwrap_or_else(|faults| panic!("{faults}"));
        let frozen: Vec<LayerRange> = self.frozen.iter().map(|range| range.parse().expect("a range")).collect();
        let model = model.with_frozen(&frozen).unwrap_or_else(|faults| panic!("{faults}"));
        let adapted = |text| {
            Lora::parse(text, None)
                .and_then(|lora| model.clone().with_lora(&lora))
                .unwrap_or_else(|faults| panic!("{faults}"))
        };
        let model = self.lora.map_or_else(|| model.clone(), adapted);
        let hardware = Hardware::from_toml("machine.toml", &machine_with(self.gpus, self.memory, "4 GB/s"))
            .unwrap_or_else(|faults| panic!("{faults}"));
        let stages = |texts: &[&str]| texts.iter().map(|text| stage(&hardware, text)).collect::<Vec<_>>();
        let placement = match self.mixed {
            Some(answers) => Placement::mixed(answers, stages(self.stages)),
            None => Placement::new(self.system, stages(self.stages)),
        };
        let placement = placement.with_options(self.knobs).with_backward(stages(self.backward));
        let shards = self.knobs.iter().find(|(knob, _)| *knob == Knob::Shards).map(|(_, shards)| *shards);
        let placement = if placement.shards_parameters() { placement.over_gpus(&hardware, shards) } else { placement };
        let teams =
            |names: &&str| names.split(' ').map(|name| vec![hardware.device(name).expect("a device")]).collect();
        let placement = match self.replicas {
            [] => placement,
            replicas => {
                let replicas = replicas.iter().map(teams).collect();
                let mesh = Mesh { replicas, sharding: self.sharding, ..Mesh::default() };
                Placement { mesh, ..placement }
            }
        };
        let workload = Workload {
            mode: self.mode,
            seq_len: 16,
            microbatch: 2,
            microbatches: self.microbatches,
            precision: self.precision,
            optimizer: self.optimizer,
            attention: Attention::Materialised,
            clip_norm: self.clip_norm.map(|norm| norm.try_into().expect("a norm")),
            formats: spipe_cost::Formats {
                base: self.base.map(|base| base.parse().unwrap_or_else(|fault| panic!("{fault}"))),
                gradients: self.gradients,
                ..spipe_cost::Formats::default()
            },
            data: spipe_cost::DataShape::PLAIN,
            recompute_ops: spipe_model::Operations::NONE,
            loss: None,
        };
        let plan =
            Plan::new(model, hardware, workload, placement).unwrap_or_else(|faults| panic!("{self:?}: {faults}"));
        let program =
            lower_all_replicas(&plan.context(), plan.placement()).unwrap_or_else(|faults| panic!("{self:?}: {faults}"));
        (plan, program)
    }

    /// Every device on one thread of `backend`.
    pub fn options(backend: Backend, steps: u32) -> Options {
        let bind = |(device, kind): (&str, &str)| format!("{device}={kind}:{backend}@0").parse().expect("a binding");
        let bindings = [("gpu0", "emulated:0"), ("gpu1", "emulated:1"), ("cpu0", "cpu:0")].map(bind);
        Options { steps, seed: 7, keep_gradients: true, ..Options::new(bindings.into()) }
    }
}

/// Losses of `what` that may differ from those of plain training by a share of them.
pub fn losses_are_near(what: &dyn Debug, ours: &[f64], theirs: &[f64], share: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what:?}");
    let near = ours.iter().zip(theirs).all(|(ours, theirs)| (ours - theirs).abs() <= share * theirs.abs());
    assert!(near, "{what:?}: {ours:?} {theirs:?}");
}

/// Stages of a forward and a backward that are cut differently.
pub const FORWARD: [&str; 2] = ["gpu0 0..1 streamed", "gpu1 2..4 streamed"];
pub const BACKWARD: [&str; 4] = [
    "gpu0 0..0 streamed recompute",
    "gpu1 1..2 streamed recompute",
    "gpu0 3..3 streamed recompute",
    "gpu1 4..4 streamed recompute",
];
