//! Losses and adapters equal those of PEFT, step by step, on the shipped model `demo`.
//!
//! `tests/python/adapters.py` made the table. It has neither weights nor data: every number follows from
//! its place.

use crate::{machine::machine_with, setup::Setup};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use spipe_cost::{Formats, Mode, Workload};
use spipe_exec::{Backend, Options, StepSettings, Tokens, run, save_initial_weights};
use spipe_hardware::Hardware;
use spipe_model::{Adapter, Attention, Model, Precision};
use spipe_plan::{Placement, Plan, Stage, System};
use spipe_schedule::lower;
use std::{fs, ops::ControlFlow, path::Path};

const TABLE: &str = include_str!("../fixtures/adapters.json");
const DEMO: &str = include_str!("../../../../models/demo.toml");
const SEQUENCES: u64 = 2;
const SEQ_LEN: u64 = 32;

/// The numbers of a tensor: 0.08 (2 f − 1), where f is the fraction of 43758.5453 sin(h + 12.9898 i), and
/// one more for norms; zero for B.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    if name.ends_with("lora_B.weight") {
        return vec![0.0; count];
    }
    let start = name.bytes().fold(0_u64, |start, letter| (31 * start + u64::from(letter)) % 1_000_003);
    let one = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
    let number = |index: usize| {
        let fraction = (43_758.545_3 * (start as f64 + 12.989_8 * index as f64).sin()).rem_euclid(1.0);
        (0.08 * (2.0 * fraction - 1.0) + one) as f32
    };
    (0..count).map(number).collect()
}

/// Fills every tensor of a file.
fn fill(path: &Path) {
    let before = fs::read(path).expect("the file");
    let tensors = SafeTensors::deserialize(&before).expect("tensors");
    let filled: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            let count = tensor.shape().iter().product();
            (
                name.into(),
                tensor.shape().to_vec(),
                numbers(name, count).iter().flat_map(|one| one.to_le_bytes()).collect(),
            )
        })
        .collect();
    let views = filled.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("a file")).expect("to be written");
}

fn norm(bytes: &[u8]) -> f64 {
    let (fours, _) = bytes.as_chunks::<4>();
    fours.iter().map(|four| f64::from(f32::from_le_bytes(*four)).powi(2)).sum::<f64>().sqrt()
}

/// The plan of a case: adapters of `config` on the model `demo`, stored as `base`, in two stages or streamed.
fn plan(config: &Value, base: &Value, system: System) -> Plan {
    let lora = Adapter::from_json("config", &config.to_string()).and_then(|adapter| adapter.lora()).expect("adapters");
    let model = Model::from_toml("demo.toml", DEMO).and_then(|model| model.with_lora(&lora)).expect("a model");
    let hardware = Hardware::from_toml("machine.toml", &machine_with(2, "256 MiB", "4 GB/s")).expect("a machine");
    let device = |name: &str| hardware.device(name).expect("a device");
    let stage = |name: &str, layers: &str| Stage::new(device(name), layers.parse().expect("layers"));
    let stages = match system {
        System::Superpipeline => {
            let dram = hardware.memory("dram0").expect("a host");
            let layers = ["0..2", "3..5", "6..9"];
            layers.map(|layers| stage("gpu0", layers).with_everything_recomputed().with_weights_in(dram)).into()
        }
        _ => vec![stage("gpu0", "0..4"), stage("cpu0", "5..9")],
    };
    let workload = Workload {
        mode: Mode::Train,
        seq_len: SEQ_LEN,
        microbatch: 1,
        microbatches: SEQUENCES,
        precision: Precision::Fp32,
        attention: Attention::Materialised,
        formats: Formats { base: base.as_str().map(|base| base.parse().expect("a format")), ..Formats::default() },
        ..Workload::PLAIN
    };
    Plan::new(model, hardware, workload, Placement::new(system, stages)).unwrap_or_else(|faults| panic!("{faults}"))
}

#[test]
fn losses_and_adapters_are_those_of_peft() {
    let table: Value = serde_json::from_str(TABLE).expect("a table");
    let steps = table["steps"].as_u64().expect("a number");
    let index = |step: u64| (0..SEQUENCES * (SEQ_LEN + 1)).map(move |index| index + 1000 * step);
    let ids = (0..steps).flat_map(index).map(|index| ((7 * index * index + 3 * index) % 251) as u32).collect();
    let data = Tokens::listed(ids, SEQUENCES, SEQ_LEN).expect("tokens").into();
    let folder = tempfile::tempdir().expect("a folder");
    let [base, start, end] = ["base", "start", "end"].map(|name| folder.path().join(name));
    save_initial_weights(&Model::from_toml("demo.toml", DEMO).expect("a model"), 1, &base).expect("weights");
    fill(&base.join("model.safetensors"));
    let cases = table["cases"].as_array().expect("cases");
    let systems = [System::OneForwardOneBackward, System::Superpipeline].into_iter().cycle();
    for (case, system) in cases.iter().zip(systems) {
        let mut config = case["settings"].clone();
        config["peft_type"] = "LORA".into();
        let plan = plan(&config, &case["base"], system);
        let program = lower(&plan.context(), plan.placement()).unwrap_or_else(|faults| panic!("{faults}"));
        let options = |steps| Options { steps, weights: Some(base.clone()), ..Setup::options(Backend::Ndarray, 1) };
        let train = |options: &Options| {
            run(&plan, &program, &data, options, &mut |_| ControlFlow::Continue(()))
                .unwrap_or_else(|error| panic!("{error}"))
        };
        // A run that learns nothing writes a file of the right shapes.
        let still = StepSettings { lr: 0.0, ..StepSettings::default() };
        train(&Options { optimizer: still, save_adapter: Some(start.clone()), ..options(1) });
        fill(&start.join("adapter_model.safetensors"));
        let optimizer = StepSettings { lr: table["rate"].as_f64().expect("a number"), ..StepSettings::default() };
        let (adapter, save_adapter) = (Some(start.clone()), Some(end.clone()));
        let report = train(&Options { optimizer, adapter, save_adapter, ..options(steps as u32) });
        let expected: Vec<f64> = case["losses"].as_array().expect("losses").iter().filter_map(Value::as_f64).collect();
        assert_eq!(report.losses.len(), expected.len());
        let off = report.losses.iter().zip(&expected).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f64::max);
        assert!(off <= 1e-5, "{system}: {off}: {:?}, PEFT {expected:?}", report.losses);
        let file = fs::read(end.join("adapter_model.safetensors")).expect("the file");
        let tensors = SafeTensors::deserialize(&file).expect("tensors");
        let norms = case["norms"].as_object().expect("norms");
        assert_eq!(tensors.len(), norms.len());
        for (name, expected) in norms {
            let (ours, theirs) = (norm(tensors.tensor(name).expect(name).data()), expected.as_f64().expect("a number"));
            assert!((ours - theirs).abs() <= 1e-4 * theirs, "{name}: {ours}, PEFT {theirs}");
        }
    }
}
