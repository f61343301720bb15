//! The last stage: improved placements, and the search's result.

use super::{
    simulated::Simulated,
    standing::{Standing, SystemState},
};
use crate::{
    bounds::to_time,
    problem::{Considered, PlanError, Solution, bound::Bound, in_pool, status},
    score::judge::Scored,
};
use spipe_base::SimTime;

/// A problem whose best placements are improved.
pub(super) struct Improved<'s, 'a>(Simulated<'s, 'a>);

impl<'s, 'a> Simulated<'s, 'a> {
    /// Tries several stages per device, improves the best placements by local search, and enumerates systems with
    /// few placements.
    ///
    /// # Errors
    /// Returns why there are no threads.
    pub(super) fn improved(mut self) -> Result<Improved<'s, 'a>, PlanError> {
        in_pool(self.standing.problem, || {
            self.cut();
            self.improve();
            self.exhaust();
            Ok(())
        })?;
        Ok(Improved(self))
    }
}

impl Improved<'_, '_> {
    /// The best plan, with the bounds of all systems.
    ///
    /// # Errors
    /// Returns why there is none.
    pub(super) fn conclude(self) -> Result<Solution, PlanError> {
        let Simulated { standing, programs, planned } = self.0;
        let (refused, cases) = planned.map_or((None, 0), |planned| (planned.refused, planned.cases));
        let limit = standing.limit();
        let examined =
            standing.heuristic_plans.len() + standing.systems.iter().map(|known| known.examined).sum::<usize>();
        // A plan to start with has an entry of its own. If its system is the only one, both entries
        // bound all placements.
        let bounds = standing.systems.iter().map(|known| known.bound);
        let alone = standing.problem.systems.len() == 1;
        let least =
            if alone { bounds.fold(Bound::NONE, Bound::max) } else { bounds.fold(Bound::Infeasible, Bound::min) };
        let (over, best) = (standing.deadline.was_truncated(), standing.best().cloned());
        let bound = to_time(&standing.costs, least);
        let considered = considered(&standing);
        let Some((simulated, placement)) = best else {
            return Err(match refused {
                _ if standing.problem.options.incumbent.is_some() => {
                    PlanError::NothingBetter { bound, examined, stopped: over, considered }
                }
                None if standing.systems.is_empty() => PlanError::NoSystem,
                Some(error @ PlanError::StoppedWithoutPlan { .. }) => error,
                _ if over => PlanError::StoppedWithoutPlan { examined },
                refused => standing.refusal(refused, examined),
            });
        };
        // A plan to start with may be outside the space: if it beats a bound, the bound does not
        // apply.
        let given = standing.problem.options.start.as_ref() == Some(&placement);
        let beaten = given && bound > simulated;
        let (bound, least) = if beaten { (SimTime::ZERO, Bound::NONE) } else { (bound, least) };
        let status = status(least >= limit, over);
        let baseline = standing.heuristic_plans.iter().map(|(time, _)| *time).chain(programs).min();
        Ok(Solution {
            examined,
            cases: cases.max(standing.systems.len()),
            baseline,
            considered,
            ..Solution::new((simulated, placement), bound, status)
        })
    }
}

/// The results by system.
fn considered(standing: &Standing<'_, '_>) -> Vec<Considered> {
    let of = |known: &SystemState| {
        let simulated = known.best.as_ref().map(|(time, _)| *time);
        // If no other placement fits, its best is the bound.
        let bound = known.bound.is_feasible().then(|| to_time(&standing.costs, known.bound));
        let bound = [bound, simulated].into_iter().flatten().min();
        Considered { system: known.system, bound, simulated, skipped: known.skipped, examined: known.examined }
    };
    let mut all = each_once(standing.systems.iter().map(of));
    // Plans of the heuristics are simulated as well.
    for known in &mut all {
        let heuristic = |(_, placement): &&Scored| placement.system == known.system;
        known.examined += standing.heuristic_plans.iter().filter(heuristic).count();
    }
    all
}

/// Merges the entries of each system: a plan to start with is improved apart from the planned ones.
fn each_once(all: impl Iterator<Item = Considered>) -> Vec<Considered> {
    let mut list: Vec<Considered> = Vec::new();
    for next in all {
        let Some(known) = list.iter_mut().find(|known| known.system == next.system) else {
            list.push(next);
            continue;
        };
        // Both bound all placements of the system.
        known.simulated = [known.simulated, next.simulated].into_iter().flatten().min();
        known.bound = [known.bound, next.bound].into_iter().flatten().max();
        known.bound = [known.bound, known.simulated].into_iter().flatten().min();
        known.skipped &= next.skipped;
        known.examined += next.examined;
    }
    list
}
