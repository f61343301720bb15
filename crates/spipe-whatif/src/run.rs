//! The search over the machines of a sweep: equal machines share a plan, and machines that cannot
//! enter the table or the front are set aside by a bound.
//!
//! ```text
//! candidates, cheapest bound first ─► bounded? ─► shared? ─► Judge ─► Verdict
//! ```
//!
//! A machine is set aside only if both hold: as many machines as the table has rows are better than
//! its bound, and one solved machine is at least as fast and as cheap as its bounds. The table and
//! the front are those of planning every machine alone, for any number of threads and shards.

use crate::{Candidate, Job, Objective, Sweep};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use spipe_base::Faults;
use spipe_hardware::Hardware;
use spipe_market::Range;
use std::collections::BTreeMap;

/// The machines that are planned between two looks at the bounds. It does not depend on the number
/// of threads, so that the counts do not either.
const BATCH: usize = 16;

/// The effort of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As `spipe plan --effort low`.
    Low,
    /// As `spipe plan --effort high`.
    High,
}

/// A plan of one training on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Planned {
    /// The predicted rate.
    pub tokens_per_second: f64,
    /// The predicted iteration.
    pub iteration_ms: f64,
    /// The system of the plan; `data-parallel` for the closed form.
    pub system: String,
    /// Whether it is a closed form, not a simulated plan.
    pub closed_form: bool,
    /// (iteration − bound) ÷ iteration, if there is a bound.
    pub gap: Option<f64>,
    /// The busy share of each lane of the machine.
    pub shares: BTreeMap<String, f64>,
    /// The mean busy share of the GPUs, and of the CPUs.
    pub gpu_share: f64,
    /// The mean busy share of the CPUs.
    pub core_share: f64,
    /// The free bytes of each memory at the peak.
    pub head_room_bytes: BTreeMap<String, u64>,
    /// The peak bytes of each memory.
    pub peak_bytes: BTreeMap<String, u64>,
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
    /// Plans training number `train` of the job.
    fn plan(&self, hardware: &Hardware, train: usize, effort: Effort) -> Answer;

    /// Returns a rate of tokens that no plan of this training exceeds on the machine.
    fn most_tokens_per_second(&self, hardware: &Hardware, train: usize) -> f64;

    /// Returns whether the user has interrupted the work, or its time is up.
    fn is_stopped(&self) -> bool;

    /// Returns whether a stop has cut plans short, so that those of the moment are not kept.
    fn is_cut_short(&self) -> bool {
        self.is_stopped()
    }

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
    /// Hours of computing for all trainings of a year.
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
            let jobs = train.jobs_per_year.unwrap_or(1.0);
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

/// Plans the machines of a sweep, starting from the plans that are known.
///
/// # Errors
/// A machine that its own reader refuses.
pub fn run(question: &Question<'_>, judge: &impl Judge, known: Plans) -> Result<Run, Faults> {
    let candidates = &question.sweep.candidates;
    let mut run = Run { plans: known, answers: vec![None; candidates.len()], counts: Counts::default() };
    let mut order = Vec::new();
    let mut machines: BTreeMap<&str, Hardware> = BTreeMap::new();
    for candidate in
        candidates.iter().filter(|candidate| candidate.index % question.shard.of == question.shard.part - 1)
    {
        if !machines.contains_key(candidate.key.as_str()) {
            machines.insert(
                &candidate.key,
                Hardware::from_file(&candidate.machine.name, candidate.machine.hardware.clone())?,
            );
        }
        let hardware = &machines[candidate.key.as_str()];
        let optimist = optimist(question, candidate, hardware, judge);
        order.push((optimist.key(question.job, question.objective), optimist, candidate));
    }
    order.sort_by(|left, right| {
        let keys = left.0.0.cmp(&right.0.0).then(left.0.1.total_cmp(&right.0.1));
        keys.then(left.2.index.cmp(&right.2.index))
    });
    let mut best = Best { figures: Vec::new(), rows: question.rows };
    let mut open: Vec<&(_, Figures, &Candidate)> = order.iter().collect();
    open.reverse();
    let mut decided = 0;
    while !open.is_empty() {
        if judge.is_stopped() {
            run.counts.left += open.len();
            break;
        }
        let mut batch: Vec<&(_, Figures, &Candidate)> = Vec::new();
        let mut fresh: Vec<&str> = Vec::new();
        while batch.len() < BATCH
            && let Some(next) = open.pop()
        {
            if question.bounds && best.excludes(next.0, &next.1) {
                run.counts.bounded += 1;
                decided += 1;
                continue;
            }
            let key = next.2.key.as_str();
            if !run.plans.contains_key(key) && !fresh.contains(&key) {
                fresh.push(key);
                run.counts.solved += 1;
            } else {
                run.counts.shared += 1;
            }
            batch.push(next);
        }
        let trains = question.job.file.train.len();
        let plan = |key: &&str| {
            let answers = (0..trains).map(|train| judge.plan(&machines[*key], train, Effort::Low)).collect();
            ((*key).to_owned(), answers)
        };
        let found: Vec<(String, Vec<Answer>)> = fresh.par_iter().map(plan).collect();
        // Plans that the stop cut short are not kept.
        if judge.is_cut_short() && !found.is_empty() {
            run.counts.solved -= fresh.len();
            run.counts.left += open.len() + batch.len();
            break;
        }
        run.plans.extend(found);
        for (_, _, candidate) in &batch {
            let answers = &run.plans[&candidate.key];
            if let Some(figures) = Figures::of_answers(question.job, candidate, answers) {
                best.take(figures.key(question.job, question.objective), figures);
            }
            run.answers[candidate.index] = Some(answers.clone());
        }
        decided += batch.len();
        judge.progress(decided, run.counts);
    }
    Ok(run)
}

/// The figures that no plan of the machine beats: the fastest time, at idle power.
fn optimist(question: &Question<'_>, candidate: &Candidate, hardware: &Hardware, judge: &impl Judge) -> Figures {
    let rates: Vec<(f64, f64, f64)> = (0..question.job.file.train.len())
        .map(|train| (judge.most_tokens_per_second(hardware, train), 0.0, 0.0))
        .collect();
    Figures::of(question.job, candidate, &rates)
}

/// The best machines so far.
struct Best {
    /// The keys and figures of solved machines, those of the table first.
    figures: Vec<((bool, f64), Figures)>,
    rows: usize,
}

impl Best {
    fn take(&mut self, key: (bool, f64), figures: Figures) {
        let at = self.figures.partition_point(|(other, _)| !better(key, *other));
        self.figures.insert(at, (key, figures));
    }

    /// Whether a machine with these optimistic figures can enter neither the table nor the front.
    fn excludes(&self, key: (bool, f64), figures: &Figures) -> bool {
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
