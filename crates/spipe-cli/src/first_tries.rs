//! First tries: command lines in the words of other tools, and the `spipe plan` that they mean.
//!
//! ```text
//! plan llama3-8b --gpu rtx4090 --batch-size 8    estimate    train    fit llama3-8b    …
//! ─► spipe plan --model llama3-8b --hardware rtx4090-pcie4-256gb --global-batch 8
//! ```

use crate::{input, output};
use spipe_base::{Bytes, similar_word};
use spipe_hardware::Hardware;
use spipe_model::{Architecture, Model};

/// Words of other tools for what `spipe plan` does.
const VERBS: [&str; 16] = [
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
    "calc",
    "calculate",
    "predict",
    "run-plan",
    "optimize",
    "search",
];
/// The sequences per iteration where none are given.
const GLOBAL_BATCH: &str = "8";
/// The model and the machine where none are given: both are small enough for a first look.
const DEFAULTS: (&str, &str) = ("gpt2-xl", "rtx4090-pcie4-128gb");
/// Bytes of training state per parameter, with a third more for activations and reserved memory.
const STATE: f64 = 16.0 * 1.3;

/// The wishes that were read from the words.
#[derive(Default)]
struct Wish {
    model: Option<String>,
    hardware: Option<String>,
    gpu: Option<String>,
    gpus: Option<usize>,
    vram: Option<Bytes>,
    ram: Option<Bytes>,
    /// Options that `spipe plan` knows, with their values.
    kept: Vec<(String, String)>,
}

/// Prints clap's message, with a command that works if the command line is a first try at a plan, and
/// ends the process.
pub fn refuse(error: &clap::Error) -> ! {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    // Help and versions are no refusals.
    let hint = if error.use_stderr() { suggestion(&words) } else { None };
    // There is nobody to tell if a message cannot be printed.
    let _ = error.print();
    if let Some(command) = hint {
        output::talk(&format!("\nhint: try `{command}`"));
    }
    std::process::exit(error.exit_code())
}

/// The command that the words after the program's name mean, if they look like a plan.
fn suggestion(words: &[String]) -> Option<String> {
    let verb = words.iter().find(|word| !word.starts_with('-'))?;
    // `spipe fit` reads measured runs; with a model it means whether that fits.
    let fits_runs = verb == "fit" && words.iter().any(|word| word.ends_with(".toml") || word.starts_with("--trace"));
    if !VERBS.contains(&verb.as_str()) || fits_runs {
        return None;
    }
    let wish = Wish::read(&words[words.iter().position(|word| word == verb)? + 1..]);
    Some(wish.command())
}

impl Wish {
    fn read(words: &[String]) -> Self {
        let mut wish = Self::default();
        let mut rest = words.iter().map(String::as_str).peekable();
        while let Some(word) = rest.next() {
            let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                wish.word(word);
                continue;
            };
            let (option, value) = match option.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (option, rest.next_if(|next| !next.starts_with('-'))),
            };
            if let Some(value) = value {
                wish.option(&option.replace('_', "-"), value);
            }
        }
        wish
    }

    /// A word without an option: a model, or a GPU.
    fn word(&mut self, word: &str) {
        if self.model.is_none() && model_named(word).is_some() {
            self.model = model_named(word);
        } else if machines().iter().any(|machine| machine.name.contains(&plain(word))) {
            self.gpu = Some(plain(word));
        } else if std::path::Path::new(word).exists() && self.model.is_none() {
            self.model = Some(word.into());
        }
    }

    fn option(&mut self, option: &str, value: &str) {
        let whole = || value.parse::<u64>().is_ok_and(|number| number > 0);
        let mut keep = |name: &str, value: &str| self.kept.push((name.into(), value.into()));
        match option {
            "model" | "model-name" | "model-name-or-path" => self.model = model_named(value).or(Some(value.into())),
            "hardware" | "machine" => self.hardware = Some(value.into()),
            "gpu" | "gpu-type" | "gpu-name" | "device" | "accelerator" => self.gpu = Some(plain(value)),
            "gpus" | "num-gpus" | "n-gpus" | "ngpu" | "num-devices" => match value.parse() {
                Ok(count) => self.gpus = Some(count),
                Err(_) => self.gpu = Some(plain(value)),
            },
            "vram" | "gpu-memory" | "gpu-mem" => self.vram = size(value),
            "ram" | "dram" | "cpu-memory" | "host-memory" => self.ram = size(value),
            "batch-size" | "batch" | "b" | "bs" | "global-batch-size" | "train-batch-size" | "global-batch"
                if whole() =>
            {
                keep("global-batch", value);
            }
            "micro-batch-size" | "micro-batch" | "mbs" | "microbatch" if whole() => keep("microbatch", value),
            "seq" | "seq-len" | "seq-length" | "sequence-length" | "context" | "context-length" | "ctx"
            | "max-length" | "max-seq-length" | "max-seq-len" | "cutoff-len"
                if whole() =>
            {
                keep("seq-len", value);
            }
            "dtype" | "precision" | "torch-dtype" => {
                keep(
                    "precision",
                    match plain(value).as_str() {
                        "fp16" | "float16" | "half" | "f16" => "fp16",
                        "fp32" | "float32" | "float" | "f32" => "fp32",
                        _ => "bf16",
                    },
                );
            }
            _ => {}
        }
    }

    /// The command, which plans: a machine on which the model fits, if one has what was asked for.
    fn command(&self) -> String {
        let model = self.model.clone().unwrap_or_else(|| DEFAULTS.0.into());
        let read = spipe_model::shipped().iter().find(|(name, _)| *name == model);
        let read =
            read.and_then(|(name, toml)| Model::from_toml(name, toml).ok()).or_else(|| input::model(&model).ok());
        let machine = self.machine(read.as_ref().map_or(0.0, |model| model.parameters() as f64 * STATE));
        let mut command = format!("spipe plan --model {model} --hardware {machine}");
        let mut options = self.kept.clone();
        if !options.iter().any(|(name, _)| name == "global-batch") {
            options.insert(0, ("global-batch".into(), GLOBAL_BATCH.into()));
        }
        let images = read.as_ref().is_some_and(|model| !matches!(model.architecture(), Architecture::Transformer(_)));
        let places = read.as_ref().and_then(Model::places);
        for (name, value) in options {
            let beyond = places.is_some_and(|places| value.parse::<u64>().is_ok_and(|given| given > places));
            if name == "seq-len" && (images || beyond) {
                continue;
            }
            command += &format!(" --{name} {value}");
        }
        if let Some(devices) = self.some_gpus(&machine) {
            command += &format!(" --devices {devices}");
        }
        command
    }

    /// The machine that was named, or the shipped one that suits the wish best: of those with the GPU,
    /// the number of GPUs, and the memories, the smallest that holds the training state.
    fn machine(&self, state: f64) -> String {
        if let Some(name) = &self.hardware {
            let enough = |machine: &Machine| machine.name == *name && self.gpus.is_none_or(|gpus| machine.gpus >= gpus);
            if std::path::Path::new(name).is_file() || machines().iter().any(&enough) {
                return name.clone();
            }
        }
        let near = |machine: &Machine| {
            let misses = |wanted: Option<Bytes>, has: Bytes| wanted.is_some_and(|wanted| off(wanted, has) > 0.35);
            let gpu = self.gpu.as_ref().is_some_and(|gpu| !machine.name.contains(gpu.as_str()));
            let gpus = self.gpus.is_some_and(|gpus| machine.gpus < gpus);
            let small = machine.memory.as_f64() < state;
            [small, gpus, gpu, misses(self.vram, machine.vram), misses(self.ram, machine.dram)]
        };
        let all = machines();
        let plain = *self == Self { model: self.model.clone(), kept: self.kept.clone(), ..Self::default() };
        let default =
            all.iter().find(|machine| machine.name == DEFAULTS.1 && plain && machine.memory.as_f64() >= state);
        let best = all.iter().min_by_key(|machine| {
            let misses = near(machine).into_iter().filter(|miss| *miss).count();
            (misses, near(machine), machine.gpus, machine.memory)
        });
        default.or(best).map_or_else(|| DEFAULTS.1.into(), |machine| machine.name.clone())
    }

    /// The devices of a machine that has more GPUs than were asked for.
    fn some_gpus(&self, name: &str) -> Option<String> {
        let wanted = self.gpus.filter(|gpus| *gpus > 0)?;
        let toml = spipe_hardware::shipped().iter().find(|(shipped, _)| *shipped == name)?.1;
        let hardware = Hardware::from_toml(name, toml).ok()?;
        let (gpus, sockets): (Vec<_>, Vec<_>) = hardware.devices().iter().partition(|device| device.is_gpu());
        let names = gpus.iter().take(wanted).chain(&sockets).map(|device| device.name.as_str());
        (gpus.len() > wanted).then(|| names.collect::<Vec<_>>().join(","))
    }
}

impl PartialEq for Wish {
    fn eq(&self, other: &Self) -> bool {
        let parts =
            |wish: &Self| (wish.model.clone(), wish.hardware.clone(), wish.gpu.clone(), wish.gpus, wish.vram, wish.ram);
        parts(self) == parts(other) && self.kept == other.kept
    }
}

/// A shipped machine.
struct Machine {
    name: String,
    gpus: usize,
    /// The memory of one GPU.
    vram: Bytes,
    /// The DRAM of all sockets.
    dram: Bytes,
    /// All of it.
    memory: Bytes,
}

fn machines() -> Vec<Machine> {
    let read = |(name, toml): &(&str, &'static str)| {
        let hardware = Hardware::from_toml(name, toml).ok()?;
        let gpus = hardware.devices().iter().filter(|device| device.is_gpu());
        let sizes: Vec<Bytes> = gpus.map(|gpu| hardware.memories()[gpu.memory].capacity).collect();
        let sockets = hardware.devices().iter().filter(|device| !device.is_gpu());
        let dram: Bytes = sockets.map(|socket| hardware.memories()[socket.memory].capacity).sum();
        let vram = sizes.iter().copied().max().unwrap_or_default();
        let memory = dram + sizes.iter().copied().sum();
        Some(Machine { name: (*name).into(), gpus: sizes.len(), vram, dram, memory })
    };
    spipe_hardware::shipped().iter().filter_map(read).collect()
}

/// The relative difference of two sizes.
fn off(wanted: Bytes, has: Bytes) -> f64 {
    (wanted.as_f64() - has.as_f64()).abs() / wanted.as_f64().max(1.0)
}

/// A size as people write it: `24`, `24GB`, `24 GiB`.
fn size(text: &str) -> Option<Bytes> {
    text.parse()
        .ok()
        .or_else(|| format!("{} GiB", text.trim_end_matches(|c: char| c.is_ascii_alphabetic())).parse().ok())
}

/// A name in lower case, with neither vendor nor separators: `RTX 4090` and `rtx-4090` are `rtx4090`.
fn plain(word: &str) -> String {
    let name = word.rsplit('/').next().unwrap_or(word).to_ascii_lowercase();
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect()
}

/// The shipped model that `word` names, however it is spelled (`meta-llama/Meta-Llama-3-8B`).
fn model_named(word: &str) -> Option<String> {
    let all = spipe_model::shipped();
    if let Some((name, _)) = all.iter().find(|(name, _)| *name == word) {
        return Some((*name).into());
    }
    let wanted = plain(word);
    let wanted = ["hf", "base", "instruct", "chat"].iter().fold(wanted, |name, end| name.trim_end_matches(end).into());
    let same = |name: &str| wanted.trim_start_matches("meta") == plain(name);
    let spelled = all.iter().find(|(name, _)| same(name)).map(|(name, _)| *name);
    let near = || similar_word(word, all.iter().map(|(name, _)| *name)).filter(|_| word.len() > 3);
    spelled.or_else(near).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn suggested(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        suggestion(&words).unwrap_or_else(|| panic!("no suggestion for `{line}`"))
    }

    #[test]
    fn first_tries_mean_plans() {
        for (line, command) in [
            ("plan llama3-8b --gpu rtx4090", "--model llama3-8b --hardware rtx4090-pcie4-256gb --global-batch 8"),
            ("plan llama2-7b", "--model llama2-7b --hardware rtx4090-pcie4-128gb --global-batch 8"),
            ("plan --model gpt2-xl --vram 24", "--model gpt2-xl --hardware one-gpu --global-batch 8"),
            (
                "plan gpt2 --batch-size 16 --dtype float16",
                "--model gpt2 --hardware rtx4090-pcie4-128gb --global-batch 16 --precision fp16",
            ),
            (
                "plan meta-llama/Meta-Llama-3-8B --seq 2048",
                "--model llama3-8b --hardware rtx4090-pcie4-256gb --global-batch 8 --seq-len 2048",
            ),
        ] {
            let said = suggested(line);
            assert!(
                said.starts_with("spipe plan ") && said.contains(command.split(" --hardware").next().unwrap_or("")),
                "{line}: {said}"
            );
        }
        assert!(suggestion(&["simulate".into(), "x".into()]).is_none());
    }

    /// Every suggestion is a command line of `spipe plan`.
    #[test]
    fn suggestions_parse() {
        for line in [
            "plan llama3-8b --gpu rtx4090",
            "plan llama2-13b",
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
        ] {
            let said = suggested(line);
            let parsed = Args::try_parse_from(said.split(' '));
            assert!(parsed.is_ok_and(|args| matches!(args.command, Command::Plan(_))), "{line}: {said}");
        }
    }
}
