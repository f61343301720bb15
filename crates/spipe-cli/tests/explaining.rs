//! `spipe simulate --explain`: sums, replays, and pitfalls that are named where they are and only
//! there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn spipe(folder: &Path, args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spipe")).args(args.split_whitespace()).current_dir(folder).output().unwrap()
}

/// The explanation of the plan with these options, and the trace that holds it.
fn explained(folder: &Path, options: &str) -> Value {
    let plan = spipe(folder, &format!("plan {options} --time-limit 1s -o plan.json"));
    assert_eq!(plan.status.code(), Some(0), "{options}: {}", String::from_utf8_lossy(&plan.stderr));
    let simulated = spipe(folder, "simulate plan.json --explain --changes changes --format json -o trace.json");
    assert_eq!(simulated.status.code(), Some(0), "{options}: {}", String::from_utf8_lossy(&simulated.stderr));
    let data: Value = serde_json::from_slice(&simulated.stdout).unwrap();
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.join("trace.json")).unwrap()).unwrap();
    assert_eq!(trace["explanation"], data["explanation"], "the trace holds the explanation");
    data
}

fn named(options: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let data = explained(folder.path(), options);
    let pitfalls = data["explanation"]["pitfalls"].as_array().unwrap();
    for pitfall in pitfalls {
        assert!(
            pitfall["cost-ms"].as_f64().unwrap() > 0.0 && !pitfall["where"].as_str().unwrap().is_empty(),
            "{pitfall}"
        );
    }
    pitfalls.iter().map(|pitfall| pitfall["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn pieces_add_up_and_changes_replay() {
    let folder = tempfile::tempdir().unwrap();
    let data = explained(
        folder.path(),
        "--model gpt2 --hardware rtx3090-x4-two-sockets --global-batch 8 --microbatch 1 --system zero-offload",
    );
    let iteration = data["iteration-ms"].as_f64().unwrap();
    let explanation = &data["explanation"];
    let sum =
        |key: &str| explanation[key].as_array().unwrap().iter().map(|piece| piece["ms"].as_f64().unwrap()).sum::<f64>();
    assert!((sum("critical-path") - iteration).abs() < 1e-6 * iteration, "{} of {iteration}", sum("critical-path"));
    let idle: f64 = data["idle-ms"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|causes| causes.as_object().unwrap().values())
        .map(|ms| ms.as_f64().unwrap())
        .sum();
    assert!((sum("waits") - idle).abs() < 1e-6 * iteration, "{} of {idle}", sum("waits"));
    let changes = explanation["changes"].as_array().unwrap();
    assert!(changes.len() <= 3);
    for change in changes {
        assert!(change["gain"].as_f64().unwrap() >= 0.01, "{change}");
        let replay = change["replay"].as_str().unwrap().strip_prefix("spipe ").unwrap();
        let again = spipe(folder.path(), &format!("{replay} --format json"));
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        let (said, found) = (change["iteration-ms"].as_f64().unwrap(), again["iteration-ms"].as_f64().unwrap());
        assert!((said - found).abs() < 1e-6 * found, "{change}: {found}");
    }
}

/// Each pitfall with a plan in which it is named, and one in which it is not.
#[test]
fn pitfalls_are_named_where_they_are() {
    let cpu = "--model gpt2 --hardware one-gpu --global-batch 4 --microbatch 1 --system 1f1b";
    let four = "--hardware rtx3090-x4-two-sockets --microbatch 1";
    let split = format!("{cpu} --pin layer=0..6:cpu0 --pin layer=7..13:gpu0");
    let whole = format!("{cpu} --pin layer=0..13:gpu0");
    let streamed = "--model llama2-7b --global-batch 1 --microbatch 1 --seq-len 512 --system mobius --hardware";
    let cases = [
        ("attention-on-cpu", split.clone(), whole.clone()),
        ("half-on-cpu", split.clone(), format!("{cpu} --pin layer=0..1:cpu0 --pin layer=2..13:gpu0")),
        ("too-many-stages", split, whole.clone()),
        ("pcie-3", format!("{streamed} rtx3090-pcie3"), format!("{streamed} rtx4090-pcie4-128gb")),
        (
            "no-peer-access",
            format!("--model gpt2-xl {four} --global-batch 4 --system fsdp --pin shards=4"),
            "--model gpt2 --hardware a100-80g-x2 --global-batch 4 --microbatch 1 --system fsdp".to_owned(),
        ),
    ];
    for (name, with, without) in cases {
        let found = named(&with);
        assert!(found.iter().any(|known| known == name), "{name} is missing in {found:?} of {with}");
        let found = named(&without);
        assert!(!found.iter().any(|known| known == name), "{name} is in {found:?} of {without}");
    }
}
