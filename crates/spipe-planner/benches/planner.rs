//! How long planning takes: 34 layers on 3 devices, and 82 layers on 8 GPUs and 2 sockets, each to one percent.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run must say so")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{
    instances::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    schedule::simulate,
};
use criterion::{Criterion, criterion_group, criterion_main};
use spipe_cost::Mode;
use spipe_plan::{Placement, System};
use spipe_planner::{Options, Problem, Solution, planner};
use std::{hint::black_box, sync::atomic::AtomicBool};

/// An embedding, `blocks` equal blocks and a head, with `parameters` per block.
fn transformer(blocks: usize, parameters: u64) -> String {
    let ends = LayerText {
        count: 1,
        times: [3, 2, 2],
        slowdown: 4,
        parameters: parameters / 2,
        boundary: 16,
        saved: 32,
        workspace: 0,
    };
    let block = LayerText {
        count: blocks,
        times: [40, 40, 40],
        slowdown: 12,
        parameters,
        boundary: 16,
        saved: 500,
        workspace: 0,
    };
    model_text(&[ends.clone(), block, LayerText { times: [20, 20, 20], ..ends }])
}

fn small() -> Instance {
    let machine = MachineText { gpus: vec![(24 << 10, 25), (24 << 10, 25)], root: 50, sockets: vec![128 << 10] };
    Instance::new(&transformer(32, 100_000_000), &machine_text(&machine), &workload(16, Mode::Train))
}

fn large() -> Instance {
    let machine = MachineText { gpus: vec![(80 << 10, 25); 8], root: 100, sockets: vec![1 << 20, 1 << 20] };
    Instance::new(&transformer(80, 850_000_000), &machine_text(&machine), &workload(32, Mode::Train))
}

/// The same with GPUs so small that sockets must take most layers.
fn tight() -> Instance {
    let machine = MachineText { gpus: vec![(60 << 10, 25); 8], root: 100, sockets: vec![1 << 20, 1 << 20] };
    Instance::new(&transformer(80, 850_000_000), &machine_text(&machine), &workload(32, Mode::Train))
}

fn plan(instance: &Instance) -> Solution {
    let context = instance.context();
    let score = |placement: &Placement| simulate(&context, placement, 2);
    let stop = AtomicBool::new(false);
    let options = Options { gap: 0.01, threads: 2, host_help: false, ..Options::default() };
    let problem = Problem { context, systems: System::ALL.to_vec(), options, evaluator: &score, stop: &stop };
    planner("ilp").unwrap().plan(&problem).unwrap()
}

fn planners(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ilp");
    group.sample_size(10);
    for (name, instance) in [
        ("34 layers, 3 devices", small()),
        ("82 layers, 8 GPUs and 2 sockets", large()),
        ("82 layers, 8 small GPUs and 2 sockets", tight()),
    ] {
        let solution = plan(&instance);
        assert!(solution.gap <= 0.0101, "{name}: {solution:?}");
        group.bench_function(name, |bencher| bencher.iter(|| black_box(plan(&instance))));
    }
    group.finish();
}

criterion_group!(benches, planners);
criterion_main!(benches);
