//! Valid inequalities: lower bounds of the period that every partition of a subproblem obeys,
//! written as cycles of its event graph.
//!
//! Notation, for stage i of p stages and m microbatches:
//!
//! | symbol | meaning |
//! |---|---|
//! | F, R, B | forward, recompute and backward of one microbatch |
//! | O | optimizer step: on the device, or G + P + C on a socket |
//! | G, P, C | gradients out, step on the socket, parameters back |
//! | a, g | transfer of an activation and of a gradient over a boundary |
//! | K_i | limit on microbatches between forward and backward |
//!
//! S = Σ_j (F_j + B_j) + Σ_j (a_j + g_j) + O_0 is one microbatch's path through all stages and
//! back, with the first stage's step.
//!
//! A device is one lane. A stage starts an iteration when its optimizer step of the previous one
//! has ended.

use crate::{
    costs::CostSums,
    score::event_graph::{CriticalCycle, Passes},
    space::subproblem::Subproblem,
};

/// Returns the valid inequalities of all families for every stage. Optimizer steps of several stages on
/// one socket are left to the critical cycles of solutions.
pub(crate) fn families(costs: &CostSums<'_>, case: &Subproblem) -> Vec<CriticalCycle> {
    let (m, training) = (costs.microbatches as u32, costs.training);
    let stages = case.stages();
    if !training {
        return (0..stages).map(|stage| own(stages, stage, Passes { forward: m, ..Passes::default() })).collect();
    }
    let all = Passes { forward: m, recompute: m, backward: m, ..Passes::STEP };
    let mut cycles: Vec<CriticalCycle> = (0..stages).map(|stage| own(stages, stage, all)).collect();
    if case.frozen > 0 {
        // A first stage of frozen layers alone receives no gradient.
        return cycles;
    }
    cycles.extend((1..stages).map(|stage| chain(stages, stage, m)));
    for stage in 0..stages {
        let rest = m - case.stage_slots[stage].in_flight as u32;
        cycles.push(turnaround(stages, stage, (rest, m - 1)));
        cycles.push(turnaround(stages, stage, (m - 1, rest)));
    }
    cycles
}

/// Work of one device: `T ≥ m (F_i + R_i + B_i) + O_i`, all on one lane in every iteration.
fn own(stages: usize, stage: usize, passes: Passes) -> CriticalCycle {
    let mut cycle = CriticalCycle::empty(stages);
    cycle.stages[stage] = passes;
    cycle
}

/// Fill and drain of stage i: `T ≥ Σ_{j<i} (F_j + a_j + g_j + B_j) + m (F_i + R_i + B_i) + O_0`.
///
/// Stage i starts after microbatch 0 has passed all earlier stages, processes all microbatches, and
/// its last gradient passes the earlier stages before stage 0 can update.
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

/// Turnaround at stage i, from the front: `T ≥ S + R_{p−1} + (m − K_i) F_i + (m − 1)(R_i + B_i)`.
/// When microbatch 0 returns to stage i, at most K_i forwards have run there. The others and m − 1
/// backwards follow, and the last gradient still travels to stage 0.
///
/// From the end: `T ≥ S + R_{p−1} + (m − 1) F_i + (m − K_i)(R_i + B_i)`. The last microbatch enters
/// stage i after m − 1 forwards and all but K_i backwards, then passes the later stages and returns
/// to stage 0.
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
