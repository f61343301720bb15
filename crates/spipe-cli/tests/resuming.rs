//! Runs that are killed, interrupted, resumed and told to go on from nothing good.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/command.rs"]
mod command;
#[path = "common/machine.rs"]
mod machine;

use command::command;
use machine::Machine;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

const MODEL: &str = r#"
format-version = 1
kind = "transformer"
name = "small"
vocabulary = 256
seq-len = 32
hidden = 32
layers = 3
heads = 4
intermediate = 64
"#;

/// A plan of two stages and a text, in a folder.
struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.toml"), MODEL).unwrap();
        let machine = Machine { accelerators: 1, ..Machine::default() };
        std::fs::write(folder.path().join("machine.toml"), machine.text()).unwrap();
        std::fs::write(folder.path().join("text"), "the quick brown fox jumps over the lazy dog; ".repeat(50)).unwrap();
        let site = Self { folder };
        let plan =
            ["plan", "--model", "model.toml", "--hardware", "machine.toml", "--global-batch", "4", "--microbatch", "1"];
        let more = "--precision fp32 --materialised-attention --system hybrid --planner dp -o plan.json".split(" ");
        let more: Vec<&str> = more.collect();
        let made = site.command(&[&plan[..], &more].concat()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        command(self.folder.path(), args)
    }

    fn run(&self, steps: u32, more: &[&str]) -> Command {
        let steps = steps.to_string();
        let args = ["run", "plan.json", "--data", "text", "--format", "json", "--steps", &steps];
        self.command(&[&args[..], more].concat())
    }
}

/// The bits of the losses on stdout, by step; a last line that was cut by a kill is left out.
fn losses(out: &[u8]) -> BTreeMap<u64, u64> {
    let text = String::from_utf8_lossy(out);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = lines.filter(|line| line["event"] == "step");
    steps.map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap().to_bits())).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Lets a run go on for a while.
fn after(child: Child, time: Duration, end: impl FnOnce(&mut Child)) -> Output {
    let mut child = child;
    std::thread::sleep(time);
    end(&mut child);
    child.wait_with_output().unwrap()
}

fn checkpoints(folder: &Path) -> usize {
    std::fs::read_dir(folder).map(Iterator::count).unwrap_or_default()
}

#[test]
fn a_run_that_is_killed_again_and_again_has_the_losses_of_one_that_is_not() {
    let site = Site::new();
    const STEPS: u32 = 60;
    let whole = site.run(STEPS, &[]).output().unwrap();
    assert!(whole.status.success(), "{}", said(&whole));
    let whole = losses(&whole.stdout);
    assert_eq!(whole.len(), STEPS as usize);
    let resumed = ["--checkpoint-dir", "kept", "--checkpoint-every", "1", "--resume"];
    let mut seen = BTreeMap::new();
    let (mut kills, mut patience) = (0, 0);
    let ended = loop {
        let child = site.run(STEPS, &resumed).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Of all lengths, from before the first step on; longer where the machine is too busy to
        // come to one.
        let time = Duration::from_millis(40 + 37 * (kills * 7 % 11) + patience);
        let before = seen.len();
        let output = after(child, time, |child| {
            let _ = child.kill();
        });
        let more = losses(&output.stdout);
        for (step, loss) in &more {
            assert_eq!(whole.get(step), Some(loss), "step {step} after {kills} kills");
        }
        seen.extend(more);
        if output.status.success() {
            break !said(&output).contains("nothing is left to do");
        }
        assert_eq!(output.status.code(), None, "{}", said(&output));
        assert!(!said(&output).contains("damaged"), "{}", said(&output));
        kills += 1;
        patience = if seen.len() == before { patience + 200 } else { 0 };
        assert!(kills < 500, "it gets nowhere");
    };
    assert!(kills > 0, "it was never killed");
    // A step whose line was lost with the kill was done all the same.
    assert!(seen.len() as u32 > STEPS / 2 && seen.contains_key(&0), "{} of {STEPS}", seen.len());
    // One that was killed behind its last step may have had no time to forget the one before the
    // last two.
    let most = if ended { 2 } else { 3 };
    assert!((2..=most).contains(&checkpoints(&site.path("kept"))), "the last two, and nothing half-written");
}

#[test]
fn a_run_that_is_done_delivers_its_weights() {
    let site = Site::new();
    let args = ["--checkpoint-dir", "kept", "--save-weights", "weights"];
    assert!(site.run(2, &args[..2]).output().unwrap().status.success());
    let output = site.run(2, &[&args[..], &["--resume"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(said(&output), "nothing is left to do: the checkpoint is after all 2 steps\n");
    let end: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&end["event"], &end["steps"]), (&Value::from("end"), &Value::from(2)));
    let whole = site.run(2, &["--save-weights", "at-once"]).output().unwrap();
    assert!(whole.status.success(), "{}", said(&whole));
    let weights = |folder: &str| std::fs::read(site.path(folder).join("model.safetensors")).unwrap();
    assert!(weights("weights") == weights("at-once"), "the same bytes");
    let fewer = site.run(1, &[&args[..], &["--resume"]].concat()).output().unwrap();
    assert_eq!(fewer.status.code(), Some(3));
    assert!(said(&fewer).contains("2 steps behind it, 1 were asked for"), "{}", said(&fewer));
}

#[test]
fn nothing_is_written_over_what_is_read() {
    let site = Site::new();
    for args in [&["-o", "text"][..], &["-o", "plan.json"], &["-o", "same", "--save-outputs", "same"]] {
        let output = site.run(1, args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    }
    let text = std::fs::read_to_string(site.path("text")).unwrap();
    assert!(text.starts_with("the quick brown fox"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_step_and_leaves_a_checkpoint() {
    let site = Site::new();
    let args = ["--checkpoint-dir", "kept", "--checkpoint-every", "1000000"];
    let mut child = site.run(100_000, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first line says that it is under way.
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut out, &mut first).unwrap();
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let done = losses((first + &rest).as_bytes());
    assert!(said(&output).contains(&format!("stopped after {} of 100000 steps", done.len())), "{}", said(&output));
    let more = site.run(done.len() as u32 + 2, &["--checkpoint-dir", "kept", "--resume"]).output().unwrap();
    assert!(more.status.success(), "{}", said(&more));
    let steps: Vec<u64> = losses(&more.stdout).into_keys().collect();
    assert_eq!(steps, [done.len() as u64, done.len() as u64 + 1]);
}

#[test]
fn damaged_checkpoints_and_other_models_have_their_messages() {
    let site = Site::new();
    let args = ["--checkpoint-dir", "kept", "--checkpoint-every", "1"];
    let whole = losses(&site.run(4, &args).output().unwrap().stdout);
    std::fs::write(site.path("kept/step-00000004/weights.safetensors"), "cut").unwrap();
    let resume = [&args[..], &["--resume"]].concat();
    let output = site.run(4, &resume).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).starts_with("warning: the checkpoint `kept/step-00000004` is damaged: "),
        "{}",
        said(&output)
    );
    assert_eq!(losses(&output.stdout).get(&3), whole.get(&3));
    for step in 3..=4 {
        std::fs::write(site.path(&format!("kept/step-0000000{step}/checkpoint.json")), "{").unwrap();
    }
    let output = site.run(4, &resume).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert!(said(&output).starts_with("error: no checkpoint in `kept` is whole: "), "{}", said(&output));
    assert!(said(&output).contains("hint: name another folder"), "{}", said(&output));
    std::fs::remove_dir_all(site.path("kept")).unwrap();
    assert!(site.run(1, &args).output().unwrap().status.success());
    let output = site.run(2, &[&resume[..], &["--seed", "9"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(said(&output).contains("does not suit this run: its seed is 1, this one is 9"), "{}", said(&output));
}

/// A shell that ignores the signal of a file that grows too large, so that writing it fails
/// instead, as on a full disk.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_ends_the_run_and_spares_the_checkpoint_before() {
    let site = Site::new();
    let args = ["--checkpoint-dir", "kept", "--checkpoint-every", "1"];
    assert!(site.run(1, &args).output().unwrap().status.success());
    let limited = "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\"";
    let run = site.run(3, &[&args[..], &["--resume"]].concat());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(limited).arg(run.get_program()).args(run.get_args()).current_dir(site.folder.path());
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).starts_with("error: cannot write `kept/step-00000002`: "), "{}", said(&output));
    assert!(said(&output).contains("hint: the checkpoint before it is as it was"), "{}", said(&output));
    assert_eq!(std::fs::read_dir(site.path("kept")).unwrap().count(), 1, "nothing half-written");
    let output = site.run(2, &[&args[..], &["--resume"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(losses(&output.stdout).into_keys().collect::<Vec<_>>(), [1]);
}

#[test]
fn numbers_that_are_not_finite_are_a_failed_check() {
    let site = Site::new();
    let args = ["--learning-rate", "1e30", "--checkpoint-dir", "kept", "--checkpoint-every", "1"];
    let output = site.run(1000, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(
        said(&output).starts_with("error: ") && said(&output).contains(" is not finite\nhint: "),
        "{}",
        said(&output)
    );
}
