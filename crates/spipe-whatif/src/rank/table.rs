//! The words of an answer: rows, changes, counts.

use super::{baseline::Baseline, figures::JobFigures, tornado::Tornado};
use crate::{Counts, Skipped};
use serde::Serialize;
use spipe_market::{Date, Range};
use std::collections::BTreeMap;

/// The busiest lane of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Bottleneck {
    /// The lane.
    pub lane: String,
    /// Its busy share.
    pub share: f64,
}

/// A ranked machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Row {
    /// The rank, from 1.
    pub rank: usize,
    /// Machines that cannot be told apart share a letter.
    pub tie: String,
    /// The name.
    pub machine: String,
    /// The number of equal computers.
    pub nodes: u32,
    /// The parts of all of them, and of their network.
    pub parts: Vec<String>,
    /// The price without tax.
    pub price: Range,
    /// The date of the oldest price.
    pub oldest_price: Date,
    /// The figures of the job.
    #[serde(flatten)]
    pub figures: JobFigures,
    /// The relative error of predictions of its kind.
    pub error: f64,
    /// The free bytes of each memory at the peak of the first training.
    pub head_room_bytes: BTreeMap<String, u64>,
    /// The system of the first training.
    pub system: String,
    /// The engines that run the plan of the first training; null if it was not asked for.
    pub engines: Option<Vec<String>>,
    /// The runtime whose constants predicted that plan.
    pub runtime: Option<String>,
    /// Whether these were never compared with measured runs of its system.
    pub estimate: bool,
    /// The busiest lane of the first training.
    pub bottleneck: Option<Bottleneck>,
    /// The busy share of each lane of the first training.
    pub shares: BTreeMap<String, f64>,
    /// (iteration − bound) ÷ iteration of the first training.
    pub gap: Option<f64>,
    /// Whether no other machine is as fast and as cheap.
    pub front: bool,
    /// The share of the draws of prices in which it is on the front.
    pub front_share: f64,
    /// The share of the draws of prices in which it has rank 1.
    pub first_share: f64,
    /// Tokens per second with low and with high effort, for the first ten.
    pub effort: Option<Efforts>,
    /// Why the prediction is outside of what was compared with measured trainings; empty within it.
    pub outside: Vec<String>,
    /// These remarks, assumptions of the machine, and remarks on its prices.
    pub notes: Vec<String>,
    /// The place in the sweep.
    #[serde(skip)]
    pub index: usize,
}

/// The rates of a plan made with little and with much effort.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Efforts {
    /// With low effort.
    pub low_tokens_per_second: f64,
    /// With high effort.
    pub high_tokens_per_second: f64,
}

/// A machine on which no plan fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Infeasible {
    /// The name.
    pub machine: String,
    /// The price without tax.
    pub price: Range,
    /// The missing memory, and for which training.
    pub lacks: String,
    /// The cheapest known change of one kind of part after which a plan fits.
    pub repair: Option<Change>,
    /// Whether no cheaper change of one kind of part does, of those that the catalogue allows.
    pub repair_is_cheapest: bool,
    /// The place in the sweep.
    #[serde(skip)]
    pub index: usize,
}

/// A change of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// The parts that are exchanged.
    pub change: String,
    /// The typical difference of the price.
    pub price: f64,
    /// The relative gain in tokens per second; null where the machine had no plan.
    pub gain: Option<f64>,
}

/// The answer of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Table {
    /// Machines of the table and of the front, by rank.
    pub machines: Vec<Row>,
    /// The baselines of these machines and of those without a plan, which are not ranked.
    pub baselines: Vec<Baseline>,
    /// Machines without a plan.
    pub infeasible: Vec<Infeasible>,
    /// Machines whose search failed.
    pub failed: Vec<Infeasible>,
    /// The source of the errors of predictions.
    pub error_source: &'static str,
    /// The inputs on which rank 1 depends; null unless there are two machines.
    pub tornado: Option<Tornado>,
    /// Single changes of the first machine, the one that gains the most per money first.
    pub next: Vec<Change>,
    /// How machines were decided.
    pub counts: CountsData,
    /// Combinations that are no machines of the sweep.
    pub skipped: Vec<Skipped>,
}

/// The counts, without those of the work that was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CountsData {
    /// Planned.
    pub solved: usize,
    /// Given the plan of an equal machine.
    pub shared: usize,
    /// Set aside by a bound.
    pub bounded: usize,
    /// Left out when the work was stopped.
    pub left: usize,
}

impl From<Counts> for CountsData {
    fn from(counts: Counts) -> Self {
        Self { solved: counts.solved, shared: counts.shared, bounded: counts.bounded, left: counts.left }
    }
}
