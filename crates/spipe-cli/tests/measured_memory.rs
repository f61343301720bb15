//! The memory of public trainings with selective recompute, chunked losses and states in 16 bits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::{fs, path::Path};

/// Llama 3.2 3B: the release's config.json.
const LLAMA_3B: &str = "{\"model_type\": \"llama\", \"hidden_size\": 3072, \"num_hidden_layers\": 28, \
    \"num_attention_heads\": 24, \"num_key_value_heads\": 8, \"head_dim\": 128, \"intermediate_size\": 8192, \
    \"vocab_size\": 128256, \"tie_word_embeddings\": true, \"max_position_embeddings\": 131072}";

/// Eight H100 of 96 GB.
const MACHINE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../spipe-reproduce/data/runs/machines/h100-96g-sxm-x8.toml");

const GIB: f64 = (1u64 << 30) as f64;

/// Name, model, machine, options, GiB as the allocator counted them, and the source.
///
/// torchtitan saves the outputs of attention and of every second product, and recomputes the rest
/// (`torchtitan/parallelisms/parallelize_llama.py`, `_save_list`); its loss was not compiled in 2024-12.
/// torchtune trains in pure bf16: weights, gradients and moments.
const RUNS: [(&str, &str, &str, &str, f64, &str); 4] = [
    (
        "Llama 3.1 8B, FSDP2, selective checkpoints",
        "llama3-8b",
        MACHINE,
        "--runtime pytorch --system fsdp --global-batch 16 --microbatch 2 --seq-len 8192 --recompute-ops norms,activation,output,up",
        82.4,
        "pytorch/torchtitan@b5bcd76 benchmarks/",
    ),
    (
        "the same, blocks compiled",
        "llama3-8b",
        MACHINE,
        "--runtime pytorch-compiled --loss unfused --system fsdp --global-batch 16 --microbatch 2 --seq-len 8192 --recompute-ops norms,activation,output,up",
        77.0,
        "pytorch/torchtitan@b5bcd76 benchmarks/",
    ),
    (
        "Llama 3.2 3B, full, packed",
        "config.json",
        "a100-80g",
        "--runtime pytorch --system gpu-only --packing --global-batch 2 --microbatch 2 --seq-len 4096 --state bf16 --master none",
        60.0,
        "pytorch/torchtune@bd2a0fc README",
    ),
    (
        "the same, compiled, chunked loss",
        "config.json",
        "a100-80g",
        "--runtime pytorch-compiled --loss chunked --system gpu-only --packing --global-batch 2 --microbatch 2 --seq-len 4096 --state bf16 --master none",
        42.9,
        "pytorch/torchtune@bd2a0fc README",
    ),
];

#[test]
fn peaks_are_within_15_percent_of_measured_ones() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("measured-memory");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), LLAMA_3B).unwrap();
    let mut errors = Vec::new();
    for (name, model, machine, options, measured, source) in RUNS {
        let plan = format!("plan --effort low --format json --model {model} --hardware {machine} {options}");
        let run = spipe(&folder, &plan);
        assert_eq!(run.code, Some(0), "{name}: {}", run.err);
        let plan: Value = serde_json::from_str(&run.out).unwrap();
        let error = plan["peak-bytes"]["gpu0"].as_f64().unwrap() / GIB / measured - 1.0;
        errors.push((name, error, source));
    }
    assert!(errors.iter().all(|(_, error, _)| error.abs() < 0.15), "{errors:?}");
}
