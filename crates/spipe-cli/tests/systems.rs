//! Every system by name: planned, simulated, shown from stage times, and compared with published
//! tables.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, spipe};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let Run { code, out, err } = spipe(".", &[args, &["--format", "json"]].concat());
    assert_eq!(code, Some(0), "{args:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// Plans for each of `systems`: the simulation agrees with the time in the plan, and no memory holds
/// more than the machine has.
fn plans(systems: &[&str], model: &str, machine: &str, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for system in systems {
        let path = folder.path().join(format!("{system}.json"));
        let path = path.to_str().unwrap();
        let args = ["plan", "--model", model, "--hardware", machine, "--system", system, "--global-batch", "16"];
        let plan = json(&[&args[..], &["--microbatch", "1", "--seq-len", "512", "-o", path], more].concat());
        assert_eq!(plan["system"], *system);
        let simulated = json(&["simulate", path]);
        assert_eq!(simulated["status"], "ok", "{system}");
        let (stated, found) = (&plan["simulated-iteration-ms"], &simulated["iteration-ms"]);
        assert_eq!(stated.as_f64(), found.as_f64(), "{system}");
        for (memory, held) in simulated["peak-bytes"].as_object().unwrap().iter().filter(|(_, held)| **held != 0) {
            let (needed, held) = (plan["peak-bytes"][memory].as_u64(), held.as_u64());
            assert!(needed >= held, "{system}: {memory} holds {held:?}, and needs {needed:?}");
        }
    }
}

#[test]
fn pipelines_that_keep_their_parameters() {
    let systems = [
        "gpipe",
        "1f1b",
        "interleaved-1f1b",
        "zb-h1",
        "zb-h2",
        "zb-1p",
        "zb-2p",
        "zb-v",
        "v-half",
        "v-min",
        "gis",
        "gis-h",
        "po-h",
        "po-f",
        "gpu-only",
        "checkpointing",
        "fsdp",
    ];
    plans(&systems, "gpt2-xl", "rtx3090-x4-two-sockets", &[]);
}

#[test]
fn systems_that_use_the_host() {
    let systems = [
        "hybrid",
        "spipe",
        "mobius",
        "superpipeline",
        "naive-swap",
        "zero-offload",
        "zero-offload-delayed",
        "zero-infinity",
        "cpu-only",
    ];
    plans(&systems, "gpt2-xl", "rtx3090-x4-two-sockets", &["--precision", "fp16"]);
}

#[test]
fn inference() {
    let systems = ["gpipe", "superpipeline", "naive-swap", "mobius", "fsdp", "zero-infinity", "gpu-only", "cpu-only"];
    plans(&systems, "gpt2-xl", "rtx3090-x4-two-sockets", &["--mode", "infer"]);
}

#[test]
fn a_system_that_only_trains_says_so() {
    let args =
        ["plan", "--model", "gpt2-xl", "--hardware", "rtx3090-x4-two-sockets", "--system", "zb-v", "--mode", "infer"];
    let Run { code, err, .. } = spipe(".", &[&args[..], &["--global-batch", "8"]].concat());
    assert_ne!(code, Some(0), "{err}");
}

#[test]
fn frozen_layers_need_no_state() {
    let peak = |more: &[&str]| {
        let args = ["plan", "--model", "gpt2", "--hardware", "one-gpu", "--system", "gpu-only", "--global-batch", "2"];
        let plan = json(&[&args[..], &["--microbatch", "1"], more].concat());
        plan["peak-bytes"]["gpu0"].as_u64().unwrap()
    };
    let (all, half) = (peak(&[]), peak(&["--freeze", "block.0..block.5"]));
    // Six blocks of 7 087 872 parameters with 14 bytes each of gradients and optimizer state.
    assert!(all - half >= 6 * 7_087_872 * 14, "{all} {half}");
    let Run { code, err, .. } = spipe(
        ".",
        &["plan", "--model", "gpt2", "--hardware", "one-gpu", "--global-batch", "2", "--freeze", "block.12"],
    );
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("`block.12` names no layers of `gpt2`"), "{err}");
}

#[test]
fn rounds_from_stage_times() {
    let spipe = json(&[
        "schedule",
        "spipe",
        "--devices",
        "4",
        "--microbatches",
        "8",
        "--forward-chunks",
        "2",
        "--backward-chunks",
        "6",
        "--forward",
        "1 ms",
        "--backward",
        "1 ms",
    ]);
    // (F + B)·M + N − 1.
    assert_eq!(spipe["span-ms"].as_f64(), Some(67.0));
    let mobius = json(&[
        "schedule",
        "mobius",
        "--devices",
        "4",
        "--microbatches",
        "8",
        "--forward-chunks",
        "2",
        "--forward",
        "1 ms",
        "--backward",
        "3 ms",
    ]);
    assert_eq!(mobius["span-ms"].as_f64(), Some(76.0));
    let superpipeline = json(&[
        "schedule",
        "superpipeline",
        "--units",
        "32",
        "--resident",
        "4",
        "--swap",
        "2",
        "--compute",
        "1 ms",
        "--load",
        "1.5 ms",
        "--evict",
        "0.5 ms",
    ]);
    assert_eq!(superpipeline["steady-unit-ms"].as_f64(), Some(1.5));
}

/// The largest error of what was predicted, and the mean, over the cells of a column.
fn errors(reproduction: &Value, column: &str) -> (f64, f64) {
    let cells = reproduction["cells"].as_array().unwrap();
    let predicted = cells.iter().filter(|cell| cell.get("fitted").is_none() && cell["column"].as_str() == Some(column));
    let errors: Vec<f64> = predicted.map(|cell| cell["error"].as_f64().unwrap().abs()).collect();
    assert!(!errors.is_empty(), "{column}");
    (errors.iter().copied().fold(0.0, f64::max), errors.iter().sum::<f64>() / errors.len() as f64)
}

#[test]
fn published_tables_are_met() {
    let folder = tempfile::tempdir().unwrap();
    let tables = json(&["reproduce", "all", "-o", folder.path().to_str().unwrap()]);
    let table = |name: &str| tables.as_array().unwrap().iter().find(|table| table["table"] == name).unwrap();
    for system in ["1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"] {
        assert!(errors(table("zero-bubble"), system).0 < 0.000_05, "{system}");
    }
    assert!(errors(table("zero-bubble"), "interleaved-1f1b").0 < 0.004);
    for seq_len in ["s 4096", "s 8192", "s 16384", "s 32768"] {
        assert!(errors(table("pipeoffload"), seq_len).0 < 0.01, "{seq_len}");
    }
    for column in ["gpu, ms", "iteration, ms"] {
        assert!(errors(table("spipe-figure-14"), column).0 < 0.04, "{column}");
    }
    let (most, mean) = errors(table("spipe-figure-9"), "gpu, ms");
    assert!(most < 0.08 && mean < 0.04, "{most} {mean}");
    let (most, mean) = errors(table("spipe-figure-10"), "iteration, ms");
    assert!(most < 0.12 && mean < 0.06, "{most} {mean}");
    for (cluster, bound) in [("V100, ms", 0.03), ("RTX 3090, ms", 0.08)] {
        let cells = table("spipe-tails")["cells"].as_array().unwrap().iter().filter(|cell| cell["column"] == cluster);
        let errors: Vec<f64> = cells.map(|cell| cell["error"].as_f64().unwrap().abs()).collect();
        assert!(errors.len() > 3 && errors.iter().all(|error| *error < bound), "{cluster}: {errors:?}");
    }
    for name in ["zero-bubble.md", "spipe-figure-9.json"] {
        assert!(folder.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn rows_of_others_are_read_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.toml");
    std::fs::write(&rows, "format-version = 1\nsource = \"a talk\"\n[[row]]\nhidden = 4096\nseq-len = 4096\n").unwrap();
    let output = folder.path().join("out");
    let args = ["reproduce", "pipeoffload", "--rows", rows.to_str().unwrap(), "-o", output.to_str().unwrap()];
    let Run { code, err, .. } = spipe(".", &args);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("missing field `rate-ratio`") && err.contains("rows.toml:3:1"), "{err}");
    assert!(!output.exists());
    let more = "hidden = 2048\nseq-len = 8192\nrate-ratio = 14400\npublished = 2.3\n";
    std::fs::write(&rows, format!("format-version = 1\nsource = \"a talk\"\n[[row]]\n{more}")).unwrap();
    let tables = json(&args);
    // 10 · 14400 ÷ (3 (6 · 2048 + 8192)).
    let ours = tables[0]["cells"][0]["ours"].as_f64().unwrap();
    assert!((ours - 2.34375).abs() < 1e-9, "{ours}");
}

/// Rows of one device that runs all layers as one stage, on a machine of 50 TFLOP/s whose link
/// carries 4 GB/s: parameters come in, then every microbatch takes four forwards and two exchanges.
fn shaped_row(seq_len: u64, microbatches: u64, usage: &str) -> (String, f64) {
    let (layers, hidden, feed_forward) = (8.0, 4096.0, 11008.0);
    let (tokens, count) = (seq_len as f64, microbatches as f64);
    let parameters = layers * (4.0 * hidden * hidden + 3.0 * hidden * feed_forward);
    let forward = tokens * (2.0 * parameters + 4.0 * layers * tokens * hidden) / 50e12;
    let gpu = 2.0 * parameters / 4e9 + count * (4.0 * forward + 2.0 * (2.0 * tokens * hidden / 4e9));
    let row = format!(
        "[[row]]\nmodel = \"a\"\nshape = {{ layers = 8, hidden = 4096, feed-forward = 11008, seq-len = {seq_len}, microbatch = 1 }}\n\
         system = \"mobius\"\ndevices = 1\nmicrobatches = {microbatches}\nstages = [1, 1]\nparameters = 1000000000\nuse = \"{usage}\"\n\
         published = {{ iteration = \"{} ms\", gpu = \"{} ms\" }}\n",
        1e3 * (gpu + 2.0),
        1e3 * gpu
    );
    (row, 1e3 * gpu)
}

#[test]
fn rates_of_a_known_machine_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, output) = (folder.path().join("rows.toml"), folder.path().join("out"));
    let args = ["reproduce", "spipe-figure-9", "--rows", rows.to_str().unwrap(), "-o", output.to_str().unwrap()];
    let all = [shaped_row(1024, 2, "fit"), shaped_row(2048, 4, "fit"), shaped_row(512, 16, "predict")];
    let head = "format-version = 1\nsource = \"a talk\"\n";
    std::fs::write(&rows, head.to_owned() + &all.clone().map(|row| row.0).concat()).unwrap();
    let tables = json(&args);
    let cells = tables[0]["cells"].as_array().unwrap();
    let gpu: Vec<&Value> = cells.iter().filter(|cell| cell["column"] == "gpu, ms").collect();
    assert_eq!(gpu.len(), 3);
    for cell in gpu {
        assert!(cell["error"].as_f64().unwrap().abs() < 0.005, "{cell}");
    }
    // A row that does not say its shape among those that do.
    let bare: String =
        all[2].0.lines().filter(|line| !line.starts_with("shape")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&rows, format!("{head}{}{bare}", all[0].0)).unwrap();
    let Run { code, err, .. } = spipe(".", &args);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("does not say the whole shape of its model") && err.contains("rows.toml:13:1"), "{err}");
    // A model of which nothing is fitted.
    std::fs::write(&rows, format!("{head}{}{}", all[0].0, all[2].0.replace("\"a\"", "\"b\""))).unwrap();
    let Run { code, err, .. } = spipe(".", &args);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("no row of `b` is fitted") && err.contains("rows.toml:13:1"), "{err}");
}

const ONE_V100: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/good/one-v100.toml");

/// The published capacity of ZeRO-Offload on one V100 of 32 GB (Ren et al. 2021; DeepSpeed's
/// tutorial): 10 billion parameters with 10 sequences of 1024 tokens, and 13 billion, with everything
/// recomputed and only parameters on the GPU.
#[test]
fn zero_offload_trains_what_is_published_on_one_gpu() {
    let folder = tempfile::tempdir().unwrap();
    for (layers, batch) in [(50, "10"), (65, "4")] {
        let path = folder.path().join(format!("gpt{layers}.toml"));
        std::fs::write(&path, gpt(4096, layers)).unwrap();
        let model = path.to_str().unwrap();
        let recompute = format!("recompute=1..{layers}");
        let words =
            ["plan", "--model", model, "--hardware", ONE_V100, "--precision", "fp16", "--system", "zero-offload"];
        let more = ["--global-batch", batch, "--microbatch", batch, "--materialised-attention", "--pin", &recompute];
        let limit = ["--time-limit", "5s", "--format", "json"];
        let Run { code, out, err } = spipe(".", &[&words[..], &more, &limit].concat());
        assert_eq!(code, Some(0), "{layers} layers: {err}");
        let plan: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(plan["gradients-leave"], "each-microbatch", "{layers} layers");
    }
}

/// With 8 sequences a step that is one iteration late was published to gain 12 to 59 % (there,
/// figure 9): DeepSpeed's steps are a phase of their own.
#[test]
fn a_delay_of_one_step_gains_what_is_published() {
    let folder = tempfile::tempdir().unwrap();
    for (hidden, layers) in [(2048, 20), (2304, 64), (4096, 50)] {
        let path = folder.path().join(format!("gpt{layers}.toml"));
        std::fs::write(&path, gpt(hidden, layers)).unwrap();
        let recompute = format!("recompute=1..{layers}");
        let iteration = |system: &[&str]| {
            let model = ["plan", "--model", path.to_str().unwrap(), "--hardware", ONE_V100, "--precision", "fp16"];
            let batch = ["--global-batch", "8", "--microbatch", "8", "--materialised-attention", "--pin", &recompute];
            let limit = ["--time-limit", "5s", "--format", "json"];
            let Run { code, out, err } = spipe(".", &[&model[..], &batch, &limit, system].concat());
            assert_eq!(code, Some(0), "{layers} layers: {err}");
            serde_json::from_str::<Value>(&out).unwrap()["simulated-iteration-ms"].as_f64().unwrap()
        };
        let phase = iteration(&["--system", "zero-offload", "--pin", "synchronous-optimizer=1"]);
        let gain = phase / iteration(&["--system", "zero-offload-delayed"]);
        assert!((1.12..=1.59).contains(&gain), "{layers} layers: {gain}");
    }
}

/// A GPT-2 with heads of 128.
fn gpt(hidden: u32, layers: u32) -> String {
    format!(
        "format-version = 1\nkind = \"transformer\"\nname = \"gpt\"\nvocabulary = 51200\nseq-len = 1024\nhidden = {hidden}\n\
         layers = {layers}\nheads = {}\nintermediate = {}\ntied = true\nnorm = \"layer-norm\"\nmlp = \"gelu\"\n\
         positions = \"learned\"\nqkv-bias = true\noutput-bias = true\nmlp-bias = true\ndropout = true\n",
        hidden / 128,
        4 * hidden
    )
}
