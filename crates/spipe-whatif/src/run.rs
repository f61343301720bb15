//! The words of a run over the machines of a sweep: questions, answers, figures, and the best machines so far.

use crate::{Candidate, Job, Objective, Sweep};
use serde::{Deserialize, Serialize};
use spipe_hardware::Hardware;
use spipe_market::Range;
use std::collections::BTreeMap;

/// A plan of one training on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Planned {
    /// The predicted rate.
    pub tokens_per_second: f64,
    /// The predicted iteration.
    pub iteration_ms: f64,
    /// The system of the plan.
    pub system: String,
    /// (iteration − bound) ÷ iteration, if there is a bound.
    pub gap: Option<f64>,
    /// The busy share of each lane of the machine.
    pub shares: BTreeMap<String, f64>,
    /// The mean busy share of the GPUs.
    pub gpu_share: f64,
    /// The mean busy share of the CPUs.
    pub core_share: f64,
    /// The free bytes of each memory at the peak.
    pub head_room_bytes: BTreeMap<String, u64>,
    /// The peak bytes of each memory.
    pub peak_bytes: BTreeMap<String, u64>,
    /// The engines that run the plan; none if it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<Vec<String>>,
    /// The runtime whose constants predicted the plan; none in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Whether these were never compared with measured runs of the system.
    #[serde(default)]
    pub estimate: bool,
}

/// The answer for one training on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// There is a plan.
    Planned(Planned),
    /// No plan fits; the reason, with what is missing.
    Infeasible(String),
    /// The search failed.
    Failed(String),
}

/// Plans trainings on machines.
pub trait Judge: Sync {
    /// Plans training number `train` of the job, quickly: machines are many; `None` if a stop has cut the search short.
    fn plan(&self, hardware: &Hardware, train: usize) -> Option<Answer>;

    /// Returns a rate of tokens that no plan of this training exceeds on the machine.
    fn most_tokens_per_second(&self, hardware: &Hardware, train: usize) -> f64;

    /// Returns a rate of tokens that no plan of this training exceeds on the machine, from a closer look, which ends
    /// at any rate of at least `enough`; infinite if no plan fits.
    fn closest_tokens_per_second(&self, hardware: &Hardware, train: usize, _enough: f64) -> f64 {
        self.most_tokens_per_second(hardware, train)
    }

    /// Returns whether the user has interrupted the work, or its time is up.
    fn is_stopped(&self) -> bool;

    /// Is told about progress: machines decided, and the counts so far.
    fn progress(&self, _decided: usize, _counts: Counts) {}
}

/// How machines were decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// Planned.
    pub solved: usize,
    /// Given the plan of an equal machine.
    pub shared: usize,
    /// Set aside by a bound.
    pub bounded: usize,
    /// Left out when the work was stopped.
    pub left: usize,
}

/// The plans of a sweep by key of machine: the answer for each training.
pub type Plans = BTreeMap<String, Vec<Answer>>;

/// A part of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The number of the part, from 1.
    pub part: usize,
    /// The number of parts.
    pub of: usize,
}

impl Shard {
    /// The whole sweep.
    pub const WHOLE: Self = Self { part: 1, of: 1 };
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The plans, by key.
    pub plans: Plans,
    /// The answers of each candidate; `None` for those set aside or left out.
    pub answers: Vec<Option<Vec<Answer>>>,
    /// The counts.
    pub counts: Counts,
}

/// The time and the cost of the job on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Hours of computing for the job, or for all trainings of a year where there are several.
    pub hours: f64,
    /// The hours of the longest training.
    pub longest: f64,
    /// Tokens per second over all trainings.
    pub tokens_per_second: f64,
    /// Watts at the wall, the mean over the hours.
    pub watts: f64,
    /// The cost.
    pub cost: Range,
}

impl Figures {
    /// Computes the figures from rates and busy shares of GPUs and cores, one for each training.
    pub fn of(job: &Job, candidate: &Candidate, rates: &[(f64, f64, f64)]) -> Self {
        let mut figures = Self { hours: 0.0, longest: 0.0, tokens_per_second: 0.0, watts: 0.0, cost: Range::default() };
        let (mut tokens, mut energy) = (0.0, 0.0);
        for (train, (rate, gpu_share, core_share)) in job.file.train.iter().zip(rates) {
            let hours = train.tokens.0.0 / rate / 3600.0;
            let jobs = job.times(train);
            figures.hours += hours * jobs;
            figures.longest = figures.longest.max(hours);
            tokens += train.tokens.0.0 * jobs;
            energy += candidate.machine.power.at(*gpu_share, *core_share).get() * hours * jobs;
        }
        figures.watts = energy / figures.hours;
        figures.tokens_per_second = tokens / figures.hours / 3600.0;
        let cash = candidate.price.range * (1.0 + job.tax);
        let hour = job.own.hour(cash, spipe_market::Watts::new(figures.watts.max(0.0)));
        figures.cost = spipe_market::job_cost(figures.hours, hour);
        figures
    }

    /// Computes the figures of plans; `None` unless every training has one.
    pub fn of_answers(job: &Job, candidate: &Candidate, answers: &[Answer]) -> Option<Self> {
        let rate = |answer: &Answer| match answer {
            Answer::Planned(plan) => Some((plan.tokens_per_second, plan.gpu_share, plan.core_share)),
            _ => None,
        };
        let rates: Vec<(f64, f64, f64)> = answers.iter().map(rate).collect::<Option<_>>()?;
        Some(Self::of(job, candidate, &rates))
    }

    /// Returns the energy in kWh.
    pub fn kwh(&self) -> f64 {
        self.watts * self.hours / 1000.0
    }

    /// Returns the typical cost of a million tokens.
    pub fn cost_per_million_tokens(&self) -> f64 {
        self.cost.typical / (self.tokens_per_second * self.hours * 3600.0) * 1e6
    }

    /// Returns whether every training ends before the deadline; `None` without a deadline.
    pub fn meets_deadline(&self, job: &Job) -> Option<bool> {
        job.deadline().map(|deadline| self.longest <= deadline)
    }

    /// Returns the key by which machines rank: those that miss the deadline come last, by time.
    pub fn key(&self, job: &Job, objective: Objective) -> (bool, f64) {
        let late = job.deadline().is_some_and(|deadline| self.longest > deadline);
        let figure = match objective {
            _ if late => self.longest,
            Objective::Cost | Objective::TokensPerEuro => self.cost.typical,
            Objective::Time => self.hours,
            Objective::Energy => self.watts * self.hours,
        };
        (late, figure)
    }
}

/// Whether one key is better than another.
pub(crate) fn better(left: (bool, f64), right: (bool, f64)) -> bool {
    left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)).is_lt()
}

/// The questions of a run.
pub struct Question<'a> {
    /// The job.
    pub job: &'a Job,
    /// The machines.
    pub sweep: &'a Sweep,
    /// The order of machines.
    pub objective: Objective,
    /// The rows of the table.
    pub rows: usize,
    /// The part of the sweep.
    pub shard: Shard,
    /// Whether machines may be set aside by bounds; otherwise all are planned.
    pub bounds: bool,
}

/// The machines by key, each with the rates that its trainings do not exceed.
pub(crate) type Machines<'a> = BTreeMap<&'a str, (Hardware, Vec<f64>)>;

/// A machine of the sweep that is yet to be decided.
pub(crate) struct Open<'a> {
    pub candidate: &'a Candidate,
    /// The figures that no plan of the machine beats.
    pub optimist: Figures,
    /// The key of those figures.
    pub key: (bool, f64),
}

/// The figures of a machine at rates that none of its plans exceeds: none draws less than an idle machine.
pub(crate) fn optimist(job: &Job, candidate: &Candidate, rates: &[f64]) -> Figures {
    let rates: Vec<(f64, f64, f64)> = rates.iter().map(|rate| (*rate, 0.0, 0.0)).collect();
    Figures::of(job, candidate, &rates)
}

impl<'a> Question<'a> {
    /// The machines of the shard.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &'a Candidate> + use<'a> {
        let Shard { part, of } = self.shard;
        self.sweep.candidates.iter().filter(move |candidate| candidate.index % of == part - 1)
    }
}

/// The best machines so far.
pub(crate) struct Best {
    /// The keys and figures of solved machines, those of the table first.
    pub figures: Vec<((bool, f64), Figures)>,
    pub rows: usize,
}

impl Best {
    pub fn take(&mut self, key: (bool, f64), figures: Figures) {
        let at = self.figures.partition_point(|(other, _)| !better(key, *other));
        self.figures.insert(at, (key, figures));
    }

    /// Whether a machine with these optimistic figures can enter neither the table nor the front.
    pub fn excludes(&self, key: (bool, f64), figures: &Figures) -> bool {
        let last = self.rows.checked_sub(1).and_then(|last| self.figures.get(last));
        let outside = self.rows == 0 || last.is_some_and(|(last, _)| better(*last, key));
        let dominated = |other: &Figures| {
            other.hours <= figures.hours
                && other.cost.typical <= figures.cost.typical
                && (other.hours < figures.hours || other.cost.typical < figures.cost.typical)
        };
        outside && self.figures.iter().any(|(_, other)| dominated(other))
    }
}
