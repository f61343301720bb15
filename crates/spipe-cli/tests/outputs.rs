//! Where results are written: never over what they are made of, and through what is no file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{command::command, spipe};
use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

/// A folder with the plan of a small model in bf16.
fn planned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let what = "plan --model demo --hardware one-gpu --global-batch 2 --microbatch 1 --seq-len 32 --system 1f1b";
    let pins = "--pin layer=0..3:cpu0 --pin layer=4..9:gpu0 --time-limit 2s -o plan.json";
    let args: Vec<&str> = what.split(' ').chain(pins.split(' ')).collect();
    let made = spipe(folder.path(), &args);
    assert!(made.code == Some(0), "{}", made.err);
    folder
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = planned();
    let before = fs::read(folder.path().join("plan.json")).unwrap();
    for args in [["simulate", "plan.json", "-o", "plan.json"], ["simulate", "plan.json", "-o", "./plan.json"]] {
        let refused = spipe(folder.path(), &args);
        assert_eq!(refused.code, Some(2));
        assert!(refused.err.contains("would overwrite its input"));
    }
    assert_eq!(fs::read(folder.path().join("plan.json")).unwrap(), before);
}

#[cfg(unix)]
#[test]
fn links_and_pipes_stay_what_they_are() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = planned();
    let at = |name: &str| folder.path().join(name);
    symlink("trace.json", at("link.json")).unwrap();
    symlink("circle", at("circle")).unwrap();
    // Once to what is not there yet, and once over it.
    for _ in 0..2 {
        assert!(spipe(folder.path(), &["simulate", "plan.json", "-o", "link.json"]).code == Some(0));
        assert!(fs::symlink_metadata(at("link.json")).unwrap().is_symlink());
        assert!(fs::symlink_metadata(at("trace.json")).unwrap().is_file());
    }
    assert_eq!(spipe(folder.path(), &["simulate", "plan.json", "-o", "circle"]).code, Some(3));
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = at("pipe");
        move || fs::read(pipe).unwrap()
    });
    assert!(spipe(folder.path(), &["simulate", "plan.json", "-o", "pipe"]).code == Some(0));
    assert_eq!(reader.join().unwrap(), fs::read(at("trace.json")).unwrap());
    assert!(fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
}

/// Requests beyond any machine are refused before memory is allocated for them.
#[test]
fn absurd_figures_are_refused() {
    let folder = planned();
    fs::write(folder.path().join("empty.txt"), "").unwrap();
    let plan = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    fs::write(folder.path().join("many.json"), plan.replace("\"microbatches\": 2", "\"microbatches\": 4000000000"))
        .unwrap();
    let planning = "plan --model demo --hardware one-gpu --threads 1";
    for (code, args) in [
        (2, format!("{planning} --time-limit 1s --global-batch 4 --seq-len 18446744073709551615")),
        (2, format!("{planning} --time-limit 1s --global-batch 4 --seq-len 0")),
        (2, format!("{planning} --time-limit 1s --global-batch 4294967296 --microbatch 1")),
        (2, format!("{planning} --time-limit 1e30s --global-batch 4")),
        (2, "baseline tensor-data --model llama2-7b --hardware a100-80g-x2 --global-batch 18446744073709551615".into()),
        (3, "simulate many.json".into()),
        (3, "schedule custom empty.txt".into()),
        (2, "schedule 1f1b --forward 1e30s".into()),
        (2, "plan --model gpt2 --hardware one-gpu --global-batch 4 --seq-len 2048".into()),
        (2, "calibrate --model demo --seq-len 0 -o -".into()),
        (2, "calibrate --model demo --microbatch 0 -o -".into()),
        (2, "calibrate --model gpt2 --seq-len 2000 -o -".into()),
    ] {
        let found = spipe(folder.path(), &args.split(' ').collect::<Vec<_>>());
        let said = &found.err;
        assert_eq!(found.code, Some(code), "{args}: {said}");
        assert!(!said.contains("panicked"), "{args}: {said}");
    }
}

/// Plans are in bf16 unless something else is said, and CPU cores compute in f32.
#[test]
fn a_plan_in_bf16_runs_on_cpu_cores() {
    let folder = planned();
    fs::write(folder.path().join("words.txt"), "the quick brown fox jumps over the lazy dog ".repeat(20)).unwrap();
    let args = "run plan.json --data words.txt --steps 2 --bind gpu0=emulated:0:ndarray --bind cpu0=cpu:0";
    let run = spipe(folder.path(), &args.split(' ').collect::<Vec<_>>());
    assert!(run.code == Some(0), "{}", run.err);
    for backend in ["--bind gpu0=emulated:0:flex", "--backend flex"] {
        let args = format!("run plan.json --data words.txt --steps 2 {backend}");
        let refused = spipe(folder.path(), &args.split(' ').collect::<Vec<_>>());
        let said = &refused.err;
        assert_eq!(refused.code, Some(2), "{said}");
        assert!(said.contains("unknown backend `flex` (known: ndarray)") && said.contains("hint: "), "{said}");
    }
}

#[cfg(unix)]
#[test]
fn a_killed_search_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let args = "plan --model gpt3-175b --hardware v100-32g-x32 --precision fp16 --global-batch 64 --time-limit 60s -o plan.json";
    let mut search = command(folder.path(), args).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(search.try_wait().unwrap(), None, "it is still searching");
    let sent = Command::new("kill").args(["-KILL", &search.id().to_string()]).status().unwrap();
    assert!(sent.success() && !search.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The plan and the simulation of a machine with 32 equal GPUs.
const MANY: &str = "--model gpt2 --hardware v100-32g-x32 --global-batch 32 --microbatch 1 --effort low -o plan.json";

#[test]
fn idle_devices_take_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |system: &str, more: &str| spipe(folder.path(), &format!("plan {MANY} --system {system} {more}"));
    let human = plan("1f1b", "--pin layer=0..6:gpu0 --pin layer=7..13:gpu2");
    assert_eq!(human.code, Some(0), "{}", human.err);
    let idle: Vec<&str> = human.out.lines().filter(|line| line.starts_with("idle: ")).collect();
    assert_eq!(
        idle,
        [
            "idle: gpu1, gpu3..gpu31 (no faster plan with a stage on them was found); cpu0..cpu31 (`1f1b` computes on GPUs, and \
          here it also steps there)"
        ],
        "{}",
        human.out
    );
    let json = plan("1f1b", "--pin layer=0..6:gpu0 --pin layer=7..13:gpu2 --format json");
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let names = |key: &str| json[key].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!((names("devices"), names("idle-devices").len()), (vec!["gpu0", "gpu2"], 62));
    let shared = plan("fsdp", "--devices gpu0,gpu1");
    assert_eq!((shared.code, shared.out.contains("idle: ")), (Some(0), false), "{}", shared.out);
}

#[test]
fn equal_devices_share_a_row() {
    let folder = tempfile::tempdir().unwrap();
    // One of more than 8 stands for all of them.
    let gpus: Vec<String> = (0..8).map(|gpu| format!("gpu{gpu}")).collect();
    let plan = spipe(folder.path(), &format!("plan {MANY} --system fsdp --devices {}", gpus.join(",")));
    let rows = |text: &str, name: &str| text.lines().filter(|line| line.trim_start().starts_with(name)).count();
    // The least size of one memory may be known, and that of the others not.
    assert!(plan.code == Some(0) && rows(&plan.out, "gpu") <= 4, "{}", plan.out);
    let simulated = spipe(folder.path(), "simulate plan.json");
    let computing = simulated.out.lines().filter(|line| line.contains(".compute ")).count();
    assert!((1..=8).contains(&computing), "{}", simulated.out);
    assert!(rows(&simulated.out, "gpu0..gpu7 ") == 1, "{}", simulated.out);
    let json = spipe(folder.path(), "simulate plan.json --format json");
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["peak-bytes"].as_object().unwrap().keys().filter(|name| name.starts_with("gpu")).count(), 8);
}

#[test]
fn a_kind_of_remark_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let machine = "--model gpt2 --hardware rtx3090-x4-two-sockets --global-batch 2 --microbatch 1 --seq-len 512";
    let pins = "layer=0..1:gpu0 layer=2..3:cpu0 layer=4..5:gpu2 layer=6..7:cpu1 layer=8..13:gpu1"
        .replace("layer=", "--pin layer=");
    let plan = spipe(folder.path(), &format!("plan {machine} --system hybrid {pins} --effort low -o plan.json"));
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    let simulated = spipe(folder.path(), "simulate plan.json --format json");
    let far = "is not the socket nearest to";
    assert_eq!(simulated.err.matches(far).count(), 1, "{}", simulated.err);
    assert!(simulated.err.contains("; likewise cpu1 and gpu1 (2 in all)"), "{}", simulated.err);
    let json: serde_json::Value = serde_json::from_str(&simulated.out).unwrap();
    let messages = json["remarks"].as_array().unwrap().iter().map(|remark| remark["message"].as_str().unwrap());
    assert_eq!(messages.filter(|message| message.contains(far)).count(), 2, "{json}");
}
