//! The engines that `spipe plan` names are those that take the plan.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, spipe};
use serde_json::Value;

const MACHINE: &str = r#"
format-version = 1
name = "test"
[[socket]]
name = "cpu0"
cores = 1
peak = { f32 = "50 GFLOP/s" }
optimizer-rate = "0.2 Gparam/s"
dram = { name = "dram0", capacity = "16 GiB", bandwidth = "10 GB/s" }
source = "estimate: a test"
"#;

/// A machine of emulated accelerators beside a socket.
fn machine(accelerators: usize) -> String {
    let device = |index: usize| {
        format!(
            "[[gpu]]\nname = \"gpu{index}\"\nemulated = true\ncores = 1\nmemory = \"2 GiB\"\nmemory-bandwidth = \"10 GB/s\"\n\
             peak = {{ f32 = \"50 GFLOP/s\" }}\nsource = \"estimate: a test\"\n[[link]]\nname = \"pcie{index}\"\n\
             between = [\"gpu{index}\", \"dram0\"]\nbandwidth = \"4 GB/s\"\nlatency = \"10 us\"\nsource = \"estimate: a test\"\n"
        )
    };
    (0..accelerators).map(device).fold(MACHINE.to_owned(), |text, device| text + &device)
}

/// Plans the demo's model for a system, as JSON.
fn plan(folder: &str, (model, system): (&str, &str), more: &[&str]) -> Value {
    let args = [
        "plan",
        "--model",
        model,
        "--hardware",
        "machine.toml",
        "--system",
        system,
        "--precision",
        "fp32",
        "--seq-len",
        "32",
        "--global-batch",
        "8",
        "--microbatch",
        "1",
        "--effort",
        "low",
        "--format",
        "json",
    ];
    let Run { code, out, err } = spipe(folder, &[&args[..], more].concat());
    assert_eq!(code, Some(0), "{system}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn named(plan: &Value) -> Vec<String> {
    plan["engines"].as_array().unwrap().iter().map(|found| found["engine"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn engines_are_named_if_and_only_if_they_take_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("machine.toml"), machine(2)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for system in [
        "1f1b",
        "interleaved-1f1b",
        "superpipeline",
        "spipe",
        "mobius",
        "zero-offload",
        "zero-offload-delayed",
        "fsdp",
        "po-h",
    ] {
        let planned = plan(path, ("demo", system), &[]);
        std::fs::write(folder.path().join("plan.json"), planned.to_string()).unwrap();
        let engines = named(&planned);
        for engine in ["torch", "fsdp", "deepspeed"] {
            let to = format!("{system}-{engine}");
            let Run { code, err, .. } = spipe(path, &["export", engine, "plan.json", "-o", &to]);
            assert_eq!(engines.iter().any(|name| name == engine), code == Some(0), "{system}, {engine}: {err}");
        }
        for found in planned["engines"].as_array().unwrap() {
            let (engine, command) = (found["engine"].as_str().unwrap(), found["command"].as_str().unwrap());
            let start =
                if engine == "run" { "spipe run plan.json".into() } else { format!("spipe export {engine} plan.json") };
            assert!(command.starts_with(&start), "{command}");
            assert!(found["tested-on-gpu"].is_boolean());
        }
        seen.extend(engines);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["deepspeed", "fsdp", "run", "torch"]);
}

#[test]
fn a_plan_that_no_engine_runs_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("machine.toml"), machine(1)).unwrap();
    let config = r#"{"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 64}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let planned = plan(path, ("config.json", "gpu-only"), &[]);
    assert_eq!(named(&planned), Vec::<String>::new());
    std::fs::write(folder.path().join("plan.json"), planned.to_string()).unwrap();
    std::fs::write(folder.path().join("text.txt"), "a text\n".repeat(100)).unwrap();
    let Run { code, err, .. } = spipe(path, &["run", "plan.json", "--data", "text.txt", "--steps", "1"]);
    assert_eq!(code, Some(3), "{err}");
    let args =
        ["plan", "--model", "config.json", "--hardware", "machine.toml", "--system", "gpu-only", "--precision", "fp32"];
    let Run { out, .. } = spipe(path, &[&args[..], &["--global-batch", "4", "--effort", "low"]].concat());
    assert!(out.contains("No engine runs this plan: it is planned and simulated only."), "{out}");
    assert!(out.contains("Predicted with the constants of the runtime `spipe`."), "{out}");
}

/// On a GPU that was not measured, the runtime is that of an engine that takes the plan, and says whether it was measured
/// for the system; all commands that plan agree.
#[test]
fn plans_on_gpus_have_the_constants_of_an_engine_that_takes_them() {
    let question = ["--model", "gpt2", "--hardware", "one-gpu", "--global-batch", "8", "--seq-len", "512"];
    let json = |args: &[&str]| -> Value {
        let Run { code, out, err } = spipe(".", &[args, &question, &["--format", "json"]].concat());
        assert_eq!(code, Some(0), "{args:?}: {err}");
        serde_json::from_str(&out).unwrap()
    };
    let planned = |system: &str, more: &[&str]| {
        let plan = json(&[&["plan", "--system", system, "--effort", "low"], more].concat());
        (plan["runtime"]["name"].as_str().unwrap().to_owned(), plan["estimate"].as_bool().unwrap(), plan)
    };
    let compared = json(&["compare-systems", "--system", "superpipeline,fsdp,zero-offload,zero-infinity,1f1b,mobius"]);
    for row in compared["systems"].as_array().unwrap().iter().filter(|row| row["status"] == "feasible") {
        let (runtime, estimate, plan) = planned(row["system"].as_str().unwrap(), &[]);
        assert_eq!((row["runtime"].as_str().unwrap(), &row["estimate"]), (runtime.as_str(), &estimate.into()), "{row}");
        let takers: &[&str] = if runtime == "deepspeed" { &["deepspeed"] } else { &["torch", "fsdp"] };
        assert!(named(&plan).iter().any(|engine| takers.contains(&engine.as_str())), "{plan}");
    }
    for (system, expected, marked) in
        [("superpipeline", "pytorch", true), ("fsdp", "pytorch", false), ("zero-infinity", "deepspeed", false)]
    {
        let (runtime, estimate, _) = planned(system, &[]);
        assert_eq!((runtime.as_str(), estimate), (expected, marked), "{system}");
        let (runtime, estimate, _) = planned(system, &["--runtime", "spipe"]);
        assert_eq!((runtime.as_str(), estimate), ("spipe", false), "{system}");
    }
    let args = ["plan", "--system", "superpipeline", "--effort", "low"];
    let Run { out, .. } = spipe(".", &[&args[..], &question].concat());
    let said = "the runtime `pytorch`, an estimate: runs of `superpipeline` were not measured under it.";
    assert!(out.contains(said), "{out}");
}
