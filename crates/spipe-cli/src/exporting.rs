//! Folders of exports, written whole or not at all.

use crate::{
    Failure, input,
    running::{data, tokenizer::Encoding},
};
use spipe_base::{Bytes, Diagnostic};
use spipe_exec::{Data, Draw};
use spipe_export::{Folder, Modules, different_fields, listed_tokens};
use spipe_model::Model;
use spipe_plan::Plan;
use spipe_sim::{Options, simulate};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The folder of weights, and the file of tokens, in an export.
const WEIGHTS: &str = "weights";
const TOKENS: &str = "tokens.safetensors";
/// The configuration in a folder of weights.
const CONFIG: &str = "config.json";

/// The files written beside the files of an export.
pub struct Extras<'a> {
    /// The classes of the layers.
    pub modules: Modules,
    /// The model's configuration for them, or a folder with it.
    pub config: Option<&'a str>,
    /// A folder of weights.
    pub weights: Option<&'a str>,
    /// Whether initial weights are drawn and written.
    pub draws_weights: bool,
    /// A text for the tokens of each step.
    pub data: Option<&'a str>,
    /// The tokenizer of the text.
    pub tokenizer: Option<&'a str>,
    /// The number of steps with tokens.
    pub steps: u32,
    /// Seed of weights and data.
    pub seed: u64,
}

/// A folder that is filled beside its place and then moved there.
pub struct Destination {
    place: PathBuf,
    temporary: tempfile::TempDir,
}

impl Destination {
    /// Opens a folder, which must be new or empty.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let place = PathBuf::from(path);
        let taken = std::fs::symlink_metadata(&place).is_ok();
        let is_empty = std::fs::read_dir(&place).is_ok_and(|mut entries| entries.next().is_none());
        if taken && !is_empty {
            return Err(Failure::argument(
                format!("`{path}` exists and is no empty folder"),
                "name a new folder, or remove this one",
            ));
        }
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".spipe-")
            .tempdir_in(parent)
            .map_err(|error| Failure::file(path, "write", &error))?;
        Ok(Self { place, temporary })
    }

    /// Writes the files alone and puts the folder in its place.
    pub fn write(self, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Failure> {
        let inner = self.fill(files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())))?;
        self.publish(&inner)
    }

    /// Writes everything and puts the folder in its place.
    pub fn write_with(self, folder: &Folder, plan: &Plan, extras: &Extras<'_>) -> Result<(), Failure> {
        let inner = self.fill(folder.files.iter().map(|(name, text)| (name.as_str(), text.as_bytes())))?;
        if let Some(tokens) = tokens(plan, extras)? {
            let fail =
                |error: std::io::Error| Failure::file(&self.place.join(TOKENS).display().to_string(), "write", &error);
            std::fs::write(inner.join(TOKENS), tokens).map_err(fail)?;
        }
        let model = plan.context().model;
        if let Some(config) = config(model, extras)? {
            let fail =
                |error: std::io::Error| Failure::file(&self.place.join(CONFIG).display().to_string(), "write", &error);
            std::fs::write(inner.join(CONFIG), config).map_err(fail)?;
        }
        if extras.draws_weights {
            spipe_exec::save_initial_weights(model, extras.seed, &inner.join(WEIGHTS))?;
        } else if let Some(weights) = extras.weights {
            add_weights(weights, (model, extras.modules), &inner.join(WEIGHTS))?;
        }
        self.publish(&inner)
    }

    /// Writes files into a temporary folder; its path.
    fn fill<'a>(&self, files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<PathBuf, Failure> {
        let inner = self.temporary.path().join("export");
        let fail = |path: &Path, error: &std::io::Error| Failure::file(&path.display().to_string(), "write", error);
        std::fs::create_dir(&inner).map_err(|error| fail(&self.place, &error))?;
        for (name, bytes) in files {
            std::fs::write(inner.join(name), bytes).map_err(|error| fail(&self.place.join(name), &error))?;
        }
        Ok(inner)
    }

    /// Puts the filled folder in its place.
    fn publish(self, inner: &Path) -> Result<(), Failure> {
        let fail = |error: std::io::Error| Failure::file(&self.place.display().to_string(), "write", &error);
        if self.place.is_dir() {
            std::fs::remove_dir(&self.place).map_err(fail)?;
        }
        std::fs::rename(inner, &self.place).map_err(fail)
    }
}

/// The predicted step and memories of a plan, as a section of a folder's page.
pub fn expectation(plan: &Plan) -> Result<String, Failure> {
    let program = spipe_search::program(plan)?;
    let trace = simulate(&program, &Options::default()).trace;
    let runtime = plan.context().hardware.runtime().name();
    let mut text =
        format!("\n## What to expect\n\nPredicted with the constants of `{runtime}`: {} per step", trace.iteration);
    if let Some(rate) = trace.tokens.map(|tokens| tokens as f64 / trace.iteration.to_ms() * 1e3) {
        text += &format!(", {rate:.0} tokens/s");
    }
    text += ".\n\n| memory | peak |\n|---|---|\n";
    for memory in trace.memories.iter().filter(|memory| memory.peak > Bytes::ZERO) {
        text += &format!("| {} | {} |\n", memory.name, memory.peak);
    }
    Ok(text)
}

/// The tokens of each step of a text, as a safetensors file.
fn tokens(plan: &Plan, extras: &Extras<'_>) -> Result<Option<Vec<u8>>, Failure> {
    let Some(path) = extras.data else { return Ok(None) };
    let context = plan.context();
    let workload = &context.cost.whole_workload();
    let encoding = Encoding::new(extras.tokenizer)?;
    let Data::Tokens(tokens) = data::read(path, &encoding, context.model, workload)? else {
        return Err(Failure::argument(format!("`{path}` is no text"), "give a text, or leave `--data` out"));
    };
    let sequences = workload.global_batch();
    let mut all = Vec::new();
    for step in 0..extras.steps {
        let batch = tokens.batch(Draw { seed: extras.seed, step, microbatch: 0 }, sequences as usize);
        let length = batch.seq_len;
        for (inputs, targets) in batch.inputs.chunks(length).zip(batch.targets.chunks(length)) {
            all.extend(inputs);
            all.extend(targets.last());
        }
    }
    Ok(Some(listed_tokens(&all, sequences, workload.seq_len)?))
}

impl From<Diagnostic> for Failure {
    fn from(fault: Diagnostic) -> Self {
        Self::input(fault)
    }
}

/// The text of a configuration, which must be that of the model. `from` is what was given.
fn checked_config(from: &str, path: &Path, model: &Model) -> Result<String, Failure> {
    let path = path.display().to_string();
    let text = input::text(&path)?;
    let imported = Model::from_hugging_face(&path, &text)?;
    let fields = different_fields(model, &imported.model);
    if fields.is_empty() {
        return Ok(text);
    }
    let message = format!("`{from}` is of another model than the plan's: {}", fields.join("; "));
    let hint = format!("`spipe model import {path} -o model.toml` makes its model; plan for that one");
    Err(Failure::input(Diagnostic::error(message).hint(hint)))
}

/// The configuration from which transformers builds the layers, if it does.
fn config(model: &Model, extras: &Extras<'_>) -> Result<Option<String>, Failure> {
    if extras.modules == Modules::Own {
        return match extras.config {
            Some(_) => {
                Err(Failure::argument("the folder's own layers need no `--config`", "`--modules transformers` does"))
            }
            None => Ok(None),
        };
    }
    let Some(given) = extras.config.or(extras.weights) else {
        let hint = "`--config` names it, or `--weights` a folder that has one";
        return Err(Failure::argument("transformers builds layers from a config.json", hint));
    };
    let path = if Path::new(given).is_dir() { Path::new(given).join(CONFIG) } else { given.into() };
    checked_config(given, &path, model).map(Some)
}

/// Checks a folder of weights against the model, and links or copies its safetensors files and its
/// configuration. Nothing else of it is used, and no code.
fn add_weights(from: &str, (model, modules): (&Model, Modules), to: &Path) -> Result<(), Failure> {
    let source = Path::new(from);
    let config = source.join(CONFIG);
    if config.is_file() {
        checked_config(from, &config, model)?;
    }
    // The classes of transformers have names of their own for some families, which their scripts check.
    if modules == Modules::Own {
        spipe_exec::check_weights(source, model)?;
    }
    let fail = |path: &Path, error: &std::io::Error| Failure::file(&path.display().to_string(), "copy", error);
    std::fs::create_dir(to).map_err(|error| fail(to, &error))?;
    let files: Vec<PathBuf> = match source.is_dir() {
        true => {
            let entries = std::fs::read_dir(source).map_err(|error| fail(source, &error))?;
            entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| is_weights(path)).collect()
        }
        false => vec![source.to_path_buf()],
    };
    for file in files {
        let name = if source.is_dir() { file.file_name().unwrap_or_default() } else { "model.safetensors".as_ref() };
        let target = to.join(name);
        let real = file.canonicalize().map_err(|error| fail(&file, &error))?;
        if std::fs::hard_link(&real, &target).is_err() {
            std::fs::copy(&real, &target).map_err(|error| fail(&file, &error))?;
        }
    }
    Ok(())
}

/// Whether a file holds tensors, is the index of several that do, or says of which model they are.
fn is_weights(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name == CONFIG || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}
