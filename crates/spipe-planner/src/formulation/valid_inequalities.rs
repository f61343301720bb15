//! The lower bounds that every division of a case obeys, as cycles of its order graph.
//!
//! Notation: m microbatches; stage i holds at most K_i microbatches between forward and backward; F, R, B, O are the
//! forward, recompute, backward and optimizer step of a stage, which is G + P + C where its gradients go to a socket that steps
//! and returns the parameters; a and g the transfers of activation and gradient over a
//! boundary; S = Σ_j (F_j + B_j) + Σ_j (a_j + g_j) + O_0 is one microbatch's way through all stages and back, with the first
//! stage's step. A device is one lane, and an iteration begins on a stage when its optimizer step of the one before has
//! ended.

use crate::{
    costs::CostSums,
    score::event_graph::{CriticalCycle, Passes},
    space::subproblem::Subproblem,
};
use spipe_base::DeviceId;
use std::collections::BTreeMap;

/// All families for all stages.
pub(crate) fn families(costs: &CostSums<'_>, case: &Subproblem) -> Vec<CriticalCycle> {
    let (m, training) = (costs.microbatches as u32, costs.training);
    let stages = case.stages();
    if !training {
        return (0..stages).map(|stage| own(stages, stage, Passes { forward: m, ..Passes::default() })).collect();
    }
    let all = Passes { forward: m, recompute: m, backward: m, ..Passes::STEP };
    let mut cycles: Vec<CriticalCycle> = (0..stages).map(|stage| own(stages, stage, all)).collect();
    if case.frozen > 0 {
        // No gradient comes back to a first stage of frozen layers alone.
        return cycles;
    }
    cycles.extend((1..stages).map(|stage| chain(stages, stage, m)));
    for stage in 0..stages {
        let rest = m - case.seats[stage].in_flight as u32;
        cycles.push(turnaround(stages, stage, (rest, m - 1)));
        cycles.push(turnaround(stages, stage, (m - 1, rest)));
    }
    cycles.extend((0..stages).flat_map(|stage| in_turn(costs, case, stage)));
    cycles
}

/// `T ≥ C_f + Σ_{f≤j<i} (F_j + a_j) + m (F_i + R_i + B_i) + Σ_{l≤j<i} (g_j + B_j) + G_l + Σ_{f≤j≤l, on s} P_j` for each socket s that
/// steps stages up to i, l the last and f the first of them: after the last backward of stage i its gradient goes back to stage
/// l, whose gradients the socket gets; it steps them and then those of the stages before, down to stage f, which cannot
/// begin before, nor can stage i.
fn in_turn(costs: &CostSums<'_>, case: &Subproblem, stage: usize) -> Vec<CriticalCycle> {
    let m = costs.microbatches as u32;
    let mut sockets: BTreeMap<DeviceId, Vec<usize>> = BTreeMap::new();
    for before in (0..=stage).filter(|before| case.host_offload(*before).optimizer) {
        if let Some(host) = case.device(costs, before).host(case.host_offload(before)) {
            sockets.entry(host.socket).or_default().push(before);
        }
    }
    let cycle = |stepped: Vec<usize>| {
        let (first, last) = (*stepped.first()?, *stepped.last()?);
        let mut cycle = CriticalCycle::empty(case.stages());
        for before in first..stage {
            (cycle.stages[before].forward, cycle.activations[before]) = (1, 1);
        }
        for before in last..stage {
            (cycle.stages[before].backward, cycle.gradients[before]) = (1, 1);
        }
        cycle.stages[stage] = Passes { forward: m, recompute: m, backward: m, ..Passes::default() };
        (cycle.stages[first].back, cycle.stages[last].out) = (1, 1);
        stepped.into_iter().for_each(|stepped| cycle.stages[stepped].step = 1);
        Some(cycle)
    };
    sockets.into_values().filter_map(cycle).collect()
}

/// `T ≥ m (F_i + R_i + B_i) + O_i`: all of that is on one lane in every iteration.
fn own(stages: usize, stage: usize, passes: Passes) -> CriticalCycle {
    let mut cycle = CriticalCycle::empty(stages);
    cycle.stages[stage] = passes;
    cycle
}

/// `T ≥ Σ_{j<i} (F_j + a_j + g_j + B_j) + m (F_i + R_i + B_i) + O_0`: stage i starts with microbatch 0 after that has
/// passed all stages before it, is busy with all microbatches, and its last backward's gradient passes them all again
/// before stage 0 can step.
fn chain(stages: usize, stage: usize, m: u32) -> CriticalCycle {
    let mut cycle = CriticalCycle::empty(stages);
    for before in 0..stage {
        cycle.stages[before] = Passes { forward: 1, backward: 1, ..Passes::default() };
        (cycle.activations[before], cycle.gradients[before]) = (1, 1);
    }
    cycle.stages[0].add(&Passes::STEP);
    cycle.stages[stage] = Passes { forward: m, recompute: m, backward: m, ..Passes::default() };
    cycle
}

/// `T ≥ S + R_{p−1} + (m − K_i) F_i + (m − 1)(R_i + B_i)`: microbatch 0 goes through all stages and comes back to stage i,
/// which has run K_i forwards by then and has the others and m − 1 backwards before it, the last of which still has to
/// travel to stage 0.
///
/// `T ≥ S + R_{p−1} + (m − 1) F_i + (m − K_i)(R_i + B_i)`: seen from the end, the last microbatch enters stage i after
/// m − 1 forwards and all but K_i backwards, and then goes through the rest of the stages and back to stage 0.
fn turnaround(stages: usize, stage: usize, (forwards, backwards): (u32, u32)) -> CriticalCycle {
    let mut cycle = CriticalCycle::empty(stages);
    cycle.stages.fill(Passes { forward: 1, backward: 1, ..Passes::default() });
    cycle.activations.fill(1);
    cycle.gradients.fill(1);
    cycle.stages[0].add(&Passes::STEP);
    cycle.stages[stages - 1].recompute = 1;
    let passes = &mut cycle.stages[stage];
    passes.forward += forwards;
    passes.recompute += backwards;
    passes.backward += backwards;
    cycle
}
