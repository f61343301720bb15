//! Options that would do nothing are refused, machines are planned in part, and tables fit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, command::command, spipe};
use serde_json::Value;

const PLAN: &str = "plan --model gpt2 --hardware one-gpu --time-limit 1s";

#[test]
fn options_that_do_nothing_are_refused_with_a_hint() {
    let planned = format!("{PLAN} --global-batch 8");
    for (args, option) in [
        ("schedule mobius --chunks 3".to_owned(), "chunks"),
        ("schedule superpipeline --compute 1ms --load 1ms --devices 2".to_owned(), "devices"),
        ("schedule 1f1b --compute 1ms".to_owned(), "compute"),
        ("schedule spipe --backward 1ms --backward-input 1ms".to_owned(), "backward-input"),
        ("schedule gpipe --weight-grad-memory 0.5".to_owned(), "weight-grad-memory"),
        ("calibrate --seq-len 8 -o -".to_owned(), "seq-len"),
        ("calibrate --microbatch 8 -o -".to_owned(), "microbatch"),
        ("calibrate --emulated-link 1GB/s -o -".to_owned(), "emulated-link"),
        ("reproduce planner --rows x.toml -o x".to_owned(), "rows"),
        ("man --format json".to_owned(), "format"),
        (format!("{planned} --mode infer --freeze 0..3"), "freeze"),
        (format!("{planned} --mode infer --clip-norm 1"), "clip-norm"),
        (format!("{planned} --mode infer --optimizer adamw"), "optimizer"),
        (format!("{planned} --system zero-offload --planner dp"), "planner"),
        (format!("{planned} --solve-for global-batch"), "global-batch"),
        (format!("{planned} --solve-for microbatch --microbatch 2"), "microbatch"),
        (format!("{planned} --solve-for seq-len --seq-len 128"), "seq-len"),
        (
            "baseline tensor-data --model gpt2 --hardware one-gpu --global-batch 2 --mode infer --recompute full"
                .to_owned(),
            "recompute",
        ),
    ] {
        let output = spipe(".", &args);
        let said = &output.err;
        assert_eq!(output.code, Some(2), "{args}: {said}");
        assert!(said.starts_with(&format!("error: `--{option}` does nothing ")), "{args}: {said}");
        assert!(said.contains("\nhint: ") && output.out.is_empty(), "{args}: {said}");
    }
    let unknown = spipe(".", PLAN);
    assert_eq!((unknown.code, unknown.err.contains("--global-batch")), (Some(2), true));
}

#[test]
fn a_part_of_a_machine_is_planned_and_kept_in_the_plan() {
    let machine = "plan --model gpt2 --hardware rtx3090-x4-two-sockets --global-batch 8 --time-limit 2s --format json";
    let devices = |args: &str| {
        let output = spipe(".", args);
        assert_eq!(output.code, Some(0), "{}", output.err);
        let plan: Value = serde_json::from_str(&output.out).unwrap();
        let used: Vec<String> =
            plan["devices"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        (used, plan["hardware"]["toml"].as_str().unwrap().to_owned())
    };
    let (used, toml) = devices(&format!("{machine} --devices gpu1,gpu2,cpu0"));
    assert!(!used.is_empty() && used.iter().all(|name| ["gpu1", "gpu2", "cpu0"].contains(&name.as_str())), "{used:?}");
    assert!(!toml.contains("gpu3") && toml.contains("memory-only = true"), "{toml}");
    let (used, _) = devices(&format!("{machine} --devices gpu3 --system zero-offload,superpipeline,gpu-only"));
    assert_eq!(used, ["gpu3"]);
    let (used, toml) = devices(&format!("{machine} --devices gpu1..gpu2,cpu0"));
    assert!(!used.is_empty() && used.iter().all(|name| ["gpu1", "gpu2", "cpu0"].contains(&name.as_str())), "{used:?}");
    assert!(!toml.contains("gpu3") && toml.contains("gpu2"), "{toml}");
    let said = spipe(".", &format!("{machine} --devices gpu2..gpu1")).err;
    assert!(said.contains("'gpu2..gpu1' for '--devices <DEVICES>': a range ascends: write gpu1..gpu2"), "{said}");
    let output = spipe(".", &format!("{machine} --devices gpu0,gpu9"));
    let said = &output.err;
    assert_eq!(output.code, Some(2), "{said}");
    assert!(said.contains("has no device `gpu9`\nhint: its devices are gpu0, gpu1, gpu2, gpu3, cpu0, cpu1"), "{said}");
}

/// Every line of a table, and of what else is printed beside one, but for sentences.
#[test]
fn tables_fit_the_terminal() {
    let plan = |machine: &str| {
        format!("plan --model gpt2-xl --hardware {machine} --global-batch 16 --time-limit 200ms --sensitivity")
    };
    let commands = [
        "model show llama2-7b".to_owned(),
        "model show stable-diffusion-unet".to_owned(),
        "model list".to_owned(),
        "hardware list".to_owned(),
        "hardware show a100-80g-x8-nvlink".to_owned(),
        "hardware transfer one-gpu --flow dram0:gpu0:2GiB".to_owned(),
        "baseline tensor-data --model llama2-7b --hardware a100-80g-x8-nvlink --global-batch 64".to_owned(),
        "schedule zb-v --devices 8".to_owned(),
        plan("one-gpu"),
        plan("rtx3090-x4-two-sockets"),
        plan("v100-32g-x4-nvlink"),
    ];
    for (columns, width) in [(None, 100), (Some("80"), 80), (Some("140"), 140)] {
        for args in &commands {
            let mut command = command(".", args);
            let run: Run = command.envs(columns.map(|columns| ("COLUMNS", columns))).output().unwrap().into();
            assert_eq!(run.code, Some(0), "{args}: {}", run.err);
            let out = &run.out;
            for line in out.lines().filter(|line| !line.contains(". ") && !line.contains(',')) {
                assert!(line.chars().count() <= width, "{args}, {width} columns: {line}");
            }
        }
    }
}
