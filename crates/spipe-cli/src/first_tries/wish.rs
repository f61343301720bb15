//! The wishes of a command line in the words of other tools.

use super::{Suggestion, machines, parses, shown, synonyms};
use crate::{args::Args, input, names, names::plain};
use clap::CommandFactory;
use spipe_base::Bytes;
use spipe_model::{Architecture, Model};

/// The sequences per iteration where none are given.
const GLOBAL_BATCH: u64 = 8;

/// The wishes that were read from the words.
#[derive(Default)]
pub struct Wish {
    /// A shipped model or a path.
    pub model: Option<String>,
    /// A model that is not shipped.
    pub unknown: Option<String>,
    /// The machine.
    machine: machines::Wanted,
    /// Microbatches per iteration and GPU.
    accumulation: Option<u64>,
    /// Options of `spipe plan`, with their values.
    kept: Vec<(String, Option<String>)>,
}

impl Wish {
    /// Reads the words after the verb.
    pub fn read(words: &[String]) -> Self {
        let mut wish = Self::default();
        let mut rest = words.iter().map(String::as_str).peekable();
        while let Some(word) = rest.next() {
            let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                wish.word(word);
                continue;
            };
            let (option, value) = match option.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (option, None),
            };
            let option = option.to_ascii_lowercase().replace('_', "-");
            // A model after an option that is not known belongs to no option.
            let takes = takes_value(synonyms::option(&option));
            let value = value.or_else(|| {
                let free =
                    |next: &&str| !next.starts_with('-') && (takes == Some(true) || names::model(next).is_none());
                rest.next_if(|next| takes != Some(false) && free(next))
            });
            match value {
                Some(value) => wish.option(&option, value),
                None => wish.flag(&option),
            }
        }
        wish
    }

    /// A word without an option: a model, or a GPU.
    fn word(&mut self, word: &str) {
        if self.model.is_none() && names::model(word).is_some() {
            self.model = names::model(word).map(str::to_owned);
        } else if names::machines(word).next().is_some() {
            self.machine.gpu = Some(plain(word));
        } else if self.model.is_none() && self.unknown.is_none() {
            self.named(word);
        }
    }

    /// A model by name, spelling, path or size.
    fn named(&mut self, word: &str) {
        self.model = names::model(word).map(str::to_owned);
        if self.model.is_some() {
        } else if std::path::Path::new(word).exists() {
            self.model = Some(word.into());
        } else {
            self.model = names::model_of_size(word).map(str::to_owned);
            self.unknown = Some(word.into());
        }
    }

    /// A machine by name or path, or the GPU that it has, such as `8xa100`.
    fn machine_named(&mut self, word: &str) {
        let shipped = spipe_hardware::shipped().iter().any(|(name, _)| *name == word);
        if shipped || std::path::Path::new(word).is_file() {
            self.machine.hardware = Some(word.into());
            return;
        }
        let (count, gpu) = names::counted(word);
        if count > 1 {
            self.machine.gpus = usize::try_from(count).ok();
        }
        self.machine.gpu = Some(plain(gpu));
    }

    /// An option without a value.
    pub fn flag(&mut self, name: &str) {
        match synonyms::flag(name) {
            Some(options) => options.iter().for_each(|(option, value)| {
                if !self.kept.iter().any(|(kept, _)| kept == option) {
                    self.keep(option, Some((*value).into()));
                }
            }),
            None if takes_value(name) == Some(false) => self.keep(name, None),
            None => {}
        }
    }

    fn keep(&mut self, option: &str, value: Option<String>) {
        // The same option twice: the last one counts, unless it may be repeated.
        if !matches!(option, "pin" | "freeze") {
            self.kept.retain(|(kept, _)| kept != option);
        }
        self.kept.push((option.into(), value));
    }

    fn option(&mut self, option: &str, value: &str) {
        match option {
            "model" | "model-name" | "model-name-or-path" | "m" => self.named(value),
            "hardware" | "machine" | "gpu" | "gpu-type" | "gpu-name" | "device" | "accelerator" => {
                self.machine_named(value);
            }
            "gpus" | "num-gpus" | "n-gpus" | "ngpu" | "ngpus" | "num-devices" | "nproc-per-node" => {
                match value.parse() {
                    Ok(count) => self.machine.gpus = Some(count),
                    Err(_) => self.machine_named(value),
                }
            }
            "vram" | "gpu-memory" | "gpu-mem" => self.machine.vram = size(value),
            "ram" | "dram" | "cpu-memory" | "host-memory" => self.machine.ram = size(value),
            "gradient-accumulation-steps" | "accumulation" | "grad-accum" => self.accumulation = value.parse().ok(),
            _ => {
                let option = synonyms::option(option);
                if let Some(value) = synonyms::value(option, value).filter(|_| takes_value(option) == Some(true)) {
                    self.keep(option, Some(value));
                }
            }
        }
    }

    /// The command, which plans: a machine on which the model fits, if one has what was asked for.
    pub fn suggestion(mut self) -> Suggestion {
        let model = self.model.clone().unwrap_or_else(|| machines::DEFAULT_MODEL.into());
        let read = spipe_model::shipped().iter().find(|(name, _)| *name == model);
        let read =
            read.and_then(|(name, toml)| Model::from_toml(name, toml).ok()).or_else(|| input::model(&model).ok());
        let gpus = self.machine.gpus.unwrap_or(1);
        // A shipped machine with fewer GPUs stands for the GPU that it is named after.
        if let Some(name) = self.machine.hardware.as_ref().filter(|name| (1..gpus).contains(&machines::gpus(name))) {
            self.machine.gpu.get_or_insert(plain(name));
        }
        let shipped =
            self.machine.gpu.as_ref().is_none_or(|gpu| names::machines(gpu).any(|name| machines::gpus(name) >= gpus));
        let gpus = u32::try_from(gpus).unwrap_or(1);
        let first = self.machine.gpu.as_ref().filter(|_| !shipped).and_then(|gpu| names::composition(gpu, gpus));
        let machine = match &first {
            Some(_) => "machine.toml".into(),
            None => machines::choose(&self.machine, read.as_ref()),
        };
        self.batches();
        let mut command: Vec<String> =
            ["spipe", "plan", "--model", &model, "--hardware", &machine].map(Into::into).into();
        let images = read.as_ref().is_some_and(|model| !matches!(model.architecture(), Architecture::Transformer(_)));
        let places = read.as_ref().and_then(Model::places);
        for (name, value) in &self.kept {
            let number = value.as_ref().and_then(|value| value.parse::<u64>().ok());
            let beyond = places.is_some_and(|places| number.is_some_and(|given| given > places));
            if name == "seq-len" && (images || beyond) {
                continue;
            }
            let before = command.len();
            command.push(format!("--{name}"));
            command.extend(value.clone());
            if !parses(&command) {
                command.truncate(before);
            }
        }
        if let Some(devices) = first.is_none().then(|| machines::some_gpus(&self.machine, &machine)).flatten() {
            command.extend(["--devices".into(), devices]);
        }
        Suggestion { first, command: shown(&command), unknown: self.unknown }
    }

    /// The sequences per iteration come first: without them no command is whole.
    fn batches(&mut self) {
        let of = |name: &str| self.kept.iter().position(|(kept, _)| kept == name);
        let microbatch = of("microbatch").and_then(|place| self.kept[place].1.as_ref()?.parse::<u64>().ok());
        let steps =
            self.accumulation.unwrap_or(1).saturating_mul(self.machine.gpus.map_or(1, |gpus| gpus.max(1) as u64));
        let option = of("global-batch").map(|place| self.kept.remove(place));
        let batch = match microbatch.filter(|_| option.is_none()) {
            Some(microbatch) => {
                microbatch.saturating_mul(if self.accumulation.is_some() { steps } else { GLOBAL_BATCH })
            }
            None => GLOBAL_BATCH,
        };
        self.kept.insert(0, option.unwrap_or_else(|| ("global-batch".into(), Some(batch.to_string()))));
    }
}

/// Whether an option of `spipe plan` takes a value; none if there is no such option.
fn takes_value(name: &str) -> Option<bool> {
    let args = Args::command();
    let plan = args.find_subcommand("plan")?;
    let option = plan.get_arguments().find(|argument| argument.get_long() == Some(name))?;
    Some(option.get_action().takes_values())
}

/// A size as people write it: `24`, `24GB`, `24 GiB`.
fn size(text: &str) -> Option<Bytes> {
    text.parse()
        .ok()
        .or_else(|| format!("{} GiB", text.trim_end_matches(|c: char| c.is_ascii_alphabetic())).parse().ok())
}
