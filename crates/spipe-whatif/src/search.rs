//! The search over the machines of a sweep: equal machines share a plan, and machines that cannot
//! enter the table or the front are set aside by a bound.
//!
//! ```text
//! candidates, cheapest bound first ─► bounded? ─► shared? ─► bounded closely? ─► Judge ─► Verdict
//! ```
//!
//! A machine is set aside only if both hold: as many machines as the table has rows are better than
//! its bound, and one solved machine is at least as fast and as cheap as its bounds. The table and
//! the front are those of planning every machine alone, for any number of threads and shards.

use crate::{
    Answer, Candidate, Judge, Plans, Question, Run,
    closer::Closer,
    run::{Best, Counts, Figures, Machines, Open, optimist},
};
use rayon::prelude::*;
use spipe_base::Faults;
use spipe_hardware::Hardware;
use std::collections::{BTreeMap, BTreeSet};

/// The machines that are planned between two looks at the bounds. It does not depend on the number
/// of threads, so that the counts do not either.
const BATCH: usize = 16;

/// Plans the machines of a sweep, starting from the plans that are known.
///
/// # Errors
/// A machine that its own reader refuses.
pub fn run(question: &Question<'_>, judge: &impl Judge, known: Plans) -> Result<Run, Faults> {
    let candidates = &question.sweep.candidates;
    let mut run = Run { plans: known, answers: vec![None; candidates.len()], counts: Counts::default() };
    let machines = machines(question, judge)?;
    let mut best = Best { figures: Vec::new(), rows: question.rows };
    let mut open = open(question, &machines);
    let mut closer = Closer::default();
    let mut decided = 0;
    while !open.is_empty() {
        let mut batch = batch(question.bounds.then_some(&best), &mut open, &mut run.counts);
        if question.bounds {
            let before = batch.len();
            closer.narrow((question, judge), (&machines, &run.plans, &best), &mut batch);
            run.counts.bounded += before - batch.len();
        }
        let mut fresh: Vec<&str> = Vec::new();
        for one in &batch {
            let key = one.candidate.key.as_str();
            if !run.plans.contains_key(key) && !fresh.contains(&key) {
                fresh.push(key);
            }
        }
        let found: Vec<Option<Vec<Answer>>> =
            fresh.par_iter().map(|key| answers(judge, &machines[*key].0, question)).collect();
        let mut solved: BTreeSet<&str> = BTreeSet::new();
        for (key, answers) in fresh.iter().zip(found) {
            if let Some(answers) = answers {
                run.plans.insert((*key).to_owned(), answers);
                solved.insert(key);
            }
        }
        for one in &batch {
            let Some(answers) = run.plans.get(&one.candidate.key) else {
                run.counts.left += 1;
                continue;
            };
            if let Some(figures) = Figures::of_answers(question.job, one.candidate, answers) {
                best.take(figures.key(question.job, question.objective), figures);
            }
            run.answers[one.candidate.index] = Some(answers.clone());
            if solved.remove(one.candidate.key.as_str()) {
                run.counts.solved += 1;
            } else {
                run.counts.shared += 1;
            }
        }
        decided += batch.len();
        judge.progress(decided + run.counts.bounded, run.counts);
    }
    Ok(run)
}

/// Reads the machines of a shard.
fn machines<'a>(question: &Question<'a>, judge: &impl Judge) -> Result<Machines<'a>, Faults> {
    let mut distinct: BTreeMap<&str, &Candidate> = BTreeMap::new();
    for candidate in question.candidates() {
        distinct.entry(&candidate.key).or_insert(candidate);
    }
    let read = |(key, candidate): (&'a str, &Candidate)| {
        let hardware = Hardware::from_file(&candidate.machine.name, candidate.machine.hardware.clone())?;
        let trains = 0..question.job.file.train.len();
        let rates = trains.map(|train| judge.most_tokens_per_second(&hardware, train)).collect();
        Ok((key, (hardware, rates)))
    };
    distinct.into_par_iter().map(read).collect()
}

/// All machines of a shard, those with the best bounds last.
fn open<'a>(question: &Question<'a>, machines: &Machines<'_>) -> Vec<Open<'a>> {
    let bounded = |candidate: &'a Candidate| {
        let optimist = optimist(question.job, candidate, &machines[candidate.key.as_str()].1);
        Open { candidate, optimist, key: optimist.key(question.job, question.objective) }
    };
    let mut open: Vec<Open<'a>> = question.candidates().map(bounded).collect();
    open.sort_by(|left, right| {
        let keys = left.key.0.cmp(&right.key.0).then(left.key.1.total_cmp(&right.key.1));
        keys.then(left.candidate.index.cmp(&right.candidate.index)).reverse()
    });
    open
}

/// Takes the next machines that no bound sets aside.
fn batch<'a>(best: Option<&Best>, open: &mut Vec<Open<'a>>, counts: &mut Counts) -> Vec<Open<'a>> {
    let mut batch = Vec::new();
    while batch.len() < BATCH
        && let Some(next) = open.pop()
    {
        if best.is_some_and(|best| best.excludes(next.key, &next.optimist)) {
            counts.bounded += 1;
        } else {
            batch.push(next);
        }
    }
    batch
}

/// Plans all trainings on a machine; `None` if a stop has cut a search short.
fn answers(judge: &impl Judge, hardware: &Hardware, question: &Question<'_>) -> Option<Vec<Answer>> {
    let trains = 0..question.job.file.train.len();
    trains.map(|train| if judge.is_stopped() { None } else { judge.plan(hardware, train) }).collect()
}
