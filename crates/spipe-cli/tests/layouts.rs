//! `spipe plan --layout`: stages in Megatron's notation, and the layouts that plans print.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::{fs, path::Path};

/// The words of a command that plans, with a layout in place of `@`.
fn words<'a>(command: &'a str, layout: &'a str) -> Vec<&'a str> {
    let words = ["plan", "--effort", "low"].into_iter().chain(command.split_whitespace());
    words.map(|word| if word == "@" { layout } else { word }).collect()
}

/// The plan of `command` as JSON, and what was said on stderr.
fn plan(folder: &Path, command: &str, layout: &str) -> (Value, String) {
    let mut args = words(command, layout);
    args.extend(["--format", "json"]);
    let output = spipe(folder, &args);
    assert_eq!(output.code, Some(0), "{command} {layout}: {}", output.err);
    (serde_json::from_str(&output.out).unwrap(), output.err)
}

fn refusal(folder: &Path, command: &str, layout: &str) -> String {
    let output = spipe(folder, &words(command, layout));
    assert_eq!(output.out, "", "nothing on stdout");
    format!("exit code {}\n{}", output.code.unwrap(), output.err)
}

/// Device, first and last layer of each stage.
fn stages(plan: &Value) -> Vec<(String, u64, u64)> {
    let stage = |stage: &Value| {
        let layer = |key: &str| stage[key].as_u64().unwrap();
        (stage["device"].as_str().unwrap().to_owned(), layer("first-layer"), layer("last-layer"))
    };
    plan["stages"].as_array().unwrap().iter().map(stage).collect()
}

fn on(device: &str, first: u64, last: u64) -> (String, u64, u64) {
    (device.into(), first, last)
}

const GPT2: &str = "--model gpt2 --precision fp16 --global-batch 8 --microbatch 1 --layout @ --hardware";

#[test]
fn a_layout_fixes_the_stages_and_the_plan_prints_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let four = format!("{GPT2} a100-80g-x8-nvlink --devices gpu1,gpu0");
    let (one, _) = plan(at, &four, "E,t*5|t*7,L");
    assert_eq!((one["system"].as_str(), one["layout"].as_str()), (Some("1f1b"), Some("Et*5|t*7,L")));
    assert_eq!(stages(&one), [on("gpu1", 0, 5), on("gpu0", 6, 13)], "in the order of `--devices`");
    let (two, _) = plan(at, &four, "Ettt|(ttt|)*2tttL");
    assert_eq!(
        (two["system"].as_str(), two["layout"].as_str()),
        (Some("interleaved-1f1b"), Some("Et*3|t*3|t*3|t*3,L"))
    );
    assert_eq!(stages(&two), [on("gpu1", 0, 3), on("gpu0", 4, 6), on("gpu1", 7, 9), on("gpu0", 10, 13)]);
    let (gpipe, _) = plan(at, &format!("{four} --system gpipe"), "Et*5|t*7L");
    assert_eq!((gpipe["system"].as_str(), gpipe.get("layout")), (Some("gpipe"), None));
    let all = format!("{GPT2} v100-32g-x4-nvlink");
    let (all, _) = plan(at, &all, "Et|t*4|t*6|tL");
    assert_eq!(stages(&all), [on("gpu0", 0, 1), on("gpu1", 2, 5), on("gpu2", 6, 11), on("gpu3", 12, 13)]);
    for found in [&one, &two, &all] {
        let figure = |key: &str| found[key].as_f64().unwrap();
        assert!(figure("objective-ms") > 0.0 && figure("objective-ms") <= figure("simulated-iteration-ms"));
    }
}

#[test]
fn the_layout_of_a_plan_leads_to_the_same_plan() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for system in ["1f1b", "interleaved-1f1b"] {
        let free = format!(
            "--model gpt2 --precision fp16 --global-batch 8 --microbatch 1 --hardware v100-32g-x4-nvlink --system {system}"
        );
        let (free_plan, _) = plan(at, &format!("{free} --pin layer=0..13:gpu"), "");
        let layout = free_plan["layout"].as_str().unwrap().to_owned();
        let mut named: Vec<String> = Vec::new();
        for (device, ..) in stages(&free_plan) {
            if !named.contains(&device) {
                named.push(device);
            }
        }
        let named = named.join(",");
        let (again, _) = plan(at, &format!("{free} --layout @ --devices {named}"), &layout);
        assert_eq!(again["layout"].as_str(), Some(layout.as_str()));
        let ms = |plan: &Value| plan["simulated-iteration-ms"].as_f64().unwrap();
        assert!(ms(&again) <= 1.05 * ms(&free_plan), "{system}: {} and {}", ms(&again), ms(&free_plan));
    }
}

#[test]
fn a_stage_without_layers_passes_on_what_it_receives() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // 61 blocks and a module that predicts further tokens, as DeepSeek-V3 has.
    let demo = fs::read_to_string("../../models/demo.toml").unwrap();
    fs::write(at.join("deep.toml"), demo.replacen("layers = 8", "layers = 61\nmtp-layers = 1", 1)).unwrap();
    let deep = "--model deep.toml --precision fp16 --seq-len 256 --global-batch 32 --microbatch 1 --layout @ --hardware v100-32g-x16";
    let (found, warned) = plan(at, &format!("{deep} -o deep.json"), "Et*3|(tt|)*29,m|L");
    assert!(warned.contains("modules that predict further tokens (`m`) are not planned"), "{warned}");
    let all = stages(&found);
    assert_eq!((all.len(), found["system"].as_str()), (32, Some("interleaved-1f1b")));
    assert_eq!(all[..2], [on("gpu0", 0, 3), on("gpu1", 4, 5)]);
    assert_eq!(all[29..], [on("gpu13", 60, 61), on("gpu14", 62, 61), on("gpu15", 62, 62)]);
    assert_eq!(found["layout"], "Et*3|(tt|)*29|L");
    let simulated = spipe(at, &["simulate", "deep.json", "--format", "json"]);
    let simulated: Value = serde_json::from_str(&simulated.out).unwrap();
    let (plain, again) =
        (found["simulated-iteration-ms"].as_f64().unwrap(), simulated["iteration-ms"].as_f64().unwrap());
    assert!((plain - again).abs() < 1e-3, "{plain} and {again}: the plan file has its empty stage");
    // Empty stages cost their copies alone: a device without layers in 1F1B makes no other faster.
    let ms = |layout: &str, devices: &str| {
        let (found, _) = plan(at, &format!("{GPT2} v100-32g-x4-nvlink --devices {devices}"), layout);
        found["simulated-iteration-ms"].as_f64().unwrap()
    };
    let (without, with) = (ms("Et*6|t*6L", "gpu0,gpu1"), ms("Et*6||t*6L", "gpu0,gpu2,gpu1"));
    assert!(with > without && with < 1.5 * without, "{without} and {with}");
    assert!(ms("Et*6|t*6L|", "gpu0,gpu1,gpu2") >= without, "and behind the head");
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let two = format!("{GPT2} v100-32g-x4-nvlink --devices gpu0,gpu1");
    let all =
        ["Et*6|t*7L", "t*6|t*6L", "Et*6|t*6", "Et*6|t*6mL", "Et*6|t*3|t*3L", "Et*6|xt*6L", "E(t*6|t*6L", "|Et*6|t*6|L"];
    let said: Vec<String> = all.iter().map(|layout| format!("{layout}\n{}", refusal(at, &two, layout))).collect();
    insta::assert_snapshot!(said.join("\n"));
    let others = [
        (format!("{two} --system zb-v"), "Et*6|t*6L"),
        (format!("{two} --system 1f1b"), "Et*3|t*3|t*3|t*3L"),
        (format!("{two} --system gpipe,1f1b"), "Et*6|t*6L"),
        (format!("{two} --pin layer=0:gpu1"), "Et*6|t*6L"),
        (
            "--model llama2-13b --global-batch 8 --microbatch 1 --hardware v100-32g-x4-nvlink --layout @".into(),
            "Et*37|t|t|tL",
        ),
    ];
    let said: Vec<String> =
        others.iter().map(|(command, layout)| format!("{layout}\n{}", refusal(at, command, layout))).collect();
    insta::assert_snapshot!(said.join("\n"));
}
