//! Simulated actions per second, with transfers and memory on, on one core.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use spipe_base::LayerRange;
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Placement, Stage, System};
use spipe_schedule::{Program, StageTimes, bare, interleaved, lower, one_forward_one_backward};
use spipe_sim::{Iterations, Options, simulate};
use std::hint::black_box;

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

/// A placement with the model, machine and costs of its context.
struct Bench {
    model: Model,
    hardware: Hardware,
    cost: CostTable,
}

impl Bench {
    fn new(model: &str, machine: &str, microbatches: u64) -> Self {
        let model = Model::from_toml(model, shipped(spipe_model::shipped(), model)).unwrap();
        let hardware = Hardware::from_toml(machine, shipped(spipe_hardware::shipped(), machine)).unwrap();
        let workload = Workload {
            mode: Mode::Train,
            seq_len: 2048,
            microbatch: 1,
            microbatches,
            precision: Precision::Fp16,
            ..Workload::PLAIN
        };
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        Self { model, hardware, cost }
    }

    fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.cost }
    }

    /// Stages of nearly equal numbers of layers, assigned round-robin.
    fn dealt(&self, system: System, devices: usize, chunks: usize) -> Placement {
        let (layers, stages) = (self.model.layers().len(), devices * chunks);
        let cut = |stage: usize| stage * layers / stages;
        let stage = |stage: usize| {
            let layers = LayerRange::new(cut(stage).into(), (cut(stage + 1) - 1).into()).unwrap();
            Stage::new(self.hardware.device(&format!("gpu{}", stage % devices)).unwrap(), layers)
        };
        Placement::new(system, (0..stages).map(stage))
    }
}

/// Sixteen devices with two stages each and 256 microbatches: ordered, lowered, checked and
/// simulated.
fn whole_way(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("whole-way-16-devices-256-microbatches-2-chunks");
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let times = unit_times();
    let bench = Bench::new("gpt3-175b", "v100-32g-x16", 256);
    let placement = bench.dealt(System::Interleaved, 16, 2);
    let actions = lower(&bench.context(), &placement).unwrap().actions().len();
    group.throughput(Throughput::Elements(actions as u64));
    group.bench_function("on-a-machine", |bencher| {
        bencher.iter(|| black_box(simulate(&lower(&bench.context(), &placement).unwrap(), &options).actions));
    });
    group.throughput(Throughput::Elements(4 * 16 * 256));
    group.bench_function("order-alone", |bencher| {
        bencher.iter(|| {
            let order = interleaved(16, 2, 256, None).unwrap();
            black_box(simulate(&bare("interleaved-1f1b", &order, &times).unwrap(), &options).actions)
        });
    });
    group.finish();
}

/// The cost by the number of actions.
fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("growth");
    group.sample_size(10);
    let options = Options { iterations: Iterations::One, ..Options::default() };
    for hundred_thousands in [1, 10, 100] {
        let microbatches = hundred_thousands * 100_000 / 16;
        group.throughput(Throughput::Elements((2 * 8 * microbatches) as u64));
        group.bench_function(format!("{hundred_thousands}00-thousand-actions"), |bencher| {
            // Large programs are built only if they are selected.
            let order = bare("1f1b", &one_forward_one_backward(8, microbatches, &[]), &unit_times()).unwrap();
            bencher.iter(|| black_box(simulate(&order, &options).actions));
        });
    }
    group.finish();
}

fn unit_times() -> StageTimes {
    StageTimes {
        forward: spipe_base::SimTime::ns(1000),
        backward_input: spipe_base::SimTime::ns(1000),
        backward_weight: spipe_base::SimTime::ns(1000),
        latency: spipe_base::SimTime::ns(10),
        weight_gradient_memory: 1000,
    }
}

/// Llama-2-7B in 1F1B on eight A100, with boundary copies over NVLink, buffers in every memory.
fn real(microbatches: u64) -> Program {
    let bench = Bench::new("llama2-7b", "a100-80g-x8-nvlink", microbatches);
    lower(&bench.context(), &bench.dealt(System::OneForwardOneBackward, 8, 1)).unwrap()
}

fn simulator(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulator");
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let times = unit_times();
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

criterion_group!(benches, simulator, whole_way, growth);
criterion_main!(benches);
