//! Plans of two models on every shipped machine with every system, beside a committed digest: a change of the code's
//! shape changes none of them.
//!
//! A row of `fixtures/same-plans.txt` is a question, and either the exit code of its refusal or five figures: a hash of
//! the stages and their choices, a hash of the order in which devices compute, the iteration in nanoseconds, a hash of the
//! peaks, and a hash of the whole program (lanes, actions, precedences, buffers). Equal times do not prove equal programs.
//!
//! The rows are a tenth of all questions. After a change that is meant to move plans,
//! `SAME_PLANS=write cargo test --release --locked -p spipe-tests --test same_plans` writes them anew.

#![expect(clippy::unwrap_used, reason = "a question that cannot be asked must say so")]

use serde_json::Value;
use spipe_plan::{Plan, System};
use spipe_schedule::{Program, lower};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// The models that are asked about: one that fits on most machines, and one that needs the host.
const MODELS: [&str; 2] = ["gpt2-xl", "llama2-7b"];

/// The number of questions for each that is a row; of refused ones, as many again.
const SAMPLE: u64 = 10;

/// The keys of a stage that state its choices.
const CHOICES: [&str; 8] =
    ["device", "first-layer", "last-layer", "choices", "offload-to", "weights-in", "optimizer-on", "state-on"];

/// FNV-1a: the same on every machine and in every version of the library.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The command, beside the folder of this test.
fn spipe() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let command = test.parent().unwrap().parent().unwrap().join("spipe");
    assert!(command.exists(), "build the command first: make build");
    command
}

/// The names of the shipped machines.
fn machines() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("hardware-profiles")).unwrap();
    let toml =
        |path: PathBuf| (path.extension()? == "toml").then(|| path.file_stem().unwrap().to_string_lossy().into_owned());
    let mut names: Vec<String> = entries.filter_map(|entry| toml(entry.unwrap().path())).collect();
    names.sort();
    names
}

/// Every combination of a model, machine and system, as words.
fn questions() -> Vec<String> {
    let mut list = Vec::new();
    for model in MODELS {
        for machine in machines() {
            list.extend(System::ALL.map(|system| format!("{model} {machine} {system}")));
        }
    }
    list
}

/// The answer to a question, as the rest of its row.
fn answer(question: &str) -> String {
    let words: Vec<&str> = question.split(' ').collect();
    let [model, machine, system] = words[..] else { panic!("`{question}` is no question") };
    let args = ["plan", "--model", model, "--hardware", machine, "--system", system, "--microbatch", "1"];
    let rest = ["--runtime", "spipe", "--global-batch", "32", "--effort", "low", "--threads", "1", "--format", "json"];
    let output = Command::new(spipe()).args(args).args(rest).output().unwrap();
    if !output.status.success() {
        return format!("exit={}", output.status.code().unwrap());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let parsed: Value = serde_json::from_str(&text).unwrap();
    let plan = Plan::from_json("plan", &text).unwrap();
    let program = lower(&plan.context(), plan.placement()).unwrap();
    let stages = ["stages", "backward"].map(|part| {
        let list = parsed[part].as_array().cloned().unwrap_or_default();
        list.iter().map(|stage| chosen(stage, &CHOICES)).collect::<String>()
    });
    format!(
        "choices={:016x} order={:016x} ns={} peaks={:016x} program={:016x}",
        hash(&stages.join("/")),
        hash(&order(&program)),
        spipe_sim::iteration_time(&program).unwrap().as_ns(),
        hash(&parsed["peak-bytes"].to_string()),
        hash(&whole(&program)),
    )
}

fn chosen(value: &Value, keys: &[&str]) -> String {
    keys.iter().map(|key| format!("{key}={};", value[key])).collect()
}

/// The actions of each device's compute, in order.
fn order(program: &Program) -> String {
    let mut text = String::new();
    for lane in program.lanes().iter().filter(|lane| lane.name.ends_with(".compute")) {
        writeln!(text, "{}", lane.name).unwrap();
        for id in &lane.queue {
            let action = &program.actions()[*id];
            writeln!(text, "{} {}", action.kind, action.subject).unwrap();
        }
    }
    text
}

/// All of a program but its name.
fn whole(program: &Program) -> String {
    let mut text = String::new();
    for lane in program.lanes() {
        writeln!(text, "{} {:?} {:?} {:?}", lane.name, lane.role, lane.order, lane.queue).unwrap();
    }
    for buffer in program.buffers() {
        let memory = &program.memories()[buffer.memory].name;
        writeln!(text, "{} {memory} {:?} {:?} {:?}", buffer.content, buffer.bytes, buffer.lifetime, buffer.part)
            .unwrap();
    }
    for action in program.actions() {
        write!(text, "{} {} {} {:?} ", action.kind, action.subject, action.work, action.guard).unwrap();
        let accesses = program.reads(action).iter().chain(program.writes(action));
        accesses.for_each(|access| write!(text, "{}.{} ", access.buffer.index(), access.version).unwrap());
        for flow in program.flows(action) {
            let route: Vec<usize> = flow.route.iter().map(|link| link.index()).collect();
            write!(text, "{route:?} {} {:?} {:?} ", flow.latency, flow.bytes, flow.rate_cap).unwrap();
            write!(text, "{}/{} ", flow.share.priority, flow.share.weight).unwrap();
        }
        text.push('\n');
    }
    for precedence in program.precedences() {
        writeln!(text, "{precedence:?}").unwrap();
    }
    text
}

/// The answers to `questions` on all cores, in their order.
fn answers(questions: &[String]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(question) = questions.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((question.clone(), answer(question)));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut by_question: BTreeMap<String, String> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect()
    });
    questions.iter().map(|question| by_question.remove(question).unwrap()).collect()
}

fn file() -> PathBuf {
    root().join("tests/fixtures/same-plans.txt")
}

fn write() {
    let sampled = |question: &String| (hash(question) / SAMPLE).is_multiple_of(SAMPLE);
    let list: Vec<String> = questions().into_iter().filter(sampled).collect();
    let mut text = String::new();
    for (question, answer) in list.iter().zip(answers(&list)) {
        if !answer.starts_with("exit=") || hash(question).is_multiple_of(SAMPLE) {
            writeln!(text, "{question}: {answer}").unwrap();
        }
    }
    std::fs::write(file(), text).unwrap();
}

/// The parts of two answers that differ, in words.
fn difference(was: &str, is: &str) -> String {
    let old: BTreeMap<&str, &str> = was.split(' ').filter_map(|part| part.split_once('=')).collect();
    let new: BTreeMap<&str, &str> = is.split(' ').filter_map(|part| part.split_once('=')).collect();
    let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
    let differs = keys.filter(|key| old.get(*key) != new.get(*key));
    let none = "none";
    let words =
        differs.map(|key| format!("{key} {} -> {}", old.get(key).unwrap_or(&none), new.get(key).unwrap_or(&none)));
    words.collect::<Vec<_>>().join(", ")
}

#[test]
fn plans_are_those_of_the_digest() {
    if std::env::var("SAME_PLANS").is_ok_and(|asked| asked == "write") {
        write();
        return;
    }
    let text = std::fs::read_to_string(file()).unwrap();
    let rows: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(": ").unwrap()).collect();
    let questions: Vec<String> = rows.iter().map(|(question, _)| (*question).to_owned()).collect();
    let mut differences = String::new();
    let mut count = 0;
    for ((question, was), is) in rows.iter().zip(answers(&questions)) {
        if *was != is {
            count += 1;
            writeln!(differences, "{question}: {}", difference(was, &is)).unwrap();
        }
    }
    assert!(!rows.is_empty());
    assert_eq!(count, 0, "of {} rows:\n{differences}", rows.len());
}
