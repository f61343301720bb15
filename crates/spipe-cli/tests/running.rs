//! `spipe run` as a program or a shell sees it: lines, signals, exit codes.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/command.rs"]
mod command;
#[path = "common/machine.rs"]
mod machine;

use command::command;
use machine::Machine;
use serde_json::Value;
use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

const MODEL: &str = "format-version = 1\nkind = \"transformer\"\nname = \"small\"\nvocabulary = 256\nseq-len = 16\n\
                     hidden = 32\nlayers = 2\nheads = 4\nintermediate = 48\n";
const VIT: &str = "format-version = 1\nkind = \"vit\"\nname = \"small-vit\"\nimage = 8\npatch = 4\nhidden = 32\n\
                   layers = 2\nheads = 4\nintermediate = 64\nclasses = 4\n";

/// A folder with `plan.json` for a model whose stages are on both devices, and `text.txt`.
fn folder(model: &str, link: &str) -> tempfile::TempDir {
    planned(model, link, "--system hybrid")
}

fn planned(model: &str, link: &str, how: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("model.toml", model);
    // The accelerator cannot hold everything.
    let machine = Machine { peak: "20 GFLOP/s", accelerators: 1, memory: "64 MiB", link };
    write("machine.toml", &machine.text());
    write("text.txt", &"the quick brown fox jumps over the lazy dog. ".repeat(40));
    let args = format!(
        "plan --model model.toml --hardware machine.toml {how} --precision fp32 --materialised-attention \
         --global-batch 4 --microbatch 2 --planner dp -o plan.json"
    );
    let made = command(folder.path(), &args).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Steps in the order in which they are told, and the last line.
fn steps(lines: &[Value]) -> (Vec<u64>, &Value) {
    let (end, steps) = lines.split_last().unwrap();
    assert!(lines.iter().all(|line| line["format-version"] == 1), "{lines:?}");
    assert!(steps.iter().all(|line| line["event"] == "step") && end["event"] == "end", "{lines:?}");
    (steps.iter().map(|line| line["step"].as_u64().unwrap()).collect(), end)
}

#[test]
fn programs_read_a_line_for_each_step() {
    for (model, data) in [(MODEL, "text.txt"), (VIT, "synthetic")] {
        let folder = folder(model, "4 GB/s");
        let args = format!("run plan.json --data {data} --steps 4 --format json -o trace.json");
        let run = command(folder.path(), &args).output().unwrap();
        assert_eq!((run.status.code(), text(&run.stderr).as_str()), (Some(0), ""));
        let lines = lines(&text(&run.stdout));
        let (told, end) = steps(&lines);
        assert_eq!((told, &end["steps"], &end["asked-steps"]), (vec![0, 1, 2, 3], &4.into(), &4.into()));
        for line in &lines[..4] {
            assert!(
                line["loss"].as_f64().unwrap() > 0.0 && line["tokens-per-second"].as_f64().unwrap() > 0.0,
                "{line}"
            );
            assert!(line["peak-bytes"].as_object().unwrap().values().any(|bytes| bytes.as_u64() > Some(0)), "{line}");
        }
        assert!(lines[0]["remaining-s"].as_f64().unwrap() > 0.0 && lines[3]["remaining-s"] == 0.0, "{lines:?}");
        assert!(end["memories"].as_array().unwrap().iter().all(|memory| memory["held-bytes"].as_u64() > Some(0)));
        assert!(folder.path().join("trace.json").exists());
    }
}

/// The first gradients of a random model are longer than what follows from clipping them; an
/// unclipped plan does not ask for norms.
#[test]
fn clipped_runs_tell_norms_and_have_learning_rates_of_their_own() {
    let losses = |how: &str, more: &str| {
        let folder = planned(MODEL, "4 GB/s", how);
        let args = format!("run plan.json --data text.txt --steps 4 --format json {more}");
        let run = command(folder.path(), &args).output().unwrap();
        assert_eq!((run.status.code(), text(&run.stderr).as_str()), (Some(0), ""));
        let mut lines = lines(&text(&run.stdout));
        lines.truncate(4);
        let norm = |line: &Value| line.get("gradient-norm").and_then(Value::as_f64);
        let norms: Vec<Option<f64>> = lines.iter().map(norm).collect();
        let clips = how.contains("clip-norm");
        assert!(norms.iter().all(|norm| norm.is_some_and(|norm| norm > 0.0) == clips), "{norms:?}");
        lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let plain = losses("--system hybrid", "");
    let clipped = losses("--system hybrid --clip-norm 0.01", "");
    assert_eq!(plain[0].to_bits(), clipped[0].to_bits());
    assert_ne!(plain[2].to_bits(), clipped[2].to_bits());
    // In the first step of a warm-up nothing is learnt, and without weight decay nothing shrinks.
    let warm = losses("--system hybrid", "--warmup-steps 2 --decay linear --weight-decay 0");
    assert_eq!(warm[0].to_bits(), plain[0].to_bits());
    assert_ne!(warm[2].to_bits(), plain[2].to_bits());
}

/// Starts a run and waits for its first line.
fn started(folder: &Path, steps: u32) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let args = format!("run plan.json --data text.txt --steps {steps} --format json");
    let mut child = command(folder, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    (child, out, first)
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn the_first_interrupt_lets_the_step_end() {
    for signal in ["-INT", "-TERM"] {
        lets_the_step_end(signal);
    }
}

fn lets_the_step_end(signal: &str) {
    let folder = folder(MODEL, "4 GB/s");
    let (child, mut out, mut all) = started(folder.path(), 1_000_000);
    send(signal, &child);
    out.read_to_string(&mut all).unwrap();
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(0), "{}", text(&stderr));
    let lines = lines(&all);
    let (told, end) = steps(&lines);
    assert_eq!(told, (0..told.len() as u64).collect::<Vec<_>>());
    assert_eq!(end["steps"], told.len());
    let mut expected = String::new();
    writeln!(expected, "stopped after {} of 1000000 steps", told.len()).unwrap();
    assert_eq!(text(&stderr), expected);
}

#[test]
fn the_second_interrupt_ends_the_process() {
    let folder = folder(MODEL, "4 GB/s");
    let plan = std::fs::read_to_string(folder.path().join("plan.json")).unwrap();
    assert!(plan.contains("4 GB/s") && plan.contains("\"last-layer\": 3"), "{plan}");
    // 4 KiB cross: a step takes longer than the test may.
    std::fs::write(folder.path().join("plan.json"), plan.replace("4 GB/s", "1 KB/s")).unwrap();
    let args = "run plan.json --data text.txt --steps 2 -v";
    let child = command(folder.path(), args).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let began = Instant::now();
    send("-INT", &child);
    std::thread::sleep(Duration::from_millis(200));
    send("-INT", &child);
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130), "{}", text(&stderr));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_goes_wrong_has_its_exit_code() {
    let folder = folder(MODEL, "4 GB/s");
    let refused = |args: &str| {
        let run = command(folder.path(), args).output().unwrap();
        assert!(run.stdout.is_empty(), "{}", text(&run.stdout));
        format!("{}: {}", run.status.code().unwrap(), text(&run.stderr))
    };
    std::fs::write(folder.path().join("short.txt"), "too short").unwrap();
    let short = refused("run plan.json --data short.txt --steps 1");
    assert!(short.starts_with("3: error: the text has 9 bytes"), "{short}");
    let images = refused("run plan.json --data synthetic --steps 1");
    assert!(images.starts_with("3: error: cannot read `synthetic`"), "{images}");
    let gpu = refused("run plan.json --data text.txt --steps 1 --bind gpu0=cuda:7");
    assert!(gpu.starts_with("7: error: `cuda:7` cannot be opened"), "{gpu}");
    let wild = command(folder.path(), "run plan.json --data text.txt --steps 9 --learning-rate 1e30").output().unwrap();
    assert_eq!(wild.status.code(), Some(6), "{}", text(&wild.stderr));
    assert!(text(&wild.stderr).starts_with("error: the loss of step "), "{}", text(&wild.stderr));
    let device = refused("run plan.json --data text.txt --steps 1 --bind gpu9=cpu:0");
    assert!(device.starts_with("2: error: `test` has no device `gpu9`"), "{device}");
}

/// The shape of a tensor by the header of its file: the header's length in 8 bytes, then JSON.
fn shape_of(path: &Path, tensor: &str) -> Vec<u64> {
    let file = std::fs::read(path).unwrap();
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    header[tensor]["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect()
}

#[test]
fn text_is_continued_token_by_token() {
    let tokens = |mode: &str| {
        let folder = planned(MODEL, "4 GB/s", &format!("--system gpipe --mode {mode}"));
        let run = |more: &str| {
            let args = format!("run plan.json --data text.txt --steps 5 {more}");
            let run = command(folder.path(), &args).output().unwrap();
            assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
            text(&run.stdout)
        };
        let lines = lines(&run("--format json -o trace.json --save-outputs found.safetensors"));
        let (told, end) = steps(&lines);
        assert_eq!(told, [0, 1, 2, 3, 4]);
        assert!(end["ms-per-token"].as_f64().unwrap() > 0.0, "{end}");
        assert!(folder.path().join("trace.json").exists());
        assert_eq!(shape_of(&folder.path().join("found.safetensors"), "tokens"), [4, 5]);
        let human = run("");
        assert!(human.contains(" ms per token, ") && human.contains(" goes on \""), "{human}");
        end["tokens"].clone()
    };
    // Prompts of 16 tokens, and of 12.
    for mode in ["infer", "generate"] {
        let tokens = tokens(mode);
        let sequences = tokens.as_array().unwrap();
        assert_eq!(sequences.len(), 4);
        assert!(sequences.iter().all(|tokens| tokens.as_array().unwrap().len() == 5), "{tokens}");
    }
}

#[test]
fn images_are_embedded() {
    let folder = planned(VIT, "4 GB/s", "--system gpipe --mode infer");
    let args = "run plan.json --data synthetic --steps 3 --format json --save-outputs found.safetensors";
    let run = command(folder.path(), args).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert_eq!(lines(&text(&run.stdout)).last().unwrap()["images"], 12);
    assert_eq!(shape_of(&folder.path().join("found.safetensors"), "images"), [12, 32]);
    let training = self::folder(VIT, "4 GB/s");
    let run = command(training.path(), args).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
    assert!(text(&run.stderr).starts_with("error: `--save-outputs` does nothing in training"), "{}", text(&run.stderr));
}

#[test]
fn adapters_are_saved_loaded_and_merged() {
    let folder = folder(MODEL, "4 GB/s");
    let said = |args: &str, code: i32| -> (String, String) {
        let run = command(folder.path(), args).output().unwrap();
        assert_eq!(run.status.code(), Some(code), "{args}: {}", text(&run.stderr));
        (text(&run.stdout), text(&run.stderr))
    };
    let plan = |what: &str| {
        let rest =
            "--system hybrid --precision fp32 --materialised-attention --global-batch 4 --microbatch 2 --planner dp";
        said(&format!("plan --model model.toml --hardware machine.toml {rest} {what}"), 0);
    };
    let losses = |args: &str| -> Vec<f64> {
        let run = said(&format!("run {args} --data text.txt --format json"), 0);
        lines(&run.0).iter().filter_map(|line| line["loss"].as_f64()).collect()
    };
    losses("plan.json --steps 5 --save-weights base");
    plan("--lora rank=4,alpha=8,targets=q,v,down -o lora.json");
    let first = losses("lora.json --weights base --steps 20 --learning-rate 0.01 --save-adapter adapter");
    let still = losses("lora.json --weights base --steps 1 --learning-rate 0 --adapter adapter --save-adapter again");
    assert!(still[0] < first[0], "it starts where the other one ended: {first:?} {still:?}");
    let read = |folder_name: &str, file: &str| std::fs::read(folder.path().join(folder_name).join(file)).unwrap();
    let both = ["adapter", "again"].map(|name| read(name, "adapter_model.safetensors"));
    assert!(both[0] == both[1], "a step of nothing changes nothing");
    let config: Value = serde_json::from_slice(&read("adapter", "adapter_config.json")).unwrap();
    assert_eq!(config["target_modules"], serde_json::json!(["down_proj", "q_proj", "v_proj"]));
    assert_eq!(
        (&config["r"], &config["lora_alpha"], &config["base_model_name_or_path"]),
        (&4.into(), &8.into(), &"base".into())
    );
    let shape = shape_of(
        &folder.path().join("adapter/adapter_model.safetensors"),
        "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight",
    );
    assert_eq!(shape, [4, 48]);
    // The plan of a file has its settings.
    plan("--adapter adapter -o again.json");
    assert_eq!(losses("again.json --weights base --steps 1 --adapter adapter")[0].to_bits(), still[0].to_bits());
    said("model merge base --adapter adapter -o merged", 0);
    let merged = losses("plan.json --weights merged --steps 1")[0];
    assert!((merged - still[0]).abs() < 1e-5 * merged, "{merged} {still:?}");
    for (args, expected) in [
        ("run plan.json --data text.txt --steps 1 --adapter adapter", "the plan trains no adapters"),
        ("run lora.json --data text.txt --steps 1 --save-weights other", "adapters are trained, and the weights"),
        ("run lora.json --data text.txt --steps 1 --adapter base", "cannot read `base/adapter_config.json`"),
        ("model merge adapter/adapter_model.safetensors --adapter adapter -o other", "holds no adapter of"),
    ] {
        let message = said(args, 3).1;
        assert!(message.contains(expected), "{message}");
    }
    plan("--lora rank=5,targets=q,v,down -o wider.json");
    let message = said("run wider.json --data text.txt --steps 1 --adapter adapter", 3).1;
    assert!(message.contains("`adapter` holds no adapter of `small`: its rank is 4, the plan's is 5"), "{message}");
}

#[test]
fn weights_are_saved_and_loaded() {
    let trained = folder(MODEL, "4 GB/s");
    let other = folder(&MODEL.replace("hidden = 32", "hidden = 16"), "4 GB/s");
    let losses = |args: &str| -> Vec<f64> {
        let run =
            command(trained.path(), &format!("run plan.json --data text.txt --format json {args}")).output().unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        lines(&text(&run.stdout)).iter().filter_map(|line| line["loss"].as_f64()).collect()
    };
    let first = losses("--steps 30 --save-weights first");
    std::fs::write(trained.path().join("first/config.json"), "{}").unwrap();
    let second = losses("--steps 1 --weights first --learning-rate 0 --save-weights second");
    assert!(second[0] < 0.95 * first[0], "it starts where the other one ended: {first:?} {second:?}");
    let read = |folder: &str| std::fs::read(trained.path().join(folder).join("model.safetensors")).unwrap();
    assert!(read("first") == read("second"), "a step of nothing changes nothing");
    assert_eq!(std::fs::read(trained.path().join("second/config.json")).unwrap(), b"{}", "it comes along");
    assert_eq!(losses("--steps 1 --weights second/model.safetensors")[0].to_bits(), second[0].to_bits());
    let weights = trained.path().join("first").display().to_string();
    let args = format!("run plan.json --data text.txt --steps 1 --weights {weights}");
    let run = command(other.path(), &args).output().unwrap();
    assert_eq!(run.status.code(), Some(3));
    let said = text(&run.stderr);
    assert!(
        said.contains(
            "does not hold the weights of `small`: its `lm_head.weight` is 256 × 32, the model's is 256 × 16"
        )
    );
    assert!(said.contains("and 17 more\nhint: `spipe model import`"), "{said}");
}
