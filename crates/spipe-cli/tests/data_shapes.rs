//! Padding, packing, lengths and recomputed operations on the command line: reports, plan files, refusals.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::path::Path;

fn plan<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["plan", "--model", "gpt2", "--hardware", "one-gpu", "--seq-len", "256", "--global-batch", "4"];
    args.extend(["--microbatch", "2", "--effort", "low", "--system", "gpu-only"]);
    args.extend(more);
    args
}

fn json(args: &[&str]) -> Value {
    let run = spipe(".", &[args, &["--format", "json"]].concat());
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.err);
    serde_json::from_str(&run.out).unwrap()
}

#[test]
fn impossible_data_is_refused_with_the_reason() {
    for (more, code, expected) in [
        (&["--padding", "120%"][..], 2, "is not a fraction from 0 to 1"),
        (&["--padding", "1"], 2, "below 1"),
        (&["--lengths", ","], 2, "there is no length"),
        (
            &["--lengths", "512:1"],
            2,
            "a length of 512 is above the sequence length of 256\nhint: plan with `--seq-len 512`",
        ),
        (&["--lengths", "no-such-file"], 3, "cannot read `no-such-file`"),
        (&["--packing", "--padding", "10%"], 2, "packed sequences have no padding"),
        (&["--bucketing"], 2, "add `--lengths`"),
        (&["--recompute-ops", "norm,activatoin"], 2, "did you mean `activation`"),
        (&["--recompute-ops", "norms", "--mode", "infer"], 2, "`--recompute-ops` does nothing in inference"),
        (&["--padding", "10%", "--mode", "generate"], 2, "`--padding` does nothing where one token"),
    ] {
        let run = spipe(".", &plan(more));
        assert!(run.code == Some(code) && run.err.contains(expected), "{more:?}: {run:?}");
        assert_eq!(run.out, "", "{more:?}");
    }
    let images = ["plan", "--model", "vit-b-16", "--hardware", "one-gpu", "--global-batch", "4", "--packing"];
    let run = spipe(".", &images);
    assert!(run.code == Some(2) && run.err.contains("`--packing` does nothing to images"), "{}", run.err);
}

#[test]
fn tokens_that_count_are_reported_and_plans_keep_their_data() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (path, lengths) = (folder.join("padded.json"), folder.join("lengths.csv"));
    let (path, lengths) = (path.to_str().unwrap(), lengths.to_str().unwrap());
    let text = folder.join("text.txt");
    let text = text.to_str().unwrap();
    std::fs::write(lengths, "length,documents\n64,3\n256,1\n").unwrap();
    std::fs::write(text, "A text that is long enough. ".repeat(200)).unwrap();
    let rate = |path: &str| json(&["simulate", path])["tokens-per-second"].as_f64().unwrap();
    let planned = |more: &[&str]| {
        assert_eq!(spipe(".", &plan(&[more, &["-o", path]].concat())).code, Some(0), "{more:?}");
        rate(path)
    };
    let plain = planned(&[]);
    let half = planned(&["--padding", "50%"]);
    assert!((half / plain - 0.5).abs() < 1e-9, "{half} {plain}");
    assert!((planned(&["--packing"]) / plain - 1.0).abs() < 1e-9);
    let run = spipe(".", &["run", path, "--data", text, "--steps", "1", "--bind", "gpu0=emulated:0"]);
    assert!(!run.err.contains("planned and simulated only"), "packed text is what runs read: {}", run.err);

    // Of two documents one is long in 7 of 16 microbatches: 148 tokens are computed, and 112 count.
    let padded = planned(&["--lengths", lengths]);
    let saved = std::fs::read_to_string(path).unwrap();
    assert!(saved.contains("\"lengths\"") && saved.contains("\"share\": 0.75"), "{saved}");
    let human = spipe(".", &plan(&["--lengths", lengths]));
    assert!(human.out.contains("tokens/s that count (75.7 % of those computed)"), "{}", human.out);
    let bucketed = planned(&["--lengths", lengths, "--bucketing"]);
    assert!(padded < bucketed && bucketed < plain * 1.05, "{padded} {bucketed} {plain}");
    let refused = spipe(".", &["run", path, "--data", text, "--steps", "1"]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(
        refused.err.contains("documents of different lengths, which is planned and simulated only"),
        "{}",
        refused.err
    );
}

#[test]
fn recomputed_operations_take_less_memory_and_more_time_with_every_system() {
    let names = ["gpu-only", "checkpointing", "zero-infinity", "fsdp", "spipe", "mobius", "zero-offload", "hybrid"];
    let systems = names.join(",");
    let compare = |more: &[&str]| {
        let mut args = vec!["compare-systems", "--model", "gpt2", "--hardware", "one-gpu", "--seq-len", "256"];
        args.extend(["--global-batch", "4", "--microbatch", "2", "--time-limit", "1s", "--system", &systems]);
        args.extend(more);
        json(&args)["systems"].as_array().unwrap().clone()
    };
    let (plain, repeating) = (compare(&[]), compare(&["--recompute-ops", "mlp,attention"]));
    let mut compared = 0;
    for (before, after) in plain.iter().zip(&repeating) {
        let time = |row: &Value| row["iteration-ms"].as_f64();
        let (Some(fast), Some(slow)) = (time(before), time(after)) else { continue };
        assert!(slow >= fast * 0.999, "{before} {after}");
        compared += 1;
    }
    assert!(compared >= 5, "{plain:?}");
    assert!(repeating[0]["iteration-ms"].as_f64() > plain[0]["iteration-ms"].as_f64(), "{plain:?}");
    let peak = |row: &Value| row["peak-bytes"]["gpu0"].as_u64().unwrap();
    assert!(peak(&repeating[0]) < peak(&plain[0]), "{plain:?}");
    let baseline = |more: &[&str]| {
        let mut args =
            vec!["baseline", "tensor-data", "--model", "gpt2", "--hardware", "one-gpu", "--global-batch", "4"];
        args.extend(["--microbatch", "2", "--recompute", "none"]);
        args.extend(more);
        json(&args)["configurations"][0].clone()
    };
    let memory = |loss: &str| baseline(&["--loss", loss])["memory-bytes"].as_u64().unwrap();
    assert!(memory("chunked") < memory("fused") && memory("fused") < memory("unfused"));
    let (plain, padded) = (baseline(&[]), baseline(&["--padding", "0.25"]));
    let rate = |row: &Value| row["tokens-per-second"].as_f64().unwrap();
    assert!((rate(&padded) / rate(&plain) - 0.75).abs() < 1e-9);
}
