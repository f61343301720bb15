//! The optimizers' kernels, and the interpreter's overhead on very short actions.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use spipe_exec::{Backend, Extent, Numbers, Optimizer, StepSettings, run};
use std::{hint::black_box, ops::ControlFlow, time::Duration};

#[expect(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/executor/machine.rs"]
mod machine;

/// One step of a tensor in f32. The largest fits no cache. Bytes are those that must cross memory: the
/// gradient in, the parameter and the state in and out.
fn optimizers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("optimizer");
    for kind in Optimizer::EXECUTED {
        for side in [1usize << 8, 1 << 10, 1 << 12] {
            let optimizer = Optimizer::new(kind, StepSettings::default()).expect("it is executed");
            let extent = Extent::whole([side, side]);
            let count = side * side;
            let gradients: Vec<f32> = (0..count).map(|index| ((index * 7919) % 1000) as f32 / 1e5 - 5e-3).collect();
            let (mut parameters, mut state) = (vec![0.5f32; count], optimizer.state(&extent));
            group.throughput(Throughput::Bytes(12 * count as u64 + 2 * state.bytes()));
            group.bench_function(BenchmarkId::new(kind.name(), count), |bencher| {
                bencher.iter(|| {
                    optimizer.step(black_box(&mut parameters), (Numbers::F32(&gradients), 1.0), &mut state);
                });
            });
        }
    }
    group.finish();
}

/// One step of a model so small that starting and ending actions dominates.
fn tiny_actions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tiny-actions");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    let case = machine::Case { microbatches: 8, ..machine::Case::default() };
    let (plan, program) = case.build();
    let data = machine::text();
    group.throughput(Throughput::Elements(program.actions().len() as u64));
    group.bench_function("ndarray", |bencher| {
        bencher.iter_custom(|steps| {
            let mut options = case.options(Backend::Ndarray, u32::try_from(steps).unwrap_or(u32::MAX));
            options.keep_gradients = false;
            let mut took = Duration::ZERO;
            let report = run(&plan, &program, &data, &options, &mut |step| {
                took += step.duration;
                ControlFlow::Continue(())
            });
            black_box(report.map(|report| report.lane_overhead)).ok();
            took
        });
    });
    group.finish();
}

criterion_group!(benches, optimizers, tiny_actions);
criterion_main!(benches);
