//! `spipe compare-systems`: every system with its figures or the reason why it has none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::path::Path;

fn compared(args: &str) -> Vec<Value> {
    let output = spipe(Path::new("."), &format!("compare-systems --format json --time-limit 1s {args}"));
    assert_eq!(output.code, Some(0), "{}", output.err);
    let data: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(data["format-version"], 1);
    data["systems"].as_array().unwrap().clone()
}

#[test]
fn all_systems_are_there_with_figures_or_a_reason() {
    let rows = compared("--model demo --hardware one-gpu --global-batch 2 --seq-len 32 --microbatch 1");
    let names: Vec<&str> = rows.iter().map(|row| row["system"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 27, "all systems and data parallelism: {names:?}");
    assert!(["1f1b", "po-f", "zero-infinity", "cpu-only", "data-parallel"].iter().all(|name| names.contains(name)));
    for row in &rows {
        if row["status"] == "feasible" {
            assert!(
                row["iteration-ms"].as_f64().unwrap() > 0.0 && row["tokens-per-second"].as_f64().unwrap() > 0.0,
                "{row}"
            );
            assert!((0.0..1.0).contains(&row["bubble-fraction"].as_f64().unwrap()), "{row}");
            assert!((0.0..1.0).contains(&row["utilisation"].as_f64().unwrap()), "{row}");
            assert!(!row["peak-bytes"].as_object().unwrap().is_empty(), "{row}");
        } else {
            assert!(!row["reason"].as_str().unwrap().is_empty(), "{row}");
        }
    }
    let of = |name: &str| rows.iter().find(|row| row["system"] == name).unwrap();
    assert!(of("gpu-only")["link-bytes"].as_object().unwrap().get("pcie0.down").is_none(), "nothing crosses PCIe");
    assert!(of("zero-offload")["link-bytes"]["pcie0.up"].as_u64().unwrap() > 0, "gradients leave the GPU");
}

/// A ring of n GPUs sends 2(n − 1)/n of the gradients over each hop, and two GPUs form one.
#[test]
fn data_parallelism_reduces_the_gradients_once() {
    let rows = compared("--model gpt2 --hardware a100-80g-x2 --global-batch 8 --system data-parallel,gpu-only");
    let parallel = rows.iter().find(|row| row["system"] == "data-parallel").unwrap();
    assert_eq!((&parallel["status"], &parallel["baseline"]), (&"feasible".into(), &true.into()), "{parallel}");
    let shown = spipe(Path::new("."), "model show gpt2 --format json");
    let model: Value = serde_json::from_str(&shown.out).unwrap();
    let parameters = model["parameters"].as_u64().unwrap();
    let links = parallel["link-bytes"].as_object().unwrap();
    let most = links.values().map(|bytes| bytes.as_u64().unwrap()).max().unwrap();
    // bf16 gradients: 2 bytes per parameter, 2 · (2 − 1) ÷ 2 of them.
    assert!(most.abs_diff(2 * parameters) <= 2 * parameters / 50, "{most} for {parameters} parameters");
    let flops = model["forward-flops"].as_f64().unwrap() + model["backward-flops"].as_f64().unwrap();
    let seconds = parallel["iteration-ms"].as_f64().unwrap() / 1e3;
    let utilisation = parallel["utilisation"].as_f64().unwrap();
    let peak = flops * 8.0 / seconds / utilisation;
    assert!((peak / (2.0 * 312e12) - 1.0).abs() < 0.02, "two A100s compute {peak:.3e} FLOP/s");
}

#[test]
fn too_large_a_model_has_reasons_and_still_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let args = "compare-systems --model llama2-70b --hardware one-gpu --time-limit 1s --global-batch 1 --system gpu-only,data-parallel -o p.html --plot p.svg";
    let output = spipe(folder.path(), args);
    let out = output.out;
    assert_eq!(output.code, Some(0), "{out}");
    assert!(out.contains("gpu-only: infeasible: ") && out.contains("data-parallel (baseline): infeasible: "), "{out}");
    let page = std::fs::read_to_string(folder.path().join("p.html")).unwrap();
    assert!(page.contains("gpu-only") && page.contains("infeasible: "));
    assert!(std::fs::read_to_string(folder.path().join("p.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn unknown_systems_and_kinds_of_pictures_are_refused() {
    for (args, said) in [
        ("--system zb-h3", "`zb-h3` is no system"),
        ("--plot p.html", "does not name a kind of plot"),
        ("-o p.svg", "does not name a page"),
        ("--mode infer --clip-norm 1", "`--clip-norm` does nothing in inference"),
    ] {
        let output = spipe(Path::new("."), &format!("compare-systems --model demo --hardware one-gpu {args}"));
        let err = output.err;
        assert_eq!(output.code, Some(2), "{args}: {err}");
        assert!(err.contains(said) && err.contains("hint: "), "{args}: {err}");
    }
}
