//! The cheapest repair of a machine without a plan: the cheapest change of one kind of part, of all that the sweep has
//! and of all that the catalogue allows, after which every training has a plan.

use super::{
    own::changes,
    planner::JobPlanner,
    task::{Task, hardware},
};
use crate::error::SearchError;
use rayon::prelude::*;
use spipe_market::{Choice, Cluster, compose};
use spipe_whatif::{Answer, Candidate, Change, Job, Judge, Run, Table, change_of, neighbours, sweep_of};
use std::collections::{BTreeMap, BTreeSet};

/// A repaired machine.
struct Repair {
    machine: Candidate,
    change: Change,
}

/// The repairs of the machines of a sweep.
pub struct Repairs<'a> {
    task: &'a Task,
    planner: &'a JobPlanner,
    /// The keys of machines on which a bound shows that no plan fits.
    hopeless: BTreeSet<String>,
}

impl<'a> Repairs<'a> {
    /// The repairs of a sweep, before a look.
    pub const fn of(task: &'a Task, planner: &'a JobPlanner) -> Self {
        Self { task, planner, hopeless: BTreeSet::new() }
    }

    /// Finds the cheapest repair of the first `most` machines without a plan, by place in the sweep; none where no
    /// change helps. Machines whose repairs were not all looked at are left out.
    pub fn look(
        mut self,
        run: &mut Run,
        table: &Table,
        most: usize,
    ) -> Result<BTreeMap<usize, Option<Change>>, SearchError> {
        let mut found = BTreeMap::new();
        for machine in table.infeasible.iter().take(most) {
            let repairs = self.repairs(&self.task.sweep.candidates[machine.index])?;
            if !self.plan(run, &repairs)? {
                break;
            }
            let first = repairs.into_iter().find(|repair| is_planned(run, &repair.machine.key));
            found.insert(machine.index, first.map(|repair| repair.change));
        }
        Ok(found)
    }

    /// All changes of one kind of part, the cheapest first.
    fn repairs(&self, broken: &Candidate) -> Result<Vec<Repair>, SearchError> {
        let Task { sweep, catalogue, job, setup, .. } = self.task;
        let Choice { cluster, .. } = &broken.machine.choice;
        let cluster = cluster.as_ref().map(Cluster::reopened);
        let start = Choice { board: None, supply: None, cluster, ..broken.machine.choice.clone() };
        let composed = changes(catalogue, &start).into_iter().filter_map(|choice| compose(catalogue, &choice).ok());
        let composed = composed.map(|machine| (machine, broken.condition)).collect();
        // A repair may exceed the limits of the sweep: its price is shown.
        let mut free = Job { budget: None, ..job.clone() };
        free.file.limits.wall_power = None;
        let beyond = sweep_of(catalogue, (&free, setup.as_of), composed)?;
        let near = neighbours(sweep, broken.index).into_iter().map(|place| sweep.candidates[place].clone());
        let mut seen = BTreeSet::new();
        let repair = |machine: Candidate| {
            let new = machine.key != broken.key && seen.insert(machine.name());
            let change = change_of(broken, &machine).filter(|_| new)?;
            let price = machine.price.range.typical - broken.price.range.typical;
            Some(Repair { machine, change: Change { change, price, gain: None } })
        };
        let mut repairs: Vec<Repair> = near.chain(beyond.candidates).filter_map(repair).collect();
        let key = |repair: &Repair| repair.change.price;
        repairs
            .sort_by(|left, right| key(left).total_cmp(&key(right)).then(left.change.change.cmp(&right.change.change)));
        Ok(repairs)
    }

    /// Plans the repairs in order until one has a plan. Returns false if the work was stopped.
    fn plan(&mut self, run: &mut Run, repairs: &[Repair]) -> Result<bool, SearchError> {
        loop {
            let open =
                repairs.iter().map(|repair| &repair.machine).take_while(|machine| !is_planned(run, &machine.key));
            let open = open.filter(|one| !run.plans.contains_key(&one.key) && !self.hopeless.contains(&one.key));
            let mut batch: BTreeMap<&str, &Candidate> = BTreeMap::new();
            for machine in open {
                if batch.len() < rayon::current_num_threads() {
                    batch.entry(&machine.key).or_insert(machine);
                }
            }
            if batch.is_empty() {
                return Ok(true);
            }
            let answers: Vec<(&str, Option<Vec<Answer>>)> = batch
                .into_par_iter()
                .map(|(key, machine)| Ok((key, self.answers(machine)?)))
                .collect::<Result<_, SearchError>>()?;
            if self.planner.is_stopped() {
                return Ok(false);
            }
            for (key, answers) in answers {
                match answers {
                    Some(answers) => {
                        run.plans.insert(key.to_owned(), answers);
                    }
                    None => {
                        self.hopeless.insert(key.to_owned());
                    }
                }
            }
        }
    }

    /// The plans of a machine; `None` where a bound shows that a training has none.
    fn answers(&self, machine: &Candidate) -> Result<Option<Vec<Answer>>, SearchError> {
        let hardware = hardware(machine)?;
        let trains = 0..self.task.job.file.train.len();
        // Any rate is enough: the question is whether the bounds exclude all of them.
        let fits = |train| self.planner.closest_tokens_per_second(&hardware, train, f64::MIN_POSITIVE).is_finite();
        if !trains.clone().all(fits) {
            return Ok(None);
        }
        Ok(trains.map(|train| self.planner.plan(&hardware, train)).collect())
    }
}

/// Whether all trainings have plans on the machines of a key.
fn is_planned(run: &Run, key: &str) -> bool {
    let planned = |answer: &Answer| matches!(answer, Answer::Planned(_));
    run.plans.get(key).is_some_and(|answers| answers.iter().all(planned))
}
