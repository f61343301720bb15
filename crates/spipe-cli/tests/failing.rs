//! Runs whose lanes fail in the middle: by memory that is too small, and by threads that cannot be
//! had.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/command.rs"]
mod command;
#[path = "common/machine.rs"]
mod machine;

use command::command;
use machine::Machine;
use serde_json::Value;
use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

const MODEL: &str = "format-version = 1\nkind = \"transformer\"\nname = \"small\"\nvocabulary = 256\nseq-len = 32\n\
                     hidden = 32\nlayers = 6\nheads = 4\nintermediate = 64\n";
/// Longer than any of these runs takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

/// A folder with `plan.json` for two accelerators with two stages each, and a text.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.toml", MODEL);
    let machine = Machine { peak: "5 GFLOP/s", accelerators: 2, ..Machine::default() };
    write(folder.path(), "machine.toml", &machine.text());
    write(folder.path(), "text", &"the quick brown fox jumps over the lazy dog; ".repeat(50));
    let plan = "plan --model model.toml --hardware machine.toml --precision fp32 --materialised-attention \
                --global-batch 8 --microbatch 1 --system interleaved-1f1b -o plan.json";
    let made = ended(command(folder.path(), plan));
    assert_eq!(made.status.code(), Some(0), "{}", said(&made));
    folder
}

/// The output of a command, which must end.
fn ended(mut command: Command) -> Output {
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // What these commands print fits into the pipes.
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it hangs: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Step by step, the bits of the losses.
fn losses(output: &Output) -> Vec<u64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"] == "step").map(|line| line["loss"].as_f64().unwrap().to_bits()).collect()
}

/// `plan.json` with accelerators of that many bytes.
fn with_memory(folder: &Path, bytes: u64, name: &str) {
    let plan = std::fs::read_to_string(folder.join("plan.json")).unwrap();
    let (roomy, tight) = ("memory = \\\"256 MiB\\\"", format!("memory = \\\"{bytes} B\\\""));
    assert!(plan.contains(roomy), "{plan}");
    write(folder, name, &plan.replace(roomy, &tight));
}

#[test]
fn a_stage_that_runs_out_of_memory_ends_the_run_and_spares_the_checkpoint() {
    let folder = folder();
    let path = folder.path();
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(path.join("plan.json")).unwrap()).unwrap();
    let peaks = plan["peak-bytes"].as_object().unwrap();
    let peak = peaks.iter().filter(|(name, _)| name.starts_with("gpu")).map(|(_, peak)| peak.as_u64().unwrap()).max();
    // The checker counts what is certain; how far a device runs ahead of the other is up to the
    // simulator, and to a run.
    let with = |bytes: u64| {
        with_memory(path, bytes, "tight.json");
        ended(command(path, "simulate tight.json"))
    };
    let (mut refused, mut accepted) = (0, peak.unwrap());
    while accepted - refused > 1 {
        let middle = refused.midpoint(accepted);
        let bound = if with(middle).status.code() == Some(3) { &mut refused } else { &mut accepted };
        *bound = middle;
    }
    let simulated = with(accepted);
    assert_eq!(simulated.status.code(), Some(6), "{}", said(&simulated));
    let report = String::from_utf8_lossy(&simulated.stdout).into_owned();
    assert!(report.contains("Out of memory on `gpu") && !report.contains("tokens/s"), "{report}");

    let train = |plan: &str, steps: u32, more: &str| {
        ended(command(path, &format!("run {plan} --data text --format json --steps {steps} {more}")))
    };
    let whole = train("plan.json", 4, "");
    assert_eq!(losses(&whole).len(), 4, "{}", said(&whole));
    let kept = "--checkpoint-dir kept --checkpoint-every 1";
    assert_eq!(losses(&train("plan.json", 2, kept)), losses(&whole)[..2]);
    let failed = train("tight.json", 4, &format!("{kept} --resume"));
    let message = said(&failed);
    assert_eq!(failed.status.code(), Some(6), "{message}");
    assert!(message.contains(" in `gpu") && message.contains(" free\nhint: "), "{message}");
    assert!(message.contains("use a smaller microbatch, or recompute more layers"), "{message}");
    assert!(losses(&failed).is_empty());
    let resumed = train("plan.json", 4, &format!("{kept} --resume"));
    assert_eq!(losses(&resumed), losses(&whole)[2..], "{}", said(&resumed));
}

/// Threads with stacks so large that the process has room for only a few of them: which lane is the
/// first without one depends on how many it may have.
#[test]
fn a_lane_without_a_thread_ends_the_run_and_spares_the_checkpoint() {
    let folder = folder();
    let path = folder.path();
    let run = "run plan.json --data text --format json --checkpoint-dir kept --resume --steps 2";
    let first = ended(command(path, "run plan.json --data text --format json --steps 1 --checkpoint-dir kept"));
    assert_eq!(losses(&first).len(), 1, "{}", said(&first));
    let with_threads = |threads: u64| {
        let run = command(path, run);
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", threads << 23);
        shell.arg("-c").arg(limited).arg(run.get_program()).args(run.get_args()).current_dir(path);
        shell.env("RUST_MIN_STACK", (8u64 << 30).to_string());
        ended(shell)
    };
    let mut lanes = Vec::new();
    let resumed = (3..40).map(with_threads).find(|output| {
        let message = said(output);
        match output.status.code() {
            // Not even the cores had their own threads.
            Some(7) => assert!(message.contains("cannot be opened: "), "{message}"),
            Some(6) => {
                let lane = message.strip_prefix("error: `").and_then(|rest| rest.split_once("` failed in starting"));
                lanes.push(lane.unwrap_or_else(|| panic!("{message}")).0.to_owned());
                assert!(losses(output).is_empty(), "nothing ran");
            }
            code => {
                assert_eq!(code, Some(0), "{message}");
                return true;
            }
        }
        false
    });
    assert_eq!(losses(&resumed.unwrap()).len(), 1, "it went on from the checkpoint");
    assert!(lanes.len() >= 3 && lanes.iter().any(|lane| lane.ends_with(".compute")), "{lanes:?}");
}

/// Where nobody can hear what a command says, its work goes on all the same.
#[test]
fn a_full_log_ends_no_run() {
    let folder = folder();
    let deaf = |args: &str| {
        let log = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command(folder.path(), args);
        command.stdout(Stdio::null()).stderr(log).status().unwrap().code()
    };
    assert_eq!(deaf("model show nothing-of-that-name"), Some(3));
    assert_eq!(deaf("run plan.json --data text --steps 2 --checkpoint-dir kept -v"), Some(0));
    assert!(folder.path().join("kept").read_dir().unwrap().count() > 0);
}
