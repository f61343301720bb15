//! The target of random valid inputs: a model, a machine, a workload and a placement, with sizes and
//! rates from one end of their ranges to the other.

use super::draws::Draws;
use spipe_base::{Bytes, DeviceId, LayerRange};
use spipe_cost::{CostTable, Mode, Optimizer, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Context, Knob, Placement, Stage, StageFootprint, System, check, footprint};
use spipe_schedule::lower;
use spipe_sim::{Iterations, Options, is_ok, simulate};
use std::fmt::Write;

const RATES: [&str; 6] = ["16 GB/s", "1 B/s", "1 KB/s", "300 MB/s", "2 TB/s", "1 EB/s"];
const PEAKS: [&str; 5] = ["100 TFLOP/s", "1 FLOP/s", "1 MFLOP/s", "2 GFLOP/s", "1 EFLOP/s"];
const STEPS: [&str; 4] = ["1 Gparam/s", "1 param/s", "1 Mparam/s", "1000000000 Gparam/s"];
const LATENCIES: [&str; 5] = ["0 s", "8 us", "1e-300 s", "3 s", "1e9 s"];
const MEMORIES: [&str; 6] = ["24 GiB", "1 B", "3 MiB", "1 TiB", "4096 TiB", "4194304 TiB"];
const TIMES: [&str; 6] = ["1 ms", "0 s", "1 ns", "0.3 us", "2 s", "100000 s"];
const SIZES: [&str; 6] = ["1 MiB", "0 B", "1 B", "24 MiB", "5 GiB", "1 TiB"];

/// A machine with one or two GPUs and one socket.
fn machine(draws: &mut Draws<'_>) -> Option<Hardware> {
    let mut text = format!(
        "format-version = 1\nname = \"drawn\"\n[[socket]]\nname = \"cpu0\"\ncores = 8\npeak = {{ f32 = \"{}\" }}\n\
         optimizer-rate = \"{}\"\ndram = {{ name = \"dram0\", capacity = \"{}\", bandwidth = \"{}\" }}\nsource = \"drawn\"\n",
        draws.one(&PEAKS),
        draws.one(&STEPS),
        draws.one(&MEMORIES),
        draws.one(&RATES),
    );
    for gpu in 0..=draws.below(2) {
        let _ = write!(
            text,
            "[[gpu]]\nname = \"gpu{gpu}\"\nmemory = \"{}\"\nmemory-bandwidth = \"{}\"\npeak = {{ bf16 = \"{}\" }}\n\
             launch-floor = \"{}\"\nsource = \"drawn\"\n[[link]]\nname = \"pcie{gpu}\"\nbetween = [\"gpu{gpu}\", \"root0\"]\n\
             up = \"{}\"\ndown = \"{}\"\nlatency = \"{}\"\n",
            draws.one(&MEMORIES),
            draws.one(&RATES),
            draws.one(&PEAKS),
            draws.one(&LATENCIES),
            draws.one(&RATES),
            draws.one(&RATES),
            draws.one(&LATENCIES),
        );
    }
    let rate = draws.one(&RATES);
    let _ =
        write!(text, "[[link]]\nname = \"root0-dram0\"\nbetween = [\"root0\", \"dram0\"]\nbandwidth = \"{rate}\"\n");
    Hardware::from_toml("drawn.toml", &text).ok()
}

/// A chain of up to six measured layers.
fn model(draws: &mut Draws<'_>) -> Option<Model> {
    let mut text =
        "format-version = 1\nkind = \"profiled\"\nname = \"chain\"\nmicrobatch = 1\nseq-len = 64\n".to_owned();
    for layer in 0..=draws.below(6) {
        let (gpu, cpu) = (draws.one(&TIMES), draws.one(&TIMES));
        let times = |time: &str| {
            format!("{{ forward = \"{time}\", backward-input = \"{time}\", backward-weight = \"{time}\" }}")
        };
        let boundary = draws.one(&SIZES);
        let saved = if draws.coin() { draws.one(&SIZES) } else { boundary };
        let _ = write!(
            text,
            "[[layer]]\nname = \"layer{layer}\"\nparameters = {}\nboundary-activation = \"{boundary}\"\n\
             saved-activation = \"{saved}\"\ntime = {{ gpu = {}, cpu = {} }}\n",
            draws.one(&[1_000_000_u64, 0, 1, 3_000_000_000, 1_000_000_000_000]),
            times(gpu),
            times(cpu),
        );
    }
    Model::from_toml("drawn.toml", &text).ok()
}

fn workload(draws: &mut Draws<'_>) -> Workload {
    Workload {
        mode: draws.one(&[Mode::Train, Mode::Train, Mode::Infer]),
        seq_len: draws.one(&[64, 1, 4096]),
        microbatch: draws.one(&[1, 2, 64]),
        microbatches: draws.one(&[1, 2, 3, 8]),
        precision: draws.one(&[Precision::Bf16, Precision::Fp16, Precision::Fp32]),
        optimizer: Optimizer::Adamw,
        attention: Attention::Fused,
        clip_norm: if draws.coin() { 1.0.try_into().ok() } else { None },
        formats: spipe_cost::Formats::default(),
        data: spipe_cost::DataShape::PLAIN,
        recompute_ops: spipe_model::Operations::NONE,
        loss: None,
    }
}

/// Stages of consecutive layers on the machine's devices, with every choice of each.
fn placement(draws: &mut Draws<'_>, hardware: &Hardware, layers: usize) -> Option<Placement> {
    let devices: Vec<DeviceId> = hardware.devices().ids().collect();
    let socket = hardware.device("cpu0")?;
    let dram = hardware.memory("dram0")?;
    let system = draws.one(&System::ALL);
    let (mut stages, mut first) = (Vec::new(), 0);
    while first < layers {
        let last = first + draws.below(layers - first);
        let mut stage = Stage::new(draws.one(&devices), LayerRange::new(first.into(), last.into())?);
        stage = stage.with_recomputed(draws.below(stage.layers.count() + 1));
        if draws.coin() {
            stage = stage.with_optimizer_on(socket);
        }
        match draws.below(4) {
            1 => stage = stage.with_weights_in(dram),
            2 => stage = stage.with_activations_in(dram),
            _ => {}
        }
        stages.push(stage);
        first = last + 1;
    }
    let mut placement = Placement::new(system, stages);
    for knob in Knob::ALL.into_iter().filter(|knob| knob.is_of(system)) {
        if draws.coin() {
            placement = placement.with(knob, draws.below(4) as u64);
        }
    }
    Some(placement)
}

/// A placement that the checker accepts has a program, or a reason why not; where it runs, no memory
/// holds more than its footprint counts, as far as the footprint knows the order.
pub(crate) fn run(data: &[u8]) {
    let mut draws = Draws::new(data);
    let (Some(hardware), Some(model)) = (machine(&mut draws), model(&mut draws)) else { return };
    let workload = workload(&mut draws);
    let Some(placement) = placement(&mut draws, &hardware, model.layers().len()) else { return };
    let Ok(cost) = CostTable::new(&model, &hardware, &workload) else { return };
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    if check(&context, &placement).is_err() {
        return;
    }
    let Ok(program) = lower(&context, &placement) else { return };
    let simulation = simulate(&program, &Options { iterations: Iterations::UntilSteady(4), ..Options::default() });
    if !is_ok(&simulation) || !knows_its_order(placement.system) {
        return;
    }
    let needs = footprint(&context, &placement);
    for track in &simulation.trace.memories {
        let Some(memory) = hardware.memory(&track.name) else { continue };
        let needed: Bytes =
            needs.get(&memory).map(|stages| stages.values().map(StageFootprint::total).sum()).unwrap_or_default();
        assert!(track.peak <= needed, "{}: {} holds {}, counted {needed}", placement.system, track.name, track.peak);
    }
}

/// Whether the footprint counts the memory of the order exactly; where an algorithm makes the order,
/// it counts the certain part.
fn knows_its_order(system: System) -> bool {
    matches!(system, System::Gpipe | System::OneForwardOneBackward | System::Hybrid | System::GpuOnly | System::CpuOnly)
}
