//! First tries in the words of other tools end with exit code 2 and a command that works when pasted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use std::collections::BTreeSet;

/// The command that a refusal suggests, without the program's name.
fn suggested(args: &str) -> String {
    let output = spipe(".", args);
    let said = output.err;
    assert_eq!((output.code, output.out.is_empty()), (Some(2), true), "{args}: {said}");
    let (_, command) = said.split_once("hint: try `spipe ").unwrap_or_else(|| panic!("{args}: {said}"));
    command.split('`').next().unwrap().to_owned()
}

const TRIES: [(&str, &[&str]); 22] = [
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
    ("plan --model gpt2-xl --hardware RTX-4090 --bs 4", &["--hardware rtx4090-", "--global-batch 4"]),
    ("plan --model gpt2-xl --qlora --max-length 1k", &["--lora rank=16", "--base nf4", "--seq-len 1024"]),
    ("plan --model gpt2 --hardware h100 --lora r=8", &["--hardware h100", "--lora rank=8"]),
    ("plan gpt2 --optim paged_adamw_8bit --zero 3", &["--optimizer paged-adamw-8bit"]),
    ("models", &["model list"]),
    ("gpus", &["hardware list"]),
    ("parts", &["catalogue list"]),
    ("plan gpt2 --gpu l40s", &["catalogue compose --gpu l40s"]),
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
    let folder = tempfile::tempdir().unwrap();
    for command in commands {
        let limits = if command.starts_with("plan") { " --time-limit 20s --gap 60%" } else { "" };
        let output = spipe(folder.path(), &format!("{command}{limits}"));
        let said = output.err;
        assert_eq!(output.code, Some(0), "{command}: {said}");
    }
}

#[test]
fn other_refusals_suggest_no_plan() {
    for args in ["simulate", "hardware show", "schedule 1f1b --nothing", "fit runs.toml"] {
        let output = spipe(".", args);
        let said = output.err;
        assert_eq!(output.code, Some(2), "{args}: {said}");
        assert!(!said.contains("hint: try"), "{args}: {said}");
    }
}

#[test]
fn a_model_in_place_of_a_job_suggests_its_job() {
    let output = spipe(".", "whatif llama3-8b");
    let said = output.err;
    assert_eq!(output.code, Some(2), "{said}");
    assert!(said.contains("spipe whatif --model llama3-8b --tokens 1G --budget"), "{said}");
}

/// A refusal names the nearest shipped thing, or how to come by the one that was named.
#[test]
fn unknown_names_say_what_is_near() {
    for (args, part) in [
        ("plan --model lama3-8b --hardware h100 --global-batch 8", "do you mean `llama3-8b`?"),
        ("plan --model qwen3-14b --hardware h100 --global-batch 8", "Hugging Face folder"),
        ("plan --model gpt2 --hardware rtx4090 --global-batch 8", "`rtx4090-pcie4-128gb`"),
        ("plan --model gpt2 --hardware a40 --global-batch 8", "spipe catalogue compose --gpu a40 "),
    ] {
        let output = spipe(".", args);
        let said = output.err;
        assert_eq!(output.code, Some(3), "{args}: {said}");
        assert!(said.contains(part), "{args}: {said}");
    }
}
