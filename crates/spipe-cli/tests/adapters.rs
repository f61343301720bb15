//! Adapters, quantised bases and other optimizers on the command line: plans, refusals, and measured runs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;

/// The words of a plan of GPT-2 on one GPU, with more words.
fn plan<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["plan", "--model", "gpt2", "--hardware", "one-gpu", "--seq-len", "256", "--global-batch", "4"];
    args.extend(["--microbatch", "1", "--effort", "low", "--system", "checkpointing"]);
    args.extend(more);
    args
}

#[test]
fn what_cannot_be_trained_is_refused_with_the_reason() {
    for (more, code, expected) in [
        (&["--lora", "rank=8,targets=q_prj"][..], 2, "has a matrix `q_prj`\nhint: the nearest is `q_proj`"),
        (&["--lora", "rank=1000,targets=q"], 2, "rank 1000 is above a side of the matrix"),
        (&["--lora", "targets=q"], 2, "`--lora` has no rank"),
        (&["--base", "nf4"], 2, "`block.0` is to be trained, but its matrices are stored as nf4"),
        (&["--optimizer", "sgd", "--state", "bf16"], 2, "the optimizer `sgd` has no state of format `bf16`"),
        (&["--optimizer", "adamw-8bit", "--state", "f32"], 2, "it has `8bit`"),
        (&["--freeze", "0..13"], 2, "there is nothing to train"),
        (&["--freeze", "0..13", "--lora", "rank=8"], 2, "that could have adapters are frozen"),
        (&["--lora", "rank=8", "--mode", "infer"], 2, "`--lora` does nothing in inference"),
        (&["--solve-for", "rank"], 2, "there is no rank to solve for"),
        (&["--adapter", "no-such-folder"], 3, "cannot read `no-such-folder`"),
        (&["--optimizer-in-backward", "--clip-norm", "1"], 2, "cannot wait for all gradients"),
        (&["--base", "nf5"], 2, "did you mean `nf4`"),
    ] {
        let run = spipe(".", &plan(more));
        assert!(run.code == Some(code) && run.err.contains(expected), "{more:?}: {run:?}");
        assert_eq!(run.out, "", "{more:?}");
    }
}

#[test]
fn a_plan_carries_its_adapters_and_is_simulated_but_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let file = path.to_str().unwrap();
    let more = ["--lora", "rank=8,alpha=16,targets=q,v", "--base", "fp4", "--optimizer", "lion", "-o", file];
    let made = spipe(".", &plan(&more));
    assert_eq!(made.code, Some(0), "{}", made.err);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written["trained-parameters"], 12 * 8 * 4 * 768);
    assert_eq!((&written["lora"]["rank"], &written["workload"]["formats"]["base"]), (&8.into(), &"fp4".into()));
    let simulated = spipe(".", &["simulate", file, "--format", "json"]);
    let simulated: Value = serde_json::from_str(&simulated.out).unwrap();
    let (found, expected) = (&simulated["iteration-ms"], &written["simulated-iteration-ms"]);
    assert!((found.as_f64().unwrap() / expected.as_f64().unwrap() - 1.0).abs() < 1e-6, "{found} {expected}");
    let run = spipe(".", &["run", file, "--data", "Cargo.toml", "--steps", "1"]);
    assert!(run.code != Some(0) && run.err.contains("the plan has a base stored as fp4"), "{}", run.err);
    let exported = spipe(".", &["export", "torch", file, "-o", folder.path().join("job").to_str().unwrap()]);
    assert!(exported.code != Some(0) && exported.err.contains("which this export does not have"), "{}", exported.err);
}

/// Magnitudes (DoRA) are planned and simulated wherever adapters are, and take more memory and time.
#[test]
fn magnitudes_are_planned_on_every_kind_of_system() {
    let folder = tempfile::tempdir().unwrap();
    for system in ["checkpointing", "superpipeline", "fsdp", "1f1b"] {
        let made = |name: &str, lora: &str| {
            let path = folder.path().join(format!("{system}-{name}.json"));
            let file = path.to_str().unwrap().to_owned();
            let mut args = vec!["plan", "--model", "gpt2", "--hardware", "rtx3090-x4-two-sockets", "--seq-len", "256"];
            args.extend(["--global-batch", "8", "--microbatch", "1", "--effort", "low", "--system", system]);
            let run = spipe(".", &[&args[..], &["--lora", lora, "-o", &file]].concat());
            assert_eq!(run.code, Some(0), "{system}: {}", run.err);
            let plan: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let simulated = spipe(".", &["simulate", &file, "--format", "json"]);
            let simulated: Value = serde_json::from_str(&simulated.out).unwrap();
            let time = simulated["iteration-ms"].as_f64().unwrap();
            let planned = plan["simulated-iteration-ms"].as_f64().unwrap();
            assert!((time / planned - 1.0).abs() < 1e-6, "{system}: {time} {planned}");
            (file, plan["trained-parameters"].as_u64().unwrap(), time)
        };
        let (_, less, shorter) = made("lora", "rank=8,targets=q,v,o");
        let (file, more, longer) = made("dora", "rank=8,targets=q,v,o,dora");
        // Queries, keys and values are one matrix of 3·768 outputs.
        assert_eq!((less, more - less), (12 * 8 * (4 + 2) * 768, 12 * 4 * 768), "{system}");
        assert!(longer > shorter, "{system}: {longer} {shorter}");
        let run = spipe(".", &["run", &file, "--data", "Cargo.toml", "--steps", "1"]);
        let says = |words: &str| run.err.contains(words);
        assert!(run.code != Some(0) && says("magnitudes of adapters (DoRA)") && says("hint: "), "{}", run.err);
    }
}

#[test]
fn folders_of_peft_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "base_model_name_or_path": "gpt2"}"#;
    std::fs::write(folder.path().join("adapter_config.json"), config).unwrap();
    let given = ["--adapter", folder.path().to_str().unwrap(), "-o", "-"];
    let made = spipe(".", &plan(&given));
    let written: Value = serde_json::from_str(&made.out).unwrap_or_else(|error| panic!("{error}: {}", made.err));
    assert_eq!(written["trained-parameters"], 12 * 4 * 4 * 768);
}

#[test]
fn the_largest_rank_is_found() {
    let made = spipe(".", &plan(&["--lora", "targets=q", "--solve-for", "rank", "--format", "json"]));
    let answer: Value = serde_json::from_str(&made.out).unwrap_or_else(|error| panic!("{error}: {}", made.err));
    assert_eq!((&answer["solve-for"], &answer["value"]), (&"rank".into(), &768.into()));
}

/// Every optimizer and every base plans, and smaller states need less memory.
#[test]
fn every_optimizer_and_base_plans() {
    let peak = |more: &[&str]| {
        let made = spipe(".", &plan(&[more, &["-o", "-"]].concat()));
        let written: Value =
            serde_json::from_str(&made.out).unwrap_or_else(|error| panic!("{more:?} {error}: {}", made.err));
        written["peak-bytes"]["gpu0"].as_u64().unwrap()
    };
    let plain = peak(&[]);
    // Only plans of plain training keep all layers in one stage.
    let paged = peak(&["--optimizer", "paged-adamw"]);
    assert!(paged.abs_diff(plain) * 100 < plain, "{paged} but {plain}");
    for less in ["adamw-8bit", "paged-adamw-8bit", "adafactor", "lion", "sgd", "muon"] {
        assert!(peak(&["--optimizer", less]) < plain, "{less}");
    }
    assert!(peak(&["--state", "bf16", "--master", "none"]) < plain);
    assert!(peak(&["--gradients", "f32"]) > plain);
    let lora = peak(&["--lora", "rank=8"]);
    for base in ["int8", "nf4", "fp4", "fp8", "gptq-int4"] {
        assert!(peak(&["--lora", "rank=8", "--base", base]) < lora, "{base}");
    }
    assert_eq!(peak(&["--lora", "rank=8", "--base", "bf16"]), lora);
}

/// The peak memory of the measured runs of `tests/fixtures/adapters`: within 15 % each, 8 % on average.
#[test]
fn measured_runs_have_the_predicted_memory() {
    let mut errors = Vec::new();
    for runs in ["lora", "qlora"] {
        let file = format!("../../tests/fixtures/adapters/{runs}.toml");
        let run = spipe(".", &["fit", &file, "--hardware", "a100-80g", "--format", "json"]);
        let report: Value = serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.err));
        for run in report["runs"].as_array().unwrap() {
            let bytes = |key: &str| run[key].as_f64().unwrap_or_else(|| panic!("{run}"));
            let error = bytes("predicted-gpu-bytes") / bytes("measured-gpu-bytes") - 1.0;
            errors.push((run["name"].as_str().unwrap().to_owned(), error));
        }
    }
    assert_eq!(errors.len(), 21);
    for (name, error) in &errors {
        assert!(error.abs() < 0.15, "{name}: {error:+.3} of {errors:?}");
    }
    let mean = errors.iter().map(|(_, error)| error.abs()).sum::<f64>() / errors.len() as f64;
    assert!(mean < 0.08, "{mean:.3}: {errors:?}");
}
