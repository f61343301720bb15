//! The ranked table: ties, the front, the stability of ranks over the ranges of prices, advice.

mod baseline;
mod changes;
mod figures;
mod order;
mod solved;
mod stability;
mod table;
mod tornado;

pub use baseline::{Baseline, Estimate};
pub use changes::{change_of, neighbours};
pub use figures::JobFigures;
pub use table::{Bottleneck, Change, CountsData, Efforts, Infeasible, Row, Table};
pub use tornado::{End, Swing, Tornado, Turn};

use crate::{
    Candidate, Job, Objective, Run, Sweep,
    validated::{ERROR_SOURCE, outside},
};
use changes::{next, repair};
use order::letters;
use solved::{Solved, front, verdict};
use spipe_market::{Date, OLD};
use stability::Stability;

/// The least relative difference of two machines that counts: 73 runs on 29 nominally equal machines of
/// eight H100 spread by 2.8 % (Lambda's benchmark logs).
pub const NOISE: f64 = 0.03;

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

/// Ranks the machines of a run; the caller, which simulates them, adds the baselines.
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
        price: candidate.price.range,
        lacks: lacks.clone(),
        repair: repair(candidate, &solved),
        repair_is_cheapest: false,
        index: candidate.index,
    };
    let base = ranking.own.map_or_else(|| solved.first(), |own| solved.iter().find(|one| one.candidate.index == own));
    Table {
        machines: rows.collect(),
        baselines: Vec::new(),
        infeasible: infeasible.iter().map(fix).collect(),
        failed: failed
            .iter()
            .map(|(candidate, lacks)| Infeasible {
                machine: candidate.name(),
                price: candidate.price.range,
                lacks: lacks.clone(),
                repair: None,
                repair_is_cheapest: false,
                index: candidate.index,
            })
            .collect(),
        error_source: ERROR_SOURCE,
        tornado: tornado::tornado(job, &shown, ranking),
        next: base.map(|first| next(first, &solved)).unwrap_or_default(),
        counts: run.counts.into(),
        skipped: sweep.skipped.clone(),
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
    if plan.engines.as_ref().is_some_and(Vec::is_empty) {
        notes.push("no engine runs its plan, which is planned and simulated only".into());
    }
    if let Some(runtime) = plan.runtime.as_ref().filter(|_| plan.estimate) {
        let system = &plan.system;
        notes.push(format!("an estimate: runs of `{system}` were not measured under the runtime `{runtime}`"));
    }
    Row {
        rank,
        tie,
        machine: candidate.name(),
        nodes: candidate.machine.nodes,
        parts: candidate.machine.parts(),
        price: price.range,
        oldest_price: price.oldest,
        figures: JobFigures::of(job, figures),
        error: ranking.error,
        head_room_bytes: plan.head_room_bytes.clone(),
        system: plan.system.clone(),
        engines: plan.engines.clone(),
        runtime: plan.runtime.clone(),
        estimate: plan.estimate,
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
