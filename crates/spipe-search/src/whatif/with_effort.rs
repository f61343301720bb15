//! Much effort for the first machines of a ranked sweep, and their plans in words.

use super::{
    planner::JobPlanner,
    task::{Task, hardware},
};
use crate::{error::SearchError, search::found::Found};
use rayon::prelude::*;
use spipe_planner::Effort;
use spipe_trace::Trace;
use spipe_whatif::{Answer, Efforts, Figures, Judge, Run, Table, report::Linked};
use std::collections::BTreeMap;

/// The machines that are planned again with much effort.
const FIRST: usize = 10;

/// A front end's words for a plan and its simulated iteration.
pub type Describe<'a> = &'a (dyn Fn(&Found, &Trace) -> String + Sync);

/// The planner of machines that are looked at again.
pub struct Again<'a> {
    pub task: &'a Task,
    pub planner: &'a JobPlanner,
    pub describe: Describe<'a>,
}

impl Again<'_> {
    /// Plans the first machines with much effort, keeps the better plans, and returns both rates by place. `plans`
    /// takes the plans in words.
    pub fn with_effort(
        &self,
        run: &mut Run,
        table: &Table,
        plans: &mut Linked,
    ) -> Result<BTreeMap<usize, Efforts>, SearchError> {
        let mut distinct: BTreeMap<&str, usize> = BTreeMap::new();
        for row in table.machines.iter().take(FIRST) {
            distinct.entry(&self.task.sweep.candidates[row.index].key).or_insert(row.index);
        }
        let places: Vec<usize> = distinct.values().copied().collect();
        let found: Vec<Option<(Vec<Answer>, String)>> = places
            .par_iter()
            .map(|place| self.planned(run.answers[*place].as_ref(), *place, Effort::High))
            .collect::<Result<_, SearchError>>()?;
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
    ) -> Result<Option<(Vec<Answer>, String)>, SearchError> {
        let (Some(mut answers), false) = (known.cloned(), self.planner.is_stopped()) else { return Ok(None) };
        let hardware = hardware(&self.task.sweep.candidates[place])?;
        let mut words = String::new();
        for (train, answer) in answers.iter_mut().enumerate() {
            let Answer::Planned(low) = answer else { continue };
            let Ok(found) = self.planner.found(&hardware, train, effort) else { continue };
            if self.planner.is_stopped() {
                return Ok(None);
            }
            let (high, trace) = self.planner.figures(&found)?;
            words += &(self.describe)(&found, &trace);
            if high.tokens_per_second > low.tokens_per_second {
                *low = high;
            }
        }
        Ok(Some((answers, words)))
    }

    /// Adds the plans of the table that have no words yet.
    pub fn words(&self, run: &Run, table: &Table, plans: &mut Linked) -> Result<(), SearchError> {
        let missing: Vec<usize> =
            table.machines.iter().map(|row| row.index).filter(|place| !plans.contains_key(place)).collect();
        let found: Vec<Option<(Vec<Answer>, String)>> = missing
            .par_iter()
            .map(|place| self.planned(run.answers[*place].as_ref(), *place, Effort::Low))
            .collect::<Result<_, SearchError>>()?;
        plans.extend(missing.into_iter().zip(found).filter_map(|(place, one)| Some((place, one?.1))));
        Ok(())
    }
}
