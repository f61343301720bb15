//! Tensor and data parallelism, which pipelines are compared with.

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
        let part = |name: &str| one[name].as_f64().unwrap();
        let parts =
            part("compute-ms") + part("tensor-reductions-ms") + part("data-reduction-ms") + part("optimizer-ms");
        assert!((parts - part("iteration-ms")).abs() < 1e-6 * parts);
    }
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
    let Run { code, err, .. } = tensor_data("llama2-7b", &["--tensor", "3"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("3 does not divide the 4 GPUs"), "{err}");
    let Run { code, err, .. } = tensor_data("llama2-7b", &["--tensor", "2", "--data", "4"]);
    assert_eq!(code, Some(4));
    assert!(err.contains("8 GPUs are needed, but there are 4"), "{err}");
    let Run { code, err, .. } = tensor_data("gpt2-xl", &["--tensor", "2", "--data", "1"]);
    assert_eq!(code, Some(4));
    assert!(err.contains("cannot be split over 2 GPUs"), "{err}");
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
