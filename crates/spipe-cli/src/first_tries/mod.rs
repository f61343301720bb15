//! First tries: command lines in the words of other tools, and the commands of this one that they mean.
//!
//! ```text
//! plan llama3-8b --gpu rtx4090 --batch-size 8    estimate    train --qlora    fit llama3-8b    …
//!   │ words ─► Wish: model, machine, options           (wish, synonyms)
//!   │ Wish  ─► the shipped machine that suits it best  (machines)
//!   ▼ what clap accepts of it
//! spipe plan --model llama3-8b --hardware rtx4090-pcie4-256gb --global-batch 8
//! ```

mod machines;
mod synonyms;
mod wish;

use crate::{args::Args, names, output};
use clap::{
    Parser,
    error::{ContextKind, ContextValue},
};
use spipe_base::ParseQuantityError;
use std::{error::Error, fmt};
use wish::Wish;

/// Words of other tools for what `spipe plan` does.
const PLAN: [&str; 19] = [
    "plan",
    "fit",
    "fits",
    "estimate",
    "memory",
    "mem",
    "vram",
    "train",
    "finetune",
    "fine-tune",
    "sft",
    "lora",
    "qlora",
    "calc",
    "calculate",
    "predict",
    "run-plan",
    "optimize",
    "search",
];
/// Words of other tools for commands that need no model.
const LISTS: [(&[&str], &str); 3] = [
    (&["list", "ls", "models"], "spipe model list"),
    (&["gpus", "machines", "profiles", "devices"], "spipe hardware list"),
    (&["parts", "prices", "price", "shop"], "spipe catalogue list"),
];
/// Words of other tools for `spipe whatif`.
const BUY: [&str; 4] = ["buy", "what-if", "recommend", "budget"];

/// A command that works, with what it leaves out.
#[derive(Debug)]
pub struct Suggestion {
    /// The command that writes the machine of the next one, if none is shipped.
    first: Option<String>,
    command: String,
    /// The model that was named, if it is not shipped.
    unknown: Option<String>,
}

impl Suggestion {
    fn of(command: impl Into<String>) -> Self {
        Self { first: None, command: command.into(), unknown: None }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first {
            Some(first) => write!(f, "try `{first}` and then `{}`", self.command)?,
            None => write!(f, "try `{}`", self.command)?,
        }
        match &self.unknown {
            Some(name) => write!(f, "; `{name}` is not shipped: its Hugging Face folder or config.json does as well"),
            None => Ok(()),
        }
    }
}

/// Prints clap's message, with a command that works if the command line is a first try, and ends the
/// process.
pub fn refuse(error: &clap::Error) -> ! {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    // Help and versions are no refusals.
    let hint =
        if error.use_stderr() { with_unit(error).or_else(|| Some(suggestion(&words)?.to_string())) } else { None };
    // There is nobody to tell if a message cannot be printed.
    let _ = error.print();
    if let Some(hint) = hint {
        output::talk(&format!("\nhint: {hint}"));
    }
    std::process::exit(error.exit_code())
}

/// The option as it should be written, if it holds a duration without a unit: limits of a search are
/// seconds, the times of stages milliseconds.
fn with_unit(error: &clap::Error) -> Option<String> {
    let source = error.source()?.downcast_ref::<ParseQuantityError>();
    let Some(ParseQuantityError::NoUnit { text, quantity: "duration", .. }) = source else { return None };
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = option.split_whitespace().next()?;
    let unit = if option == "--time-limit" { "s" } else { "ms" };
    Some(format!("write `{option} {}{unit}`", text.trim()))
}

/// The command that answers which machine to buy for `model`.
pub fn whatif(model: &str) -> Suggestion {
    let shipped = names::model(model).or_else(|| names::model_of_size(model));
    let unknown = (names::model(model).is_none()).then(|| model.to_owned());
    let model = shipped.unwrap_or(machines::DEFAULT_MODEL);
    let command = format!("spipe whatif --model {model} --tokens 1G --budget \"10000 USD\"");
    Suggestion { first: None, command, unknown }
}

/// The command that the words after the program's name mean, if they look like a first try.
fn suggestion(words: &[String]) -> Option<Suggestion> {
    let place = words.iter().position(|word| !word.starts_with('-'))?;
    let (verb, rest) = (words[place].as_str(), &words[place + 1..]);
    if let Some((_, command)) = LISTS.iter().find(|(verbs, _)| verbs.contains(&verb)) {
        return Some(Suggestion::of(*command));
    }
    if BUY.contains(&verb) {
        let model = rest.iter().find(|word| names::model(word).is_some());
        return Some(whatif(model.map_or(machines::DEFAULT_MODEL, String::as_str)));
    }
    // `spipe fit` reads measured runs; with a model it means whether that fits.
    let fits_runs = verb == "fit" && words.iter().any(|word| word.ends_with(".toml") || word.starts_with("--trace"));
    if !PLAN.contains(&verb) || fits_runs {
        return None;
    }
    let mut wish = Wish::read(rest);
    if matches!(verb, "lora" | "qlora") {
        wish.flag(verb);
    }
    Some(wish.suggestion())
}

/// Whether clap accepts a command.
fn parses(words: &[String]) -> bool {
    Args::try_parse_from(words).is_ok()
}

/// Words as a shell takes them.
fn shown(words: &[String]) -> String {
    let quoted = |word: &String| match word.contains([' ', '"', '(', ')', '|', '*', ';', '$', '&']) {
        true => format!("'{word}'"),
        false => word.clone(),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggested(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let suggestion = suggestion(&words).unwrap_or_else(|| panic!("no suggestion for `{line}`"));
        suggestion.first.iter().map(|first| format!("{first} && ")).collect::<String>() + &suggestion.command
    }

    #[test]
    fn first_tries_mean_plans() {
        for (line, parts) in [
            ("plan llama3-8b --gpu rtx4090", &["--model llama3-8b --hardware rtx4090-"] as &[&str]),
            ("plan --model llama2-7b --hardware RTX-4090 --bs 4", &["--hardware rtx4090-", "--global-batch 4"]),
            ("plan llama2-7b", &["--model llama2-7b --hardware rtx4090-pcie4-128gb --global-batch 8"]),
            ("plan --model gpt2-xl --vram 24", &["--model gpt2-xl --hardware one-gpu --global-batch 8"]),
            ("plan gpt2 --batch-size 16 --dtype float16", &["--model gpt2 ", "--global-batch 16", "--precision fp16"]),
            ("plan meta-llama/Meta-Llama-3-8B --seq 2k", &["--model llama3-8b ", "--seq-len 2048"]),
            ("plan --model llama2-7b --hardware h100 --lora r=8", &["--hardware h100 ", "--lora rank=8"]),
            ("train --qlora llama2-7b", &["--model llama2-7b ", "--lora rank=16", "--base nf4"]),
            ("plan --model llama2-7b --lora-r 32 --load-in-8bit", &["--lora rank=32", "--base int8"]),
            ("plan Qwen/Qwen2.5-14B --gpu a100", &["--model llama2-13b --hardware a100-80g"]),
            ("plan --model llama2-7b --hardware 8xa100", &["--hardware a100-80g-x8-nvlink"]),
            ("plan gpt2 --optim paged_adamw_8bit --fp16", &["--optimizer paged-adamw-8bit", "--precision fp16"]),
            (
                "plan gpt2 --per_device_train_batch_size 2 --gradient_accumulation_steps 8",
                &["--global-batch 16", "--microbatch 2"],
            ),
            ("plan gpt2 --zero 3 --no-such 7 --clip-norm nonsense", &["--model gpt2 "]),
            (
                "plan llama2-7b --gpu l40s",
                &["spipe catalogue compose --gpu l40s ", "&& spipe plan", "--hardware machine.toml"],
            ),
            ("models", &["spipe model list"]),
            ("gpus", &["spipe hardware list"]),
            ("buy llama3-8b", &["spipe whatif --model llama3-8b "]),
        ] {
            let said = suggested(line);
            for part in parts {
                assert!(said.contains(part), "{line}: {said} lacks {part}");
            }
        }
        assert!(suggestion(&["simulate".into(), "x".into()]).is_none());
    }

    /// Every suggestion is a command line that clap accepts.
    #[test]
    fn suggestions_parse() {
        for line in [
            "plan llama3-8b --gpu rtx4090",
            "plan llama2-13b --freeze 0..3 --microbatch auto --no-hint",
            "plan --model llama2-7b --gpus 2",
            "plan --vram 24",
            "plan --ram 128",
            "plan --model gpt2 --batch-size 8",
            "plan --model gpt2 --seq 2048",
            "plan --dtype bf16",
            "fit llama3-8b",
            "estimate",
            "memory llama2-70b",
            "train --gpus 4 --gpu a100",
            "plan vit-b-16 --seq 77",
            "lora llama2-7b --base nonsense",
        ] {
            let said = suggested(line);
            let words: Vec<String> = said.split(' ').map(str::to_owned).collect();
            assert!(parses(&words), "{line}: {said}");
        }
    }
}
