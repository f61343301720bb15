//! The memory of the simulator itself, without the program and the trace.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use peak_alloc::PeakAlloc;
use spipe_base::{LayerRange, SimTime};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Placement, Stage, System};
use spipe_schedule::{Program, StageTimes, bare, lower, one_forward_one_backward};
use spipe_sim::{Iterations, Options, simulate};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The bytes per action at the peak of a simulation, without the program and the trace.
fn bytes_per_action(program: &Program) -> f64 {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let simulation = simulate(program, &Options { iterations: Iterations::One, ..Options::default() });
    let (peak, after) = (MEMORY.peak_usage(), MEMORY.current_usage());
    assert!(simulation.actions >= program.actions().len() as u64);
    peak.saturating_sub(after.max(before)) as f64 / program.actions().len() as f64
}

/// 1F1B without contention.
fn order_alone(microbatches: usize) -> Program {
    let times = StageTimes {
        forward: SimTime::ns(1000),
        backward_input: SimTime::ns(1000),
        backward_weight: SimTime::ns(1000),
        latency: SimTime::ns(10),
        weight_gradient_memory: 1000,
    };
    bare("1f1b", &one_forward_one_backward(8, microbatches, &[]), &times).unwrap()
}

/// 1F1B of Llama-2-7B on eight GPUs with copies that share links.
fn with_transfers(microbatches: u64) -> Program {
    let find = |list: &[(&str, &'static str)], name: &str| list.iter().find(|it| it.0 == name).unwrap().1;
    let model = Model::from_toml("llama2-7b", find(spipe_model::shipped(), "llama2-7b")).unwrap();
    let machine = "a100-80g-x8-nvlink";
    let hardware = Hardware::from_toml(machine, find(spipe_hardware::shipped(), machine)).unwrap();
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 2048,
        microbatch: 1,
        microbatches,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    };
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let (layers, devices) = (model.layers().len(), 8);
    let stage = |stage: usize| {
        let cut = |stage: usize| stage * layers / devices;
        let range = LayerRange::new(cut(stage).into(), (cut(stage + 1) - 1).into()).unwrap();
        Stage::new(hardware.device(&format!("gpu{stage}")).unwrap(), range)
    };
    lower(&context, &Placement::new(System::OneForwardOneBackward, (0..devices).map(stage))).unwrap()
}

/// The only test of this file, so that nothing else allocates meanwhile.
#[test]
fn the_simulator_needs_less_than_a_hundred_bytes_per_action() {
    for program in [order_alone(2_000), order_alone(20_000), with_transfers(2_000), with_transfers(8_000)] {
        let bytes = bytes_per_action(&program);
        assert!(bytes < 100.0, "{bytes:.1} bytes for each of {} actions", program.actions().len());
    }
}
