//! The largest microbatch, sequence, model, batch or rank for which a plan fits.

use crate::{
    error::SearchError,
    request::{
        machine::Machine,
        spelling::Spelling,
        workloads::{reads_images, workloads},
    },
    search::fits::fits,
};
use spipe_cost::{MOST_TOKENS, Workload};
use spipe_model::Model;
use spipe_plan::System;
use spipe_planner::{Fit, Options, Pins};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

/// The largest value that is tried: a context of 1 Mi tokens is beyond every shipped model.
const LARGEST: u64 = 1 << 20;

/// The largest number of layers, or of sequences per iteration, that is tried: the time to decide
/// one grows with it.
const LARGEST_COUNT: u64 = 4096;

/// The rank that is tried first: a common one.
const FIRST_RANK: u64 = 16;

/// A value to solve for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Sequences per microbatch, among the sizes that divide the global batch.
    Microbatch,
    /// Tokens per sequence.
    SeqLen,
    /// Repeated layers of the model.
    Layers,
    /// Sequences per iteration.
    GlobalBatch,
    /// The rank of the adapters.
    Rank,
}

/// The given values.
#[derive(Clone, Debug)]
pub struct Question {
    /// The model.
    pub model: Arc<Model>,
    /// The machine.
    pub machine: Machine,
    /// The workload, apart from the sizes of microbatches.
    pub template: Workload,
    /// Sequences per iteration.
    pub global_batch: u64,
    /// Sequences per microbatch, or `auto`.
    pub microbatch: String,
    /// The systems that are allowed.
    pub systems: Vec<System>,
    /// The pins that the plan must satisfy.
    pub pins: Pins,
    /// The time limit for one value.
    pub time_limit: Duration,
    /// The words for settings in messages.
    pub spelling: Spelling,
}

/// The answer, with the request that it makes.
#[derive(Clone, Debug)]
pub struct Largest {
    /// The value; none if not even the smallest one fits.
    pub value: Option<u64>,
    /// Whether larger values were not tried.
    pub unlimited: bool,
    /// Whether it is certain that the next value does not fit.
    pub proven: bool,
    /// The model with that value.
    pub model: Arc<Model>,
    /// The workload with that value.
    pub template: Workload,
    /// Sequences per iteration.
    pub global_batch: u64,
    /// Sequences per microbatch, or `auto`.
    pub microbatch: String,
}

/// The largest value of `unknown` for which a plan fits.
///
/// # Errors
/// The model has no such value, or the request contradicts itself.
pub fn largest(question: &Question, unknown: Unknown) -> Result<Largest, SearchError> {
    let uncounted = Cell::new(false);
    // The refused values, and whether each refusal is proven.
    let refused = RefCell::new(BTreeMap::new());
    let fits = |value: u64| {
        let with = with(question, unknown, value)?;
        if !is_countable(&with) {
            uncounted.set(true);
            return Ok(false);
        }
        let sizes = workloads(with.template, with.global_batch, &with.microbatch)?;
        let fit = best_fit(question, &with.model, &sizes);
        let fits = matches!(fit, Fit::Found(_));
        if !fits {
            refused.borrow_mut().insert(value, fit == Fit::Never);
        }
        Ok(fits)
    };
    let (value, unlimited) = match unknown {
        Unknown::Microbatch => (divisor((question.global_batch, question.global_batch), fits)?, false),
        Unknown::SeqLen if reads_images(&question.model) => {
            let message = format!("`{}` reads images, whose size is its own", question.model.name());
            return Err(SearchError::request(message, "solve for something else"));
        }
        Unknown::SeqLen => {
            let places = question.model.places();
            let (value, unlimited) = grow(question.template.seq_len, places.unwrap_or(LARGEST), fits)?;
            (value, unlimited && places.is_none())
        }
        // Pins and frozen layers are numbers of layers, and a longer model has others.
        Unknown::Layers if question.pins.count_layers() || !question.model.frozen().is_empty() => {
            let message = "which layers are pinned or frozen is not known of a model with other layers";
            let (pin, freeze) = (question.spelling.value("pin", "layer"), question.spelling.setting("freeze"));
            return Err(SearchError::request(
                message,
                format!("leave {pin} and {freeze} out, or solve for something else"),
            ));
        }
        Unknown::Layers => grow(repeated(&question.model), LARGEST_COUNT, fits)?,
        Unknown::Rank => {
            let most = question.model.largest_rank();
            (grow(FIRST_RANK.min(most), most, fits)?.0, false)
        }
        Unknown::GlobalBatch => {
            let size = question.microbatch.parse::<u64>().unwrap_or(1).max(1);
            let gpus = question.machine.hardware().gpus().count() as u64;
            let (count, unlimited) = steps((LARGEST_COUNT / size).max(1), gpus.max(1), |count| fits(count * size))?;
            (count.map(|count| count * size), unlimited)
        }
    };
    let found = with(question, unknown, value.unwrap_or(1))?;
    let refused = refused.into_inner();
    // The smallest refused value above the answer decides whether the answer is proven.
    let proven = refused.range(value.map_or(0, |value| value + 1)..).next().is_none_or(|(_, proven)| *proven);
    Ok(Largest { value, unlimited: unlimited || (uncounted.get() && refused.is_empty()), proven, ..found })
}

/// Whether some size of microbatches can be counted.
fn is_countable(with: &Largest) -> bool {
    let sizes = match with.microbatch.parse::<u64>() {
        Ok(size) => size..=size,
        Err(_) => 1..=with.global_batch.min(MOST_TOKENS),
    };
    let workload = |size: u64| Workload { microbatch: size, microbatches: with.global_batch / size, ..with.template };
    let mut sizes = sizes.filter(|size| *size > 0 && with.global_batch.is_multiple_of(*size));
    // A word that is no size is reported elsewhere.
    sizes.clone().next().is_none() || sizes.any(|size| workload(size).check().is_ok())
}

/// The question with a value for its unknown.
fn with(question: &Question, unknown: Unknown, value: u64) -> Result<Largest, SearchError> {
    let (mut template, mut global_batch) = (question.template, question.global_batch);
    let mut microbatch = question.microbatch.to_owned();
    let mut model = Arc::clone(&question.model);
    match unknown {
        Unknown::Microbatch => microbatch = value.to_string(),
        Unknown::SeqLen => template.seq_len = value,
        Unknown::Layers => {
            let longer = with_layers(&question.model, value)?;
            model = Arc::new(match question.model.lora() {
                Some(lora) => longer.with_lora(lora)?,
                None => longer,
            });
        }
        Unknown::GlobalBatch => global_batch = value,
        Unknown::Rank => {
            if let Some(lora) = question.model.lora() {
                model = Arc::new((*question.model).clone().with_lora(&lora.with_rank(value))?);
            }
        }
    }
    Ok(Largest { value: Some(value), unlimited: false, proven: false, model, template, global_batch, microbatch })
}

/// Whether a plan is found for one of several sizes, or none exists for any.
fn best_fit(question: &Question, model: &Arc<Model>, sizes: &[Workload]) -> Fit {
    let mut best = Fit::Never;
    for workload in sizes {
        let (pins, time_limit) = (question.pins.clone(), question.time_limit);
        let options = Options { pins, time_limit, ..Options::default() };
        match fits((model, &question.machine), (workload, &question.systems), &options) {
            Fit::Never => {}
            Fit::NotFound | Fit::Late => best = Fit::NotFound,
            found @ Fit::Found(_) => return found,
        }
    }
    best
}

/// The largest divisor of `whole`, up to `most`, that fits.
fn divisor(
    (whole, most): (u64, u64),
    fits: impl Fn(u64) -> Result<bool, SearchError>,
) -> Result<Option<u64>, SearchError> {
    for size in (1..=whole.min(most)).rev().filter(|size| whole.is_multiple_of(*size)) {
        if fits(size)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// The largest value up to `most` that fits, by doubling and bisection, and whether that is `most`
/// itself. Larger values must need more.
fn grow(
    start: u64,
    most: u64,
    fits: impl Fn(u64) -> Result<bool, SearchError>,
) -> Result<(Option<u64>, bool), SearchError> {
    let (mut low, mut high) = (0, start.clamp(1, most));
    while fits(high)? {
        if high == most {
            return Ok((Some(most), true));
        }
        (low, high) = (high, (2 * high).min(most));
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((Some(low).filter(|value| *value > 0), false))
}

/// The same for values where a larger multiple of `step` needs more, but not every larger value:
/// GPUs that share a batch need a multiple of their number.
fn steps(
    most: u64,
    step: u64,
    fits: impl Fn(u64) -> Result<bool, SearchError>,
) -> Result<(Option<u64>, bool), SearchError> {
    let last = most / step;
    for value in [most, last * step].into_iter().filter(|value| *value > 0) {
        if fits(value)? {
            return Ok((Some(value), true));
        }
    }
    let (mut low, mut high) = (last / 2, last);
    while low > 0 && !fits(low * step)? {
        (low, high) = (low / 2, low);
    }
    while high.saturating_sub(low) > 1 {
        let middle = low.midpoint(high);
        if fits(middle * step)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    for value in (low * step..((low + 1) * step).min(most)).rev().filter(|value| *value > 0) {
        if fits(value)? {
            return Ok((Some(value), false));
        }
    }
    Ok((None, false))
}

/// The repetitions of the most repeated layer.
fn repeated(model: &Model) -> u64 {
    match table(model).map(|table| (table.get("layers").and_then(toml::Value::as_integer), counts(&table))) {
        Ok((Some(layers), _)) => layers.unsigned_abs(),
        Ok((None, counts)) => counts.into_iter().max().unwrap_or(1),
        Err(_) => 1,
    }
}

fn table(model: &Model) -> Result<toml::Table, SearchError> {
    model.to_toml().parse().map_err(|error| SearchError::Bug(format!("a model does not read back: {error}")))
}

/// The repetitions of each measured layer.
fn counts(table: &toml::Table) -> Vec<u64> {
    let layers = table.get("layer").and_then(toml::Value::as_array).into_iter().flatten();
    layers.map(|layer| layer.get("count").and_then(toml::Value::as_integer).map_or(1, i64::unsigned_abs)).collect()
}

/// `model` with another number of its repeated layers.
fn with_layers(model: &Model, count: u64) -> Result<Model, SearchError> {
    let mut table = table(model)?;
    let count = toml::Value::Integer(count as i64);
    let counts = counts(&table);
    let most = (0..counts.len()).rev().max_by_key(|index| counts[*index]);
    let measured = table.get_mut("layer").and_then(toml::Value::as_array_mut);
    if let (Some(layers), Some(most)) = (measured, most) {
        if let Some(layer) = layers[most].as_table_mut() {
            layer.insert("count".into(), count);
        }
    } else if table.contains_key("layers") {
        table.insert("layers".into(), count);
    } else {
        let name = model.name();
        return Err(SearchError::request(format!("`{name}` has no layers that repeat"), "solve for something else"));
    }
    let text =
        toml::to_string(&table).map_err(|error| SearchError::Bug(format!("a model cannot be written: {error}")))?;
    Ok(Model::from_toml(&format!("{}.toml", model.name()), &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_finds_the_last_that_fits() {
        for (start, last) in [(1, 1), (7, 1000), (1000, 7), (1, 0), (5, 4095)] {
            let (value, unlimited) = grow(start, 4096, |value| Ok(value <= last)).unwrap();
            assert_eq!((value.unwrap_or(0), unlimited), (last, false), "from {start}");
        }
        assert_eq!(grow(3, 4096, |_| Ok(true)).unwrap(), (Some(4096), true));
    }

    #[test]
    fn steps_find_what_only_multiples_fit() {
        for (last, of) in [(4000, 1), (9, 1), (24, 4), (22, 2), (3, 1), (0, 1), (4, 4)] {
            let fit = |value: u64| Ok(value <= last && value.is_multiple_of(of));
            assert_eq!(steps(4096, 4, fit).unwrap().0.unwrap_or(0), last, "multiples of {of}");
        }
        assert_eq!(steps(4096, 3, |_| Ok(true)).unwrap(), (Some(4096), true));
        assert_eq!(steps(2, 4, |value| Ok(value == 1)).unwrap(), (Some(1), false));
    }

    #[test]
    fn layers_are_counted_and_changed() {
        let shipped = |name| spipe_model::shipped().iter().find(|(shipped, _)| *shipped == name).unwrap().1;
        let model = Model::from_toml("gpt2", shipped("gpt2")).unwrap();
        assert_eq!(repeated(&model), 12);
        let longer = with_layers(&model, 20).unwrap();
        assert_eq!((repeated(&longer), longer.layers().len()), (20, model.layers().len() + 8));
    }
}
