//! `spipe timeline`: on the terminal, and two traces on one page.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, command::command, spipe};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// The output of the command.
fn printed(folder: &Path, args: &str, columns: Option<&str>) -> String {
    let mut command = command(folder, args);
    let run: Run =
        command.envs(columns.map(|columns| ("COLUMNS", columns))).env_remove("NO_COLOR").output().unwrap().into();
    assert_eq!(run.code, Some(0), "{}", run.err);
    run.out
}

/// A folder with the traces of two plans.
fn traced() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, layers) in [("one", "0..3"), ("other", "0..6")] {
        let plan = "plan --model demo --hardware one-gpu --global-batch 4 --microbatch 1 --seq-len 32 --system 1f1b";
        let plan = format!("{plan} --pin layer={layers}:cpu0 --time-limit 1s -o {name}-plan.json");
        printed(folder.path(), &plan, None);
        printed(folder.path(), &format!("simulate {name}-plan.json -o {name}.json"), None);
    }
    folder
}

#[test]
fn the_terminal_has_a_chart_of_its_width_with_causes_below() {
    let folder = traced();
    for (columns, width) in [(None, 100), (Some("70"), 70), (Some("160"), 160)] {
        for args in ["timeline one.json", "timeline one.json other.json"] {
            let chart = printed(folder.path(), args, columns);
            let longest = chart.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width && longest > width / 2, "{args}: {longest} of {width} columns\n{chart}");
            assert!(!chart.contains('\x1b'), "no colours on a pipe");
            let lanes = chart.find("gpu0.compute").unwrap();
            assert!(chart[lanes..].contains("idle: "), "the causes of idle time are below: {chart}");
        }
    }
}

#[test]
fn odd_traces_are_drawn() {
    let folder = traced();
    let read =
        |name: &str| -> Value { serde_json::from_str(&fs::read_to_string(folder.path().join(name)).unwrap()).unwrap() };
    let trace = read("one.json");
    let mut without = trace.clone();
    for key in ["spans", "arrows", "idle"] {
        without[key] = json!([]);
    }
    let mut single = without.clone();
    single["spans"] = json!([trace["spans"][0]]);
    let mut empty = single.clone();
    empty["spans"][0]["end-ns"] = empty["spans"][0]["start-ns"].clone();
    empty["iteration-ns"] = json!(0);
    let mut many = trace.clone();
    let lanes = many["lanes"].as_array_mut().unwrap();
    for index in 0..2000 {
        lanes.push(json!({ "name": format!("x{index}.compute"), "device": "x", "role": "compute" }));
    }
    for (name, odd) in [("without", without), ("single", single), ("empty", empty), ("many", many)] {
        fs::write(folder.path().join("odd.json"), odd.to_string()).unwrap();
        for args in ["timeline odd.json", "timeline odd.json -o odd.html", "timeline one.json odd.json -o odd.html"] {
            let output = spipe(folder.path(), args);
            assert_eq!(output.code, Some(0), "{name}, {args}: {}", output.err);
        }
    }
    let whole = fs::read_to_string(folder.path().join("one.json")).unwrap();
    fs::write(folder.path().join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    let cut = spipe(folder.path(), "timeline cut.json");
    assert_eq!(cut.code, Some(3));
    assert!(cut.err.contains("hint: the file ends too early"));
}

#[test]
fn two_traces_are_compared_lane_by_lane() {
    let folder = traced();
    let mut other: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("other.json")).unwrap()).unwrap();
    let lanes = other["lanes"].as_array_mut().unwrap();
    let compute = lanes.iter_mut().find(|lane| lane["name"] == "cpu0.compute").unwrap();
    compute["name"] = json!("cpu7.compute");
    fs::write(folder.path().join("other.json"), other.to_string()).unwrap();
    printed(folder.path(), "timeline one.json other.json -o two.html", None);
    let page = fs::read_to_string(folder.path().join("two.html")).unwrap();
    assert!(page.contains("Differences by lane and kind of action"));
    assert!(
        page.contains("cpu7.compute (only B)") && page.contains("cpu0.compute (only A)"),
        "unmatched lanes are listed"
    );
}
