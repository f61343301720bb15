//! The time to prove a plan of one system optimal to one percent, with all help of the host.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run must say so")]

#[path = "../../crates/spipe-planner/tests/common/instances.rs"]
mod instances;

use criterion::{Criterion, criterion_group, criterion_main};
use instances::{Instance, LayerText, MachineText, machine_text, model_text, workload};
use spipe_cost::Mode;
use spipe_plan::System;
use spipe_planner::{Options, Solution, planner};
use spipe_tests::with_problem;
use std::hint::black_box;

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

/// `count` layers, no two of them alike.
fn unlike(count: usize) -> String {
    let layer = |index: usize| {
        let from = |least: u64, steps: u64, step: u64| least + (index as u64 * step) % steps;
        LayerText {
            count: 1,
            times: [from(5, 26, 7), from(5, 26, 11), from(5, 26, 3)].map(|tenths| tenths as u32),
            slowdown: from(8, 12, 5) as u32,
            parameters: from(40, 121, 37) * 1_000_000 + index as u64,
            boundary: from(8, 9, 4),
            saved: from(60, 341, 89),
            workspace: 0,
        }
    };
    model_text(&(0..count).map(layer).collect::<Vec<_>>())
}

fn on(model: &str, (gpus, memory, sockets): (usize, u64, usize), microbatches: u64) -> Instance {
    let machine = MachineText { gpus: vec![(memory << 10, 25); gpus], root: 100, sockets: vec![1 << 20; sockets] };
    Instance::new(model, &machine_text(&machine), &workload(microbatches, Mode::Train))
}

fn plan(instance: &Instance) -> Solution {
    let options = Options { gap: 0.01, threads: 2, ..Options::default() };
    let systems = [System::OneForwardOneBackward];
    with_problem(instance.context(), &systems, options, |problem| planner("ilp").unwrap().plan(problem)).unwrap()
}

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for (name, instance) in [
        ("34 layers, a GPU and a socket", on(&transformer(32, 100_000_000), (1, 24, 1), 16)),
        ("82 layers that fit, 8 GPUs and 2 sockets", on(&transformer(80, 300_000_000), (8, 80, 2), 32)),
        ("200 unlike layers, 4 GPUs and a socket", on(&unlike(200), (4, 80, 1), 16)),
    ] {
        let solution = plan(&instance);
        assert!(solution.gap <= 0.0101, "{name}: {solution:?}");
        group.bench_function(name, |bencher| bencher.iter(|| black_box(plan(&instance))));
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
