//! The integer program that counts which layers make which choice.

use super::{
    busy::{Busy, Lane},
    near, units,
};
use crate::{
    figures::Figures,
    ilp::solve::{Minimum, Settings, minimise},
    pins::Pins,
};
use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable, variables};
use spipe_base::{Bytes, DeviceId, LayerId, LayerRange, MemoryId};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Context, Knob, Stage, System, gathers, held_while_computing, shared_footprint};
use std::collections::{BTreeMap, BTreeSet};

/// Beyond so many counts they need not be whole.
const MOST_WHOLE: usize = 64;

/// How far the solver looks, so that it always ends at the same place.
const NODES: i32 = 2000;

/// What the solver's numbers are off whole ones at most.
const WHOLE: f64 = 1e-6;

/// What of a bound, and of a memory, is the solver's tolerance.
const TOLERANCE: f64 = 1e-6;

/// Of how many stages at the end of a run it is counted what is held while they compute.
const NEAR_THE_END: usize = 3;

/// What a ms of everything together counts beside one of the busiest.
const LITTLE: f64 = 1e-5;

/// Where a stage's parameters and optimizer state are, and who steps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// All on the devices.
    Device,
    /// Parameters on the devices, optimizer state on the host.
    Stepped,
    /// All on the host.
    Host,
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    home: Home,
    recomputed: bool,
}

impl Choice {
    /// Those of a system on so many devices, the ones that need least room first.
    pub fn of((system, shards): (System, usize), context: &Context<'_>) -> Vec<Self> {
        let training = context.workload().mode == Mode::Train;
        let hosts = near(context).is_some_and(|(_, host)| host.is_some());
        let stays = system != System::ZeroInfinity || shards > 1;
        let allowed = |home: &Home| match home {
            Home::Device => stays,
            Home::Stepped => stays && hosts && training,
            Home::Host => hosts && system == System::ZeroInfinity,
        };
        let homes = [Home::Host, Home::Stepped, Home::Device].into_iter().filter(allowed);
        let of_home = |home: Home| [true, false].map(|recomputed| Self { home, recomputed });
        homes.flat_map(of_home).filter(|choice| training || !choice.recomputed).collect()
    }

    /// Whether nothing is saved.
    pub const fn recomputes(self) -> bool {
        self.recomputed
    }

    /// The stage of these layers.
    pub fn stage(self, context: &Context<'_>, layers: LayerRange) -> Option<Stage> {
        let (first, host) = near(context)?;
        let stage = Stage::new(first, layers);
        let stage = if self.recomputed { stage.with_everything_recomputed() } else { stage };
        Some(match (self.home, host) {
            (Home::Device, _) => stage,
            (Home::Stepped, Some((_, socket))) => stage.with_optimizer_on(socket),
            (Home::Host, Some((home, socket))) => stage.with_weights_in(home).with_optimizer_on(socket),
            (_, None) => return None,
        })
    }
}

/// What stages need room for.
#[derive(Clone, Copy)]
pub(super) enum Room {
    /// Each has so many layers, if a run of equal ones is as long, and so many are there in whole.
    Stages { length: usize, resident: usize },
    /// What any division needs at least of which some stage recomputes so many layers, and none twice as many: these have one input
    /// together, that of the first. With 1, also those that recompute nothing.
    Any { recomputed: usize },
}

/// What is known of stages in whole.
enum Whole {
    Divided {
        divided: Vec<LayerRange>,
        /// How often each is gathered in an iteration.
        gathers: Vec<u64>,
        /// By participant, what is there while each computes, if all save and if all recompute.
        held: Vec<[Vec<Bytes>; 2]>,
    },
    Any {
        recomputed: usize,
    },
}

/// What a stage with a choice needs and does.
struct Load {
    choice: Choice,
    lanes: BTreeMap<Lane, f64>,
    /// By participant.
    needs: Vec<Need>,
}

/// Bytes.
#[derive(Clone, Copy, Default)]
struct Need {
    /// Shards that stay.
    on_device: f64,
    on_host: f64,
    /// For the backward.
    kept: f64,
    /// Beside these while the last stage of the run computes, if it makes the choice.
    computing: f64,
}

/// Stages of equal layers.
struct Run {
    units: Vec<LayerRange>,
    loads: Vec<Load>,
}

/// The stages of a run, and how many of them make which choice.
pub(super) struct Chosen {
    pub units: Vec<LayerRange>,
    pub choices: Vec<(Choice, usize)>,
}

/// Which stages make which choice.
pub(super) struct Solved {
    /// How long the busiest is busy, in ms.
    pub least: f64,
    pub runs: Vec<Chosen>,
}

/// What holds of any division, in bytes of a device.
#[derive(Clone, Copy, Default)]
struct Any {
    /// What a stage that recomputes so many layers has beside shards at least.
    again: f64,
    /// What the layers of the stage that begins the model are charged too much for inputs.
    beginning: f64,
    /// Gradients of the last layer.
    gradients: f64,
}

pub(super) struct Program<'p, 'a> {
    context: &'p Context<'a>,
    devices: Vec<DeviceId>,
    phased: bool,
    runs: Vec<Run>,
    between: BTreeMap<Lane, f64>,
    /// Where this is a bound, by participant.
    any: Option<Vec<Any>>,
}

impl<'p, 'a> Program<'p, 'a> {
    pub fn new(figures: &'p Figures<'a>, pins: &Pins, (system, shards): (System, usize), room: Room) -> Self {
        let context = &figures.context;
        let devices: Vec<DeviceId> = super::gpus(context).into_iter().take(shards).collect();
        let mut busy = Busy::new(context, devices.clone(), figures.phased);
        busy.between();
        let between = busy.lanes;
        let choices = Choice::of((system, shards), context);
        let pinned = pins.knob(Knob::Shards).is_some_and(|pinned| pinned != shards as u64);
        let length = if let Room::Stages { length, .. } = room { length } else { 1 };
        let phased = figures.phased;
        let farthest = choices.first().map_or(Home::Device, |choice| choice.home);
        let mut program = Self { context, devices, phased, runs: Vec::new(), between, any: None };
        let whole = match room {
            Room::Stages { resident, .. } => program.divided(figures, (length, resident), farthest),
            Room::Any { recomputed } => Whole::Any { recomputed },
        };
        for (first, count) in &figures.runs {
            let all = units((*first, *count), length);
            // Of several units the last one may have fewer layers.
            for units in all.chunk_by(|one, other| one.count() == other.count()) {
                let allowed = |choice: &&Choice| !pinned && program.allows(pins, **choice, *first);
                let load = |choice: &Choice| program.load(*choice, units, &whole);
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
            program.any = Some(program.devices.iter().map(of).collect());
        }
        program
    }

    /// All layers in stages of so many, of which as many are there in whole as are resident.
    fn divided(&self, figures: &Figures<'_>, (length, resident): (usize, usize), home: Home) -> Whole {
        let divided: Vec<LayerRange> = figures.runs.iter().flat_map(|run| units(*run, length)).collect();
        let first = divided.iter().position(|layers| self.context.backward_of(*layers).is_some());
        let gathers = gathers(divided.len(), first, (self.rounds(), resident));
        let held = |device: &DeviceId| {
            [false, true].map(|recomputed| self.held(*device, (Choice { home, recomputed }, resident), &divided))
        };
        let held = self.devices.iter().map(held).collect();
        Whole::Divided { divided, gathers, held }
    }

    /// How many microbatches each device has.
    fn rounds(&self) -> u64 {
        self.context.workload().microbatches / self.devices.len().max(1) as u64
    }

    fn allows(&self, pins: &Pins, choice: Choice, layer: usize) -> bool {
        let Some((first, host)) = near(self.context) else { return false };
        let socket = host.map(|(_, socket)| socket).filter(|_| choice.home != Home::Device);
        let training = self.context.workload().mode == Mode::Train;
        let kept = pins.recompute(layer).is_none_or(|wanted| wanted == choice.recomputed)
            && pins.offload(layer) != Some(true)
            && pins.allows_step(layer, socket.unwrap_or(first).index());
        (kept || !training)
            && pins.streamed(layer).is_none_or(|wanted| wanted == (choice.home == Home::Host))
            && socket.is_none_or(|socket| pins.allows_host(layer, socket.index()))
            && self.devices.iter().all(|device| pins.allows_layer(layer, device.index()))
    }

    /// What one of `units` needs and does; none where it cannot.
    fn load(&self, choice: Choice, units: &[LayerRange], room: &Whole) -> Option<Load> {
        let stage = choice.stage(self.context, *units.first()?)?;
        let mut busy = Busy::new(self.context, self.devices.clone(), self.phased);
        let gathers = match room {
            Whole::Divided { divided, gathers, .. } => {
                let first = divided.iter().position(|layers| units.first() == Some(layers)).unwrap_or_default();
                let gathers = gathers[first..first + units.len()].iter().sum::<u64>();
                gathers as f64 / units.len() as f64
            }
            // Which layers are gathered once for several uses is not known.
            Whole::Any { .. } => busy.rounds * if self.saves(&stage) { 2.0 } else { 1.0 },
        };
        busy.stage(&stage, gathers);
        let able =
            |device: &&DeviceId| stage.layers.iter().all(|layer| self.context.cost.time(layer, **device).is_some());
        if !self.devices.iter().all(|device| able(&device)) || (choice.recomputed && !self.saves(&stage)) {
            return None;
        }
        let need = |(at, device): (usize, &DeviceId)| match room {
            Whole::Divided { divided, held, .. } => {
                let last = divided.iter().position(|layers| units.last() == Some(layers)).unwrap_or_default();
                self.need_of(*device, &stage, (units.len(), &held[at][usize::from(choice.recomputed)][..=last]))
            }
            Whole::Any { recomputed } => self.least_need(*device, choice, (units, *recomputed)),
        };
        Some(Load { choice, lanes: busy.lanes, needs: self.devices.iter().enumerate().map(need).collect() })
    }

    /// Whether a stage has anything to recompute.
    fn saves(&self, stage: &Stage) -> bool {
        self.context.backward_of(stage.layers).is_some()
    }

    /// What a stage needs that is one of so many; `held` is what there is while those up to the last of these compute.
    fn need_of(&self, device: DeviceId, stage: &Stage, (count, held): (usize, &[Bytes])) -> Need {
        let need = shared_footprint(self.context, (device, self.devices.len()), stage);
        // Of those before the last one more may be held at a time than what the ones behind keep.
        let near = held.iter().rev().take(count.min(NEAR_THE_END)).enumerate();
        let computing = near.map(|(back, held)| held.saturating_sub(need.kept * back as u64)).max();
        Need {
            on_device: need.on_device.as_f64(),
            on_host: need.on_host.as_f64(),
            kept: need.kept.as_f64(),
            computing: computing.unwrap_or_default().as_f64(),
        }
    }

    /// What is there while each stage computes, where all come from the host that may.
    fn held(&self, device: DeviceId, (choice, resident): (Choice, usize), divided: &[LayerRange]) -> Vec<Bytes> {
        let footprint = |layers: &LayerRange| {
            let stage = choice.stage(self.context, *layers)?;
            Some(shared_footprint(self.context, (device, self.devices.len()), &stage))
        };
        held_while_computing(&divided.iter().filter_map(footprint).collect::<Vec<_>>(), resident)
    }

    /// What any of `units`, which are single layers, needs in whatever stage it is.
    fn least_need(&self, device: DeviceId, choice: Choice, (units, recomputed): (&[LayerRange], usize)) -> Need {
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Need::default() };
        let memory: &LayerMemory = self.context.cost.memory(first.first(), device);
        let training = self.context.workload().mode == Mode::Train;
        let part = |bytes: Bytes| bytes.as_f64() / self.devices.len() as f64;
        let (weights, steps) = (part(memory.parameters + memory.gradients), part(memory.optimizer));
        let (on_device, on_host) = match choice.home {
            Home::Device => (weights + steps, 0.0),
            Home::Stepped => (weights, weights + steps),
            Home::Host => (0.0, weights + steps),
        };
        // The input of its stage is that of some layer before it; one that begins the model has less.
        let (first, last) = (first.first().index(), last.first().index());
        let begin = if first == 0 { 0 } else { first.saturating_sub(2 * recomputed - 2).max(1) };
        let input = (begin..=last).map(|layer| self.input(device, layer)).fold(f64::INFINITY, f64::min);
        let kept = match (training && self.context.cost.needs_backward(last.into()), choice.recomputed) {
            (false, _) => 0.0,
            (true, true) => input / (2 * recomputed - 1) as f64,
            (true, false) => memory.saved.as_f64(),
        };
        let again = if choice.recomputed { memory.saved.as_f64() } else { 0.0 };
        Need {
            on_device: part(memory.cache) + on_device,
            on_host,
            kept,
            computing: self.least_computing(device, last, again),
        }
    }

    /// What a device has, beside shards and what is kept, while it computes whatever stage has a layer: that is gathered in whole, and so is
    /// what comes next. In the backward its gradients are there, those of the layer behind it, be they of the same stage or of the next, and
    /// what is recomputed.
    fn least_computing(&self, device: DeviceId, layer: usize, again: f64) -> f64 {
        let count = self.context.cost.layers().len();
        let memory = |layer: usize| self.context.cost.memory(layer.into(), device);
        let here = memory(layer);
        let gradients = |layer: usize| if layer < count { memory(layer).gradients.as_f64() } else { 0.0 };
        let next = (0..count).map(|layer| memory(layer).parameters.as_f64()).fold(f64::INFINITY, f64::min);
        let returns = self.context.cost.needs_backward(layer.into());
        let gradients = if returns { gradients(layer) + gradients(layer + 1) } else { 0.0 };
        // What is used twice in a row is followed by itself: the last one that has a backward, and the first one.
        let forward = if count == 1 || (returns && layer + 1 == count) { 0.0 } else { next };
        let backward = if layer == 0 { 0.0 } else { next } + gradients + again;
        (here.workspace + here.parameters).as_f64() + forward.max(if returns { backward } else { 0.0 })
    }

    /// Bytes of the input of a stage that begins with a layer.
    fn input(&self, device: DeviceId, layer: usize) -> f64 {
        let memory = |layer: usize| self.context.cost.memory(layer.into(), device);
        layer.checked_sub(1).map_or(memory(0).input, |before| memory(before).boundary).as_f64()
    }

    /// What a stage that recomputes so many neighbouring layers has at least, if they are several: these as saved and in whole.
    fn again(&self, device: DeviceId, count: usize) -> f64 {
        let there = |layer| {
            let memory = self.context.cost.memory(layer, device);
            (memory.saved + memory.parameters + memory.gradients).as_f64()
        };
        let there: Vec<f64> = self.context.cost.layers().map(there).collect();
        let least = there.windows(count).map(|layers| layers.iter().sum()).fold(f64::INFINITY, f64::min);
        if count > 1 && least.is_finite() { least } else { 0.0 }
    }

    fn parameters(&self, device: DeviceId, layer: LayerId) -> f64 {
        self.context.cost.memory(layer, device).parameters.as_f64()
    }

    /// What the last layer has of gradients while it computes its backward.
    fn gradients(&self, device: DeviceId) -> f64 {
        let last = self.context.cost.layers().last().filter(|last| self.context.cost.needs_backward(*last));
        last.map_or(0.0, |last| self.context.cost.memory(last, device).gradients.as_f64())
    }

    /// What is charged too much for the layers of the stage that begins the model.
    fn beginning(&self, device: DeviceId, recomputed: usize) -> f64 {
        let inputs = (0..self.context.cost.layers().len()).map(|layer| self.input(device, layer));
        let (others, all) = ((2 * recomputed - 2) as f64, (2 * recomputed - 1) as f64);
        inputs.fold(0.0, f64::max) * others / all
    }

    /// No placement takes less, in ms; infinite if none fits.
    pub fn least(&self) -> f64 {
        let (minimum, variables) = self.solve();
        (minimum.bound * variables.unit * (1.0 - TOLERANCE)).max(0.0)
    }

    /// The counts of the best solution, if there is one.
    pub fn solved(&self) -> Option<Solved> {
        let (minimum, variables) = self.solve();
        let values = minimum.values?;
        let value = |variable: &Variable| values.get(variable).copied().unwrap_or(0.0);
        let of_run = |(run, counts): (&Run, &Vec<Variable>)| {
            let whole = |count: &Variable| (value(count) + WHOLE).floor() as usize;
            let mut choices: Vec<(Choice, usize)> =
                run.loads.iter().zip(counts).map(|(load, count)| (load.choice, whole(count))).collect();
            // What is cut into parts does what needs least room of what they do.
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
        let whole = self.runs.iter().map(|run| run.loads.len()).sum::<usize>() <= MOST_WHOLE;
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
        let little = if self.any.is_some() { 0.0 } else { LITTLE };
        let work = |load: &Load| load.lanes.values().sum::<f64>() * little / all.unit;
        let objective: Expression = self.each(&all).map(|(load, count)| work(load) * count).sum();
        let settings = Settings { nodes: NODES, ..Settings::default() };
        (minimise(vars, (rows, objective + all.time), &settings), all)
    }

    /// About what an iteration takes, in ms: numbers around one suit the solver.
    fn unit(&self) -> f64 {
        let of_run = |run: &Run| {
            let busiest = |load: &Load| load.lanes.values().copied().fold(0.0, f64::max);
            run.units.len() as f64 * run.loads.iter().map(busiest).fold(0.0, f64::max)
        };
        self.runs.iter().map(of_run).sum::<f64>().max(1e-6)
    }

    fn each<'s>(&'s self, all: &'s Variables) -> impl Iterator<Item = (&'s Load, Variable)> {
        self.runs.iter().zip(&all.counts).flat_map(|(run, counts)| run.loads.iter().zip(counts.iter().copied()))
    }

    /// An iteration takes as long as everything is busy.
    fn lanes(&self, all: &Variables, rows: &mut Vec<Constraint>) {
        let mut seen = BTreeSet::new();
        let mut gathering = Busy::new(self.context, self.devices.clone(), self.phased);
        gathering.gathering(GIB);
        let rounds = gathering.rounds;
        let lanes: BTreeSet<Lane> = self.each(all).flat_map(|(load, _)| load.lanes.keys().copied()).collect();
        for lane in lanes {
            let busy = |load: &Load| load.lanes.get(&lane).copied().unwrap_or(0.0) / all.unit;
            let between = self.between.get(&lane).copied().unwrap_or(0.0) / all.unit;
            let spared = gathering.lanes.get(&lane).map_or(0.0, |time| time / all.unit);
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

    /// What the last stage of a run needs while it computes, in GiB, at least: it makes one of the choices that are made, the one
    /// that needs least. (Where others save, the last of these finds all that is kept, and it is as if those before it did not recompute.)
    fn last_of(&self, run: &Run, need: impl Fn(&Load) -> Need, used: &[Variable]) -> Vec<Expression> {
        let needs: Vec<f64> = run.loads.iter().map(|load| gib(need(load).computing)).collect();
        let at_least = |least: &f64| {
            let less = needs.iter().zip(used).filter(|(need, _)| *need < least);
            *least - less.map(|(need, used)| (*least - *need) * *used).sum::<Expression>()
        };
        needs.iter().map(at_least).collect()
    }

    /// Everything has room.
    fn memories(&self, all: &Variables, (vars, whole): (&mut ProblemVariables, bool), rows: &mut Vec<Constraint>) {
        let slack = if self.any.is_some() { 1.0 + TOLERANCE } else { 1.0 };
        let memories = self.context.hardware.memories();
        let mut seen = BTreeSet::new();
        // Whether some stage of a run makes a choice.
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
        for (at, device) in self.devices.iter().enumerate() {
            let Any { again, beginning, gradients } = self.any.as_ref().map_or_else(Any::default, |any| any[at]);
            let usable =
                memories[self.context.hardware.devices()[*device].memory].usable().as_f64() * slack + beginning;
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
        for (at, device) in self.devices.iter().enumerate() {
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
    /// By run, how many of its stages make each choice.
    counts: Vec<Vec<Variable>>,
    /// Of any division, GiB of the parameters that are there from a round to the next, and from a forward to its backward: they are gathered
    /// once for two uses.
    ends: Option<[Variable; 2]>,
    unit: f64,
}
