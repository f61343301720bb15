//! Token generation: the cache is held throughout, within the footprint.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{ActionKind, Bytes, LayerRange, Payload};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Batch, Model, Precision};
use spipe_plan::{Context, Placement, Stage, System, check, footprint};
use spipe_schedule::{Content, lower};
use spipe_sim::{Options, is_ok, simulate};

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

/// 16 blocks of Llama-2-7B on each of two GPUs, eight sequences of 2048 tokens: 2·t·c numbers of
/// two bytes a block.
fn holds_keys_and_values(system: System, streamed: bool) {
    let model = Model::from_toml("m.toml", shipped(spipe_model::shipped(), "llama2-7b")).unwrap();
    let machine = "rtx3090-x4-two-sockets";
    let hardware = Hardware::from_toml("p.toml", shipped(spipe_hardware::shipped(), machine)).unwrap();
    let workload = Workload {
        mode: Mode::Generate,
        seq_len: 2048,
        microbatch: 2,
        microbatches: 4,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    };
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let range = |first: usize, last: usize| LayerRange::new(first.into(), last.into()).unwrap();
    let gpus = [0, 1].map(|gpu| hardware.device(&format!("gpu{gpu}")).unwrap());
    let dram = hardware.memory("dram0").unwrap();
    let stage = |gpu: usize, layers| {
        let stage = Stage::new(gpus[gpu], layers);
        if streamed { stage.with_weights_in(dram) } else { stage }
    };
    let placement = Placement::new(system, [stage(0, range(0, 16)), stage(1, range(17, 33))]);
    assert_eq!(check(&context, &placement), Ok(()));
    let program = lower(&context, &placement).unwrap();
    let batch = Batch { microbatch: 8, seq_len: 2048 };
    let cached = Bytes::new(16 * 2 * batch.tokens() * 4096 * 2);
    let caches: Vec<Bytes> = program
        .buffers()
        .iter()
        .filter(|buffer| matches!(buffer.content, Content::Cache(_)))
        .map(|b| b.bytes)
        .collect();
    assert_eq!(caches, [cached; 2]);
    let simulation = simulate(&program, &Options::default());
    assert!(is_ok(&simulation));
    let needs = footprint(&context, &placement);
    for track in &simulation.trace.memories {
        let Some(memory) = hardware.memory(&track.name) else { continue };
        let need: Bytes = needs.get(&memory).into_iter().flatten().map(|(_, stage)| stage.total()).sum();
        assert!(track.peak <= need, "{}: {} of {need}", track.name, track.peak);
        assert!(!needs.contains_key(&memory) || track.peak > cached, "{}", track.name);
    }
}

/// Eight sequences in microbatches on two stages. A token begins when the token before it has left
/// the last stage, so that a single microbatch takes the time of both stages for each token.
#[test]
fn a_token_waits_for_the_one_before_it() {
    let period = |microbatches: u64, mode: Mode| {
        let model = Model::from_toml("m.toml", shipped(spipe_model::shipped(), "llama2-7b")).unwrap();
        let machine = "rtx3090-x4-two-sockets";
        let hardware = Hardware::from_toml("p.toml", shipped(spipe_hardware::shipped(), machine)).unwrap();
        let workload =
            Workload { mode, seq_len: 256, microbatch: 1, microbatches, precision: Precision::Bf16, ..Workload::PLAIN };
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let range = |first: usize, last: usize| LayerRange::new(first.into(), last.into()).unwrap();
        let gpus = [0, 1].map(|gpu| hardware.device(&format!("gpu{gpu}")).unwrap());
        let placement =
            Placement::new(System::Gpipe, [Stage::new(gpus[0], range(0, 16)), Stage::new(gpus[1], range(17, 33))]);
        let times = [(gpus[0], range(0, 16)), (gpus[1], range(17, 33))]
            .map(|(gpu, layers)| layers.iter().map(|layer| cost.time(layer, gpu).unwrap().forward.get()).sum::<f64>());
        let program = lower(&context, &placement).unwrap();
        (simulate(&program, &Options::default()).trace.iteration.to_ms() / 1e3, times)
    };
    let (alone, times) = period(1, Mode::Generate);
    assert!(alone > times[0] + times[1], "{alone} {times:?}");
    let (two, _) = period(2, Mode::Generate);
    assert!(two < 1.1 * alone, "the stages take turns: {two} {alone}");
    let (prefill, times) = period(1, Mode::Infer);
    assert!(prefill < 1.01 * times[0].max(times[1]), "sequences do not wait for others: {prefill} {times:?}");
}

/// Two sequences' tokens reach 3.5 of 8 experts: copies bring these, and buffers hold all.
#[test]
fn streaming_brings_the_experts_that_tokens_reach() {
    let json = include_str!("../../spipe-model/tests/fixtures/hugging-face/mixtral-8x7b.json");
    let model = Model::from_hugging_face("mixtral.json", json).unwrap().model;
    let machine = "rtx3090-x4-two-sockets";
    let hardware = Hardware::from_toml("p.toml", shipped(spipe_hardware::shipped(), machine)).unwrap();
    let gpu = hardware.device("gpu0").unwrap();
    let dram = hardware.memory("dram0").unwrap();
    let run = |microbatches: u64| {
        let workload = Workload {
            mode: Mode::Generate,
            seq_len: 256,
            microbatch: 1,
            microbatches,
            precision: Precision::Bf16,
            ..Workload::PLAIN
        };
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let stage = |layer: usize| Stage::new(gpu, LayerRange::new(layer.into(), layer.into()).unwrap());
        let stages = (0..model.layers().len()).map(|layer| stage(layer).with_weights_in(dram));
        let program = lower(&context, &Placement::new(System::Mobius, stages)).unwrap();
        let is_copy = |action: &&spipe_schedule::Action| action.kind == ActionKind::Copy(Payload::WeightsIn);
        let copies = program.actions().iter().filter(is_copy).flat_map(|action| program.flows(action));
        let moved: Bytes = copies.map(|flow| flow.bytes).sum();
        let (device, id) = (program.memories().iter().position(|memory| memory.name == "gpu0"), model.layer("block.3"));
        let layer = id.unwrap();
        let held = |buffer: &&spipe_schedule::Buffer| {
            matches!(buffer.content, Content::Parameters(layers) if layers.contains(layer))
                && Some(buffer.memory.index()) == device
        };
        let held: Vec<Bytes> = program.buffers().iter().filter(held).map(|buffer| buffer.bytes).collect();
        assert_eq!(held, [cost.memory(layer, gpu).parameters], "a buffer has room for all experts");
        (moved, simulate(&program, &Options::default()).trace.iteration)
    };
    let all: u64 = 2 * model.parameters();
    let experts: u64 = 2 * 32 * 8 * 3 * 4096 * 14_336;
    for (microbatches, reached) in [(1, 2.0), (2, 3.5), (4, 5.468_75)] {
        let expected = all as f64 - experts as f64 * (1.0 - reached / 8.0);
        let (moved, time) = run(microbatches);
        assert_eq!(moved.get(), expected as u64, "{microbatches}");
        // Generation is bound by the copies.
        let rate = moved.as_f64() / (time.to_ms() / 1e3);
        assert!((1e10..4e10).contains(&rate), "{microbatches}: {rate} B/s");
    }
}

#[test]
fn a_pipeline_holds_the_keys_and_values_of_all_its_sequences() {
    holds_keys_and_values(System::Gpipe, false);
}

#[test]
fn streaming_parameters_leaves_the_cache_on_the_device() {
    holds_keys_and_values(System::Mobius, true);
}
