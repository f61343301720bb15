//! Integer program of one subproblem: where its stages end and what they recompute.
//!
//! Consecutive layers of equal cost are a *run*. The variables count the layers of each run in the
//! first stages, so that equal layers cause no symmetry. Times are in [`StageMilp::unit`] ms, sizes
//! in GiB.

mod frozen;
mod hosts;

use crate::formulation::valid_inequalities::families;
use crate::problem::tolerances::SLACK_GIB;
use crate::{
    costs::{CostSums, DeviceSums, slots_in, slots_out},
    score::event_graph::{CriticalCycle, Passes},
    space::subproblem::{Partition, Subproblem},
};
use good_lp::{
    Constraint, Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, highs,
    solvers::highs::HighsProblem, variable, variables,
};
use spipe_base::{Bytes, LinkId, MemoryId};
use spipe_plan::OFFLOAD_SLOTS;
use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
mod tests;

const GIB: f64 = (1u64 << 30) as f64;

/// The integer program of a subproblem, with the cuts and no-goods found so far.
pub(crate) struct StageMilp<'f, 'a> {
    costs: &'f CostSums<'a>,
    case: &'f Subproblem,
    /// Cuts: lower bounds of the period that every partition obeys.
    cycles: BTreeSet<CriticalCycle>,
    /// No-goods: partitions that have been evaluated already.
    excluded: BTreeSet<Partition>,
    /// Milliseconds that are 1, chosen such that iterations are near 1000.
    pub unit: f64,
    /// Whether the program has rows for the loads of links.
    pub links: bool,
    /// Whether memories are reduced by [`SLACK_GIB`].
    pub cautious: bool,
}

/// Variables; i is a stage, k a run.
pub(crate) struct Unknowns {
    /// T: iteration time.
    iteration: Variable,
    /// y_ik: layers of run k in stages 0..=i, for all stages but the last.
    done: Vec<Vec<Variable>>,
    /// v_ik ∈ {0, 1}: whether any layer of run k is in stages 0..=i.
    begun: Vec<Vec<Variable>>,
    /// r_ik: layers of run k that stage i recomputes.
    recomputed: Vec<Vec<Variable>>,
    /// w_ik ∈ {0, 1}: whether the recompute of stage i may extend beyond run k.
    passed: Vec<Vec<Variable>>,
    /// ρ_i ∈ {0, 1}: whether stage i recomputes anything.
    recomputes: Vec<Variable>,
    /// M_i: GiB that stage i holds per microbatch.
    held: Vec<Variable>,
    /// W_i: the largest workspace of stage i.
    workspace: Vec<Variable>,
    /// h_ik ∈ {0, 1}: whether stage i has layers of run k; only for runs with a workspace.
    touches: Vec<Vec<Option<Variable>>>,
    /// a°_i, s_i: input and parameters of stage i if it has no backward; only with frozen layers.
    once: Vec<Variable>,
    stays: Vec<Variable>,
}

impl<'f, 'a> StageMilp<'f, 'a> {
    /// Creates the program of `case` with the valid inequalities of [`families`].
    pub fn new(costs: &'f CostSums<'a>, case: &'f Subproblem, unit: f64) -> Self {
        let cycles = families(costs, case).into_iter().collect();
        Self { costs, case, cycles, excluded: BTreeSet::new(), unit, links: true, cautious: false }
    }

    /// Adds a critical cycle as a cut; returns false if it is known already.
    pub fn learn(&mut self, cycle: CriticalCycle) -> bool {
        self.cycles.insert(cycle)
    }

    /// Excludes `partition` by a no-good.
    pub fn exclude(&mut self, partition: Partition) {
        self.excluded.insert(partition);
    }

    /// Returns the program for iterations of at most `limit` ms, ready to be solved.
    pub fn problem(&self, limit: f64) -> (Unknowns, HighsProblem) {
        let mut vars = variables!();
        let unknowns = self.unknowns(&mut vars, limit);
        let mut rows = self.order(&unknowns);
        rows.extend(self.ability(&unknowns));
        rows.extend(self.recompute_in_front(&unknowns));
        rows.extend(self.activations(&unknowns));
        rows.extend(self.without_backward(&unknowns));
        rows.extend(self.workspaces(&unknowns));
        rows.extend(self.memories(&unknowns));
        rows.extend(self.socket_loads(&unknowns));
        rows.extend(self.streams(&unknowns));
        if self.links {
            rows.extend(self.link_loads(&unknowns));
        }
        rows.extend(self.cycles.iter().map(|cycle| self.critical(&unknowns, cycle)));
        for partition in &self.excluded {
            rows.extend(self.exclusion(&unknowns, &mut vars, partition));
        }
        let mut problem = vars.minimise(unknowns.iteration).using(highs);
        for row in rows {
            problem.add_constraint(row);
        }
        (unknowns, problem)
    }

    fn stages(&self) -> usize {
        self.case.stages()
    }

    fn runs(&self) -> &[(usize, usize)] {
        &self.costs.runs
    }

    fn device(&self, stage: usize) -> &DeviceSums {
        self.case.device(self.costs, stage)
    }

    fn unknowns(&self, vars: &mut ProblemVariables, limit: f64) -> Unknowns {
        let (stages, runs) = (self.stages(), self.runs());
        let iteration = variable().min(0.0).name("iteration");
        let iteration = if limit.is_finite() { iteration.max(limit / self.unit) } else { iteration };
        let mut table = |name: &str, rows: usize, integer: bool| -> Vec<Vec<Variable>> {
            let cell = |row: usize, run: usize| {
                let most = if integer { runs[run].1 as f64 } else { 1.0 };
                variable().integer().min(0.0).max(most).name(format!("{name}_{row}_{run}"))
            };
            (0..rows).map(|row| (0..runs.len()).map(|run| vars.add(cell(row, run))).collect()).collect()
        };
        let done = table("done", stages - 1, true);
        let begun = table("begun", stages - 1, false);
        let rows = if self.costs.training { stages } else { 0 };
        let recomputed = table("recomputed", rows, true);
        let passed = table("passed", rows, false);
        let mut list = |name: &str, binary: bool| -> Vec<Variable> {
            let cell = |stage: usize| {
                let cell = variable().min(0.0).name(format!("{name}_{stage}"));
                if binary { cell.integer().max(1.0) } else { cell }
            };
            (0..stages).map(|stage| vars.add(cell(stage))).collect()
        };
        let (recomputes, held, workspace) = (list("recomputes", true), list("held", false), list("workspace", false));
        let (once, stays) =
            if self.costs.frozen > 0 { (list("once", false), list("stays", false)) } else { Default::default() };
        let touch = |stage: usize, run: usize, vars: &mut ProblemVariables| {
            let needs = self.device(stage).bytes[runs[run].0].workspace.get() > 0;
            needs.then(|| vars.add(variable().binary().name(format!("touches_{stage}_{run}"))))
        };
        let touches = (0..stages).map(|stage| (0..runs.len()).map(|run| touch(stage, run, vars)).collect()).collect();
        let iteration = vars.add(iteration);
        Unknowns { iteration, done, begun, recomputed, passed, recomputes, held, workspace, touches, once, stays }
    }

    /// Returns x_ik = y_ik − y_{i−1,k}: layers of run k in stage i.
    fn layers(&self, unknowns: &Unknowns, stage: usize, run: usize) -> Expression {
        let until: Expression = match unknowns.done.get(stage) {
            Some(done) => done[run].into(),
            None => (self.runs()[run].1 as f64).into(),
        };
        if stage == 0 { until } else { until - unknowns.done[stage - 1][run] }
    }

    /// Returns Σ_k per_layer(k) x_ik.
    fn sum(&self, unknowns: &Unknowns, stage: usize, per_layer: impl Fn(usize) -> f64) -> Expression {
        let mut sum = Expression::from(0.0);
        for (run, (first, _)) in self.runs().iter().enumerate() {
            sum += self.layers(unknowns, stage, run) * per_layer(*first);
        }
        sum
    }

    /// Returns Σ_k per_layer(k) r_ik.
    fn sum_recomputed(&self, unknowns: &Unknowns, stage: usize, per_layer: impl Fn(usize) -> f64) -> Expression {
        let mut sum = Expression::from(0.0);
        for (variable, (first, _)) in unknowns.recomputed.get(stage).into_iter().flatten().zip(self.runs()) {
            sum.add_mul(per_layer(*first), *variable);
        }
        sum
    }

    /// Returns Σ_k per_layer(k) (v_ik − v_{i,k+1}): `per_layer` of the last layer of stage i, which
    /// is not the last stage.
    fn at_boundary(&self, unknowns: &Unknowns, stage: usize, per_layer: impl Fn(usize) -> f64) -> Expression {
        let mut sum = Expression::from(0.0);
        let begun = &unknowns.begun[stage];
        for (run, (first, _)) in self.runs().iter().enumerate() {
            sum.add_mul(per_layer(*first), begun[run]);
            if let Some(next) = begun.get(run + 1) {
                sum.add_mul(-per_layer(*first), *next);
            }
        }
        sum
    }

    /// Order of the layers: runs are used up in order, and every stage has a layer. With n_k layers
    /// in run k, `v_ik ≤ y_ik ≤ n_k v_ik`, `y_ik ≥ n_k v_{i,k+1}`, `x_ik ≥ 0`, `Σ_k x_ik ≥ 1`.
    fn order(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for (done, begun) in unknowns.done.iter().zip(&unknowns.begun) {
            for (run, (_, count)) in self.runs().iter().enumerate() {
                let count = *count as f64;
                rows.push(constraint!(begun[run] <= done[run]));
                rows.push(constraint!(done[run] <= count * begun[run]));
                if let Some(next) = begun.get(run + 1) {
                    rows.push(constraint!(done[run] >= count * *next));
                }
            }
        }
        for stage in 0..self.stages() {
            rows.push(constraint!(self.sum(unknowns, stage, |_| 1.0) >= 1.0));
            if stage > 0 {
                rows.extend((0..self.runs().len()).map(|run| constraint!(self.layers(unknowns, stage, run) >= 0.0)));
            }
        }
        rows
    }

    /// Devices that cannot run the layers of run k, or may not: `x_ik ≤ 0`.
    fn ability(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for stage in 0..self.stages() {
            for (run, (first, _)) in self.runs().iter().enumerate() {
                let allowed = self.device(stage).allows(self.case.host_offload(stage), *first, first + 1);
                if !allowed || self.device(stage).times[*first].is_none() {
                    rows.push(constraint!(self.layers(unknowns, stage, run) <= 0.0));
                }
            }
        }
        rows
    }

    /// Recompute of the first layers of a stage: `r_ik ≤ x_ik`, `r_{i,k+1} ≤ n_{k+1} w_ik`,
    /// `x_ik − r_ik ≤ n_k (1 − w_ik)`, and `r_ik ≤ n_k ρ_i`. Pinned runs have `r_ik = x_ik` or
    /// `r_ik = 0`.
    fn recompute_in_front(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for (stage, recomputed) in unknowns.recomputed.iter().enumerate() {
            for (run, (first, count)) in self.runs().iter().enumerate() {
                let (count, layers) = (*count as f64, self.layers(unknowns, stage, run));
                rows.push(constraint!(recomputed[run] <= layers.clone()));
                match self.device(stage).wanted[*first] {
                    Some(true) => rows.push(constraint!(recomputed[run] >= layers.clone())),
                    Some(false) => rows.push(constraint!(recomputed[run] <= 0.0)),
                    None => {}
                }
                rows.push(constraint!(recomputed[run] <= count * unknowns.recomputes[stage]));
                if let (Some(next), Some((_, next_count))) = (recomputed.get(run + 1), self.runs().get(run + 1)) {
                    let passed = unknowns.passed[stage][run];
                    rows.push(constraint!(*next <= *next_count as f64 * passed));
                    rows.push(constraint!(layers - recomputed[run] <= count - count * passed));
                }
            }
        }
        rows
    }

    /// Returns the GiB of one microbatch of stage i's input: the boundary before it, in the
    /// precision of its device.
    fn input(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        let device = self.device(stage);
        match stage.checked_sub(1) {
            Some(before) => self.at_boundary(unknowns, before, |layer| device.bytes[layer].boundary.as_f64() / GIB),
            None => (device.input(0) as f64 / GIB).into(),
        }
    }

    /// Activations per microbatch: those saved by the layers that are not recomputed, and the
    /// input, which is one of them where nothing is recomputed. With κ_i = Σ_k saved_k (x_ik −
    /// r_ik) and input a_i, `M_i ≥ κ_i`, `M_i ≥ a_i − a°_i`,
    /// `M_i ≥ κ_i + a_i − a°_i − max a (1 − ρ_i)`.
    fn activations(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for stage in 0..self.stages() {
            let (device, held) = (self.device(stage), unknowns.held[stage]);
            let saved = |layer: usize| device.bytes[layer].saved.as_f64() / GIB;
            let kept = self.sum(unknowns, stage, saved) - self.sum_recomputed(unknowns, stage, saved);
            let input = self.input(unknowns, stage) - self.once(unknowns, stage);
            let most = self.largest_input(stage);
            rows.push(constraint!(kept.clone() <= held));
            rows.push(constraint!(input.clone() <= held));
            rows.push(constraint!(kept + input + most * unknowns.recomputes[stage] <= held + most));
        }
        rows
    }

    /// Workspace of a stage: `x_ik ≤ n_k h_ik` and `W_i ≥ workspace_k h_ik`.
    fn workspaces(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for (stage, touches) in unknowns.touches.iter().enumerate() {
            for (run, (first, count)) in self.runs().iter().enumerate() {
                if let Some(touches) = touches[run] {
                    let workspace = self.device(stage).bytes[*first].workspace.as_f64() / GIB;
                    rows.push(constraint!(self.layers(unknowns, stage, run) <= *count as f64 * touches));
                    rows.push(constraint!(workspace * touches <= unknowns.workspace[stage]));
                }
            }
        }
        rows
    }

    /// Returns the GiB that stage i needs on its device:
    /// `Σ_k state_k x_ik + K_i M_i + a°_i + slots + Σ_k saved_k r_ik + W_i`, and its part of
    /// parameters that two stages share.
    ///
    /// With activations on the host,
    /// `K_i (a_i − a°_i) + min(K_i, OFFLOAD_SLOTS) (M_i + a°_i − a_i)` replaces `K_i M_i`. With the
    /// optimizer on the host, the optimizer state is left out.
    pub(crate) fn need(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        let (device, training, host_offload) = (self.device(stage), self.costs.training, self.case.host_offload(stage));
        let bytes = |layer: usize| &device.bytes[layer];
        let in_flight = if training { self.case.stage_slots[stage].in_flight } else { 1 };
        let mut need = self.sum(unknowns, stage, |layer| {
            let leaves = if host_offload.optimizer { bytes(layer).optimizer } else { Bytes::ZERO };
            (bytes(layer).state() - leaves).as_f64() / GIB
        });
        need += Bytes::new(device.shared(self.case.stage_slots[stage])).to_gib();
        if host_offload.activations {
            need += (self.input(unknowns, stage) - self.once(unknowns, stage)) * in_flight as f64;
            need += self.leaving(unknowns, stage) * in_flight.min(OFFLOAD_SLOTS) as f64;
        } else {
            need.add_mul(in_flight as f64, unknowns.held[stage]);
        }
        need += self.once(unknowns, stage);
        need += unknowns.workspace[stage];
        need += self.sum_recomputed(unknowns, stage, |layer| bytes(layer).saved.as_f64() / GIB);
        let slot = |layer: usize, slots: fn(bool) -> u64| {
            bytes(layer).boundary.as_f64() / GIB * slots(device.returns(layer + 1)) as f64
        };
        if let Some(before) = stage.checked_sub(1) {
            need += self.at_boundary(unknowns, before, |layer| slot(layer, slots_in));
        }
        if stage + 1 < self.stages() {
            need += self.at_boundary(unknowns, stage, |layer| slot(layer, slots_out));
        }
        need
    }

    /// Capacity of every memory.
    fn memories(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut needs: BTreeMap<MemoryId, (Expression, f64)> = BTreeMap::new();
        for stage in 0..self.stages() {
            let device = self.device(stage);
            let entry = needs.entry(device.memory);
            let (need, _) = entry.or_insert_with(|| (Expression::from(0.0), device.usable as f64 / GIB));
            *need += self.need(unknowns, stage);
            if let Some(host) = device.host(self.case.host_offload(stage)) {
                let usable = self.costs.devices[host.socket.index()].usable;
                let (need, _) = needs.entry(host.memory).or_insert_with(|| (0.0.into(), usable as f64 / GIB));
                *need += self.need_of_host(unknowns, stage);
            }
        }
        let slack = if self.cautious { SLACK_GIB } else { 0.0 };
        needs.into_values().map(|(need, usable)| constraint!(need <= usable - slack)).collect()
    }

    /// Load of every link, per direction: `T ≥ m Σ bytes ÷ bandwidth` over the boundaries whose
    /// copies pass it and the activations that are offloaded over it; gradients and parameters
    /// count once per iteration.
    fn link_loads(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let scale = self.costs.microbatches as f64 / self.unit;
        let mut loads: BTreeMap<LinkId, Expression> = BTreeMap::new();
        for stage in 0..self.stages() - 1 {
            let (from, to) = (self.case.devices[stage], self.case.devices[stage + 1]);
            let bytes = |layer: usize| self.costs.crossing(layer, from, to) as f64;
            // A stage without a backward receives no gradient.
            let returns = |layer: usize| self.costs.training && self.device(stage).returns(layer + 1);
            let returned = |layer: usize| if returns(layer) { bytes(layer) } else { 0.0 };
            let Some((there, back)) = self.case.p2p_both_ways(self.costs, stage) else { continue };
            let ways = [
                (there, self.at_boundary(unknowns, stage, bytes)),
                (back, self.at_boundary(unknowns, stage, returned)),
            ];
            for (p2p, bytes) in ways {
                for (link, per_byte) in &p2p.links {
                    *loads.entry(*link).or_insert_with(|| 0.0.into()) += bytes.clone() * (per_byte * scale);
                }
            }
        }
        for (stage, host) in (0..self.stages())
            .filter_map(|stage| Some((stage, self.device(stage).host(self.case.host_offload(stage))?.socket)))
        {
            let device = self.case.devices[stage];
            for (outwards, (from, to)) in [(true, (device, host.index())), (false, (host.index(), device))] {
                let moved = self.moved(unknowns, stage, outwards);
                for (link, per_byte) in self.costs.p2p(from, to).into_iter().flat_map(|p2p| &p2p.links) {
                    let load = loads.entry(*link).or_insert_with(|| 0.0.into());
                    *load += moved.clone() * (per_byte * GIB / self.unit);
                }
            }
        }
        loads.into_values().map(|load| constraint!(load <= unknowns.iteration)).collect()
    }

    /// Cut of a cycle of the event graph: `iterations × T ≥ Σ passes × duration`.
    fn critical(&self, unknowns: &Unknowns, cycle: &CriticalCycle) -> Constraint {
        let mut total = Expression::from(0.0);
        for (stage, passes) in cycle.stages.iter().enumerate() {
            let device = self.device(stage);
            let host_offload = self.case.host_offload(stage);
            let times = |layer: usize| device.stage_times((layer, layer + 1), 0, host_offload);
            let once = Passes { recompute: 0, ..*passes };
            let again = |layer: usize| f64::from(passes.recompute) * times(layer).forward / self.unit;
            total += self.sum(unknowns, stage, |layer| once.time(&times(layer)) / self.unit);
            total += self.sum_recomputed(unknowns, stage, again);
        }
        for (boundary, (there, back)) in cycle.activations.iter().zip(&cycle.gradients).enumerate() {
            let wires = |layer: usize| {
                let (activation, gradient) = self.case.transfers(self.costs, boundary, layer + 1);
                (f64::from(*there) * activation + f64::from(*back) * gradient) / self.unit
            };
            if *there + *back > 0 {
                total += self.at_boundary(unknowns, boundary, wires);
            }
        }
        constraint!(total <= f64::from(cycle.iterations) * unknowns.iteration)
    }

    /// No-good: some stage ends elsewhere or recomputes another number of layers. With ends e_i and
    /// recomputed q_i, and e*_i and q*_i those of `partition`, the binaries b_i and c_i have
    /// `e_i ≤ L − (L − e*_i + 1) b_i` and `e_i ≥ (e*_i + 1) c_i`. The same holds for q, and all
    /// binaries add up to at least 1.
    fn exclusion(&self, unknowns: &Unknowns, vars: &mut ProblemVariables, partition: &Partition) -> Vec<Constraint> {
        let layers = self.costs.layers as f64;
        let ends = unknowns.done.iter().zip(&partition.ends);
        let counts = ends.chain(unknowns.recomputed.iter().zip(&partition.recomputed));
        let mut rows = Vec::new();
        let mut differs = Expression::from(0.0);
        for (parts, count) in counts {
            let (total, count): (Expression, f64) = (parts.iter().sum(), *count as f64);
            let (below, above) = (vars.add(variable().binary()), vars.add(variable().binary()));
            rows.push(constraint!(total.clone() + (layers - count + 1.0) * below <= layers));
            rows.push(constraint!(total >= (count + 1.0) * above));
            differs += below + above;
        }
        rows.push(constraint!(differs >= 1.0));
        rows
    }

    /// Returns the partition of `solution`, its counts rounded, and its objective in ms.
    pub fn decode(&self, unknowns: &Unknowns, solution: &impl Solution) -> (Partition, f64) {
        let total = |variables: &Vec<Variable>| -> usize {
            variables.iter().map(|variable| solution.value(*variable).round().max(0.0) as usize).sum()
        };
        let mut partition =
            Partition { ends: vec![self.costs.layers; self.stages()], recomputed: vec![0; self.stages()] };
        for (end, done) in partition.ends.iter_mut().zip(&unknowns.done) {
            *end = total(done);
        }
        for (count, recomputed) in partition.recomputed.iter_mut().zip(&unknowns.recomputed) {
            *count = total(recomputed);
        }
        (partition, solution.value(unknowns.iteration) * self.unit)
    }
}
