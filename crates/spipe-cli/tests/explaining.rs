//! `spipe simulate --explain`: sums, replays, and pitfalls that are named where they are and only
//! there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::{fs, path::Path};

/// The explanation of the plan with these options, and the trace that holds it.
fn explained(folder: &Path, options: &str) -> Value {
    plan(folder, options);
    simulated(folder, options)
}

fn plan(folder: &Path, options: &str) {
    let plan = spipe(folder, &format!("plan {options} --time-limit 1s -o plan.json"));
    assert_eq!(plan.code, Some(0), "{options}: {}", plan.err);
}

fn simulated(folder: &Path, options: &str) -> Value {
    let simulated = spipe(folder, "simulate plan.json --explain --changes changes --format json -o trace.json");
    assert_eq!(simulated.code, Some(0), "{options}: {}", simulated.err);
    let data: Value = serde_json::from_str(&simulated.out).unwrap();
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.join("trace.json")).unwrap()).unwrap();
    assert_eq!(trace["explanation"], data["explanation"], "the trace holds the explanation");
    data
}

/// A plan whose pitfalls are asked for.
#[derive(Clone, Default)]
struct Asked {
    options: String,
    /// A shipped profile with a text replaced, as `machine.toml`.
    machine: Option<(&'static str, &'static str, &'static str)>,
    /// A text replaced in the plan.
    edit: Option<(&'static str, &'static str)>,
}

impl From<&str> for Asked {
    fn from(options: &str) -> Self {
        Self { options: options.into(), ..Self::default() }
    }
}

impl Asked {
    fn on(self, profile: &'static str, (from, to): (&'static str, &'static str)) -> Self {
        let options = format!("{} --hardware machine.toml", self.options);
        Self { options, machine: Some((profile, from, to)), ..self }
    }
}

fn replace(path: &Path, text: &str, (from, to): (&str, &str)) {
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

fn named(asked: &Asked) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    if let Some((profile, from, to)) = asked.machine {
        let shipped = format!("{}/../../hardware-profiles/{profile}.toml", env!("CARGO_MANIFEST_DIR"));
        replace(&folder.path().join("machine.toml"), &fs::read_to_string(shipped).unwrap(), (from, to));
    }
    plan(folder.path(), &asked.options);
    if let Some(edit) = asked.edit {
        let path = folder.path().join("plan.json");
        replace(&path, &fs::read_to_string(&path).unwrap(), edit);
    }
    let data = simulated(folder.path(), &asked.options);
    let pitfalls = data["explanation"]["pitfalls"].as_array().unwrap();
    for pitfall in pitfalls {
        assert!(
            pitfall["cost-ms"].as_f64().unwrap() > 0.0 && !pitfall["where"].as_str().unwrap().is_empty(),
            "{pitfall}"
        );
    }
    pitfalls.iter().map(|pitfall| pitfall["name"].as_str().unwrap().to_owned()).collect()
}

fn check(name: &str, with: &Asked, without: &Asked) {
    let found = named(with);
    assert!(found.iter().any(|known| known == name), "{name} is missing in {found:?} of {}", with.options);
    let found = named(without);
    assert!(!found.iter().any(|known| known == name), "{name} is in {found:?} of {}", without.options);
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
        let again: Value = serde_json::from_str(&again.out).unwrap();
        let (said, found) = (change["iteration-ms"].as_f64().unwrap(), again["iteration-ms"].as_f64().unwrap());
        assert!((said - found).abs() < 1e-6 * found, "{change}: {found}");
    }
}

/// The sPipe article's pitfalls, each with a plan in which it is named, and one in which it is not.
#[test]
fn pitfalls_of_placement_are_named_where_they_are() {
    let cpu = "--model gpt2 --hardware one-gpu --global-batch 4 --microbatch 1 --system 1f1b";
    let split = Asked::from(format!("{cpu} --pin layer=0..6:cpu0 --pin layer=7..13:gpu0").as_str());
    let whole = Asked::from(format!("{cpu} --pin layer=0..13:gpu0").as_str());
    let less = Asked::from(format!("{cpu} --pin layer=0..1:cpu0 --pin layer=2..13:gpu0").as_str());
    check("attention-on-cpu", &split, &whole);
    check("half-on-cpu", &split, &less);
    check("too-many-stages", &split, &whole);
    let streamed = "--model llama2-7b --global-batch 1 --microbatch 1 --seq-len 512 --system mobius --hardware";
    let on = |machine: &str| Asked::from(format!("{streamed} {machine}").as_str());
    check("pcie-3", &on("rtx3090-pcie3"), &on("rtx4090-pcie4-128gb"));
    // An interconnect that is slower than the links of GPUs.
    let slow = ("bandwidth = \"50 GB/s\"", "bandwidth = \"6 GB/s\"");
    let sockets = "--model gpt2-xl --microbatch 1 --global-batch 1 --seq-len 128 --system mobius --devices gpu0,cpu0";
    let far = Asked::from(format!("{sockets},cpu1 --pin host=0..49:cpu1").as_str());
    check(
        "numa-crossing",
        &far.on("rtx3090-x4-two-sockets", slow),
        &Asked::from(sockets).on("rtx3090-x4-two-sockets", slow),
    );
}

/// Pitfalls of copies and launches.
#[test]
fn pitfalls_of_copies_are_named_where_they_are() {
    let streamed = "--model gpt2-xl --microbatch 1 --global-batch 1 --seq-len 128 --system spipe --pin stream=0..49";
    let down = "down = \"25 GB/s\"";
    let both = |text| Asked::from(streamed).on("rtx4090-pcie4-128gb", (down, text));
    check(
        "both-directions",
        &both("down = \"25 GB/s\"\nboth = \"18 GB/s\""),
        &both("down = \"25 GB/s\"\nboth = \"50 GB/s\""),
    );
    let mobius = "--model llama2-7b --hardware rtx4090-pcie4-128gb --microbatch 1 --global-batch 1 --seq-len 128 --system mobius";
    let pageable = Some(("\"weights-in\": \"dram0\"", "\"weights-in\": \"dram0-pageable\""));
    check("pageable-copies", &Asked { edit: pageable, ..mobius.into() }, &mobius.into());
    check(
        "no-peer-access",
        &"--model gpt2-xl --hardware rtx3090-x4-two-sockets --microbatch 1 --global-batch 4 --system fsdp --pin shards=4".into(),
        &"--model gpt2 --hardware a100-80g-x2 --global-batch 4 --microbatch 1 --system fsdp".into(),
    );
    let launched =
        "--model gpt2 --hardware one-gpu --global-batch 4 --microbatch 1 --pin layer=0..13:gpu0 --runtime pytorch";
    let short = format!("{launched} --seq-len 64");
    let long = format!("{launched} --seq-len 1024 --microbatch 4").replace("--microbatch 1 ", "");
    check("host-bound-launches", &short.as_str().into(), &long.as_str().into());
}

/// Plans for which streaming or pipelines are the wrong tool.
#[test]
fn wrong_tools_are_named_where_they_are() {
    let gpt2 = "--model gpt2 --microbatch 1 --global-batch 8 --system 1f1b --pin layer=0..13:gpu0 --hardware";
    check(
        "data-parallel-is-faster",
        &format!("{gpt2} rtx3090-x4-two-sockets").as_str().into(),
        &format!("{gpt2} one-gpu").as_str().into(),
    );
    let read = "--hardware rtx4090-pcie4-128gb --microbatch 1 --mode infer --global-batch 1 --seq-len 512 --model";
    check(
        "inference-only",
        &format!("{read} llama2-13b --pin stream=0..41 --pin layer=0..41:gpu0").as_str().into(),
        &format!("{read} llama2-7b").as_str().into(),
    );
}
