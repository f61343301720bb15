//! Simulated actions per second, with transfers and memory on, on one core.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use spipe_base::{LayerRange, StageId};
use spipe_cost::{CostTable, Mode, Optimizer, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Context, Placement, Stage, System};
use spipe_schedule::{Program, StageTimes, bare, lower, one_forward_one_backward};
use spipe_sim::{Iterations, Options, simulate};
use std::hint::black_box;

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

/// Llama-2-7B in 1F1B on eight A100, with boundary copies over NVLink, buffers in every memory.
fn real(microbatches: u64) -> Program {
    let model = Model::from_toml("llama2-7b", shipped(spipe_model::shipped(), "llama2-7b")).unwrap();
    let machine = "a100-80g-x8-nvlink";
    let hardware = Hardware::from_toml(machine, shipped(spipe_hardware::shipped(), machine)).unwrap();
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 2048,
        microbatch: 1,
        microbatches,
        precision: Precision::Bf16,
        optimizer: Optimizer::Adamw,
        attention: Attention::Fused,
    };
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let layers = model.layers().len();
    let cut = |stage: usize| stage * layers / 8;
    let stages = (0..8).map(|stage| {
        let layers = LayerRange::new(cut(stage).into(), (cut(stage + 1) - 1).into()).unwrap();
        Stage::new(hardware.device(&format!("gpu{stage}")).unwrap(), layers)
    });
    let placement = Placement::new(System::OneForwardOneBackward, stages);
    assert_eq!(placement.stages.ids().last(), Some(StageId::new(7)));
    lower(&context, &placement).unwrap()
}

fn simulator(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulator");
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let times = StageTimes {
        forward: spipe_base::SimTime::ns(1000),
        backward_input: spipe_base::SimTime::ns(1000),
        backward_weight: spipe_base::SimTime::ns(1000),
        latency: spipe_base::SimTime::ns(10),
        weight_gradient_memory: 1000,
    };
    let order = bare("1f1b", &one_forward_one_backward(8, 1000, &[]), &times).unwrap();
    for (name, program) in [("llama2-7b-8-gpus-transfers-memory", real(1000)), ("order-alone", order)] {
        group.throughput(Throughput::Elements(program.actions().len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| black_box(simulate(&program, &options).actions)));
        group.bench_function(format!("{name}-score"), |bencher| {
            bencher.iter(|| black_box(spipe_sim::iteration_time(&program)));
        });
    }
    group.finish();
}

criterion_group!(benches, simulator);
criterion_main!(benches);
