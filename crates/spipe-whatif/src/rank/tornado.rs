//! The tornado of rank 1: each input is moved over its range, the others stay, and the margin between rank 1 and the
//! best other machine is computed again. Plans stay: a rate is scaled, not found again.
//!
//! ```text
//! margin = (figure of the best other machine − figure of rank 1) ÷ figure of rank 1
//! ```
//!
//! The figure is that of the objective: cost, hours or energy. A negative margin means that another machine is first.

use super::{Ranking, solved::Solved};
use crate::{Figures, Job, amount::Hours, run::better};
use serde::Serialize;
use spipe_base::Text;
use spipe_market::{Range, Watts};
use std::collections::BTreeSet;

/// The share by which inputs move that a job states as one value. Estimate.
const STATED: f64 = 0.2;

/// The relative error of the formula of power: it is within 15 % of two sets of measured machines, on which its
/// constants were chosen (`spipe-market/tests/composition.rs`).
const POWER: f64 = 0.15;

/// The halvings by which a turn is found: to 10⁻⁹ of a range.
const HALVINGS: usize = 30;

/// The effect of a range below which a part is left out.
const NO_EFFECT: f64 = 1e-12;

/// The inputs on which rank 1 depends.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tornado {
    /// Rank 1.
    pub machine: String,
    /// The best other machine.
    pub other: String,
    /// The margin between them; null if only one of them meets the deadline.
    pub margin: Option<f64>,
    /// The inputs, the one with the largest effect on the margin first.
    pub inputs: Vec<Swing>,
}

/// One input over its range.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Swing {
    /// The input.
    pub input: String,
    /// The unit of its values.
    pub unit: String,
    /// The source of its range.
    pub source: &'static str,
    /// The value in the table.
    pub typical: f64,
    /// The least value.
    pub low: End,
    /// The largest value.
    pub high: End,
    /// The value nearest to the typical one from which another machine is first; null if rank 1 stays.
    pub turn: Option<Turn>,
}

/// The effect of one value of an input.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct End {
    /// The value.
    pub value: f64,
    /// The margin of the machine that is rank 1 in the table; null if only it or only the others meet the deadline.
    pub margin: Option<f64>,
    /// The typical cost of the job on it.
    pub cost: f64,
    /// The first machine.
    pub first: String,
}

/// The value of an input from which another machine is first.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Turn {
    /// The value.
    pub value: f64,
    /// The machine.
    pub first: String,
}

/// An input that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Input {
    /// The price of a part, in all machines that have it.
    Price(String),
    Residual,
    Electricity,
    Use,
    Years,
    Tax,
    Power,
    Deadline,
    /// How often a training runs in a year.
    Often(usize),
    /// The rate of rank 1 alone.
    First,
    /// The rates of all machines with a GPU.
    Rates(String),
}

/// A range of an input.
struct Moved {
    input: Input,
    name: String,
    unit: String,
    source: &'static str,
    range: Range,
}

/// Returns the tornado of the machines of a table, rank 1 first; `None` for fewer than two.
pub(super) fn tornado(job: &Job, shown: &[&Solved<'_>], ranking: Ranking) -> Option<Tornado> {
    let study = Study { job, shown, ranking };
    let base = Case { job: job.clone(), moved: None, position: 0.5 };
    let keys = study.keys(&base);
    let other = study.best_other(&keys)?;
    let mut inputs: Vec<Swing> = study.inputs().into_iter().map(|moved| study.swing(&moved)).collect();
    let effect = |swing: &Swing| match (swing.low.margin, swing.high.margin) {
        (Some(low), Some(high)) => (high - low).abs(),
        (None, None) if swing.turn.is_none() => 0.0,
        _ => f64::INFINITY,
    };
    let is_part = |swing: &Swing| swing.source == CATALOGUE;
    inputs.retain(|swing| !is_part(swing) || effect(swing) > NO_EFFECT);
    inputs.sort_by(|left, right| effect(right).total_cmp(&effect(left)).then(left.input.cmp(&right.input)));
    Some(Tornado {
        machine: shown[0].candidate.name(),
        other: shown[other].candidate.name(),
        margin: margin(&keys, other),
        inputs,
    })
}

const CATALOGUE: &str = "range of the catalogue";
const JOB: &str = "range of the job";
const ESTIMATE: &str = "estimate";

/// The machines whose order is studied.
struct Study<'a> {
    job: &'a Job,
    /// The machines of the table, rank 1 first.
    shown: &'a [&'a Solved<'a>],
    ranking: Ranking,
}

/// A job with one input moved.
struct Case<'a> {
    job: Job,
    moved: Option<&'a Moved>,
    /// The place in its range: 0 is the lowest value, ½ the typical one, 1 the highest.
    position: f64,
}

impl Case<'_> {
    /// The factor of the rate of a machine at a place.
    fn faster(&self, place: usize, one: &Solved<'_>) -> f64 {
        let Some(moved) = self.moved else { return 1.0 };
        let scaled = match &moved.input {
            Input::First => place == 0,
            Input::Rates(gpu) => one.candidate.machine.choice.gpu.as_ref() == Some(gpu),
            _ => false,
        };
        if scaled { moved.range.at(self.position) } else { 1.0 }
    }

    /// The price of a machine without tax.
    fn price(&self, one: &Solved<'_>) -> f64 {
        let is_moved =
            |name: &String| matches!(self.moved, Some(Moved { input: Input::Price(part), .. }) if part == name);
        let prices = one.candidate.price.items.iter();
        prices.map(|(item, range)| if is_moved(&item.name) { range.at(self.position) } else { range.typical }).sum()
    }

    /// The factor of all powers.
    fn power(&self) -> f64 {
        self.moved.filter(|moved| moved.input == Input::Power).map_or(1.0, |moved| moved.range.at(self.position))
    }
}

impl Study<'_> {
    /// All inputs with their ranges.
    fn inputs(&self) -> Vec<Moved> {
        let own = &self.job.own;
        let currency = own.currency.to_string();
        let around =
            |typical: f64, share: f64| Range { low: typical * (1.0 - share), typical, high: typical * (1.0 + share) };
        let moved = |input: Input, name: &str, unit: &str, (source, range): (&'static str, Range)| Moved {
            input,
            name: name.into(),
            unit: unit.into(),
            source,
            range,
        };
        let utilisation = around(own.utilisation, STATED);
        let utilisation = Range { high: utilisation.high.min(1.0), ..utilisation };
        let stated = |typical: f64| (ESTIMATE, around(typical, STATED));
        let error = self.ranking.error.clamp(0.0, 0.95);
        let mut all = vec![
            moved(Input::Residual, "residual value", "of the price", (JOB, own.residual)),
            moved(Input::Electricity, "electricity", &format!("{currency}/kWh"), stated(own.kilowatt_hour)),
            moved(Input::Use, "use", "of the hours", (ESTIMATE, utilisation)),
            moved(Input::Years, "ownership", "years", stated(own.years)),
            moved(Input::Power, "power at the wall", "× the formula", (ESTIMATE, around(1.0, POWER))),
            moved(Input::First, "rate of rank 1", "× the prediction", (ESTIMATE, around(1.0, error))),
        ];
        if self.job.tax > 0.0 {
            let range = Range { low: 0.0, typical: self.job.tax, high: self.job.tax };
            all.push(moved(Input::Tax, "tax", "of the price", (ESTIMATE, range)));
        }
        if let Some(deadline) = self.job.deadline() {
            all.push(moved(Input::Deadline, "deadline", "h", stated(deadline)));
        }
        if self.job.file.train.len() > 1 {
            all.extend(self.job.file.train.iter().enumerate().map(|(index, train)| {
                let name = format!("trainings of {}", train.model);
                moved(Input::Often(index), &name, "a year", stated(self.job.times(train)))
            }));
        }
        let gpus: BTreeSet<&String> =
            self.shown.iter().filter_map(|one| one.candidate.machine.choice.gpu.as_ref()).collect();
        let unlike = gpus.len() > 1 || self.job.deadline().is_some();
        all.extend(gpus.iter().filter(|_| unlike).map(|gpu| {
            let name = format!("rates on {gpu}");
            moved(Input::Rates((*gpu).clone()), &name, "× the prediction", (ESTIMATE, around(1.0, error)))
        }));
        let mut seen = BTreeSet::new();
        for (item, range) in self.shown.iter().flat_map(|one| &one.candidate.price.items) {
            if seen.insert(&item.name) {
                let each = *range * (1.0 / f64::from(item.count.max(1)));
                let name = format!("price of {}", item.name);
                all.push(moved(Input::Price(item.name.clone()), &name, &currency, (CATALOGUE, each)));
            }
        }
        all
    }

    /// The effect of an input over its range.
    fn swing(&self, moved: &Moved) -> Swing {
        let end = |position: f64| {
            let case = self.case(moved, position);
            let keys = self.keys(&case);
            let other = self.best_other(&keys);
            End {
                value: moved.range.at(position),
                margin: other.and_then(|other| margin(&keys, other)),
                cost: self.figures(&case, 0).cost.typical,
                first: self.shown[first(&keys)].candidate.name(),
            }
        };
        let (below, above) = (self.turn(moved, 0.0), self.turn(moved, 1.0));
        let nearest = [below, above].into_iter().flatten().min_by(|left, right| {
            let far = |turn: &(f64, usize)| (turn.0 - 0.5).abs();
            far(left).total_cmp(&far(right))
        });
        Swing {
            input: moved.name.clone(),
            unit: moved.unit.clone(),
            source: moved.source,
            typical: moved.range.typical,
            low: end(0.0),
            high: end(1.0),
            turn: nearest.map(|(position, first)| Turn {
                value: moved.range.at(position),
                first: self.shown[first].candidate.name(),
            }),
        }
    }

    /// The position towards `end` from which another machine is first, with that machine; `None` if rank 1 stays.
    fn turn(&self, moved: &Moved, end: f64) -> Option<(f64, usize)> {
        let leader = |position: f64| first(&self.keys(&self.case(moved, position)));
        if leader(end) == 0 {
            return None;
        }
        let (mut stays, mut turned) = (0.5, end);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(stays, turned);
            if leader(middle) == 0 { stays = middle } else { turned = middle }
        }
        Some((turned, leader(turned)))
    }

    /// The job with an input at a position of its range.
    fn case<'m>(&self, moved: &'m Moved, position: f64) -> Case<'m> {
        let mut job = self.job.clone();
        let value = moved.range.at(position);
        match &moved.input {
            Input::Residual => job.own.residual = Range::exactly(value),
            Input::Electricity => job.own.kilowatt_hour = value,
            Input::Use => job.own.utilisation = value,
            Input::Years => job.own.years = value,
            Input::Tax => job.tax = value,
            Input::Deadline => job.file.limits.deadline = Some(Text(Hours(value))),
            Input::Often(train) => job.file.train[*train].jobs_per_year = Some(value),
            Input::Price(_) | Input::Power | Input::First | Input::Rates(_) => {}
        }
        Case { job, moved: Some(moved), position }
    }

    /// The figures of a machine in a case.
    fn figures(&self, case: &Case<'_>, place: usize) -> Figures {
        let one = self.shown[place];
        let faster = case.faster(place, one);
        let rates: Vec<(f64, f64, f64)> =
            one.plans.iter().map(|plan| (plan.tokens_per_second * faster, plan.gpu_share, plan.core_share)).collect();
        let mut figures = Figures::of(&case.job, one.candidate, &rates);
        figures.watts *= case.power();
        let cash = Range::exactly(case.price(one) * (1.0 + case.job.tax));
        figures.cost = case.job.own.hour(cash, Watts::new(figures.watts)) * figures.hours;
        figures
    }

    /// The keys of all machines in a case.
    fn keys(&self, case: &Case<'_>) -> Vec<(bool, f64)> {
        let key = |place: usize| self.figures(case, place).key(&case.job, self.ranking.objective);
        (0..self.shown.len()).map(key).collect()
    }

    /// The place of the best machine but rank 1.
    fn best_other(&self, keys: &[(bool, f64)]) -> Option<usize> {
        (1..keys.len()).reduce(|best, other| if better(keys[other], keys[best]) { other } else { best })
    }
}

/// The place of the first machine.
fn first(keys: &[(bool, f64)]) -> usize {
    (1..keys.len()).fold(0, |best, other| if better(keys[other], keys[best]) { other } else { best })
}

/// The margin of rank 1 over another machine; `None` if only one of both meets the deadline.
fn margin(keys: &[(bool, f64)], other: usize) -> Option<f64> {
    (keys[0].0 == keys[other].0).then(|| keys[other].1 / keys[0].1 - 1.0)
}
