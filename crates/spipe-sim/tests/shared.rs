//! A tied table of embedding and head on two devices: the times of its gradients and its copy,
//! against results computed by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{ActionKind, LayerRange, Payload, SimTime};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Placement, Stage, System};
use spipe_schedule::lower;
use spipe_sim::{Options, is_ok, simulate};
use spipe_trace::{Span, Trace};

/// A table of 1,000,000 numbers.
const MODEL: &str = r#"
format-version = 1
kind = "transformer"
name = "tied"
vocabulary = 10000
seq-len = 128
hidden = 100
layers = 2
heads = 2
intermediate = 100
tied = true
"#;

/// Two GPUs with memories of 12 GB/s, joined by 1 GB/s with 1 ms of latency, and an idle socket.
fn machine() -> Hardware {
    let gpu = |index: u32| {
        format!(
            "[[gpu]]\nname = \"gpu{index}\"\nmemory = \"8 GiB\"\nmemory-bandwidth = \"12 GB/s\"\nlaunch-floor = \"1 us\"\n\
             peak = {{ f32 = \"1 TFLOP/s\" }}\nsource = \"estimate: a test\"\n\
             [[link]]\nname = \"pcie{index}\"\nbetween = [\"gpu{index}\", \"root0\"]\nbandwidth = \"1 GB/s\"\n\
             latency = \"0.5 ms\"\n"
        )
    };
    let text = format!(
        "format-version = 1\nname = \"pair\"\n[[socket]]\nname = \"cpu0\"\ncores = 4\npeak = {{ f32 = \"1 TFLOP/s\" }}\n\
         optimizer-rate = \"1 Gparam/s\"\nsource = \"estimate: a test\"\n\
         dram = {{ name = \"dram0\", capacity = \"8 GiB\", bandwidth = \"20 GB/s\" }}\n{}{}[[link]]\nname = \"root\"\n\
         between = [\"root0\", \"dram0\"]\nbandwidth = \"20 GB/s\"\n",
        gpu(0),
        gpu(1)
    );
    Hardware::from_toml("pair.toml", &text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn trace(system: System, model: &str) -> Trace {
    let (model, hardware) = (Model::from_toml("tied.toml", model).unwrap(), machine());
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 128,
        microbatch: 1,
        microbatches: 4,
        precision: Precision::Fp32,
        ..Workload::PLAIN
    };
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let range = |text: &str| text.parse::<LayerRange>().unwrap();
    let device = |name: &str| hardware.device(name).unwrap();
    let stages = [Stage::new(device("gpu0"), range("0..1")), Stage::new(device("gpu1"), range("2..3"))];
    let simulation = simulate(&lower(&context, &Placement::new(system, stages)).unwrap(), &Options::default());
    assert!(is_ok(&simulation) && simulation.steady);
    simulation.trace
}

fn spans(trace: &Trace, kind: ActionKind) -> Vec<&Span> {
    let mut spans: Vec<&Span> = trace.spans.iter().filter(|span| span.kind == kind).collect();
    spans.sort_by_key(|span| span.start);
    spans
}

fn lane<'a>(trace: &'a Trace, span: &Span) -> &'a str {
    &trace.lanes[span.lane.index()].name
}

/// 4 MB over 1 GB/s and 1 ms of latency take 5 ms; adding them moves 12 MB at 12 GB/s, 1 ms.
#[test]
fn gradients_come_before_the_step_and_the_copy_follows_it() {
    let pipelines = [System::OneForwardOneBackward, System::Gpipe, System::ZbH1];
    let pipelines = pipelines.map(|system| (system, "to", SimTime::ZERO));
    // In streamed systems they share the link with activations instead of queueing behind them:
    // four of 51.2 kB.
    let streamed = [System::Mobius, System::Superpipeline].map(|system| (system, "shared-to", SimTime::ns(4 * 51_200)));
    for (system, to, contention) in pipelines.into_iter().chain(streamed) {
        let trace = trace(system, MODEL);
        let only = |kind| match spans(&trace, kind)[..] {
            [span] => span,
            ref others => panic!("{others:?}"),
        };
        let (out, add) = (only(ActionKind::Copy(Payload::GradientsOut)), only(ActionKind::Accumulate));
        let back = only(ActionKind::Copy(Payload::WeightsIn));
        assert_eq!(add.duration(), SimTime::ms(1), "{system}");
        for copy in [out.duration(), back.duration()] {
            assert!(SimTime::ms(5) <= copy && copy <= SimTime::ms(5) + contention, "{system} {copy}");
        }
        let lanes = [&format!("gpu1.{to}-gpu0"), "gpu0.compute", &format!("gpu0.{to}-gpu1")];
        assert_eq!([out, add, back].map(|span| lane(&trace, span)), lanes, "{system}");
        let steps = spans(&trace, ActionKind::OptimizerStep);
        let step = *steps.iter().find(|step| lane(&trace, step) == "gpu0.compute").unwrap();
        // Once the gradients have arrived or the last backward has ended, sum, step and copy follow
        // each other at once.
        let last =
            trace.spans.iter().filter(|span| span.lane == add.lane && span.end <= add.start).map(|span| span.end);
        assert_eq!(add.start, last.max().unwrap().max(out.end), "{system}");
        assert_eq!((step.start, back.start), (add.end, step.end), "{system}");
    }
}
