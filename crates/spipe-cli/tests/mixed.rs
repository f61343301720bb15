//! Plan files: answers that no preset has, and files of the last version.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/machine.rs"]
mod machine;
#[path = "common/run.rs"]
mod run;

use machine::Machine;
use run::{Run, spipe};
use serde_json::{Value, json};

const MODEL: &str = "format-version = 1\nkind = \"transformer\"\nname = \"small\"\nvocabulary = 256\nseq-len = 16\n\
                     hidden = 32\nlayers = 4\nheads = 4\nintermediate = 48\n";
const DRIVE: &str = "[[nvme]]\nname = \"nvme0\"\ncapacity = \"1 GB\"\nread = \"2 GB/s\"\nwrite = \"1 GB/s\"\n\
                     source = \"estimate: a test\"\n[[link]]\nname = \"m2\"\nbetween = [\"nvme0\", \"dram0\"]\n\
                     bandwidth = \"4 GB/s\"\n";

/// A folder with a model and a machine of two accelerators, a socket and a drive.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine { accelerators: 2, ..Machine::default() }.text() + DRIVE;
        std::fs::write(folder.path().join("model.toml"), MODEL).unwrap();
        std::fs::write(folder.path().join("machine.toml"), machine).unwrap();
        std::fs::write(folder.path().join("text"), "the quick brown fox jumps over the lazy dog. ".repeat(40)).unwrap();
        Self(folder)
    }

    fn spipe(&self, args: &str) -> Run {
        spipe(&self.0, args)
    }

    /// The plan of a system.
    fn plan(&self, more: &str) -> Value {
        let Run { code, out, err } = self.spipe(&format!(
            "plan --model model.toml --hardware machine.toml --precision fp32 --materialised-attention \
             --global-batch 8 --microbatch 2 --effort low --format json {more}"
        ));
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// The iteration of a plan file as it is simulated, or what is wrong with it.
    fn simulated(&self, plan: &Value) -> Result<f64, String> {
        std::fs::write(self.0.path().join("plan.json"), plan.to_string()).unwrap();
        let Run { code, out, err } = self.spipe("simulate plan.json --format json");
        if code != Some(0) {
            assert_eq!(code, Some(3), "{err}");
            return Err(err);
        }
        let result: Value = serde_json::from_str(&out).unwrap();
        Ok(result["iteration-ms"].as_f64().unwrap())
    }

    /// Draws and runs `plan.json`.
    fn draws_and_runs(&self) {
        for words in ["simulate plan.json -o trace.json", "timeline trace.json -o plan.svg"] {
            let drawn = self.spipe(words);
            assert_eq!(drawn.code, Some(0), "{}", drawn.err);
        }
        let Run { code, out, err } = self.spipe("run plan.json --data text --steps 2 --drive nvme0=. --format json");
        assert_eq!(code, Some(0), "{err}");
        assert!(out.lines().count() >= 2, "{out}");
    }
}

/// `plan` with these answers, and with each stage changed.
fn mixed(plan: &Value, answers: &[(&str, Value)], change: &dyn Fn(usize, &mut Value)) -> Value {
    let mut plan = plan.clone();
    plan["system"] = "mixed".into();
    for (key, answer) in answers {
        plan[*key] = answer.clone();
    }
    for (index, stage) in plan["stages"].as_array_mut().unwrap().iter_mut().enumerate() {
        change(index, stage);
    }
    plan
}

#[test]
fn a_vee_has_its_optimizer_on_the_socket() {
    let folder = Folder::new();
    let plan = folder.plan("--system zb-v");
    assert_eq!((&plan["order"]["kind"], &plan["update"]["kind"]), (&json!("vee"), &json!("as-ready")), "{plan}");
    let there = |_: usize, stage: &mut Value| stage["optimizer-on"] = "cpu0".into();
    let time = folder.simulated(&mixed(&plan, &[("update", json!({ "kind": "phase" }))], &there)).unwrap();
    assert!(time > plan["simulated-iteration-ms"].as_f64().unwrap(), "steps of the socket take their time");
    folder.draws_and_runs();
    let shown = folder.spipe("simulate plan.json").out;
    assert!(shown.contains("mixed"), "{shown}");
    // Under the name of the preset, the phase is not among the answers that it leaves free.
    let mut named = mixed(&plan, &[("update", json!({ "kind": "phase" }))], &there);
    named["system"] = "zb-v".into();
    let said = folder.simulated(&named).unwrap_err();
    assert!(
        said.contains("the `update` of system `zb-v` is {\"kind\":\"as-ready\"}, but that of the plan is"),
        "{said}"
    );
    assert!(said.contains("or write `\"system\": \"mixed\"`"), "{said}");
}

#[test]
fn a_grouped_order_keeps_optimizer_states_on_a_drive() {
    let folder = Folder::new();
    let plan = folder.plan("--system gis");
    let there = |_: usize, stage: &mut Value| {
        (stage["optimizer-on"], stage["state-on"]) = ("cpu0".into(), "nvme0".into());
    };
    folder.simulated(&mixed(&plan, &[], &there)).unwrap();
    folder.draws_and_runs();
}

/// A mesh names the GPU of each replica; without one it has all.
#[test]
fn replicas_are_named() {
    let folder = Folder::new();
    let plan = folder.plan("--system fsdp");
    assert_eq!(plan["mesh"]["sharding"], "parameters", "{plan}");
    let same = |_: usize, _: &mut Value| {};
    let over = |replicas: &[&str]| {
        let mesh = json!({ "replicas": replicas, "sharding": { "kind": "parameters" } });
        folder.simulated(&mixed(&plan, &[("mesh", mesh)], &same))
    };
    let two = over(&["gpu0", "gpu1"]).unwrap();
    assert_eq!(over(&[]), Ok(two));
    assert_ne!(over(&["gpu0"]), Ok(two));
    for (replicas, said) in [
        (&["gpu0", "gpu7"], "`gpu7` of the mesh is no device"),
        (&["gpu0", "cpu0"], "a replica with sharded parameters is on `cpu0`"),
        (&["gpu0+gpu1", ""], "a replica with sharded parameters has several teams or devices"),
    ] {
        let found = over(replicas).unwrap_err();
        assert!(found.contains(said), "{found}");
    }
}

#[test]
fn what_no_program_expresses_is_refused_by_the_answer_in_the_way() {
    let folder = Folder::new();
    let plan = folder.plan("--system 1f1b");
    let first = |index: usize, stage: &mut Value| {
        if index == 0 {
            (stage["weights-in"], stage["optimizer-on"]) = ("dram0".into(), "cpu0".into());
        }
    };
    let said = folder.simulated(&mixed(&plan, &[], &first)).unwrap_err();
    assert!(said.contains("stage `s0` streams its parameters from `dram0`, but the order `1f1b` keeps them"), "{said}");
    let same = |_: usize, _: &mut Value| {};
    let said = folder.simulated(&mixed(&plan, &[("update", json!({ "kind": "during-backward" }))], &same)).unwrap_err();
    assert!(said.contains("the order `1f1b` does not go with the update `during-backward`"), "{said}");
    let mut bare = mixed(&plan, &[], &same);
    bare.as_object_mut().unwrap().remove("order");
    let said = folder.simulated(&bare).unwrap_err();
    assert!(said.contains("a plan of no preset needs its `order` and its `update`"), "{said}");
    let said = folder.simulated(&mixed(&plan, &[("knobs", json!({ "group": 2 }))], &same)).unwrap_err();
    assert!(said.contains("plans of format version 2 have no `knobs`"), "{said}");
}

#[test]
fn files_of_the_last_version_are_read() {
    let folder = Folder::new();
    let plan = folder.plan("--system superpipeline --pin resident=3 --pin swap=2");
    let time = folder.simulated(&plan).unwrap();
    let mut last = plan.clone();
    let fields = last.as_object_mut().unwrap();
    for key in ["order", "update"] {
        fields.remove(key).unwrap();
    }
    last["format-version"] = 1.into();
    last["knobs"] = json!({ "resident": 3, "swap": 2 });
    assert_eq!(folder.simulated(&last), Ok(time));
    last["knobs"] = json!({ "resident": 3, "swap": 2, "write-back": true });
    assert!(folder.simulated(&last).unwrap() > time, "parameters are copied back");
    for (knobs, said) in [
        (json!({ "group": 2 }), "system `superpipeline` has no group size"),
        (json!({ "resident": true }), "the knob `resident` is not a number"),
        (json!({ "depth": 2 }), "unknown variant `depth`"),
    ] {
        last["knobs"] = knobs;
        let found = folder.simulated(&last).unwrap_err();
        assert!(found.contains(said), "{found}");
    }
    (last["format-version"], last["knobs"]) = (3.into(), json!({}));
    let found = folder.simulated(&last).unwrap_err();
    assert!(found.contains("format version 3, this program reads versions 1 and 2"), "{found}");
}
