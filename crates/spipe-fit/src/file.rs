//! The file of measured runs.

use schemars::JsonSchema;
use serde::Deserialize;
use spipe_base::{Bytes, Diagnostic, Faults, Seconds, Text, position_of};
use std::{collections::BTreeMap, ops::Range};
use toml::Spanned;

/// The version of the file format.
pub const FORMAT_VERSION: u32 = 1;

/// Measured runs, and the constants to fit on them.
///
/// ```toml
/// format-version = 1
/// constants = ["product-efficiency"]     # all that the runs determine, if absent
/// [[run]]
/// name = "two-stages"
/// use = "fit"                            # or "predict"
/// model = "gpt2"                         # a shipped name, or a path relative to this file
/// hardware = "a100-80g-x2"               # --hardware if absent
/// options = ["--system", "1f1b", "--global-batch", "16", "--microbatch", "4"]
/// measured = { iteration = "120 ms", peak = { gpu0 = "9.5 GiB" } }
/// source = "our own run, 2026-11-01"
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RunsFile {
    /// The version of the file format: 1.
    #[schemars(with = "u32", range(min = 1, max = 1))]
    format_version: Spanned<u32>,
    /// A description of the runs.
    #[expect(dead_code, reason = "for readers of the file")]
    description: Option<String>,
    /// The source of all runs that state none.
    source: Option<String>,
    /// The names of the constants to fit; by default all that the runs determine.
    #[schemars(with = "Option<Vec<String>>")]
    constants: Option<Vec<Spanned<String>>>,
    /// The runs.
    #[serde(default)]
    #[schemars(with = "Vec<RunFile>")]
    run: Vec<Spanned<RunFile>>,
}

/// The use of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Usage {
    /// Constants are fitted on it.
    #[default]
    Fit,
    /// It is predicted with the fitted constants.
    Predict,
}

/// One measured run: the options of `spipe plan` or of `spipe baseline tensor-data`, and what was
/// measured.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RunFile {
    /// Its name, which no other run has.
    name: String,
    /// Its use; `fit` if absent.
    #[serde(default, rename = "use")]
    usage: Usage,
    /// A shipped model, or the path of a model file relative to this file.
    #[schemars(with = "String")]
    model: Spanned<String>,
    /// A shipped machine, or the path of a profile relative to this file; that of the command line
    /// if absent.
    #[schemars(with = "Option<String>")]
    hardware: Option<Spanned<String>>,
    /// The runtime that executed it; the default of its system and machine if absent.
    #[schemars(with = "Option<String>")]
    runtime: Option<Spanned<String>>,
    /// Options of `spipe plan`.
    #[schemars(with = "Option<Vec<String>>")]
    options: Option<Spanned<Vec<String>>>,
    /// Options of `spipe baseline tensor-data`.
    #[schemars(with = "Option<Vec<String>>")]
    baseline: Option<Spanned<Vec<String>>>,
    /// The measured figures.
    #[schemars(with = "MeasuredFile")]
    measured: Spanned<MeasuredFile>,
    /// Why its errors do not count, if they do not. Such a run may have neither `options` nor `baseline`: it is listed.
    not_counted: Option<String>,
    /// The source of the figures.
    source: Option<String>,
}

/// The measured figures of a run: its time, or its rate, or only peaks, or that memory was short.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct MeasuredFile {
    /// The time of an iteration.
    #[schemars(with = "Option<String>")]
    iteration: Option<Text<Seconds>>,
    /// The tokens per second of all devices together.
    tokens_per_second: Option<f64>,
    /// The peak of each memory, such as `gpu0`; `gpus` is the fullest of all GPUs.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    peak: BTreeMap<String, Text<Bytes>>,
    /// The quantity that is meant by the peaks of GPUs.
    #[serde(default)]
    peak_of: Quantity,
    /// Whether the run was out of memory.
    #[serde(default)]
    out_of_memory: bool,
}

/// A quantity of memory that is called its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Tensors (`torch.cuda.max_memory_allocated`).
    Allocated,
    /// Blocks of the allocator (`torch.cuda.max_memory_reserved`).
    Reserved,
    /// All that the device holds, as `nvidia-smi` shows it.
    #[default]
    Device,
}

/// The measured time of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measured {
    /// The time of an iteration.
    Iteration(Seconds),
    /// Tokens per second of all devices together.
    TokensPerSecond(f64),
}

impl Measured {
    /// Returns the time of an iteration of `tokens` tokens.
    pub fn iteration(self, tokens: u64) -> Seconds {
        match self {
            Self::Iteration(time) => time,
            Self::TokensPerSecond(rate) => Seconds::s(tokens as f64 / rate),
        }
    }
}

/// The work that a run executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `spipe plan` with these options.
    Plan(Vec<String>),
    /// `spipe baseline tensor-data` with these options.
    TensorData(Vec<String>),
    /// No command plans it.
    Unplanned,
}

/// A run as its file states it: model, machine and options are still names.
#[derive(Clone, Debug)]
pub struct Stated {
    /// Its name.
    pub name: String,
    /// Its use.
    pub usage: Usage,
    /// The model's name or path.
    pub model: String,
    /// The machine's name or path, if it is stated.
    pub hardware: Option<String>,
    /// The runtime's name or path, if it is stated.
    pub runtime: Option<String>,
    /// The work that was executed.
    pub command: Command,
    /// The measured time, if it is stated.
    pub measured: Option<Measured>,
    /// The measured peaks, by memory; `gpus` is the fullest of all GPUs.
    pub peaks: BTreeMap<String, Bytes>,
    /// The quantity of the peaks.
    pub quantity: Quantity,
    /// Whether it was out of memory.
    pub out_of_memory: bool,
    /// Why its errors do not count, if they do not.
    pub not_counted: Option<String>,
    /// The source of the figures.
    pub source: Option<String>,
    places: Places,
}

/// The byte ranges of the fields of a run.
#[derive(Clone, Debug)]
struct Places {
    run: usize,
    model: usize,
    hardware: Option<usize>,
    runtime: Option<usize>,
    command: usize,
    measured: usize,
}

/// A field of a run, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `model`.
    Model,
    /// `hardware`.
    Hardware,
    /// `runtime`.
    Runtime,
    /// `options` or `baseline`.
    Command,
    /// `measured`.
    Measured,
}

/// The runs of a file.
#[derive(Clone, Debug)]
pub struct Runs {
    /// The runs, in the order of the file.
    pub runs: Vec<Stated>,
    /// The constants to fit, if the file names them.
    pub constants: Option<Vec<String>>,
    constant_places: Vec<usize>,
    file: String,
    text: String,
}

impl Runs {
    /// Reads the runs of `text`; `file` is its name in messages.
    ///
    /// # Errors
    /// Every fault of the file, with the run and the field.
    pub fn read(file: &str, text: &str) -> Result<Self, Faults> {
        let place = |offset: usize| position_of(file, text, offset);
        let parsed: RunsFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Diagnostic::error(error.message().to_owned())
                .at(place(at))
                .hint("`command schema runs` prints what a file of runs may hold")
        })?;
        let version = &parsed.format_version;
        if *version.get_ref() != FORMAT_VERSION {
            let fault = Diagnostic::error(format!("format version {} is not known here", version.get_ref()));
            return Err(fault.at(place(version.span().start)).hint("write format-version = 1").into());
        }
        if parsed.run.is_empty() {
            return Err(Diagnostic::error("there are no runs").at(place(0)).hint("add a [[run]]").into());
        }
        let mut faults = Faults::new();
        let mut runs: Vec<Stated> = Vec::new();
        for spanned in parsed.run {
            let start = spanned.span().start;
            match stated(spanned.into_inner(), start, parsed.source.as_ref()) {
                Ok(run) if runs.iter().any(|other| other.name == run.name) => {
                    let fault = Diagnostic::error(format!("two runs are called `{}`", run.name));
                    faults.push(fault.at(place(start)).hint("rename one of them"));
                }
                Ok(run) => runs.push(run),
                Err((at, fault)) => faults.push(fault.at(place(at))),
            }
        }
        let (constants, constant_places) = match parsed.constants {
            Some(named) => {
                let places = named.iter().map(|name| name.span().start).collect();
                (Some(named.into_iter().map(Spanned::into_inner).collect()), places)
            }
            None => (None, Vec::new()),
        };
        faults.or(Self { runs, constants, constant_places, file: file.into(), text: text.into() })
    }

    /// Returns the name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns `fault` with the name of the run and of the field, at the place of the field.
    pub fn fault(&self, run: &Stated, field: Field, fault: &Diagnostic) -> Diagnostic {
        let places = &run.places;
        let (name, at) = match (field, &run.command) {
            (Field::Model, _) => ("model", places.model),
            (Field::Hardware, _) => ("hardware", places.hardware.unwrap_or(places.run)),
            (Field::Runtime, _) => ("runtime", places.runtime.unwrap_or(places.run)),
            (Field::Command, Command::TensorData(_)) => ("baseline", places.command),
            (Field::Command, Command::Plan(_) | Command::Unplanned) => ("options", places.command),
            (Field::Measured, _) => ("measured", places.measured),
        };
        let inner = fault.position.as_ref().map(|position| format!(" ({position})")).unwrap_or_default();
        let message = format!("run `{}`, `{name}`: {}{inner}", run.name, fault.message);
        let located = Diagnostic::error(message).at(position_of(&self.file, &self.text, at));
        fault.hint.iter().fold(located, |located, hint| located.hint(hint.clone()))
    }

    /// Returns a fault of the constant with this index in [`Runs::constants`].
    pub fn constant_fault(&self, index: usize, fault: Diagnostic) -> Diagnostic {
        let at = self.constant_places.get(index).copied().unwrap_or_default();
        fault.at(position_of(&self.file, &self.text, at))
    }
}

/// Checks one run; an error has its offset in the file.
fn stated(run: RunFile, start: usize, source: Option<&String>) -> Result<Stated, (usize, Diagnostic)> {
    let start_of = |span: Range<usize>| span.start;
    let name = run.name.clone();
    let fail = |at: usize, message: &str, hint: &str| {
        Err((at, Diagnostic::error(format!("run `{name}`: {message}")).hint(hint.to_owned())))
    };
    let (at, command) = match (run.options, run.baseline) {
        (Some(options), None) => (start_of(options.span()), Command::Plan(options.into_inner())),
        (None, Some(options)) => (start_of(options.span()), Command::TensorData(options.into_inner())),
        (None, None) if run.not_counted.is_some() => (start, Command::Unplanned),
        (None, None) => return fail(start, "neither `options` nor `baseline` is given", "give one of them"),
        (Some(_), Some(both)) => {
            return fail(start_of(both.span()), "both `options` and `baseline` are given", "keep one of them");
        }
    };
    let places = Places {
        run: start,
        model: start_of(run.model.span()),
        hardware: run.hardware.as_ref().map(|hardware| start_of(hardware.span())),
        runtime: run.runtime.as_ref().map(|runtime| start_of(runtime.span())),
        command: at,
        measured: start_of(run.measured.span()),
    };
    let (at, figures) = (places.measured, run.measured.into_inner());
    let measured = match (figures.iteration, figures.tokens_per_second) {
        (Some(Text(time)), None) if time.get() > 0.0 => Some(Measured::Iteration(time)),
        (Some(_), None) => return fail(at, "the `measured` iteration takes no time", "write the measured time"),
        (None, Some(rate)) if rate > 0.0 && rate.is_finite() => Some(Measured::TokensPerSecond(rate)),
        (None, Some(_)) => {
            return fail(at, "the `measured` tokens per second are not above zero", "write the measured rate");
        }
        (Some(_), Some(_)) => {
            return fail(at, "`measured` has both `iteration` and `tokens-per-second`", "keep one of them");
        }
        (None, None) if figures.peak.is_empty() && !figures.out_of_memory => {
            return fail(at, "`measured` is empty", "give `iteration`, `tokens-per-second`, `peak` or `out-of-memory`");
        }
        (None, None) if run.usage == Usage::Fit => {
            return fail(at, "it is to be fitted, and no time is `measured`", "write use = \"predict\"");
        }
        (None, None) => None,
    };
    if figures.out_of_memory && (measured.is_some() || !figures.peak.is_empty()) {
        return fail(at, "it was `out-of-memory`, and has a time or a peak", "keep one of them");
    }
    Ok(Stated {
        name: run.name,
        usage: run.usage,
        model: run.model.into_inner(),
        hardware: run.hardware.map(Spanned::into_inner),
        runtime: run.runtime.map(Spanned::into_inner),
        command,
        measured,
        peaks: figures.peak.into_iter().map(|(memory, bytes)| (memory, bytes.0)).collect(),
        quantity: figures.peak_of,
        out_of_memory: figures.out_of_memory,
        not_counted: run.not_counted,
        source: run.source.or_else(|| source.cloned()),
        places,
    })
}

/// Returns the JSON schema of a file of runs.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(RunsFile)
}
