//! Mobius' partition by integer program: how many layers each stage gets, with stages assigned to
//! GPUs round robin.
//!
//! After Feng et al., Mobius (ASPLOS 2023), section 3.2. With S = F·N stages on N GPUs and M
//! microbatches: T_j and B_j are the forward and backward of stage j on one microbatch, S_j the
//! size of its parameters and working memory, G the memory of a GPU, W the rate of its link, and
//! P_j the part of stage j that is prefetched while stage j − N runs.
//!
//! ```text
//! s_j ≥ s_{j−1} + T_{j−1} + a                 the first microbatch arrives
//! s_j ≥ e_{j−N} + T_{j−N} + (S_j − P_j)/W     the rest of its parameters has arrived
//! e_j ≥ e_{j−1} + T_{j−1} + a                 the last microbatch arrives
//! e_j ≥ s_j + (M − 1) T_j
//! P_j ≤ S_j,  P_j ≤ G − S_{j−N},  P_j ≤ W (e_{j−N} + T_{j−N} − s_{j−N}),  S_j + S_{j−N} ≤ G
//! ```
//!
//! The backward is the mirror image, after the last forward. All microbatches of a stage take
//! equally long, so a longest path changes stages at the first or at the last microbatch, and the
//! starts of these two suffice. Within a round, the numbers of layers per stage differ by at most
//! one. Beyond the paper, every stage fits twice, which is slightly more than two neighbouring
//! stages need. The objective is the end of the last backward.

use crate::problem::budget;
use crate::problem::tolerances::{LEAST_PER_GIB, LEAST_UNIT};
use crate::{
    candidates::{
        cuts,
        streamed::{cross_mapping, in_turn},
    },
    costs::{CostSums, DeviceSums},
    formulation::solver::{Settings, minimise},
    hosts::gpus,
    problem::Deadline,
};
use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable, variables};
use rayon::prelude::*;
use spipe_base::{Bytes, DeviceId};
use spipe_plan::Placement;

/// Limit on stages per GPU, as in the generated placements.
const MOST_TURNS: usize = 6;

/// Limit on stages above which a program takes longer than its cuts are worth. Layers are then
/// balanced in time alone.
const MOST_STAGES: usize = 96;

/// Limit on the nodes of the search tree, so that the solver always stops at the same node.
const NODES: i32 = 100;

/// Relative gap at which the search may stop: closer cuts differ by less than the program's model errs.
const GAP: f64 = 0.01;

/// Returns a placement per number of stages on a GPU: by its program, or with stages balanced in
/// time if the program is large or ends without a solution.
pub(crate) fn candidates(costs: &CostSums<'_>, deadline: &Deadline<'_>) -> Vec<Placement> {
    let gpus = cross_mapping(&costs.context, &gpus(&costs.context));
    let turns: Vec<usize> = (1..=MOST_TURNS).filter(|turns| turns * gpus.len() <= costs.layers).collect();
    let time_limit = budget::share(deadline.limit(), budget::MOBIUS_PROGRAM);
    let settings = Settings { gap: GAP, time_limit, nodes: NODES };
    let cut = |turns: &usize| {
        let small = turns * gpus.len() <= MOST_STAGES;
        let until = deadline.at_most(time_limit);
        let ends = if small && !until.over() { solved(costs, &gpus, *turns, &settings) } else { None };
        // A solution found by the time limit depends on the machine, so the result counts as
        // truncated.
        until.poll();
        let pieces = ends.and_then(|ends| cuts::between(&ends));
        let pieces = pieces.or_else(|| cuts::balanced(&costs.context, *gpus.first()?, turns * gpus.len()))?;
        in_turn(&costs.context, &gpus, &pieces)
    };
    turns.par_iter().filter_map(cut).collect()
}

/// Variables; j is a stage, k a run of equal layers.
struct PartitionUnknowns {
    /// y_jk: layers of run k in stages 0..=j, for all stages but the last.
    done: Vec<Vec<Variable>>,
    /// Whether any layer of run k is in stages 0..=j.
    begun: Vec<Vec<Variable>>,
    /// s_j, e_j, P_j of the forward and of the backward.
    starts: [Vec<Variable>; 2],
    lasts: [Vec<Variable>; 2],
    ahead: [Vec<Variable>; 2],
    end: Variable,
}

struct PartitionMilp<'f, 'a> {
    costs: &'f CostSums<'a>,
    device: &'f DeviceSums,
    gpus: usize,
    stages: usize,
    /// Milliseconds that are 1.
    unit: f64,
    /// GiB of a GPU for parameters and work, and GiB per unit of time over its link.
    memory: f64,
    rate: f64,
    /// Transfer between neighbouring stages, in units.
    transfer: f64,
}

/// Returns the first layer of each stage and the end of the last one, if the program has a solution.
fn solved(costs: &CostSums<'_>, gpus: &[DeviceId], turns: usize, settings: &Settings) -> Option<Vec<usize>> {
    let program = PartitionMilp::new(costs, gpus, turns)?;
    let mut vars = variables!();
    let unknowns = program.unknowns(&mut vars);
    let mut rows = program.order(&unknowns);
    rows.extend(program.balance(&unknowns));
    for backward in [false, true].into_iter().take(if costs.training { 2 } else { 1 }) {
        rows.extend(program.memory(&unknowns, backward));
        rows.extend(program.times(&unknowns, backward));
    }
    let values = minimise(vars, (rows, unknowns.end.into()), settings).values?;
    let value = |variable: &Variable| values.get(variable).map_or(0, |value| value.round().max(0.0) as usize);
    let ends = unknowns.done.iter().map(|done| done.iter().map(value).sum());
    Some([0].into_iter().chain(ends).chain([costs.layers]).collect())
}

impl<'f, 'a> PartitionMilp<'f, 'a> {
    fn new(costs: &'f CostSums<'a>, gpus: &[DeviceId], turns: usize) -> Option<Self> {
        let first = gpus.first()?;
        let device = &costs.devices[first.index()];
        let host = device.hosts().next()?;
        let p2p = costs.p2p(host.socket.index(), first.index())?;
        let neighbour = gpus.get(1).and_then(|next| costs.p2p(first.index(), next.index()));
        let boundary = device.bytes.iter().map(|bytes| bytes.boundary).max()?;
        let work: f64 = device.times.iter().flatten().map(|times| times.busy()).sum();
        let unit = (work * costs.microbatches as f64 / gpus.len() as f64).max(LEAST_UNIT) / 100.0;
        // The inputs of all stages of a GPU for all microbatches (training), and transient
        // boundaries.
        let inputs = if costs.training { costs.microbatches * turns as u64 } else { 0 };
        let held = boundary * (inputs + costs.transient_boundaries(gpus.len()));
        Some(Self {
            costs,
            device,
            gpus: gpus.len(),
            stages: turns * gpus.len(),
            unit,
            memory: Bytes::new(device.usable).saturating_sub(held).to_gib(),
            rate: unit / (p2p.per_byte * Bytes::gib(1).as_f64()).max(LEAST_PER_GIB),
            transfer: neighbour.map_or(0.0, |p2p| p2p.time(boundary.get())) / unit,
        })
    }

    fn unknowns(&self, vars: &mut ProblemVariables) -> PartitionUnknowns {
        let runs = &self.costs.runs;
        let mut counts = |binary: bool| -> Vec<Vec<Variable>> {
            let cell = |count: usize| {
                let most = if binary { 1.0 } else { count as f64 };
                variable().integer().min(0.0).max(most)
            };
            (0..self.stages - 1).map(|_| runs.iter().map(|(_, count)| vars.add(cell(*count))).collect()).collect()
        };
        let (done, begun) = (counts(false), counts(true));
        let mut list = || -> Vec<Variable> { (0..self.stages).map(|_| vars.add(variable().min(0.0))).collect() };
        let starts = [list(), list()];
        let lasts = [list(), list()];
        let ahead = [list(), list()];
        PartitionUnknowns { done, begun, starts, lasts, ahead, end: vars.add(variable().min(0.0)) }
    }

    /// Returns Σ_k per_layer(k) × layers of run k in stage j.
    fn sum(&self, unknowns: &PartitionUnknowns, stage: usize, per_layer: impl Fn(usize) -> f64) -> Expression {
        let mut sum = Expression::from(0.0);
        for (run, (first, count)) in self.costs.runs.iter().enumerate() {
            let each = per_layer(*first);
            match unknowns.done.get(stage) {
                Some(done) => sum.add_mul(each, done[run]),
                None => sum += each * *count as f64,
            }
            if let Some(before) = stage.checked_sub(1) {
                sum.add_mul(-each, unknowns.done[before][run]);
            }
        }
        sum
    }

    /// Order of the layers: runs are used up in order, and every stage has a layer.
    fn order(&self, unknowns: &PartitionUnknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for (stage, (done, begun)) in unknowns.done.iter().zip(&unknowns.begun).enumerate() {
            for (run, (_, count)) in self.costs.runs.iter().enumerate() {
                rows.push(constraint!(done[run] <= *count as f64 * begun[run]));
                rows.push(constraint!(begun[run] <= done[run]));
                if let Some(next) = begun.get(run + 1) {
                    rows.push(constraint!(done[run] >= *count as f64 * *next));
                }
                if let Some(before) = stage.checked_sub(1) {
                    rows.push(constraint!(done[run] >= unknowns.done[before][run]));
                }
            }
        }
        rows.extend((0..self.stages).map(|stage| constraint!(self.sum(unknowns, stage, |_| 1.0) >= 1.0)));
        rows
    }

    /// Balance: within a round, every stage has as many layers as the first one, or one more.
    fn balance(&self, unknowns: &PartitionUnknowns) -> Vec<Constraint> {
        let layers = |stage: usize| self.sum(unknowns, stage, |_| 1.0);
        let others = (0..self.stages).filter(|stage| stage % self.gpus > 0);
        let rows = others.flat_map(|stage| {
            let first = stage / self.gpus * self.gpus;
            [constraint!(layers(stage) >= layers(first)), constraint!(layers(stage) <= layers(first) + 1.0)]
        });
        rows.collect()
    }

    /// Returns S_j in GiB: parameters, saved activations and gradients during the backward, and the
    /// largest workspace of any layer.
    fn size(&self, unknowns: &PartitionUnknowns, stage: usize, backward: bool) -> Expression {
        let workspace = self.device.bytes.iter().map(|bytes| bytes.workspace.to_gib()).fold(0.0, f64::max);
        let bytes = |layer: usize| {
            let bytes = &self.device.bytes[layer];
            let more = if backward { bytes.gradients + bytes.saved } else { Bytes::ZERO };
            (bytes.parameters + more).to_gib()
        };
        self.sum(unknowns, stage, bytes) + workspace
    }

    /// Returns the GiB of the second buffers for parameters and gradients, as if the other stage
    /// were as large as stage j.
    fn buffers(&self, unknowns: &PartitionUnknowns, stage: usize, backward: bool) -> Expression {
        self.sum(unknowns, stage, |layer| {
            let bytes = &self.device.bytes[layer];
            (bytes.parameters + if backward { bytes.gradients } else { Bytes::ZERO }).to_gib()
        })
    }

    /// Returns the stage that is `distance` stages before `stage`, in the direction of the pass.
    fn before(&self, stage: usize, distance: usize, backward: bool) -> Option<usize> {
        if backward { Some(stage + distance).filter(|next| *next < self.stages) } else { stage.checked_sub(distance) }
    }

    fn memory(&self, unknowns: &PartitionUnknowns, backward: bool) -> Vec<Constraint> {
        let mut rows = Vec::new();
        let size = |stage: usize| self.size(unknowns, stage, backward);
        for stage in 0..self.stages {
            let ahead = unknowns.ahead[usize::from(backward)][stage];
            rows.push(constraint!(size(stage) + self.buffers(unknowns, stage, backward) <= self.memory));
            rows.push(constraint!(ahead <= size(stage)));
            match self.before(stage, self.gpus, backward) {
                Some(before) => {
                    rows.push(constraint!(size(stage) + size(before) <= self.memory));
                    rows.push(constraint!(ahead + size(before) <= self.memory));
                }
                // A GPU's first stage is present when the forward starts; its last one stays for
                // the backward.
                None => rows.push(constraint!(ahead >= size(stage))),
            }
        }
        rows
    }

    /// Returns the time of one microbatch of a stage, in units.
    fn time(&self, unknowns: &PartitionUnknowns, stage: usize, backward: bool) -> Expression {
        self.sum(unknowns, stage, |layer| {
            let times = self.device.times[layer].unwrap_or_default();
            (if backward { times.forward + times.backward } else { times.forward }) / self.unit
        })
    }

    fn times(&self, unknowns: &PartitionUnknowns, backward: bool) -> Vec<Constraint> {
        let pass = usize::from(backward);
        let (starts, lasts, ahead) = (&unknowns.starts[pass], &unknowns.lasts[pass], &unknowns.ahead[pass]);
        let time = |stage: usize| self.time(unknowns, stage, backward);
        let mut rows = Vec::new();
        for stage in 0..self.stages {
            let again = (self.costs.microbatches - 1) as f64;
            rows.push(constraint!(lasts[stage] >= starts[stage] + time(stage) * again));
            if let Some(from) = self.before(stage, 1, backward) {
                rows.push(constraint!(starts[stage] >= starts[from] + time(from) + self.transfer));
                rows.push(constraint!(lasts[stage] >= lasts[from] + time(from) + self.transfer));
            } else if backward {
                let (end, last) = (unknowns.lasts[0][stage], self.time(unknowns, stage, false));
                rows.push(constraint!(starts[stage] >= end + last));
            }
            if let Some(before) = self.before(stage, self.gpus, backward) {
                let rest = (self.size(unknowns, stage, backward) - ahead[stage]) * (1.0 / self.rate);
                rows.push(constraint!(starts[stage] >= lasts[before] + time(before) + rest));
                let window = lasts[before] + time(before) - starts[before];
                rows.push(constraint!(ahead[stage] <= window * self.rate));
            }
        }
        let last = if self.costs.training { 0 } else { self.stages - 1 };
        if backward || !self.costs.training {
            rows.push(constraint!(unknowns.end >= lasts[last] + time(last)));
        }
        rows
    }
}
