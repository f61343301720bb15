//! The second look at a ranked sweep: machines near the first one, and much effort for the first ten.

use super::{Task, judge, judge::Planner};
use crate::{Failure, report as reports};
use rayon::prelude::*;
use spipe_hardware::Hardware;
use spipe_timeline::Picture;
use spipe_whatif::{Answer, Candidate, Effort, Efforts, Figures, Judge, Run, Table, neighbours, report::Linked};
use std::collections::BTreeMap;

/// The machines that are planned again with much effort.
const FIRST: usize = 10;

/// The machines that are planned between two looks at the bounds.
const BATCH: usize = 8;

/// The width of timelines on the page, in characters.
const WIDTH: usize = 100;

/// A sweep whose machines are looked at again.
pub struct Again<'a> {
    pub task: &'a Task,
    pub planner: &'a Planner,
    /// The changes that are shown.
    pub lines: usize,
}

impl Again<'_> {
    /// Plans the machines with low effort whose plans are not known, and takes their answers.
    fn plan(&self, run: &mut Run, places: &[usize]) -> Result<(), Failure> {
        let mut machines: BTreeMap<&str, Hardware> = BTreeMap::new();
        for candidate in places.iter().map(|place| &self.task.sweep.candidates[*place]) {
            if !run.plans.contains_key(&candidate.key) {
                machines.insert(&candidate.key, hardware(candidate)?);
            }
        }
        let trains = self.task.job.file.train.len();
        let plan = |(key, hardware): (&str, Hardware)| {
            let answers: Option<Vec<Answer>> =
                (0..trains).map(|train| self.planner.plan(&hardware, train, Effort::Low)).collect();
            answers.map(|answers| (key.to_owned(), answers))
        };
        let found: Vec<Option<(String, Vec<Answer>)>> = machines.into_par_iter().map(plan).collect();
        run.plans.extend(found.into_iter().flatten());
        for place in places {
            run.answers[*place] = run.plans.get(&self.task.sweep.candidates[*place].key).cloned();
        }
        Ok(())
    }

    /// The gain of a machine over a rate, by its plans or else by its bound, per unit of money.
    fn worth(&self, run: &Run, place: usize, (rate, price): (f64, f64)) -> Result<f64, Failure> {
        let (job, candidate) = (&self.task.job, &self.task.sweep.candidates[place]);
        let figures = match &run.answers[place] {
            Some(answers) => Figures::of_answers(job, candidate, answers),
            None => {
                let hardware = hardware(candidate)?;
                let trains = 0..job.file.train.len();
                let most: Vec<(f64, f64, f64)> =
                    trains.map(|train| (self.planner.most_tokens_per_second(&hardware, train), 0.0, 0.0)).collect();
                Some(Figures::of(job, candidate, &most))
            }
        };
        let gain = figures.map_or(0.0, |figures| figures.tokens_per_second / rate - 1.0);
        Ok(gain / (candidate.price.range.typical - price).max(1.0))
    }

    /// Plans the machines that differ from one in a single kind of part and may be among the best changes of it:
    /// a bound keeps some of them out of the table.
    pub fn neighbours(&self, run: &mut Run, index: usize) -> Result<(), Failure> {
        let (job, base) = (&self.task.job, &self.task.sweep.candidates[index]);
        let figures = run.answers[index].as_ref().and_then(|answers| Figures::of_answers(job, base, answers));
        let Some(figures) = figures else { return Ok(()) };
        let base = (figures.tokens_per_second, base.price.range.typical);
        let (mut known, mut open) = (Vec::new(), Vec::new());
        for near in neighbours(&self.task.sweep, index) {
            let worth = self.worth(run, near, base)?;
            if run.answers[near].is_some() { known.push(worth) } else { open.push((worth, near)) }
        }
        open.sort_by(|left, right| left.0.total_cmp(&right.0).then(right.1.cmp(&left.1)));
        while !open.is_empty() && !self.planner.is_stopped() {
            known.sort_by(|left: &f64, right| right.total_cmp(left));
            let least = known.get(self.lines.saturating_sub(1)).copied().unwrap_or(0.0).max(0.0);
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some((_, near)) = open.pop_if(|(worth, _)| *worth > least)
            {
                batch.push(near);
            }
            if batch.is_empty() {
                break;
            }
            self.plan(run, &batch)?;
            for near in batch.into_iter().filter(|near| run.answers[*near].is_some()) {
                known.push(self.worth(run, near, base)?);
            }
        }
        Ok(())
    }

    /// Plans the first machines with much effort, keeps the better plans, and returns both rates by place. `plans`
    /// takes the plans in words.
    pub fn with_effort(
        &self,
        run: &mut Run,
        table: &Table,
        plans: &mut Linked,
    ) -> Result<BTreeMap<usize, Efforts>, Failure> {
        let mut distinct: BTreeMap<&str, usize> = BTreeMap::new();
        for row in table.machines.iter().take(FIRST) {
            distinct.entry(&self.task.sweep.candidates[row.index].key).or_insert(row.index);
        }
        let places: Vec<usize> = distinct.values().copied().collect();
        let found: Vec<Option<(Vec<Answer>, String)>> = places
            .par_iter()
            .map(|place| self.planned(run.answers[*place].as_ref(), *place, Effort::High))
            .collect::<Result<_, Failure>>()?;
        let mut efforts = BTreeMap::new();
        for (place, (answers, words)) in places.into_iter().zip(found).filter_map(|(place, one)| Some((place, one?))) {
            let (job, candidates) = (&self.task.job, &self.task.sweep.candidates);
            let rate = |answers: &[Answer], place: usize| {
                Figures::of_answers(job, &candidates[place], answers).map(|figures| figures.tokens_per_second)
            };
            let low = run.answers[place].as_ref().and_then(|answers| rate(answers, place));
            let high = rate(&answers, place);
            // Machines that are equal but for their prices have one plan.
            for other in candidates.iter().filter(|other| other.key == candidates[place].key) {
                if run.answers[other.index].is_some() {
                    run.answers[other.index] = Some(answers.clone());
                    plans.insert(other.index, words.clone());
                    if let (Some(low_tokens_per_second), Some(high_tokens_per_second)) = (low, high) {
                        efforts.insert(other.index, Efforts { low_tokens_per_second, high_tokens_per_second });
                    }
                }
            }
            run.plans.insert(candidates[place].key.clone(), answers);
        }
        Ok(efforts)
    }

    /// The better of known and new plans of a machine, with the new ones in words; `None` if the search was cut
    /// short.
    fn planned(
        &self,
        known: Option<&Vec<Answer>>,
        place: usize,
        effort: Effort,
    ) -> Result<Option<(Vec<Answer>, String)>, Failure> {
        let (Some(mut answers), false) = (known.cloned(), self.planner.is_stopped()) else { return Ok(None) };
        let hardware = hardware(&self.task.sweep.candidates[place])?;
        let mut words = String::new();
        for (train, answer) in answers.iter_mut().enumerate() {
            let Answer::Planned(low) = answer else { continue };
            let Ok(found) = self.planner.found(&hardware, train, effort) else { continue };
            if self.planner.is_stopped() {
                return Ok(None);
            }
            let (high, trace) = judge::planned(&found)?;
            words += &reports::plan::human(&found, ("", &[]), None);
            words += "\n";
            words += &spipe_timeline::text(&Picture { trace: &trace, second: None, title: None }, WIDTH);
            if high.tokens_per_second > low.tokens_per_second {
                *low = high;
            }
        }
        Ok(Some((answers, words)))
    }

    /// Adds the plans of the table that have no words yet.
    pub fn words(&self, run: &Run, table: &Table, plans: &mut Linked) -> Result<(), Failure> {
        let missing: Vec<usize> =
            table.machines.iter().map(|row| row.index).filter(|place| !plans.contains_key(place)).collect();
        let found: Vec<Option<(Vec<Answer>, String)>> = missing
            .par_iter()
            .map(|place| self.planned(run.answers[*place].as_ref(), *place, Effort::Low))
            .collect::<Result<_, Failure>>()?;
        plans.extend(missing.into_iter().zip(found).filter_map(|(place, one)| Some((place, one?.1))));
        Ok(())
    }
}

/// The profile of a machine.
pub fn hardware(candidate: &Candidate) -> Result<Hardware, Failure> {
    Ok(Hardware::from_file(&candidate.machine.name, candidate.machine.hardware.clone())?)
}
