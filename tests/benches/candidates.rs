//! The time to judge a candidate: check, lowering and simulated iteration of 32 stages × 64 microbatches, no two of them cut
//! alike.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run must say so")]

use criterion::{Criterion, criterion_group, criterion_main};
use spipe_base::{DeviceId, LayerRange};
use spipe_cost::{Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{Placement, Stage, System};
use spipe_search::Setting;
use std::{hint::black_box, sync::Arc};

fn text(all: &[(&str, &'static str)], name: &str) -> &'static str {
    all.iter().find(|(known, _)| *known == name).unwrap().1
}

fn setting() -> Setting {
    let model = Model::from_toml("gpt2-xl", text(spipe_model::shipped(), "gpt2-xl")).unwrap();
    let hardware = Hardware::from_toml("v100-32g-x32", text(spipe_hardware::shipped(), "v100-32g-x32")).unwrap();
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 1024,
        microbatch: 1,
        microbatches: 64,
        precision: Precision::Fp16,
        ..Workload::PLAIN
    };
    Setting::new(&Arc::new(model), &Arc::new(hardware), &workload).unwrap()
}

/// 32 stages of one or two layers; which of them have two depends on `draw`.
fn cuts(system: System, (layers, draw): (usize, usize)) -> Placement {
    let long = |stage: usize| (stage * 7 + draw * 5 + draw / 32) % 32 < layers - 32;
    let mut first = 0;
    let stages = (0..32).map(|stage| {
        let last = first + usize::from(long(stage));
        let range = LayerRange::new(first.into(), last.into()).unwrap();
        first = last + 1;
        Stage::new(DeviceId::from(stage), range)
    });
    Placement::new(system, stages.collect::<Vec<_>>())
}

/// The same stages, all of them on every GPU.
fn shared(system: System, draw: (usize, usize), setting: &Setting) -> Placement {
    let context = setting.context();
    let lead = DeviceId::from(0usize);
    let home = context.hardware.host_memory(lead).unwrap();
    let socket = context.hardware.memories()[home].device.unwrap();
    let on_host = |stage: Stage| stage.with_weights_in(home).with_optimizer_on(socket);
    let stages = cuts(system, draw).stages.iter().map(|stage| stage.on(lead)).collect::<Vec<_>>();
    let stages = stages.into_iter().map(|stage| if system == System::ZeroInfinity { on_host(stage) } else { stage });
    Placement::new(system, stages).over_gpus(context.hardware, None)
}

fn candidates(criterion: &mut Criterion) {
    let setting = setting();
    let layers = setting.context().model.layers().len();
    let mut group = criterion.benchmark_group("candidate");
    for system in [System::OneForwardOneBackward, System::Zb1p, System::Fsdp, System::ZeroInfinity] {
        let placement = |draw: usize| match system {
            System::Fsdp | System::ZeroInfinity => shared(system, (layers, draw), &setting),
            _ => cuts(system, (layers, draw)),
        };
        let judge = |draw: usize| setting.evaluator().checked_iteration(&placement(draw)).unwrap();
        let mut draw = 0;
        group.bench_function(system.name(), |bencher| {
            bencher.iter(|| {
                draw += 1;
                black_box(judge(draw))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, candidates);
criterion_main!(benches);
