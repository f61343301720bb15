//! First tries in the words of other tools end with exit code 2 and a command that works when pasted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    process::{Command, Output},
};

fn spipe(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spipe"));
    command.args(args.split_whitespace()).env("NO_COLOR", "1");
    command.output().unwrap()
}

/// The command that a refusal suggests, without the program's name.
fn suggested(args: &str) -> String {
    let output = spipe(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{args}: {said}");
    let (_, command) = said.split_once("hint: try `spipe ").unwrap_or_else(|| panic!("{args}: {said}"));
    command.split('`').next().unwrap().to_owned()
}

const TRIES: [(&str, &[&str]); 14] = [
    ("plan llama3-8b --gpu rtx4090", &["--model llama3-8b", "--hardware rtx4090-"]),
    ("plan llama2-7b", &["--model llama2-7b"]),
    ("plan --model gpt2-xl --gpus 2", &["--model gpt2-xl", "--hardware a100-80g-x2"]),
    ("plan --model gpt2 --vram 24", &["--model gpt2"]),
    ("plan --model gpt2 --ram 128", &["--model gpt2"]),
    ("plan --model gpt2 --batch-size 8", &["--model gpt2", "--global-batch 8"]),
    ("plan --model gpt2-xl --seq 512", &["--model gpt2-xl", "--seq-len 512"]),
    ("plan --model gpt2 --dtype bf16", &["--model gpt2", "--precision bf16"]),
    ("plan --model gpt2 --hardware one-gpu --batch-size 4", &["--hardware one-gpu", "--global-batch 4"]),
    ("fit llama3-8b", &["--model llama3-8b"]),
    ("estimate", &["--model "]),
    ("memory", &["--model "]),
    ("train", &["--model "]),
    ("train --model meta-llama/Meta-Llama-3-8B --seq-length 2048", &["--model llama3-8b", "--seq-len 2048"]),
];

#[test]
fn first_tries_end_with_a_command_that_works() {
    let mut commands = BTreeSet::new();
    for (args, parts) in TRIES {
        let command = suggested(args);
        for part in parts {
            assert!(command.contains(part), "{args}: {command}");
        }
        commands.insert(command);
    }
    for command in commands {
        let output = spipe(&format!("{command} --time-limit 20s --gap 60%"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}: {said}");
    }
}

#[test]
fn other_refusals_suggest_no_plan() {
    for args in ["simulate", "hardware show", "schedule 1f1b --nothing", "fit runs.toml"] {
        let output = spipe(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args}: {said}");
        assert!(!said.contains("hint: try"), "{args}: {said}");
    }
}
