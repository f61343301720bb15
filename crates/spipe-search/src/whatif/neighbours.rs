//! The machines near the first one of a ranked sweep.

use super::{
    planner::JobPlanner,
    task::{Task, hardware},
};
use crate::error::SearchError;
use rayon::prelude::*;
use spipe_hardware::Hardware;
use spipe_whatif::{Answer, Figures, Judge, Run, neighbours};
use std::collections::BTreeMap;

/// The machines that are planned between two looks at the bounds.
const BATCH: usize = 8;

/// The neighbours of a machine.
pub struct Neighbours<'a> {
    pub task: &'a Task,
    pub planner: &'a JobPlanner,
    /// The changes that are shown.
    pub lines: usize,
}

impl Neighbours<'_> {
    /// Plans the machines with low effort whose plans are not known, and takes their answers.
    fn plan(&self, run: &mut Run, places: &[usize]) -> Result<(), SearchError> {
        let mut machines: BTreeMap<&str, Hardware> = BTreeMap::new();
        for candidate in places.iter().map(|place| &self.task.sweep.candidates[*place]) {
            if !run.plans.contains_key(&candidate.key) {
                machines.insert(&candidate.key, hardware(candidate)?);
            }
        }
        let trains = self.task.job.file.train.len();
        let plan = |(key, hardware): (&str, Hardware)| {
            let answers: Option<Vec<Answer>> = (0..trains).map(|train| self.planner.plan(&hardware, train)).collect();
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
    fn worth(&self, run: &Run, place: usize, (rate, price): (f64, f64)) -> Result<f64, SearchError> {
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
    pub fn look(&self, run: &mut Run, index: usize) -> Result<(), SearchError> {
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
}
