//! Arithmetic and optimizer steps on sockets contend with copies for the DRAM.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{ActionKind, LayerRange, Payload, SimTime};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Knob, Placement, Stage, System};
use spipe_schedule::{Program, lower};
use spipe_sim::{Options, simulate};
use spipe_trace::Trace;

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

/// GPT-2 with DRAM of the given bandwidth and stages of `on_gpu` layers each on `gpu0`. A socket
/// has the other layers, or the optimizer if there are none.
fn run(bandwidth: &str, on_gpu: &[usize]) -> (Program, Trace) {
    run_with(bandwidth, on_gpu, &[])
}

fn run_with(bandwidth: &str, on_gpu: &[usize], knobs: &[(Knob, u64)]) -> (Program, Trace) {
    let model = Model::from_toml("gpt2", shipped(spipe_model::shipped(), "gpt2")).unwrap();
    let machine = "rtx3090-x4-two-sockets";
    let text = shipped(spipe_hardware::shipped(), machine);
    assert!(text.contains("bandwidth = \"150 GB/s\""));
    let text = text.replace("bandwidth = \"150 GB/s\"", &format!("bandwidth = \"{bandwidth}\""));
    let hardware = Hardware::from_toml(machine, &text).unwrap();
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 1024,
        microbatch: 4,
        microbatches: 6,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    };
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let (gpu, socket) = (hardware.device("gpu0").unwrap(), hardware.device("cpu0").unwrap());
    let last = model.layers().len() - 1;
    let (mut first, mut stages) = (0, Vec::new());
    let hybrid = on_gpu.last().is_some_and(|end| *end < last);
    for end in on_gpu {
        let stage = Stage::new(gpu, LayerRange::new(first.into(), (*end).into()).unwrap());
        stages.push(if hybrid { stage } else { stage.with_optimizer_on(socket) });
        first = end + 1;
    }
    if hybrid {
        stages.push(Stage::new(socket, LayerRange::new(first.into(), last.into()).unwrap()));
    }
    let system = if hybrid { System::Hybrid } else { System::ZeroOffload };
    let program = lower(&context, &Placement::new(system, stages).with_options(knobs)).unwrap();
    let trace = simulate(&program, &Options::default()).trace;
    (program, trace)
}

/// The longest copy of `payload`, as a multiple of its time without contention.
fn slowed(bandwidth: &str, on_gpu: &[usize], payload: Payload) -> f64 {
    let (program, trace) = run(bandwidth, on_gpu);
    let copies = trace.spans.iter().filter(|span| span.kind == ActionKind::Copy(payload));
    let alone = |span: &spipe_trace::Span| {
        let same = program.actions().enumerate().find(|(_, it)| it.kind == span.kind && it.subject == span.subject);
        same.map(|(id, _)| program.alone(id)).filter(|alone| *alone > SimTime::ZERO).unwrap()
    };
    let ratios = copies.map(|span| span.duration().as_ns() as f64 / alone(span).as_ns() as f64);
    ratios.reduce(f64::max).unwrap()
}

#[test]
fn an_optimizer_step_slows_the_gradients_that_arrive_after_it() {
    // Twelve blocks between embedding and head in four stages, whose optimizer steps run one after
    // the other while gradients arrive.
    let stages = [3, 6, 9, 13];
    assert!((slowed("800 GB/s", &stages, Payload::GradientsOut) - 1.0).abs() < 1e-3);
    let slow = slowed("26 GB/s", &stages, Payload::GradientsOut);
    assert!(slow > 1.2, "{slow}");
}

#[test]
fn a_computing_socket_slows_the_activations_that_reach_it() {
    assert!((slowed("800 GB/s", &[11], Payload::Activation) - 1.0).abs() < 1e-3);
    let slow = slowed("26 GB/s", &[11], Payload::Activation);
    assert!(slow > 1.2, "{slow}");
}

/// The first gradients of each stage are only written, by their copy. For each later microbatch the
/// sum and the new gradients are read, and the sum is written.
#[test]
fn accumulated_gradients_pass_the_dram_four_times() {
    let knobs = &[(Knob::GradientsLeave, 1)];
    let (program, trace) = run_with("26 GB/s", &[3, 9, 13], knobs);
    // The gradients of the first and the last stage, whose layers are tied, do not leave.
    let stage = program.stages().ids().nth(1);
    let copies: Vec<SimTime> = program
        .actions()
        .enumerate()
        .filter(|(_, it)| it.kind == ActionKind::Copy(Payload::GradientsOut) && it.subject.stage == stage)
        .map(|(id, _)| program.alone(id))
        .collect();
    assert_eq!(copies.len(), 6);
    let seconds = |time: &SimTime| time.as_ns() as f64;
    let ratio = seconds(&copies[1]) / seconds(&copies[0]);
    assert!((3.0..=4.0).contains(&ratio) && copies[2..].iter().all(|copy| *copy == copies[1]), "{copies:?}");
    let (_, plentiful) = run_with("800 GB/s", &[3, 9, 13], knobs);
    assert!(trace.iteration > plentiful.iteration);
}
