//! The optimizer's kernel, and the interpreter's overhead on very short actions.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use spipe_exec::{AdamW, Backend, Moments, run};
use std::{hint::black_box, ops::ControlFlow, time::Duration};

#[expect(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/executor/machine.rs"]
mod machine;

/// Bytes moved per parameter: parameter and moments in and out, gradient in.
const STEP_BYTES: u64 = 28;

fn adamw(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("adamw");
    for count in [1usize << 16, 1 << 20, 1 << 24] {
        let (mut parameters, gradients) = (vec![0.5f32; count], vec![0.01f32; count]);
        let mut moments = Moments::new(count);
        group.throughput(Throughput::Bytes(STEP_BYTES * count as u64));
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| AdamW::default().step(black_box(&mut parameters), &gradients, &mut moments));
        });
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

criterion_group!(benches, adamw, tiny_actions);
criterion_main!(benches);
