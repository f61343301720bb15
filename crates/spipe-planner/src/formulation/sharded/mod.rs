//! Integer program of sharded systems: how many layers of each run have which choice.

mod memory;

use crate::problem::Deadline;
use crate::problem::bound::Bound;
use crate::problem::tolerances::{LEAST_UNIT, PROGRAM, SHARDED_LOAD, WHOLE};
use crate::space::sharded::grouped_shares;
use crate::{
    costs::CostSums,
    formulation::solver::{Minimum, Settings, minimise},
    problem::pins::Pins,
};
use crate::{
    formulation::sharded::memory::{Any, Need, StageDivision},
    score::{lane::Lane, sharded::load::Busy},
    space::sharded::{Home, Length, ShardedMode, units},
};
use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable, variables};
use rayon::prelude::*;
use spipe_base::{Bytes, DeviceId, LayerRange, MemoryId};
use spipe_plan::{Context, Knob, ShardGroups, Stage, System};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Limit on counts above which they are relaxed to fractions.
const MOST_WHOLE: usize = 64;

/// Limit on the nodes of the search tree, so that the solver always stops at the same node.
const NODES: i32 = 2000;

/// Division of the layers for which memory is counted.
#[derive(Clone, Copy)]
pub(crate) enum Room {
    /// Stages of this length, `resident` of which are gathered at a time.
    Stages { length: Length, resident: usize },
    /// Lower bound for all divisions in which some stage recomputes at least `recomputed` layers,
    /// and none twice as many. The layers of such a stage share one input, that of the first. With
    /// 1, the divisions without recompute are included.
    Any { recomputed: usize },
}

/// Load and memory of a stage with a choice.
struct Load {
    choice: ShardedMode,
    lanes: BTreeMap<Lane, f64>,
    /// By participant.
    needs: Vec<Need>,
}

/// Stages of equal layers.
struct Run {
    units: Vec<LayerRange>,
    loads: Vec<Load>,
}

/// The stages of a run, and the number of them with each choice.
pub(crate) struct Chosen {
    pub units: Vec<LayerRange>,
    pub choices: Vec<(ShardedMode, usize)>,
}

/// Solution: the choices of all stages.
pub(crate) struct Solved {
    /// Load of the busiest resource, in ms.
    pub least: f64,
    pub runs: Vec<Chosen>,
}

pub(crate) struct ShardedProgram<'p, 'a> {
    pub context: &'p Context<'a>,
    pub groups: ShardGroups,
    phased: bool,
    runs: Vec<Run>,
    between: BTreeMap<Lane, f64>,
    /// Bounds by participant, where the program bounds any division.
    any: Option<Vec<Any>>,
    /// Bytes to leave free on every device.
    left: Bytes,
    /// Whether counts may be fractions: a bound that is a little weaker, in a small part of the time.
    relaxed: bool,
    /// Time limit of the solver.
    time: Duration,
}

impl<'p, 'a> ShardedProgram<'p, 'a> {
    pub fn new(costs: &'p CostSums<'a>, pins: &Pins, (system, shards): (System, usize), room: Room) -> Self {
        let context = &costs.context;
        let devices: Vec<DeviceId> = crate::hosts::gpus(context).into_iter().take(shards).collect();
        let groups = ShardGroups::new(devices, pins.knob(Knob::ShardGroup).map_or(shards, |size| size as usize));
        let mut busy = Busy::new(context, groups.clone(), costs.phased);
        busy.between();
        let between = busy.into_lanes();
        let choices = ShardedMode::of((system, groups.size()), context);
        let pinned = pins.knob(Knob::Shards).is_some_and(|pinned| pinned != shards as u64);
        let length = if let Room::Stages { length, .. } = room { length } else { Length::Equal(1) };
        let (phased, time) = (costs.phased, costs.program_time);
        let farthest = choices.first().map_or(Home::Device, |choice| choice.home);
        let relaxed = costs.one_program && matches!(room, Room::Any { .. });
        let (runs, any, left) = (Vec::new(), None, Bytes::ZERO);
        let mut program = Self { context, groups, phased, runs, between, any, left, relaxed, time };
        let whole = match room {
            Room::Stages { resident, .. } => program.divided(costs, (length, resident), farthest),
            Room::Any { recomputed } => StageDivision::Any { recomputed },
        };
        for (first, count) in &costs.runs {
            let all = units((*first, *count), length);
            for units in all.chunk_by(|one, other| one.count() == other.count()) {
                let allowed = |choice: &&ShardedMode| !pinned && program.allows(pins, **choice, *first);
                let load = |choice: &ShardedMode| program.load(*choice, units, &whole);
                let loads = choices.iter().filter(allowed).filter_map(load).collect();
                program.runs.push(Run { units: units.to_vec(), loads });
            }
        }
        if let Room::Any { recomputed } = room {
            let of = |device: &DeviceId| Any {
                again: program.again(*device, recomputed),
                beginning: program.beginning(*device, recomputed),
                gradients: program.gradients(*device),
            };
            program.any = Some(program.devices().iter().map(of).collect());
        }
        program
    }

    fn devices(&self) -> &[DeviceId] {
        self.groups.devices()
    }

    /// Returns the number of microbatches per device.
    pub fn rounds(&self) -> u64 {
        self.context.workload().microbatches / self.devices().len().max(1) as u64
    }

    /// Leaves another `bytes` free on every device.
    pub fn leave(&mut self, bytes: Bytes) {
        self.left += bytes;
    }

    fn allows(&self, pins: &Pins, choice: ShardedMode, layer: usize) -> bool {
        let Some(layers) = LayerRange::new(layer.into(), layer.into()) else { return false };
        choice.stage(self.context, layers).is_some_and(|stage| {
            pins.allow_shared(self.context, self.devices().iter().copied(), &stage)
                && self.devices().iter().all(|device| pins.allows_layer(layer, device.index()))
        })
    }

    /// Returns the load and memory of one of `units`; none where the choice is impossible.
    fn load(&self, choice: ShardedMode, units: &[LayerRange], room: &StageDivision) -> Option<Load> {
        let stage = choice.stage(self.context, *units.first()?)?;
        let mut busy = Busy::new(self.context, self.groups.clone(), self.phased);
        let gathers = match room {
            StageDivision::Divided { divided, gathers, .. } => {
                let first = divided.iter().position(|layers| units.first() == Some(layers)).unwrap_or_default();
                let gathers = gathers[first..first + units.len()].iter().sum::<u64>();
                gathers as f64 / units.len() as f64
            }
            // It is unknown which layers are gathered once for several uses.
            StageDivision::Any { .. } => busy.rounds * if self.saves(&stage) { 2.0 } else { 1.0 },
        };
        busy.stage(&stage, gathers);
        let able =
            |device: &&DeviceId| stage.layers.iter().all(|layer| self.context.cost.time(layer, **device).is_some());
        if !self.devices().iter().all(|device| able(&device)) || (choice.recomputed && !self.saves(&stage)) {
            return None;
        }
        let need = |(at, device): (usize, &DeviceId)| match room {
            StageDivision::Divided { divided, held, .. } => {
                let last = divided.iter().position(|layers| units.last() == Some(layers)).unwrap_or_default();
                self.need_of(*device, &stage, (units.len(), &held[at][usize::from(choice.recomputed)][..=last]))
            }
            StageDivision::Any { recomputed } => self.least_need(*device, choice, (units, *recomputed)),
        };
        Some(Load { choice, lanes: busy.into_lanes(), needs: self.devices().iter().enumerate().map(need).collect() })
    }

    /// Returns whether a stage has anything to recompute.
    fn saves(&self, stage: &Stage) -> bool {
        self.context.backward_of(stage.layers).is_some()
    }

    /// Returns a lower bound of every placement.
    pub fn least(&self) -> Bound {
        let (minimum, variables) = self.solve();
        minimum.bound.times(variables.unit * (1.0 - PROGRAM))
    }

    /// Returns the counts of the best solution, if there is one.
    pub fn solved(&self) -> Option<Solved> {
        let (minimum, variables) = self.solve();
        let values = minimum.values?;
        let value = |variable: &Variable| values.get(variable).copied().unwrap_or(0.0);
        let of_run = |(run, counts): (&Run, &Vec<Variable>)| {
            let whole = |count: &Variable| (value(count) + WHOLE).floor() as usize;
            let mut choices: Vec<(ShardedMode, usize)> =
                run.loads.iter().zip(counts).map(|(load, count)| (load.choice, whole(count))).collect();
            // Stages left over by rounding get the first fractional choice: choices are ordered by
            // memory.
            let cut = counts.iter().position(|count| value(count) - whole(count) as f64 > WHOLE);
            let left = run.units.len().saturating_sub(choices.iter().map(|(_, count)| count).sum());
            if let Some((_, count)) = choices.get_mut(cut.unwrap_or(0)) {
                *count += left;
            }
            Chosen { units: run.units.clone(), choices }
        };
        let runs = self.runs.iter().zip(&variables.counts).map(of_run).collect();
        Some(Solved { least: value(&variables.time) * variables.unit, runs })
    }

    fn solve(&self) -> (Minimum, Variables) {
        let mut vars = variables!();
        let whole = !self.relaxed && self.runs.iter().map(|run| run.loads.len()).sum::<usize>() <= MOST_WHOLE;
        let count = |vars: &mut ProblemVariables, most: usize| {
            let count = variable().min(0.0).max(most as f64);
            vars.add(if whole { count.integer() } else { count })
        };
        let counts: Vec<Vec<Variable>> =
            self.runs.iter().map(|run| run.loads.iter().map(|_| count(&mut vars, run.units.len())).collect()).collect();
        let ends = self.any.is_some().then(|| [(); 2].map(|()| vars.add(variable().min(0.0))));
        let all = Variables { time: vars.add(variable().min(0.0)), counts, ends, unit: self.unit() };
        let mut rows: Vec<Constraint> = Vec::new();
        for (run, counts) in self.runs.iter().zip(&all.counts) {
            let sum: Expression = counts.iter().sum();
            rows.push(constraint!(sum == run.units.len() as f64));
        }
        self.lanes(&all, &mut rows);
        self.memories(&all, (&mut vars, whole), &mut rows);
        let little = if self.any.is_some() { 0.0 } else { SHARDED_LOAD };
        let work = |load: &Load| load.lanes.values().sum::<f64>() * little / all.unit;
        let objective: Expression = self.each(&all).map(|(load, count)| work(load) * count).sum();
        let settings = Settings { nodes: NODES, time_limit: self.time, ..Settings::default() };
        (minimise(vars, (rows, objective + all.time), &settings), all)
    }

    /// Returns an estimate of the iteration, in ms: the solver works best with values near one.
    fn unit(&self) -> f64 {
        let of_run = |run: &Run| {
            let busiest = |load: &Load| load.lanes.values().copied().fold(0.0, f64::max);
            run.units.len() as f64 * run.loads.iter().map(busiest).fold(0.0, f64::max)
        };
        self.runs.iter().map(of_run).sum::<f64>().max(LEAST_UNIT)
    }

    fn each<'s>(&'s self, all: &'s Variables) -> impl Iterator<Item = (&'s Load, Variable)> {
        self.runs.iter().zip(&all.counts).flat_map(|(run, counts)| run.loads.iter().zip(counts.iter().copied()))
    }

    /// Adds a row per resource: an iteration takes as long as it is busy.
    fn lanes(&self, all: &Variables, rows: &mut Vec<Constraint>) {
        let mut seen = BTreeSet::new();
        let mut gathering = Busy::new(self.context, self.groups.clone(), self.phased);
        gathering.gathering(GIB);
        let rounds = gathering.rounds;
        let gathering = gathering.into_lanes();
        let lanes: BTreeSet<Lane> = self.each(all).flat_map(|(load, _)| load.lanes.keys().copied()).collect();
        for lane in lanes {
            let busy = |load: &Load| load.lanes.get(&lane).copied().unwrap_or(0.0) / all.unit;
            let between = self.between.get(&lane).copied().unwrap_or(0.0) / all.unit;
            let spared = gathering.get(&lane).map_or(0.0, |time| time / all.unit);
            let numbers = self.each(all).map(|(load, _)| busy(load)).chain([between, spared]);
            if seen.insert(numbers.map(f64::to_bits).collect::<Vec<u64>>()) {
                let mut sum: Expression = self.each(all).map(|(load, count)| busy(load) * count).sum();
                if let Some([first, last]) = all.ends {
                    sum -= spared * (rounds - 1.0) * first + spared * rounds * last;
                }
                rows.push(constraint!(sum + between <= all.time));
            }
        }
    }

    /// Returns rows for the GiB that the last stage of a run needs while it computes, at least: it
    /// has one of the choices in use, so at least the smallest of their needs. (If other stages
    /// save, the last of those finds everything that is kept, as if those before it did not
    /// recompute.)
    fn last_of(&self, run: &Run, need: impl Fn(&Load) -> Need, used: &[Variable]) -> Vec<Expression> {
        let needs: Vec<f64> = run.loads.iter().map(|load| gib(need(load).computing)).collect();
        let at_least = |least: &f64| {
            let less = needs.iter().zip(used).filter(|(need, _)| *need < least);
            *least - less.map(|(need, used)| (*least - *need) * *used).sum::<Expression>()
        };
        needs.iter().map(at_least).collect()
    }

    /// Adds the capacities of all memories.
    fn memories(&self, all: &Variables, (vars, whole): (&mut ProblemVariables, bool), rows: &mut Vec<Constraint>) {
        let slack = if self.any.is_some() { 1.0 + PROGRAM } else { 1.0 };
        let memories = self.context.hardware.memories();
        let mut seen = BTreeSet::new();
        // Whether some stage of a run has the choice.
        let mut used: Vec<Vec<Variable>> = Vec::new();
        for (run, counts) in self.runs.iter().zip(&all.counts) {
            let some: Vec<Variable> = counts
                .iter()
                .map(|_| vars.add(if whole { variable().binary() } else { variable().min(0.0).max(1.0) }))
                .collect();
            for (count, some) in counts.iter().zip(&some) {
                rows.push(constraint!(*count <= run.units.len() as f64 * *some));
                rows.push(constraint!(*some <= *count));
            }
            used.push(some);
        }
        for (at, device) in self.devices().iter().enumerate() {
            let Any { again, beginning, gradients } = self.any.as_ref().map_or_else(Any::default, |any| any[at]);
            let memory = &memories[self.context.hardware.devices()[*device].memory];
            let usable = memory.usable().saturating_sub(self.left).as_f64() * slack + beginning;
            let need = |load: &Load| load.needs[at];
            let key: Vec<u64> =
                self.each(all).map(|(load, _)| need(load).kept).chain([usable]).map(f64::to_bits).collect();
            if !seen.insert(key) {
                continue;
            }
            let shards: Expression = self.each(all).map(|(load, count)| gib(need(load).on_device) * count).sum();
            rows.push(constraint!(shards.clone() + gib(again) <= gib(usable)));
            let whole = gib(self.context.cost.layers().map(|layer| self.parameters(*device, layer)).sum());
            if let Some([first, last]) = all.ends {
                rows.push(constraint!(shards.clone() + first <= gib(usable)));
                rows.push(constraint!(first <= whole));
                rows.push(constraint!(last <= whole));
            }
            let mut kept = shards;
            for (at, (run, counts)) in self.runs.iter().zip(&all.counts).enumerate() {
                let computing = vars.add(variable().min(0.0));
                for row in self.last_of(run, need, &used[at]) {
                    rows.push(constraint!(computing >= row));
                }
                kept +=
                    run.loads.iter().zip(counts).map(|(load, count)| gib(need(load).kept) * *count).sum::<Expression>();
                rows.push(constraint!(kept.clone() + computing <= gib(usable)));
            }
            if let Some([_, last]) = all.ends {
                rows.push(constraint!(kept + last + gib(gradients) <= gib(usable)));
            }
        }
        let mut hosts: BTreeMap<MemoryId, Vec<usize>> = BTreeMap::new();
        for (at, device) in self.devices().iter().enumerate() {
            if let Some(host) = self.context.hardware.host_memory(*device) {
                hosts.entry(host).or_default().push(at);
            }
        }
        for (host, participants) in hosts {
            let need = |load: &Load| gib(participants.iter().map(|at| load.needs[*at].on_host).sum());
            let held: Expression = self.each(all).map(|(load, count)| need(load) * count).sum();
            rows.push(constraint!(held <= gib(memories[host].usable().as_f64() * slack)));
        }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

fn gib(bytes: f64) -> f64 {
    bytes / GIB
}

struct Variables {
    /// In units.
    time: Variable,
    /// By run, the number of its stages with each choice.
    counts: Vec<Vec<Variable>>,
    /// For any division: GiB of parameters that stay gathered from one round to the next, and from
    /// a forward to its backward. They are gathered once for two uses.
    ends: Option<[Variable; 2]>,
    unit: f64,
}

/// Returns a lower bound of every placement of `system`. Programs for which `deadline` leaves no time
/// bound nothing.
pub(crate) fn least((costs, pins): (&CostSums<'_>, &Pins), system: System, deadline: Option<&Deadline<'_>>) -> Bound {
    let longest = costs.layers.max(1).ilog2();
    let rooms = (0..=longest).map(|power| Room::Any { recomputed: 1 << power });
    let all: Vec<(usize, Room)> =
        grouped_shares(&costs.context, pins).flat_map(|shards| rooms.clone().map(move |room| (shards, room))).collect();
    let of_program = |(shards, room)| {
        if deadline.is_some_and(Deadline::over) {
            Bound::NONE
        } else {
            ShardedProgram::new(costs, pins, (system, shards), room).least()
        }
    };
    all.into_par_iter().map(of_program).reduce(|| Bound::Infeasible, Bound::min)
}
