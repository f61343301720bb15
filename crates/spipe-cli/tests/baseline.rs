//! Tensor, pipeline and data parallelism with equal stages, which plans are compared with.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, spipe};
use serde_json::Value;

const MACHINE: &str = "rtx3090-x4-two-sockets";

fn tensor_data(model: &str, more: &[&str]) -> Run {
    let args = ["baseline", "tensor-data", "--model", model, "--hardware", MACHINE, "--global-batch", "16"];
    spipe(".", &[&args[..], &["--microbatch", "1"], more].concat())
}

#[test]
fn degrees_that_are_not_given_are_all_tried() {
    let Run { code, out, err } =
        tensor_data("gpt2-xl", &["--recompute", "full", "--seq-len", "512", "--format", "json"]);
    // gpt2-xl has 25 heads, which neither 2 nor 4 GPUs can share.
    assert!(matches!(code, Some(0 | 6)), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let degrees: Vec<u64> =
        found["configurations"].as_array().unwrap().iter().map(|one| one["tensor"].as_u64().unwrap()).collect();
    assert_eq!(degrees, [1]);
    let Run { out, .. } = tensor_data("llama2-7b", &["--format", "json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    let all = found["configurations"].as_array().unwrap();
    assert_eq!(all.len(), 9, "three degrees with three choices of recompute");
    for one in all {
        assert_eq!(one["fits"].as_bool(), Some(one["iteration-ms"].is_number()), "what fits is simulated: {one}");
    }
}

/// The figures are those of a plan with equal stages, which can be written, also on several computers.
#[test]
fn baselines_are_plans() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let nodes = ["--nodes", "2", "--network", "2x100Gb", "--pp", "2", "--dp", "4", "--sharding", "optimizer"];
    let more = ["--recompute", "none", "--format", "json", "-o", plan.to_str().unwrap()];
    let Run { code, out, err } = tensor_data("gpt2", &[&nodes[..], &more].concat());
    assert_eq!(code, Some(0), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let [one] = found["configurations"].as_array().unwrap().as_slice() else { panic!("one mesh: {out}") };
    let degrees = ["tensor", "pipeline", "data"].map(|degree| one[degree].as_u64().unwrap());
    assert_eq!((degrees, one["sharding"].as_str()), ([1, 2, 4], Some("optimizer")));
    assert!(one["collectives-ms"].as_f64().unwrap() > 0.0, "gradients are reduced: {one}");
    let simulated = spipe(".", &["simulate", plan.to_str().unwrap(), "--format", "json"]);
    let simulated: Value = serde_json::from_str(&simulated.out).unwrap();
    assert_eq!(simulated["iteration-ms"], one["iteration-ms"]);
    let text: Value = serde_json::from_str(&std::fs::read_to_string(plan).unwrap()).unwrap();
    assert_eq!(text["stages"].as_array().unwrap().len(), 2);
}

#[test]
fn what_does_not_fit_is_said() {
    let Run { code, out, err } = tensor_data("llama2-7b", &["--tensor", "1", "--data", "4", "--recompute", "full"]);
    assert_eq!(code, Some(6));
    assert!(out.contains(" no"), "{out}");
    assert!(err.contains("each GPU needs at least") && err.contains("hint:"), "{err}");
}

#[test]
fn degrees_that_cannot_be_are_refused() {
    let refused = |model: &str, degrees: &[&str], words: &str| {
        let Run { code, err, .. } = tensor_data(model, degrees);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(words), "{err}");
    };
    refused("llama2-7b", &["--tp", "3"], "cannot be divided among 3 GPUs");
    refused("llama2-7b", &["--tp", "2", "--dp", "4"], "2 × 1 × 4 = 8 GPUs are asked for");
    refused("gpt2-xl", &["--tp", "2", "--dp", "1"], "cannot be divided among 2 GPUs");
    refused("gpt2-xl", &["--sharding", "parameters"], "keeps all parameters");
    refused("gpt2-xl", &["--nodes", "2"], "has no network");
}

/// Of generating, an iteration finds one token for each sequence.
#[test]
fn tokens_are_those_that_are_found() {
    let Run { out, err, .. } = tensor_data("llama2-7b", &["--mode", "generate", "--format", "json"]);
    let found: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} {err}"));
    for one in found["configurations"].as_array().unwrap() {
        let (rate, ms) = (one["tokens-per-second"].as_f64().unwrap(), one["iteration-ms"].as_f64().unwrap());
        assert!((rate * ms / 1e3 - 16.0).abs() < 1e-3, "{one}");
    }
}
