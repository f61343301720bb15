//! A list scheduler that simulates placements of pipelines.

use spipe_base::{DeviceId, SimTime, StageId};
use spipe_cost::Mode;
use spipe_model::Recompute;
use spipe_plan::{Context, InFlight, Placement, Stage, System};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Forward(usize),
    Recompute(usize),
    Backward(usize),
    Step,
}

/// The iteration time of `placement` in the steady state, on a clock of whole nanoseconds: the mean
/// of `iterations` iterations after as many for the warm-up. Devices run their orders, and a copy
/// has every link of its route to itself. For three stages, twelve is a multiple of every
/// cyclicity.
pub fn simulate(context: &Context<'_>, placement: &Placement, iterations: usize) -> Option<SimTime> {
    let mut simulation = Simulation::new(context, placement, 2 * iterations);
    simulation.run();
    let ends = &simulation.iteration_ends;
    let period = |stage: &Vec<u64>| (stage[2 * iterations - 1] - stage[iterations - 1]) / iterations as u64;
    ends.iter().map(period).max().map(SimTime::ns)
}

fn order(context: &Context<'_>, placement: &Placement, stage: StageId) -> Vec<Work> {
    let m = context.workload().microbatches as usize;
    if context.workload().mode == Mode::Infer {
        return (0..m).map(Work::Forward).collect();
    }
    let InFlight(peak) = InFlight::of(placement, stage, m as u64, |device| context.is_cpu(device));
    let warm_up = if placement.system == System::Gpipe { m } else { peak as usize };
    let mut order: Vec<Work> = (0..warm_up).map(Work::Forward).collect();
    for microbatch in 0..m {
        order.extend([Work::Recompute(microbatch), Work::Backward(microbatch)]);
        order.extend((microbatch + warm_up < m).then_some(Work::Forward(microbatch + warm_up)));
    }
    order.push(Work::Step);
    order
}

struct Simulation {
    /// By stage, its work in an iteration, each with its duration.
    orders: Vec<Vec<(Work, u64)>>,
    /// By boundary and direction, the links and the duration of a copy.
    routes: Vec<[(Vec<usize>, u64); 2]>,
    microbatches: usize,
    iterations: usize,
    /// By stage, the next position in its order, and the time when it is free.
    next: Vec<(usize, u64)>,
    /// By boundary and direction, the number of copies, and the end of the last one.
    copies: Vec<[(usize, u64); 2]>,
    links: BTreeMap<usize, u64>,
    /// Ends of forwards and backwards by stage and running number, and the arrivals of their
    /// results.
    ends: [Vec<Vec<u64>>; 2],
    arrivals: [Vec<Vec<u64>>; 2],
    iteration_ends: Vec<Vec<u64>>,
}

impl Simulation {
    fn new(context: &Context<'_>, placement: &Placement, iterations: usize) -> Self {
        let stages = placement.stages.len();
        let lists = || vec![Vec::new(); stages];
        let timed = |stage: StageId| -> Vec<(Work, u64)> {
            let here = &placement.stages[stage];
            order(context, placement, stage).into_iter().map(|work| (work, duration(context, here, work))).collect()
        };
        Self {
            orders: placement.stages.ids().map(timed).collect(),
            routes: (0..stages - 1)
                .map(|boundary| [0, 1].map(|way| route(context, placement, boundary, way)))
                .collect(),
            microbatches: context.workload().microbatches as usize,
            iterations,
            next: vec![(0, 0); stages],
            copies: vec![[(0, 0); 2]; stages - 1],
            links: BTreeMap::new(),
            ends: [lists(), lists()],
            arrivals: [lists(), lists()],
            iteration_ends: lists(),
        }
    }

    fn run(&mut self) {
        loop {
            let computing = (0..self.orders.len()).filter_map(|stage| Some((self.compute_start(stage)?, 0, stage)));
            let copying = (0..self.copies.len())
                .flat_map(|boundary| [0, 1].map(|way| (boundary, way)))
                .filter_map(|(boundary, way)| Some((self.copy_start(boundary, way)?, 1 + way, boundary)));
            let Some((start, what, index)) = computing.chain(copying).min() else { return };
            if what == 0 { self.compute(index, start) } else { self.copy(index, what - 1, start) }
        }
    }

    fn compute_start(&self, stage: usize) -> Option<u64> {
        let (position, free) = self.next[stage];
        let (iteration, place) = (position / self.orders[stage].len(), position % self.orders[stage].len());
        if iteration == self.iterations {
            return None;
        }
        let number = |microbatch: usize| iteration * self.microbatches + microbatch;
        let arrived = match self.orders[stage][place].0 {
            Work::Forward(microbatch) if stage > 0 => *self.arrivals[0][stage].get(number(microbatch))?,
            Work::Backward(microbatch) if stage + 1 < self.orders.len() => {
                *self.arrivals[1][stage].get(number(microbatch))?
            }
            _ => 0,
        };
        Some(free.max(arrived))
    }

    fn compute(&mut self, stage: usize, start: u64) {
        let (position, _) = self.next[stage];
        let (work, duration) = self.orders[stage][position % self.orders[stage].len()];
        let end = start + duration;
        self.next[stage] = (position + 1, end);
        match work {
            Work::Forward(_) => self.ends[0][stage].push(end),
            Work::Backward(_) => self.ends[1][stage].push(end),
            Work::Recompute(_) | Work::Step => {}
        }
        if (position + 1) % self.orders[stage].len() == 0 {
            self.iteration_ends[stage].push(end);
        }
    }

    fn copy_start(&self, boundary: usize, way: usize) -> Option<u64> {
        let (count, free) = self.copies[boundary][way];
        let ready = *self.ends[way][boundary + way].get(count)?;
        let (links, _) = &self.routes[boundary][way];
        let links = links.iter().filter_map(|link| self.links.get(link)).max().copied().unwrap_or(0);
        Some(ready.max(free).max(links))
    }

    fn copy(&mut self, boundary: usize, way: usize, start: u64) {
        let (links, time) = &self.routes[boundary][way];
        let end = start + time;
        self.copies[boundary][way] = (self.copies[boundary][way].0 + 1, end);
        for link in links {
            self.links.insert(*link, end);
        }
        self.arrivals[way][boundary + 1 - way].push(end);
    }
}

fn duration(context: &Context<'_>, here: &Stage, work: Work) -> u64 {
    let time = |layer| context.cost.time(layer, here.lead()).unwrap();
    let seconds = match work {
        Work::Forward(_) => here.layers.iter().map(|layer| time(layer).forward).sum(),
        Work::Backward(_) => here.layers.iter().map(|layer| time(layer).backward()).sum(),
        Work::Recompute(_) => {
            let layers = here.recomputed_layers().into_iter().flat_map(|layers| layers.iter());
            layers.map(|layer| context.cost.recompute_time(layer, here.lead(), Recompute::Full).unwrap()).sum()
        }
        Work::Step => {
            let parameters = here.layers.iter().map(|layer| context.cost.parameters(layer)).sum();
            context.cost.optimizer_time(parameters, here.lead())
        }
    };
    SimTime::from_seconds(seconds).as_ns()
}

/// The links and the duration of a copy behind stage `boundary`: of its output (way 0), or of the
/// gradient of its output (way 1).
fn route(context: &Context<'_>, placement: &Placement, boundary: usize, way: usize) -> (Vec<usize>, u64) {
    let stages = placement.stages.as_slice();
    let device = |stage: usize| stages[stage].lead();
    let memory = |device: DeviceId| context.hardware.devices()[device].memory;
    let (from, to) = (device(boundary + way), device(boundary + 1 - way));
    let route = context.hardware.route(memory(from), memory(to)).unwrap();
    let last = stages[boundary].layers.last();
    let bytes = context.cost.memory(last, from).boundary.min(context.cost.memory(last, to).boundary);
    let rate = route.links.iter().map(|link| context.hardware.links()[*link].bandwidth).min().unwrap();
    let time = SimTime::from_seconds(route.latency + bytes / rate).as_ns();
    (route.links.iter().map(|link| link.index()).collect(), time)
}
