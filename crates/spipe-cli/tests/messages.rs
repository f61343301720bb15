//! The refusals of bad input: one clear error with its place and a hint, the right exit code, and
//! nothing written.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> String {
    // Relative to the folder of the crate, in which cargo runs the tests, so that messages are the
    // same everywhere.
    format!("../../tests/fixtures/{name}")
}

/// Exit code and stderr, with the fixtures' folder and temporary folders taken out.
fn refusal(args: &[&str]) -> String {
    let run = spipe(".", args);
    assert_eq!(run.out, "", "nothing on stdout");
    format!("exit code {}\n{}", run.code.unwrap(), run.err.replace("../../tests/fixtures/", ""))
}

fn plan_args<'a>(model: &'a str, hardware: &'a str, output: &'a str) -> Vec<&'a str> {
    let mut args = vec!["plan", "--model", model, "--hardware", hardware, "--global-batch", "8", "--microbatch", "1"];
    args.extend(["--planner", "dp", "-o", output]);
    args
}

/// A folder with a good plan and its trace.
fn good() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (plan, trace) = (folder.path().join("plan.json"), folder.path().join("trace.json"));
    let (model, hardware) = (fixture("good/six-layers.toml"), fixture("good/small-gpu.toml"));
    let made = spipe(".", &plan_args(&model, &hardware, plan.to_str().unwrap()));
    assert_eq!(made.code, Some(0), "{}", made.err);
    let simulated = spipe(".", &["simulate", plan.to_str().unwrap(), "-o", trace.to_str().unwrap()]);
    assert_eq!(simulated.code, Some(0), "{}", simulated.err);
    (folder, plan, trace)
}

/// Runs `args` in `folder` on a file `name` with this content there.
fn refusal_of(folder: &Path, name: &str, content: &str, args: &[&str]) -> String {
    std::fs::write(folder.join(name), content).unwrap();
    let run = spipe(folder, args);
    assert_eq!(run.out, "", "nothing on stdout");
    format!("exit code {}\n{}", run.code.unwrap(), run.err)
}

#[test]
fn missing_file() {
    insta::assert_snapshot!(refusal(&["model", "show", "missing.toml"]));
    insta::assert_snapshot!(refusal(&["model", "show", "llama9-7b"]));
}

#[test]
fn wrong_unit() {
    insta::assert_snapshot!(refusal(&["model", "show", &fixture("bad/wrong-unit.toml")]));
}

#[test]
fn unknown_key() {
    insta::assert_snapshot!(refusal(&["model", "show", &fixture("bad/unknown-key.toml")]));
}

#[test]
fn link_graph_that_is_not_connected() {
    insta::assert_snapshot!(refusal(&["hardware", "show", &fixture("bad/no-link.toml")]));
}

#[test]
fn layer_that_fits_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("plan.json");
    for planner in ["ilp", "dp", "greedy"] {
        let (model, hardware) = (fixture("bad/huge-layer.toml"), fixture("good/small-gpu.toml"));
        let mut args = plan_args(&model, &hardware, target.to_str().unwrap());
        let at = args.iter().position(|arg| *arg == "dp").unwrap();
        args[at] = planner;
        let said = refusal(&args);
        assert!(said.starts_with("exit code 4\n"), "{planner}: {said}");
        if planner == "ilp" {
            insta::assert_snapshot!(said);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }
}

#[test]
fn zero_microbatches() {
    let (model, hardware) = (fixture("good/six-layers.toml"), fixture("good/small-gpu.toml"));
    let plan = |batch, microbatch| {
        let common = ["plan", "--model", &model, "--hardware", &hardware];
        refusal(&[&common[..], &["--global-batch", batch, "--microbatch", microbatch]].concat())
    };
    insta::assert_snapshot!(plan("0", "1"));
    insta::assert_snapshot!(plan("8", "0"));
    insta::assert_snapshot!(plan("8", "3"));
    insta::assert_snapshot!(refusal(&["schedule", "1f1b", "--microbatches", "0"]));
}

#[test]
fn plan_with_a_stage_on_an_unknown_device() {
    let (folder, plan, _) = good();
    let edited = std::fs::read_to_string(plan).unwrap().replacen("\"device\": \"gpu0\"", "\"device\": \"gpu7\"", 1);
    insta::assert_snapshot!(refusal_of(folder.path(), "edited.json", &edited, &["simulate", "edited.json"]));
}

#[test]
fn plan_edited_by_hand_to_overlap_stages() {
    let (folder, plan, _) = good();
    let text = std::fs::read_to_string(plan).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let stages = json["stages"].as_array_mut().unwrap();
    assert!(stages.len() > 1, "one device cannot hold it");
    stages[1]["first-layer"] = 0.into();
    stages[1]["choices"] = serde_json::json!([]);
    let edited = serde_json::to_string_pretty(&json).unwrap();
    insta::assert_snapshot!(refusal_of(folder.path(), "edited.json", &edited, &["simulate", "edited.json"]));
}

/// Of a system that streams everything, and of one that does not, but steps what stays where it is.
#[test]
fn plans_edited_by_hand_to_keep_parameters() {
    let (folder, ..) = good();
    let path = folder.path().join("streamed.json");
    for system in ["naive-swap", "superpipeline"] {
        let (model, hardware) = (fixture("good/six-layers.toml"), fixture("good/small-gpu.toml"));
        let args = ["plan", "--model", &model, "--hardware", &hardware, "--global-batch", "8", "--microbatch", "1"];
        let made = spipe(".", &[&args[..], &["--system", system, "-o", path.to_str().unwrap()]].concat());
        assert_eq!(made.code, Some(0), "{}", made.err);
        let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let stages = json["stages"].as_array_mut().unwrap();
        let streamed = stages.iter_mut().rfind(|stage| stage.get("weights-in").is_some()).unwrap();
        streamed.as_object_mut().unwrap().remove("weights-in");
        let edited = serde_json::to_string_pretty(&json).unwrap();
        insta::assert_snapshot!(refusal_of(folder.path(), "edited.json", &edited, &["simulate", "edited.json"]));
    }
}

/// The embedding's stage keeps what the head's streams.
#[test]
fn plans_edited_by_hand_to_keep_one_end() {
    let (folder, ..) = good();
    let path = folder.path().join("streamed.json");
    let hardware = fixture("good/small-gpu.toml");
    let args = ["plan", "--model", "gpt2", "--hardware", &hardware, "--global-batch", "8", "--microbatch", "1"];
    let streamed = ["--seq-len", "64", "--system", "superpipeline", "--pin", "stream=0..13"];
    let made = spipe(".", &[&args[..], &streamed, &["-o", path.to_str().unwrap()]].concat());
    assert_eq!(made.code, Some(0), "{}", made.err);
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let first = json["stages"][0].as_object_mut().unwrap();
    assert!(first.remove("weights-in").is_some() && first.remove("optimizer-on").is_some());
    let edited = serde_json::to_string_pretty(&json).unwrap();
    insta::assert_snapshot!(refusal_of(folder.path(), "edited.json", &edited, &["simulate", "edited.json"]));
}

/// Shared state is on the host near each GPU, whatever socket a stage names.
#[test]
fn plans_edited_by_hand_to_share_elsewhere() {
    let (folder, ..) = good();
    let path = folder.path().join("shared.json");
    let args =
        ["plan", "--model", "gpt2", "--hardware", "rtx3090-x4-two-sockets", "--global-batch", "4", "--microbatch", "1"];
    let shared = ["--seq-len", "64", "--system", "zero-infinity", "--pin", "stream=0..13", "--time-limit", "2s"];
    let made = spipe(".", &[&args[..], &shared, &["-o", path.to_str().unwrap()]].concat());
    assert_eq!(made.code, Some(0), "{}", made.err);
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    // One stage for each thing that is wrong.
    let mut stage = json["stages"][0].clone();
    let mut with = |first: usize, last: usize, key: &str, value: &str| {
        let activations = if key == "offload-to" { "offloaded" } else { "saved" };
        (stage["first-layer"], stage["last-layer"]) = (first.into(), last.into());
        stage["choices"] = serde_json::json!([{ "layers": format!("{first}..{last}"), "activations": activations }]);
        let mut edited = stage.clone();
        let fields = edited.as_object_mut().unwrap();
        fields.insert(key.into(), value.into());
        edited
    };
    json["stages"] = serde_json::Value::Array(vec![
        with(0, 3, "weights-in", "dram1"),
        with(4, 9, "optimizer-on", "cpu1"),
        with(10, 13, "offload-to", "dram0"),
    ]);
    let edited = serde_json::to_string_pretty(&json).unwrap();
    insta::assert_snapshot!(refusal_of(folder.path(), "edited.json", &edited, &["simulate", "edited.json"]));
}

/// Bounds and gaps that no search can have proven.
#[test]
fn plans_with_impossible_figures() {
    let (folder, plan, _) = good();
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(plan).unwrap()).unwrap();
    json["gap"] = (-3.0).into();
    json["objective-ms"] = (-1.0).into();
    let edited = serde_json::to_string_pretty(&json).unwrap();
    insta::assert_snapshot!(refusal_of(folder.path(), "edited.json", &edited, &["simulate", "edited.json"]));
}

#[test]
fn a_plan_in_the_place_of_a_trace() {
    let (folder, plan, _) = good();
    let plan = std::fs::read_to_string(plan).unwrap();
    insta::assert_snapshot!(refusal_of(folder.path(), "given.json", &plan, &["compare", "given.json", "trace.json"]));
}

#[test]
fn truncated_trace() {
    let (folder, _, trace) = good();
    let text = std::fs::read_to_string(trace).unwrap();
    let said = refusal_of(folder.path(), "cut.json", &text[..200], &["timeline", "cut.json", "-o", "x.svg"]);
    insta::assert_snapshot!(said);
    assert!(!folder.path().join("x.svg").exists(), "no picture of half a trace");
    let said = refusal_of(folder.path(), "cut.json", &text[..200], &["compare", "cut.json", "trace.json"]);
    assert!(said.starts_with("exit code 3\n"), "{said}");
}

#[test]
fn text_shorter_than_one_sequence() {
    let (folder, ..) = good();
    let args = ["run", "plan.json", "--data", "short.txt", "--steps", "1", "-o", "measured.json"];
    insta::assert_snapshot!(refusal_of(folder.path(), "short.txt", "too short\n", &args));
    assert!(!folder.path().join("measured.json").exists(), "nothing half-written");
}

#[test]
fn pictures_of_an_unknown_kind() {
    let (folder, ..) = good();
    insta::assert_snapshot!(refusal_of(folder.path(), "x", "", &["timeline", "trace.json", "-o", "x.bmp"]));
    insta::assert_snapshot!(refusal_of(folder.path(), "x", "", &["timeline", "trace.json", "-o", "no/such/x.svg"]));
}

#[test]
fn lengths_and_tokens_of_images() {
    for what in ["--seq-len 4096", "--mode generate"] {
        let args = format!("plan --model vit-b-16 --hardware one-gpu --global-batch 4 {what}");
        insta::assert_snapshot!(refusal(&args.split(' ').collect::<Vec<_>>()));
    }
}

#[test]
fn copies_that_cannot_be() {
    let transfer = |flow| refusal(&["hardware", "transfer", "one-gpu", "--flow", flow]);
    insta::assert_snapshot!(transfer("dram0:gpu9:1GiB"));
    insta::assert_snapshot!(transfer("dram0:gpu0"));
    insta::assert_snapshot!(transfer("dram0:gpu0:1"));
    insta::assert_snapshot!(transfer("dram0:gpu0:1GiB@99999999h"));
}

/// The time of a whole backward is refused with the options that its parts have.
#[test]
fn a_backward_has_two_parts() {
    let folder = tempfile::tempdir().unwrap();
    let whole = ["schedule", "custom", "s.csv", "--backward", "2 ms"];
    let said = refusal_of(folder.path(), "s.csv", "0F0,0B0\n", &whole);
    let hint = "hint: give its two parts, `--backward-input` and `--backward-weight`; a fused backward takes their sum";
    assert_eq!(said.trim_end(), format!("exit code 2\nerror: `--backward` does nothing to `custom`\n{hint}"));
    assert!(refusal(&["schedule", "1f1b", "--backward", "2 ms"]).contains(hint));
}

/// A duration without a unit is refused with the option as it should be written.
#[test]
fn durations_without_a_unit() {
    let plan = ["plan", "--model", "gpt2", "--hardware", "one-gpu", "--global-batch", "8", "--time-limit", "20"];
    let said = refusal(&plan);
    assert!(said.trim_end().ends_with("\nhint: write `--time-limit 20s`"), "{said}");
    assert!(refusal(&["whatif", "--model", "gpt2", "--time-limit=1.5"]).contains("hint: write `--time-limit 1.5s`"));
    assert!(refusal(&["schedule", "1f1b", "--forward", "3"]).contains("hint: write `--forward 3ms`"));
    let short = refusal(&["schedule", "1f1b", "--forward", "3 bananas"]);
    assert!(short.contains("`bananas` is not a unit") && !short.contains("hint: write"), "{short}");
}

#[test]
fn schedules_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let said = |content| refusal_of(folder.path(), "s.csv", content, &["schedule", "custom", "s.csv"]);
    insta::assert_snapshot!(said("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"));
    insta::assert_snapshot!(said("0F0,0X0\n"));
    insta::assert_snapshot!(refusal(&["schedule", "gpi"]));
    insta::assert_snapshot!(refusal(&["schedule", "1f1b", "--devices", "0", "--chunks", "2", "--group", "4"]));
    insta::assert_snapshot!(refusal(&["schedule", "gis", "--devices", "8", "--group", "3"]));
    insta::assert_snapshot!(refusal(&["schedule", "zb-2p", "--memory-limit", "0.5"]));
    insta::assert_snapshot!(refusal(&["schedule", "zb-v", "--memory-limit", "1"]));
    insta::assert_snapshot!(refusal(&["schedule", "po-h", "--offload-chunks", "3"]));
    insta::assert_snapshot!(refusal(&["schedule", "1f1b", "--devices", "5000", "--microbatches", "8"]));
}

#[test]
fn a_comparison_can_fail() {
    let (_folder, _, trace) = good();
    let trace = trace.to_str().unwrap();
    assert_eq!(spipe(".", &["compare", trace, trace, "--tolerance", "1%"]).code, Some(0));
    let text = std::fs::read_to_string(trace).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&text).unwrap();
    let slower = other["iteration-ns"].as_u64().unwrap() * 2;
    other["iteration-ns"] = slower.into();
    other["origin"] = "measured".into();
    let path = format!("{trace}.slower");
    std::fs::write(&path, other.to_string()).unwrap();
    let run = spipe(".", &["compare", trace, &path, "--tolerance", "1%"]);
    assert_eq!(run.code, Some(6));
    assert_eq!(run.err, "error: the predicted iteration is off by -50.0 %, more than 1.0 %\n");
}
