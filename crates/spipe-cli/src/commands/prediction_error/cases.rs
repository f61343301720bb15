//! The cases: a system, and a placement of the model on the devices.

use crate::Failure;
use spipe_base::LayerRange;
use spipe_cost::{Mode, Workload};
use spipe_exec::{Backend, Executor};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Knob, Placement, Plan, Stage, System};

/// A system with a placement. A stage is `DEVICE FROM TO` in tenths of the model's layers, followed
/// by any of `recompute`, `offload`, `socket` (the optimizer runs there) and `streamed`.
pub(super) struct Case {
    pub title: &'static str,
    /// The number of emulated accelerators beside the socket.
    pub accelerators: u32,
    pub mode: Mode,
    pub microbatches: u64,
    system: System,
    options: &'static [(Knob, u64)],
    stages: &'static [&'static str],
    backward: &'static [&'static str],
}

/// All cases.
pub(super) fn all() -> Vec<Case> {
    let mut cases = on_one();
    cases.extend(on_two());
    cases.extend(on_three());
    cases
}

fn case(title: &'static str, accelerators: u32, system: System, stages: &'static [&'static str]) -> Case {
    Case { title, accelerators, mode: Mode::Train, microbatches: 8, system, options: &[], stages, backward: &[] }
}

/// Cases of the socket alone.
fn on_one() -> Vec<Case> {
    let stages = &["cpu0 0 10"];
    vec![
        case("single device", 0, System::Gpipe, stages),
        Case { mode: Mode::Infer, ..case("single device, prompts", 0, System::Gpipe, stages) },
        Case { mode: Mode::Generate, ..case("single device, token by token", 0, System::Gpipe, stages) },
    ]
}

/// Cases of an accelerator and the socket.
fn on_two() -> Vec<Case> {
    let halves = &["gpu0 0 5", "cpu0 5 10"];
    let fifths =
        &["gpu0 0 2 streamed", "gpu0 2 4 streamed", "gpu0 4 6 streamed", "gpu0 6 8 streamed", "gpu0 8 10 streamed"];
    vec![
        case("1F1B on two devices", 1, System::OneForwardOneBackward, halves),
        Case { mode: Mode::Infer, ..case("two devices, prompts", 1, System::Gpipe, halves) },
        Case { mode: Mode::Generate, ..case("two devices, token by token", 1, System::Gpipe, halves) },
        Case {
            options: &[(Knob::HeadStart, 1)],
            ..case("hybrid, head start 1", 1, System::Hybrid, &["cpu0 0 4", "gpu0 4 10"])
        },
        Case {
            options: &[(Knob::Resident, 3), (Knob::Swap, 2)],
            ..case("Superpipeline, k = 3, k′ = 2", 1, System::Superpipeline, fifths)
        },
        case("ZeRO-Offload", 1, System::ZeroOffload, &["gpu0 0 10 socket"]),
    ]
}

/// Cases of two accelerators and the socket.
fn on_three() -> Vec<Case> {
    let quarters = &["gpu0 0 3 offload", "gpu1 3 5 offload", "gpu0 5 7 offload", "gpu1 7 10 offload"];
    let backward = &[
        "gpu0 0 3 streamed recompute",
        "gpu1 3 5 streamed recompute",
        "gpu0 5 7 streamed recompute",
        "gpu1 7 10 streamed recompute",
    ];
    vec![
        // With few microbatches, the idle time at both ends of an iteration would dominate.
        Case { microbatches: 24, ..case("PipeOffload PO-H, 24 microbatches", 2, System::PoH, quarters) },
        Case {
            backward,
            ..case("SPipe on two accelerators", 2, System::Spipe, &["gpu0 0 5 streamed", "gpu1 5 10 streamed"])
        },
    ]
}

impl Case {
    /// The executors, with an even share of the cores each; with too few cores, devices share one.
    pub fn executors(&self, backend: Backend) -> Vec<Executor> {
        let emulated = (0..self.accelerators).map(|index| Executor::Emulated { index, backend, cores: Vec::new() });
        let mut executors: Vec<Executor> =
            emulated.chain([Executor::Cpu { index: 0, backend, cores: Vec::new() }]).collect();
        spipe_exec::assign_cores(&mut executors, &[]);
        executors
    }

    /// The workload of an iteration.
    pub fn workload(&self, model: &Model) -> Workload {
        Workload {
            mode: self.mode,
            seq_len: model.seq_len(),
            microbatch: 1,
            microbatches: self.microbatches,
            precision: Precision::Fp32,
            attention: Attention::Materialised,
            ..Workload::PLAIN
        }
    }

    /// The plan of the model on a machine.
    pub fn plan(&self, model: &Model, hardware: &Hardware) -> Result<Plan, Failure> {
        let placed =
            |texts: &[&str]| texts.iter().map(|text| stage(text, model, hardware)).collect::<Result<Vec<_>, _>>();
        let placement = Placement::new(self.system, placed(self.stages)?).with_options(self.options);
        let placement = placement.with_backward(placed(self.backward)?);
        Plan::new(model.clone(), hardware.clone(), self.workload(model), placement).map_err(Failure::Input)
    }
}

/// Reads a stage as [`Case`] writes it.
fn stage(text: &str, model: &Model, hardware: &Hardware) -> Result<Stage, Failure> {
    let bug = || Failure::Bug(format!("`{text}` is no stage of this machine"));
    let words: Vec<&str> = text.split(' ').collect();
    let [device, from, to, choices @ ..] = &words[..] else { return Err(bug()) };
    let layers = model.layers().len();
    let layer = |tenths: &str| tenths.parse::<usize>().map(|tenths| tenths * layers / 10).map_err(|_| bug());
    let range: LayerRange = format!("{}..{}", layer(from)?, layer(to)? - 1).parse().map_err(|_| bug())?;
    let device_named = |name: &str| hardware.device(name).ok_or_else(bug);
    let (socket, dram) = (device_named("cpu0")?, hardware.memory("dram0").ok_or_else(bug)?);
    choices.iter().try_fold(Stage::new(device_named(device)?, range), |stage, choice| {
        Ok(match *choice {
            "offload" => stage.with_activations_in(dram),
            "socket" => stage.with_optimizer_on(socket),
            "streamed" => stage.with_weights_in(dram),
            "recompute" => stage.with_everything_recomputed(),
            _ => return Err(bug()),
        })
    })
}
