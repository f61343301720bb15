//! Cutting-plane loop of one subproblem: its integer program is solved and extended by cuts and
//! no-goods until nothing below the limit is left.

use crate::problem::bound::Bound;
use crate::problem::tolerances::{ROUNDING, STAGE_PROGRAM};
use crate::search::branch_and_bound::tree::{SubproblemState, Tree, TreeResult};
use crate::{
    formulation::{
        solver::{Answer, Settings},
        stage_milp::StageMilp,
    },
    score::event_graph::EventGraph,
    space::subproblem::{Partition, Subproblem},
};

/// The cutting-plane loop of one subproblem.
pub(crate) struct Visit<'v, 's, 'a> {
    pub search: &'v Tree<'s, 'a>,
    pub case: &'v Subproblem,
    pub graph: EventGraph,
    pub milp: StageMilp<'v, 'a>,
    pub known: &'v mut SubproblemState,
    pub found: &'v mut TreeResult,
}

impl Visit<'_, '_, '_> {
    /// Solves once and adds cuts; returns whether to continue.
    pub fn step(&mut self) -> bool {
        let search = self.search;
        let limit = search.limit(self.found.best.as_ref());
        if self.known.bound >= limit {
            return false;
        }
        if search.deadline.over() || self.found.examined >= search.problem.options.candidates_per_case {
            return self.give_up(None);
        }
        let gap = search.problem.options.gap.max(0.0) / 4.0;
        let settings =
            Settings { gap, time_limit: search.deadline.left(), second_try: self.milp.cautious, ..Settings::default() };
        let (unknowns, problem) = self.milp.problem(limit);
        self.found.solves += 1;
        match (search.solver)(problem, &settings) {
            Answer::Infeasible => {
                self.known.bound = self.known.bound.max(Bound::of_limit(limit));
                false
            }
            Answer::Solved(solution) => {
                let (partition, objective) = self.milp.decode(&unknowns, &solution);
                let proven = (objective * (1.0 - gap - STAGE_PROGRAM)).min(limit);
                self.known.bound = self.known.bound.max(Bound::AtLeast(proven));
                self.take(partition, limit)
            }
            Answer::Stopped(solution) => {
                if let Some(solution) = solution {
                    let (partition, _) = self.milp.decode(&unknowns, &solution);
                    self.take(partition, limit);
                }
                self.give_up(None)
            }
            Answer::Trouble(what) => self.again(what),
        }
    }

    /// Evaluates the solver's partition; returns whether to continue.
    fn take(&mut self, partition: Partition, limit: f64) -> bool {
        if let Err(faults) =
            spipe_plan::check(&self.search.problem.context, &self.case.placement(self.search.costs, &partition))
        {
            let first = faults.iter().next().map_or_else(String::new, |fault| fault.message.clone());
            return self.again(format!("its solution does not pass the check: {first}"));
        }
        let times = self.case.times(self.search.costs, &partition);
        let (period, cycles) = self.graph.period(&times);
        let mut learned = false;
        for cycle in cycles {
            if self.known.bound < cycle.period(&times) / (1.0 + ROUNDING) {
                learned |= self.milp.learn(cycle);
            }
        }
        if period < limit || !learned {
            self.simulate(partition, period);
        }
        true
    }

    pub fn simulate(&mut self, partition: Partition, period: f64) {
        let (found, all) = TreeResult::judge(self.search.problem, self.search.costs, self.case, &partition);
        self.known.excluded = self.known.excluded.min(Bound::AtLeast(period));
        if !all {
            self.known.untried = self.known.untried.min(Bound::AtLeast(period));
        }
        self.found.merge(found);
        self.milp.exclude(partition);
    }

    /// Retries once with other settings.
    fn again(&mut self, what: String) -> bool {
        if self.milp.cautious {
            return self.give_up(Some(what));
        }
        self.milp.cautious = true;
        true
    }

    fn give_up(&mut self, trouble: Option<String>) -> bool {
        self.known.open = true;
        self.known.trouble = trouble;
        false
    }
}
