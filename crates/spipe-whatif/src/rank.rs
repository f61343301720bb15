//! The ranked table: ties, the front, the stability of ranks over the ranges of prices, advice.

use crate::{
    Answer, Candidate, Counts, Figures, Job, Objective, Planned, Run, Skipped, Sweep, run::better, validated::outside,
};
use serde::Serialize;
use spipe_market::{Date, OLD, Range};
use std::collections::{BTreeMap, BTreeSet};

/// The least relative difference of two machines that counts: 73 runs on 29 nominally equal machines of
/// eight H100 spread by 2.8 % (Lambda's benchmark logs).
pub const NOISE: f64 = 0.03;

/// The draws of prices by which the stability of ranks is counted.
const DRAWS: usize = 200;

/// The seed of the draws.
const SEED: u64 = 1;

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
    /// The parts.
    pub parts: Vec<String>,
    /// The price without tax.
    pub price: Range,
    /// The date of the oldest price.
    pub oldest_price: Date,
    /// The predicted rate over all trainings.
    pub tokens_per_second: f64,
    /// The relative error of predictions of its kind.
    pub error: f64,
    /// The hours of the job; of a year where there are several trainings.
    pub hours: f64,
    /// Whether every training ends before the deadline; null without a deadline.
    pub meets_deadline: Option<bool>,
    /// The cost in those hours.
    pub cost_of_job: Range,
    /// The typical cost of a million tokens.
    pub cost_per_million_tokens: f64,
    /// The energy in those hours.
    pub kwh: f64,
    /// The mean power at the wall.
    pub watts: f64,
    /// The free bytes of each memory at the peak of the first training.
    pub head_room_bytes: BTreeMap<String, u64>,
    /// The system of the first training.
    pub system: String,
    /// Whether the rate is a closed form.
    pub closed_form: bool,
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
    /// The missing memory, and for which training.
    pub lacks: String,
    /// The cheapest change of one part after which a plan fits.
    pub repair: Option<Change>,
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
    /// Machines without a plan.
    pub infeasible: Vec<Infeasible>,
    /// Machines whose search failed.
    pub failed: Vec<Infeasible>,
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

/// A machine with its plans.
struct Solved<'a> {
    candidate: &'a Candidate,
    plans: Vec<&'a Planned>,
    figures: Figures,
}

/// How machines are ranked.
#[derive(Clone, Copy, Debug)]
pub struct Ranking {
    /// The order.
    pub objective: Objective,
    /// The rows of the table; machines of the front are added.
    pub rows: usize,
    /// The relative error of predictions.
    pub error: f64,
    /// The day of the prices.
    pub as_of: Date,
    /// The place in the sweep of the machine that the next part is for; that of rank 1 if absent.
    pub own: Option<usize>,
}

/// Ranks the machines of a run.
pub fn rank((job, sweep): (&Job, &Sweep), run: &Run, ranking: Ranking) -> Table {
    let mut solved: Vec<Solved<'_>> = Vec::new();
    let (mut infeasible, mut failed) = (Vec::new(), Vec::new());
    for candidate in &sweep.candidates {
        let Some(answers) = &run.answers[candidate.index] else { continue };
        match verdict(job, candidate, answers) {
            Ok(found) => solved.push(found),
            Err((lacks, true)) => failed.push((candidate, lacks)),
            Err((lacks, false)) => infeasible.push((candidate, lacks)),
        }
    }
    let key = |one: &Solved<'_>| one.figures.key(job, ranking.objective);
    solved.sort_by(|left, right| {
        let (one, other) = (key(left), key(right));
        one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)).then(left.candidate.index.cmp(&right.candidate.index))
    });
    // Ranks, letters and shares count the machines of the table and of the front alone: those are the same
    // whether or not others were set aside.
    let front = front(&solved);
    let is_shown = |index: &usize| {
        *index < ranking.rows || front.contains(index) || ranking.own == Some(solved[*index].candidate.index)
    };
    let places: Vec<usize> = (0..solved.len()).filter(is_shown).collect();
    let shown: Vec<&Solved<'_>> = places.iter().map(|place| &solved[*place]).collect();
    let stability = Stability::of(job, &shown, ranking.objective);
    let letters = letters(&shown.iter().map(|one| key(one)).collect::<Vec<_>>(), NOISE.max(ranking.error));
    let rows = shown.iter().enumerate().map(|(index, one)| {
        let facts = (letters[index].clone(), front.contains(&places[index]), stability.shares(index));
        row(job, one, index + 1, facts, ranking)
    });
    let fix = |(candidate, lacks): &(&Candidate, String)| Infeasible {
        machine: candidate.name(),
        lacks: lacks.clone(),
        repair: repair(candidate, &solved),
        index: candidate.index,
    };
    let base = ranking.own.map_or_else(|| solved.first(), |own| solved.iter().find(|one| one.candidate.index == own));
    Table {
        machines: rows.collect(),
        infeasible: infeasible.iter().map(fix).collect(),
        failed: failed
            .iter()
            .map(|(candidate, lacks)| Infeasible {
                machine: candidate.name(),
                lacks: lacks.clone(),
                repair: None,
                index: candidate.index,
            })
            .collect(),
        next: base.map(|first| next(first, &solved)).unwrap_or_default(),
        counts: run.counts.into(),
        skipped: sweep.skipped.clone(),
    }
}

/// The plans of a machine, or what it lacks, with true if a search failed.
fn verdict<'a>(job: &Job, candidate: &'a Candidate, answers: &'a [Answer]) -> Result<Solved<'a>, (String, bool)> {
    let mut plans = Vec::new();
    for (answer, train) in answers.iter().zip(&job.file.train) {
        let of = if job.file.train.len() > 1 { format!("{}: ", train.model) } else { String::new() };
        match answer {
            Answer::Planned(plan) => plans.push(plan),
            Answer::Infeasible(lacks) => return Err((format!("{of}{lacks}"), false)),
            Answer::Failed(message) => return Err((format!("{of}{message}"), true)),
        }
    }
    let figures =
        Figures::of_answers(job, candidate, answers).ok_or_else(|| ("a training has no plan".to_owned(), true))?;
    Ok(Solved { candidate, plans, figures })
}

/// The positions of machines that no other one beats or equals in hours and cost.
fn front(solved: &[Solved<'_>]) -> BTreeSet<usize> {
    let figures: Vec<(f64, f64)> = solved.iter().map(|one| (one.figures.hours, one.figures.cost.typical)).collect();
    front_of(&figures)
}

/// The positions of points that no other point beats: at most as large in both, and smaller in one.
fn front_of(points: &[(f64, f64)]) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|left, right| {
        points[*left].0.total_cmp(&points[*right].0).then(points[*left].1.total_cmp(&points[*right].1))
    });
    let mut best = (f64::INFINITY, f64::INFINITY);
    let mut front = BTreeSet::new();
    for index in order {
        let equal = points[index].0.total_cmp(&best.0).is_eq() && points[index].1.total_cmp(&best.1).is_eq();
        if points[index].1 < best.1 || equal {
            front.insert(index);
            best = points[index];
        }
    }
    front
}

/// The letter of each rank: a machine has the letter of the first one of its group unless it is worse by more than
/// `width`.
fn letters(keys: &[(bool, f64)], width: f64) -> Vec<String> {
    let mut letters: Vec<String> = Vec::new();
    let (mut group, mut first) = (0, None::<(bool, f64)>);
    for key in keys {
        match first {
            Some(start) if start.0 == key.0 && key.1 <= start.1 * (1.0 + width) => {}
            Some(_) => {
                group += 1;
                first = Some(*key);
            }
            None => first = Some(*key),
        }
        letters.push(letter(group));
    }
    letters
}

/// a, b, …, z, aa, ab, …
fn letter(mut group: usize) -> String {
    let mut text = String::new();
    loop {
        text.insert(0, char::from(b'a' + (group % 26) as u8));
        if group < 26 {
            return text;
        }
        group = group / 26 - 1;
    }
}

/// How often each machine is first, and on the front, over draws of prices.
struct Stability {
    first: Vec<usize>,
    front: Vec<usize>,
}

impl Stability {
    /// Draws prices by a Latin hypercube: each part has one position in its range per draw, the same in all
    /// machines. Rates do not depend on prices, so nothing is planned again.
    fn of(job: &Job, solved: &[&Solved<'_>], objective: Objective) -> Self {
        let mut found = Self { first: vec![0; solved.len()], front: vec![0; solved.len()] };
        let items =
            |one: &&Solved<'_>| one.candidate.price.items.iter().map(|(item, _)| item.name.clone()).collect::<Vec<_>>();
        let names: BTreeSet<String> = solved.iter().flat_map(items).collect();
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut draws: Vec<BTreeMap<String, f64>> = vec![BTreeMap::new(); DRAWS];
        for name in names {
            let mut strata: Vec<usize> = (0..DRAWS).collect();
            random.shuffle(&mut strata);
            for (positions, stratum) in draws.iter_mut().zip(strata) {
                positions.insert(name.clone(), (stratum as f64 + random.f64()) / DRAWS as f64);
            }
        }
        for positions in &draws {
            let figures: Vec<Figures> = solved
                .iter()
                .map(|one| {
                    let price = one.candidate.price.items.iter();
                    let price: f64 = price.map(|(item, range)| range.at(positions[&item.name])).sum();
                    let hour = job
                        .own
                        .hour(Range::exactly(price * (1.0 + job.tax)), spipe_market::Watts::new(one.figures.watts));
                    Figures { cost: hour * one.figures.hours, ..one.figures }
                })
                .collect();
            let keys: Vec<(bool, f64)> = figures.iter().map(|figures| figures.key(job, objective)).collect();
            if let Some(first) =
                (0..keys.len()).reduce(|best, other| if better(keys[other], keys[best]) { other } else { best })
            {
                found.first[first] += 1;
            }
            let points: Vec<(f64, f64)> = figures.iter().map(|figures| (figures.hours, figures.cost.typical)).collect();
            front_of(&points).into_iter().for_each(|index| found.front[index] += 1);
        }
        found
    }

    /// The shares of draws in which a machine is first, and on the front.
    fn shares(&self, index: usize) -> (f64, f64) {
        (self.first[index] as f64 / DRAWS as f64, self.front[index] as f64 / DRAWS as f64)
    }
}

/// One row.
fn row(
    job: &Job,
    solved: &Solved<'_>,
    rank: usize,
    (tie, front, (first_share, front_share)): (String, bool, (f64, f64)),
    ranking: Ranking,
) -> Row {
    let Solved { candidate, plans, figures } = solved;
    let plan = plans[0];
    let busiest = plan.shares.iter().max_by(|left, right| left.1.total_cmp(right.1));
    let price = &candidate.price;
    let outside = outside(job, candidate);
    let mut notes = [outside.as_slice(), candidate.machine.notes.as_slice()].concat();
    let age = ranking.as_of.days_since(price.oldest);
    if age > OLD {
        notes.push(format!("its oldest price is {age} days old"));
    }
    if !price.stale.is_empty() {
        notes.push(format!("prices older than a year, with widened ranges: {}", price.stale.join(", ")));
    }
    if !price.substituted.is_empty() {
        notes.push(format!("not sold {}: {}", candidate.condition, price.substituted.join(", ")));
    }
    let tokens = figures.tokens_per_second * figures.hours * 3600.0;
    Row {
        rank,
        tie,
        machine: candidate.name(),
        parts: candidate.machine.parts(),
        price: price.range,
        oldest_price: price.oldest,
        tokens_per_second: figures.tokens_per_second,
        error: ranking.error,
        hours: figures.hours,
        meets_deadline: job.deadline().map(|deadline| figures.longest <= deadline),
        cost_of_job: figures.cost,
        cost_per_million_tokens: figures.cost.typical / tokens * 1e6,
        kwh: figures.watts * figures.hours / 1000.0,
        watts: figures.watts,
        head_room_bytes: plan.head_room_bytes.clone(),
        system: plan.system.clone(),
        closed_form: plan.closed_form,
        bottleneck: busiest.map(|(lane, share)| Bottleneck { lane: lane.clone(), share: *share }),
        shares: plan.shares.clone(),
        gap: plan.gap,
        front,
        front_share,
        first_share,
        effort: None,
        outside,
        notes,
        index: candidate.index,
    }
}

/// The parts in which two machines differ, as a change of one kind of part beside board and supply; `None`
/// if they differ in more.
fn single_change(from: &Candidate, to: &Candidate) -> Option<String> {
    use spipe_market::Kind;
    let parts = |candidate: &Candidate| {
        let mut parts: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
        for item in candidate.machine.items.iter().filter(|item| !matches!(item.kind, Kind::Board | Kind::Supply)) {
            parts.entry(item.kind).or_default().push(format!("{} × {}", item.count, item.name));
        }
        parts
    };
    if from.condition != to.condition {
        return None;
    }
    let (before, after) = (parts(from), parts(to));
    let kinds: BTreeSet<Kind> = before.keys().chain(after.keys()).copied().collect();
    let mut changed = kinds.into_iter().filter(|kind| before.get(kind) != after.get(kind));
    let kind = changed.next().filter(|_| changed.next().is_none())?;
    let words = |parts: Option<&Vec<String>>| parts.map_or_else(|| "none".to_owned(), |parts| parts.join(" + "));
    Some(format!("{} → {}", words(before.get(&kind)), words(after.get(&kind))))
}

/// Returns the places of the machines that differ from one in a single kind of part.
pub fn neighbours(sweep: &Sweep, index: usize) -> Vec<usize> {
    let from = &sweep.candidates[index];
    let near = |to: &&Candidate| to.index != index && single_change(from, to).is_some();
    sweep.candidates.iter().filter(near).map(|to| to.index).collect()
}

/// The cheapest solved machine that differs in one kind of part.
fn repair(candidate: &Candidate, solved: &[Solved<'_>]) -> Option<Change> {
    let changes = solved.iter().filter_map(|other| Some((single_change(candidate, other.candidate)?, other)));
    let priced = changes.map(|(change, other)| Change {
        change,
        price: other.candidate.price.range.typical - candidate.price.range.typical,
        gain: None,
    });
    priced.min_by(|left, right| left.price.total_cmp(&right.price))
}

/// The single changes of a machine that make it faster, by gain per money.
fn next(first: &Solved<'_>, solved: &[Solved<'_>]) -> Vec<Change> {
    let mut changes: Vec<Change> = solved
        .iter()
        .filter_map(|other| {
            let change = single_change(first.candidate, other.candidate)?;
            let price = other.candidate.price.range.typical - first.candidate.price.range.typical;
            let gain = other.figures.tokens_per_second / first.figures.tokens_per_second - 1.0;
            (gain > 0.0).then_some(Change { change, price, gain: Some(gain) })
        })
        .collect();
    // Gains that cost nothing come first.
    let worth = |change: &Change| change.gain.unwrap_or(0.0) / change.price.max(1.0);
    changes.sort_by(|left, right| worth(right).total_cmp(&worth(left)).then(left.change.cmp(&right.change)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_the_letter_of_their_first() {
        let keys = [100.0, 102.0, 103.0, 104.0, 120.0].map(|figure| (false, figure));
        assert_eq!(letters(&keys, 0.03), ["a", "a", "a", "b", "c"]);
        assert_eq!(letters(&[(false, 1.0), (true, 1.0)], 0.03), ["a", "b"], "late machines are no ties");
        assert_eq!([0, 25, 26, 701, 702].map(letter), ["a", "z", "aa", "zz", "aaa"]);
    }

    #[test]
    fn the_front_has_no_dominated_point() {
        let points = [(1.0, 5.0), (2.0, 3.0), (2.0, 4.0), (3.0, 3.0), (4.0, 1.0), (4.0, 1.0)];
        assert_eq!(front_of(&points), BTreeSet::from([0, 1, 4, 5]));
    }
}
