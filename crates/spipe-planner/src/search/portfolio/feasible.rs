//! The first stage: whether anything fits.

use super::standing::{Standing, SystemState};
use crate::{
    feasibility::{closest, shortage},
    problem::{PlanError, Problem, SYSTEMS},
    search::fits::{self, Decision},
};
use rayon::prelude::*;
use spipe_plan::{Placement, System};

/// A problem for which no sum shows that nothing fits.
pub(super) struct Feasible<'s, 'a> {
    pub(super) standing: Standing<'s, 'a>,
    /// The systems whose stages are planned.
    pub(super) planned: Vec<System>,
    /// A placement that fits.
    pub(super) fallback: Option<Placement>,
}

impl<'s, 'a> Feasible<'s, 'a> {
    /// Tests whether anything fits, where integer programs yield candidates.
    ///
    /// # Errors
    /// Returns the shortage, if nothing fits.
    pub(super) fn of(problem: &'s Problem<'a>) -> Result<Self, PlanError> {
        let (planned, other): (Vec<System>, Vec<System>) =
            problem.systems.iter().partition(|system| SYSTEMS.contains(system));
        let of_start = problem.options.start.as_ref().map(|start| start.system);
        let of_start = of_start.filter(|start| SYSTEMS.contains(start) && planned.contains(start));
        let generated: Vec<System> = other.into_iter().chain(of_start).collect();
        let standing = Standing::new(problem, &generated);
        shortage::enough_in_total(&problem.context)?;
        let fallback = if problem.options.has_programs() { standing.decide(&planned)? } else { None };
        Ok(Self { standing, planned, fallback })
    }
}

impl Standing<'_, '_> {
    /// A placement that fits, if one is found at once; the shortage, if none exists. `planned` are the systems
    /// whose stages are planned.
    pub(super) fn decide(&self, planned: &[System]) -> Result<Option<Placement>, PlanError> {
        let (problem, options) = (self.problem, &self.problem.options);
        let known = options.incumbent.is_some() || options.start.is_some();
        if known || self.deadline.stopped() || problem.systems.is_empty() {
            return Ok(None);
        }
        let systems = &self.systems;
        let candidates = |system: System| {
            let known = systems.iter().find(|known| known.system == system);
            known.map_or_else(Vec::new, |known| known.candidates(problem).clone())
        };
        match fits::decide(problem, &candidates, &self.deadline) {
            Decision::Fits(placement) => Ok(Some(placement)),
            Decision::Never => {
                let (systems, options) = (planned.to_vec(), options.clone());
                let of_stages = Problem { systems, options, ..*problem };
                let refused = (!planned.is_empty()).then(|| fits::shortage_of_stages(&of_stages, &self.costs));
                Err(self.refusal(refused, 0))
            }
            Decision::Unfound | Decision::Open(_) => Ok(None),
        }
    }

    /// Returns why no system has a plan: the shortage of the closest candidate, or the planner's
    /// error.
    pub(super) fn refusal(&self, refused: Option<PlanError>, examined: usize) -> PlanError {
        if let Err(error) = shortage::lonely_layers(&self.costs) {
            return error;
        }
        let of = |known: &SystemState| known.candidates(self.problem).clone();
        let candidates: Vec<Placement> = self.systems.par_iter().flat_map(of).collect();
        let closest = closest::closest(&self.problem.context, &candidates);
        match (closest, refused) {
            (Some(shortage), Some(refused)) => shortage.or_closer(refused, &self.problem.context),
            (Some(shortage), None) => shortage.error(&self.problem.context),
            (None, Some(refused)) => refused,
            (None, None) => closest::without_shortage(self.problem, &candidates, examined),
        }
    }
}
