//! Greedy: GPUs are filled in layer order up to their memory, and what does not fit spills to CPU sockets.
//!
//! The reference policy of the hybrid GPU + CPU pipeline (M. Diakonov, sPipe, 2026).

use crate::{
    Claim, PlanError, Planner, Problem, Solution,
    case::{Case, Division, disciplines, faster, judge},
    deadline::Deadline,
    figures::{Figures, Seat},
    ilp::search::to_time,
    reason,
    relaxation::least_of_stages,
};
use spipe_plan::{OutcomeStatus, Placement, System, check};

/// The planner.
pub(crate) struct Greedy;

impl Planner for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn claim(&self) -> Claim {
        Claim::Heuristic
    }

    fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError> {
        let deadline = Deadline::new(problem);
        let figures = Figures::new(problem.context, &problem.options);
        if deadline.stopped() {
            return Err(PlanError::StoppedWithoutPlan { examined: 0 });
        }
        reason::obvious(&figures)?;
        let placements = placements(&figures, &problem.systems);
        let examined = placements.len();
        let best = placements.into_iter().map(|placement| judge(problem, placement)).fold(None, faster);
        let Some((simulated, placement)) = best else {
            return Err(reason::greedy(&figures, &problem.systems, examined));
        };
        let bound = to_time(&figures, least_of_stages(&figures, &problem.systems)).min(simulated);
        Ok(Solution {
            placement,
            status: if deadline.over() { OutcomeStatus::Stopped } else { OutcomeStatus::Feasible },
            bound,
            simulated,
            gap: Solution::gap_of(simulated, bound),
            examined,
            solves: 0,
            cases: examined,
            considered: Vec::new(),
        })
    }
}

/// The greedy division of the layers, under each discipline for which there is one: over the fewest devices that will do,
/// without recompute if possible, otherwise with everything recomputed.
pub(crate) fn placements(figures: &Figures<'_>, systems: &[System]) -> Vec<Placement> {
    let order = device_order(figures);
    let mut list = Vec::new();
    for discipline in disciplines(systems, order.iter().any(|device| figures.devices[*device].is_cpu)) {
        let tries =
            [false, true].into_iter().flat_map(|recompute| (1..=order.len()).map(move |count| (recompute, count)));
        let placement = |(recompute, count): (bool, usize)| {
            let case = Case::new(figures, &order[..count], discipline);
            let suits = discipline.system != System::Hybrid
                || order[..count].iter().any(|device| figures.devices[*device].is_cpu);
            let joined = (0..count - 1).all(|stage| case.hops(figures, stage).is_some());
            let division = if suits && joined { fill(figures, &case, recompute) } else { None }?;
            let placement = case.placement(figures, &division);
            check(&figures.context, &placement).is_ok().then_some(placement)
        };
        list.extend(tries.into_iter().find_map(placement));
    }
    list
}

/// GPUs, then sockets, without devices that can hold no layer at all.
fn device_order(figures: &Figures<'_>) -> Vec<usize> {
    let holds = |device: &usize| {
        (0..figures.layers).any(|layer| {
            let seat = Seat::alone(*device);
            figures.devices[*device].least_recompute(figures.training, seat, (layer, layer + 1), 0).is_some()
        })
    };
    let mut order: Vec<usize> = (0..figures.devices.len()).filter(holds).collect();
    order.sort_by_key(|device| (figures.devices[*device].is_cpu, *device));
    order
}

/// Gives each stage as many layers as fit, as long as one is left for each stage after it.
fn fill(figures: &Figures<'_>, case: &Case, recompute: bool) -> Option<Division> {
    let stages = case.stages();
    let mut division = Division { ends: Vec::new(), recomputed: Vec::new() };
    let mut from = 0;
    for stage in 0..stages {
        let farthest = figures.layers.checked_sub(stages - 1 - stage)?;
        let device = case.device(figures, stage);
        let recomputed = |to: usize| if recompute && figures.training { to - from } else { 0 };
        let may = |to: usize| {
            let (least, most) = device.recomputes(figures.training, from, to).unwrap_or((1, 0));
            (least..=most).contains(&recomputed(to))
        };
        let fits = |to: &usize| {
            device.able(from, *to)
                && may(*to)
                && device.need(case.seats[stage], (from, *to), recomputed(*to)) <= device.usable
        };
        let nearest = if stage + 1 == stages { figures.layers } else { from + 1 };
        let to = (nearest.max(from + 1)..=farthest).take_while(fits).last()?;
        division.ends.push(to);
        division.recomputed.push(recomputed(to));
        from = to;
    }
    Some(division)
}
