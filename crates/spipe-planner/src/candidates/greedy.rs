//! Greedy planner: fills GPUs in layer order up to their memory, and spills the rest to CPU
//! sockets.
//!
//! The reference policy of the hybrid GPU + CPU pipeline (M. Diakonov, sPipe, 2026).

use crate::{
    bounds::to_time,
    candidates::begin,
    costs::{CostSums, StageSlot},
    feasibility::shortage,
    formulation::assignment::least_of_stages,
    problem::{PlanError, Problem, Solution, status},
    score::judge::{faster, judge},
    space::{
        rules::SystemSpec,
        subproblem::{Partition, Subproblem, schedule_kinds},
    },
};
use spipe_plan::{Placement, System, check};

/// The planner `greedy`.
pub(crate) fn plan(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let (deadline, costs) = begin(problem)?;
    let placements = placements(&costs, &problem.systems);
    let examined = placements.len();
    let best = placements.into_iter().map(|placement| judge(problem, placement)).fold(None, faster);
    let Some(best) = best else {
        return Err(shortage::greedy(&costs, &problem.systems, examined));
    };
    let bound = to_time(&costs, least_of_stages(&costs, &problem.systems));
    let status = status(false, deadline.over());
    Ok(Solution { examined, cases: examined, ..Solution::new(best, bound, status) })
}

/// Returns the greedy partition under each schedule that has one: on the fewest devices that
/// suffice, without recompute if possible, otherwise with everything recomputed.
pub(crate) fn placements(costs: &CostSums<'_>, systems: &[System]) -> Vec<Placement> {
    let order = device_order(costs);
    let mut list = Vec::new();
    for schedule in schedule_kinds(systems, order.iter().any(|device| costs.devices[*device].is_cpu)) {
        let tries =
            [false, true].into_iter().flat_map(|recompute| (1..=order.len()).map(move |count| (recompute, count)));
        let placement = |(recompute, count): (bool, usize)| {
            let case = Subproblem::new(costs, &order[..count], schedule);
            let has_cpu = order[..count].iter().any(|device| costs.devices[*device].is_cpu);
            let suits = has_cpu || !SystemSpec::of(schedule.system).needs_cpu;
            let joined = order[..count].windows(2).all(|pair| costs.p2p(pair[0], pair[1]).is_some());
            let partition = if suits && joined { fill(costs, &case, recompute) } else { None }?;
            let placement = case.placement(costs, &partition);
            check(&costs.context, &placement).is_ok().then_some(placement)
        };
        list.extend(tries.into_iter().find_map(placement));
    }
    list
}

/// Returns GPUs, then sockets, without devices that can hold no layer.
fn device_order(costs: &CostSums<'_>) -> Vec<usize> {
    let holds = |device: &usize| {
        (0..costs.layers).any(|layer| {
            let stage_slot = StageSlot::alone(*device);
            costs.devices[*device].least_recompute(costs.training, stage_slot, (layer, layer + 1), 0).is_some()
        })
    };
    let mut order: Vec<usize> = (0..costs.devices.len()).filter(holds).collect();
    order.sort_by_key(|device| (costs.devices[*device].is_cpu, *device));
    order
}

/// Gives each stage as many layers as fit, leaving at least one for each later stage.
fn fill(costs: &CostSums<'_>, case: &Subproblem, recompute: bool) -> Option<Partition> {
    let stages = case.stages();
    let mut partition = Partition::default();
    let mut from = 0;
    for stage in 0..stages {
        let farthest = costs.layers.checked_sub(stages - 1 - stage)?;
        let device = case.device(costs, stage);
        let recomputed = |to: usize| if recompute && costs.training { to - from } else { 0 };
        let may = |to: usize| {
            let (least, most) = device.recomputes(costs.training, from, to).unwrap_or((1, 0));
            (least..=most).contains(&recomputed(to))
        };
        let fits = |to: &usize| {
            device.able(from, *to)
                && may(*to)
                && device.need(case.stage_slots[stage], (from, *to), recomputed(*to)) <= device.usable
        };
        let nearest = if stage + 1 == stages { costs.layers } else { from + 1 };
        let to = (nearest.max(from + 1)..=farthest).take_while(fits).last()?;
        partition.push(to, recomputed(to));
        from = to;
    }
    Some(partition)
}
