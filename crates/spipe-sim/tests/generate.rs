//! Token generation: the cache is held throughout, within the footprint.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, LayerRange};
use spipe_cost::{CostTable, Mode, Optimizer, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Batch, Model, Precision};
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
        optimizer: Optimizer::Adamw,
        attention: Attention::Fused,
        clip_norm: None,
        formats: spipe_cost::Formats::default(),
        data: spipe_cost::DataShape::PLAIN,
        recompute_ops: spipe_model::Operations::NONE,
        loss: None,
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
        let workload = Workload {
            mode,
            seq_len: 256,
            microbatch: 1,
            microbatches,
            precision: Precision::Bf16,
            optimizer: Optimizer::Adamw,
            attention: Attention::Fused,
            clip_norm: None,
            formats: spipe_cost::Formats::default(),
            data: spipe_cost::DataShape::PLAIN,
            recompute_ops: spipe_model::Operations::NONE,
            loss: None,
        };
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

#[test]
fn a_pipeline_holds_the_keys_and_values_of_all_its_sequences() {
    holds_keys_and_values(System::Gpipe, false);
}

#[test]
fn streaming_parameters_leaves_the_cache_on_the_device() {
    holds_keys_and_values(System::Mobius, true);
}
