//! A lower bound for every placement at once: layers may be cut into fractions.

use crate::{
    SYSTEMS,
    figures::{DeviceFigures, Figures, alike},
    freedom::{Computing, Freedom, Kept, Turn, When},
    ilp::solve::{Answer, Settings, solve},
};
use good_lp::{
    Constraint, Expression, ProblemVariables, SolverModel, Variable, constraint, highs, variable, variables,
};
use spipe_base::{Bytes, DeviceId, LinkId, MemoryId};
use spipe_hardware::MemoryKind;
use spipe_plan::{OFFLOAD_SLOTS, System};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Beyond so many shares of runs of layers the places of devices are not told apart.
const LARGEST: usize = 1000;

/// Beyond so many devices it is left open which class of them is at which place.
const FEW: usize = 12;

/// How it is decided for fewer.
const SEATED: Settings = Settings { gap: 0.005, time_limit: Duration::from_secs(2), second_try: false };

/// The least iteration of any placement of `system`, in ms; infinite if none fits, none where no bound is known.
pub(crate) fn least(figures: &Figures<'_>, system: System) -> Option<f64> {
    Freedom::of(system).map(|freedom| relaxation(figures, &freedom))
}

/// The least iteration of any placement with one stage per device, in ms, whichever of `systems` it has.
pub(crate) fn least_of_stages(figures: &Figures<'_>, systems: &[System]) -> f64 {
    let turn = |system: &System| Freedom::of(*system).and_then(|freedom| freedom.turn);
    let turns: BTreeSet<Option<Turn>> = systems.iter().filter(|system| SYSTEMS.contains(system)).map(turn).collect();
    let stages = Freedom::of_stages(figures.host_help);
    let bounds = turns.into_iter().map(|turn| relaxation(figures, &Freedom { turn, ..stages }));
    bounds.reduce(f64::min).unwrap_or(0.0)
}

/// The least iteration, in ms, if each run of layers could be spread over all devices: the time for which the busiest
/// device, link or optimizer is busy. Every placement has T ≥ m (F_i + B_i) + O_i for each of its devices, T ≥ bytes ÷ rate
/// for each copy engine, and is one way to spread the layers.
///
/// In training, T is also at least one pass of one microbatch, forward and backward, through the layers from the first
/// trained one on, each on its fastest device: the next iteration's forward there waits for the step. Where backwards are
/// split, gradients of weights are not on that way, and a recompute waits for no gradient.
///
/// Where each device has neighbouring layers, every place in the chain of devices has a bound of its own ([`chain_of_places`]).
///
/// Infinite if nothing fits; no more than that pass if the solver has no answer.
pub(crate) fn relaxation(figures: &Figures<'_>, freedom: &Freedom) -> f64 {
    let classes = classes(figures, freedom);
    let chain = chain(figures, freedom, &classes);
    if classes.is_empty() || !chain.is_finite() {
        return f64::INFINITY;
    }
    let devices: usize = classes.iter().map(|class| class.members.len()).sum();
    // A large program would take longer than the bound is worth.
    let turn = freedom.turns(figures).filter(|_| devices * classes.len() * figures.runs.len() <= LARGEST);
    let least = chain_or_zero(figures, freedom, chain).max(spread(figures, freedom, (&classes, chain), (turn, false)));
    if least.is_finite() && devices <= FEW && turn.is_some() {
        return least.max(spread(figures, freedom, (&classes, chain), (turn, true)));
    }
    least
}

/// The least time for which the busiest is busy; zero if the solver has no answer. With `seated` only one class of devices is at each place
/// of a chain, in which microbatches turn around.
fn spread(
    figures: &Figures<'_>,
    freedom: &Freedom,
    (classes, chain): (&[Class], f64),
    (turn, seated): (Option<Turn>, bool),
) -> f64 {
    let unit = if chain > 0.0 { chain } else { 1.0 };
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let devices: usize = classes.iter().map(|class| class.members.len()).sum();
    let place = || Place { layers: vec![Expression::default(); classes.len()], ..Place::default() };
    let places = (0..if turn.is_some() { devices } else { 1 }).map(|_| place()).collect();
    let mut spread = Spread { figures, freedom, unit, busiest, turn, places, rows: Vec::new() };
    spread.layers(classes, &mut vars);
    if seated {
        spread.seat(classes, &mut vars);
    }
    let mut problem = vars.minimise(busiest).using(highs);
    for row in spread.rows {
        problem.add_constraint(row);
    }
    match solve(problem, &if seated { SEATED } else { Settings::default() }) {
        // The solver's tolerance is 10⁻⁷ of numbers around one.
        Answer::Solved(solution) => {
            good_lp::Solution::value(&solution, busiest) * unit * (1.0 - 1e-6 - if seated { SEATED.gap } else { 0.0 })
        }
        Answer::Infeasible => f64::INFINITY,
        _ => 0.0,
    }
}

/// The chain bounds an iteration only where iterations wait for each other.
fn chain_or_zero(figures: &Figures<'_>, freedom: &Freedom, chain: f64) -> f64 {
    if figures.training && freedom.synchronous { chain } else { 0.0 }
}

/// Devices that compute alike.
struct Class {
    members: Vec<usize>,
}

fn classes(figures: &Figures<'_>, freedom: &Freedom) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (index, device) in figures.devices.iter().enumerate() {
        let computes = match freedom.computing {
            Computing::All => true,
            Computing::Gpus => !device.is_cpu,
            Computing::FirstGpu => !device.is_cpu && classes.is_empty(),
            Computing::Sockets => device.is_cpu,
        };
        if !computes {
            continue;
        }
        match classes.iter_mut().find(|class| alike(&figures.devices[class.members[0]], device)) {
            Some(class) => class.members.push(index),
            None => classes.push(Class { members: vec![index] }),
        }
    }
    classes
}

/// One microbatch's way through the layers from the first trained one on, each on its fastest device; infinite if some layer
/// runs nowhere.
fn chain(figures: &Figures<'_>, freedom: &Freedom, classes: &[Class]) -> f64 {
    let cost = figures.context.cost;
    let layers = || cost.layers().map(|layer| layer.index());
    let able = |layer: usize| classes.iter().any(|class| figures.devices[class.members[0]].times[layer].is_some());
    if !layers().all(able) {
        return f64::INFINITY;
    }
    let first = layers().find(|layer| cost.trained_parameters((*layer).into()) > 0);
    let from = if figures.training { first.unwrap_or(figures.layers) } else { 0 };
    let way = |layer: usize, class: &Class| {
        let device = class.members[0];
        let times = figures.devices[device].times[layer]?;
        let input = cost.time(layer.into(), device.into())?.backward_input.to_ms();
        let backward = if freedom.splits { input.min(times.backward) } else { times.backward };
        Some(times.forward + backward)
    };
    let fastest = |layer: usize| classes.iter().filter_map(|class| way(layer, class)).fold(f64::INFINITY, f64::min);
    (from..figures.layers).map(fastest).sum()
}

/// The rows of the linear program.
struct Spread<'f, 'a> {
    figures: &'f Figures<'a>,
    freedom: &'f Freedom,
    /// How many ms are 1.
    unit: f64,
    busiest: Variable,
    /// How microbatches turn around in a chain of devices.
    turn: Option<Turn>,
    /// What there is to do at each place of the chain of devices; at one where they are no chain.
    places: Vec<Place>,
    rows: Vec<Constraint>,
}

/// What one microbatch takes at one place.
#[derive(Default)]
struct Place {
    forward: Expression,
    /// And the recompute that is certain.
    backward: Expression,
    again: Expression,
    /// What the host steps for it.
    stepped: Expression,
    /// Layers by class of devices, and what its device does and holds.
    layers: Vec<Expression>,
    busy: Expression,
    held: Expression,
}

/// What may be chosen for a layer on a device.
#[derive(Clone, Copy)]
struct Choice<'d> {
    device: &'d DeviceFigures,
    streams: bool,
    steps_on_host: bool,
    kept: Kept,
    place: usize,
}

/// What a class of devices, or the host, has to do and to hold.
#[derive(Default)]
struct Burden {
    busy: Expression,
    /// What it has to do after the first microbatch has turned around.
    turned: Expression,
    held: Expression,
    /// Bytes in and out, in GB.
    inbound: Expression,
    outbound: Expression,
}

impl Spread<'_, '_> {
    fn layers(&mut self, classes: &[Class], vars: &mut ProblemVariables) {
        let mut burdens: Vec<Burden> = classes.iter().map(|_| Burden::default()).collect();
        let mut host = Burden::default();
        for (run, (first, count)) in self.figures.runs.iter().enumerate() {
            let mut total = Expression::from(0.0);
            for (index, (class, burden)) in classes.iter().zip(&mut burdens).enumerate() {
                let device = &self.figures.devices[class.members[0]];
                if device.times[*first].is_none() {
                    continue;
                }
                for ((streams, steps_on_host), kept) in self.choices(device) {
                    for place in 0..self.places.len() {
                        let name = format!("share_{run}_{index}_{streams}_{steps_on_host}_{kept:?}_{place}");
                        let share = vars.add(variable().min(0.0).name(name));
                        let choice = Choice { device, streams, steps_on_host, kept, place };
                        self.places[place].layers[index] += share;
                        self.layer(*first, (&choice, share), (burden, &mut host));
                        self.at(*first, (&choice, share), burden);
                        total += share;
                    }
                }
            }
            self.rows.push(constraint!(total == *count as f64));
        }
        if self.turn.is_some() {
            self.chain_of_places(classes, &burdens);
        }
        for (class, burden) in classes.iter().zip(burdens) {
            self.limit(class, burden, &mut host);
        }
        self.limit_host(host);
    }

    /// The bounds of every place in a chain of devices, the unused ones first. The first microbatch goes through all layers and comes
    /// back to place i when at most K_i forwards have been there; the other m − K_i and m − 1 backwards follow, and the last gradient goes
    /// on from there. Where all forwards come first, m − 1 follow the first one on its way to the end. And place i begins after the places
    /// before it have been passed once, and they are passed again after its end: with P = Σ (F + B) over all places,
    ///
    /// `T ≥ P + (m − K_i) F_i + (m − 1)(R_i + B_i)` and `T ≥ Σ_{j<i} (F_j + B_j) + m (F_i + R_i + B_i)`.
    ///
    /// The former holds for the devices of a class together, whatever places they have.
    ///
    /// What the host steps for the places up to i comes after place i begins its last backward and before it ends its first forward, between
    /// which the first microbatch goes to the end and comes back, and the other m − K_i forwards and m − 1 backwards are done: with H for
    /// these steps on all sockets at once, `T ≥ Σ_{j>i} (F_j + B_j) + (m − K_i) F_i + (m − 1) B_i + (m − 2) R_i + H`.
    fn chain_of_places(&mut self, classes: &[Class], burdens: &[Burden]) {
        let m = self.figures.microbatches as f64;
        let pass = |places: &[Place]| -> Expression {
            places.iter().map(|place| place.forward.clone() + place.backward.clone()).sum()
        };
        let all = pass(&self.places);
        for (index, place) in self.places.iter().enumerate() {
            let back = place.backward.clone() + place.again.clone();
            let turned = place.forward.clone() * self.following(index) + back.clone() * (m - 1.0);
            let own = (place.forward.clone() + back) * m;
            self.rows.push(constraint!(all.clone() + turned <= self.busiest));
            self.rows.push(constraint!(pass(&self.places[..index]) + own <= self.busiest));
            let between = place.forward.clone() * self.following(index)
                + place.backward.clone() * (m - 1.0)
                + place.again.clone() * (m - 2.0).max(0.0);
            let stepped: Expression = self.places[..=index].iter().map(|place| place.stepped.clone()).sum();
            let rate = self.step_rate() * self.unit;
            if rate > 0.0 {
                self.rows.push(constraint!(pass(&self.places[index + 1..]) + between + stepped / rate <= self.busiest));
            }
        }
        for (class, burden) in classes.iter().zip(burdens) {
            let count = class.members.len() as f64;
            self.rows.push(constraint!(all.clone() * count + burden.turned.clone() <= count * self.busiest));
        }
    }

    /// At every place is a device of one class at most, the unused places first, and no class is at more places than it has devices.
    fn seat(&mut self, classes: &[Class], vars: &mut ProblemVariables) {
        let layers = self.figures.layers as f64;
        let mut before = Expression::from(0.0);
        let mut seats: Vec<Expression> = vec![Expression::default(); classes.len()];
        for (index, place) in self.places.iter().enumerate() {
            let (mut taken, mut usable) = (Expression::default(), Expression::default());
            for (number, class) in classes.iter().enumerate() {
                let seat = vars.add(variable().binary().name(format!("seat_{index}_{number}")));
                self.rows.push(constraint!(place.layers[number].clone() <= layers * seat));
                usable.add_mul(Bytes::new(self.figures.devices[class.members[0]].usable).to_gib(), seat);
                taken += seat;
                seats[number] += seat;
            }
            self.rows.push(constraint!(taken.clone() <= 1.0));
            self.rows.push(constraint!(before <= taken.clone()));
            self.rows.push(constraint!(place.held.clone() <= usable));
            self.rows.push(constraint!(place.busy.clone() <= self.busiest));
            before = taken;
        }
        for (seats, class) in seats.into_iter().zip(classes) {
            self.rows.push(constraint!(seats <= class.members.len() as f64));
        }
    }

    /// How many forwards a place still has when the first microbatch comes back to it, or after the first one on its way to the end.
    fn following(&self, place: usize) -> f64 {
        let m = self.figures.microbatches;
        match self.turn {
            None => 0.0,
            Some(Turn::AllForwards) => (m - 1) as f64,
            Some(Turn::Ahead(ahead)) => m.saturating_sub((self.places.len() - place) as u64 + ahead) as f64,
        }
    }

    /// Whether a layer on `device` is streamed and whether it is stepped on the host, and where what it saves is, as far as there is a
    /// choice.
    fn choices(&self, device: &DeviceFigures) -> Vec<((bool, bool), Kept)> {
        let trains = self.figures.training && !device.is_cpu;
        let steps: &[(bool, bool)] = match (self.freedom.streams, self.freedom.steps_on_host) {
            (When::Always, _) => &[(true, trains)],
            (When::Perhaps, _) => &[(true, trains), (false, false)],
            (When::Never, When::Always) => &[(false, trains)],
            (When::Never, When::Perhaps) if trains => &[(false, false), (false, true)],
            (When::Never, _) => &[(false, false)],
        };
        let may_leave = self.figures.training && !device.is_cpu;
        let keeps = self.freedom.keeps(self.figures.training).into_iter();
        let keeps: Vec<Kept> = keeps.filter(|kept| *kept != Kept::InHost || may_leave).collect();
        steps.iter().flat_map(|steps| keeps.iter().map(move |kept| (*steps, *kept))).collect()
    }

    /// How many microbatches of what one layer saves are on its device at once, at least.
    fn copies(&self, choice: &Choice<'_>) -> f64 {
        let (m, freedom) = (self.figures.microbatches, self.freedom);
        let in_flight = match self.turn {
            // A stage may hold less than the sum of its layers where each is free to go after the next.
            _ if !self.figures.training => u64::from(freedom.one_stage_each),
            None if freedom.in_rounds => m,
            None => 1,
            Some(Turn::AllForwards) => m,
            Some(Turn::Ahead(_)) => m.min((self.places.len() - choice.place) as u64),
        };
        let copies = match choice.kept {
            Kept::OnDevice => in_flight,
            Kept::InHost => in_flight.min(OFFLOAD_SLOTS),
            Kept::Nowhere => u64::from(freedom.one_stage_each),
        };
        copies as f64
    }

    /// What one layer takes at a place.
    fn at(&mut self, layer: usize, (choice, share): (&Choice<'_>, Variable), burden: &mut Burden) {
        let times = choice.device.times[layer].unwrap_or_default();
        let (again, following) = (self.again(choice, layer), self.following(choice.place));
        let back = (self.figures.microbatches - 1) as f64 * (times.backward + again);
        burden.turned.add_mul((following * times.forward + back) / self.unit, share);
        let parameters = self.figures.context.cost.trained_parameters(layer.into());
        let (place, unit) = (&mut self.places[choice.place], self.unit);
        place.forward.add_mul(times.forward / unit, share);
        place.backward.add_mul(times.backward / unit, share);
        place.again.add_mul(again / unit, share);
        if choice.steps_on_host {
            place.stepped.add_mul(parameters as f64 / 1e9, share);
        }
    }

    /// The recompute of one microbatch.
    fn again(&self, choice: &Choice<'_>, layer: usize) -> f64 {
        let recomputes = choice.kept == Kept::Nowhere && self.figures.training && choice.device.returns(layer + 1);
        if recomputes { choice.device.times[layer].unwrap_or_default().forward } else { 0.0 }
    }

    /// What one layer on a device of a class amounts to.
    fn layer(
        &mut self,
        layer: usize,
        (choice, share): (&Choice<'_>, Variable),
        (burden, host): (&mut Burden, &mut Burden),
    ) {
        let (figures, Choice { device, steps_on_host, streams, .. }) = (self.figures, *choice);
        let (times, bytes) = (device.times[layer].unwrap_or_default(), &device.bytes[layer]);
        let again = self.again(choice, layer);
        let step = if steps_on_host { 0.0 } else { times.optimizer };
        let busy = (figures.microbatches as f64 * (times.busy() + again) + step) / self.unit;
        burden.busy.add_mul(busy, share);
        let state = match (streams, steps_on_host) {
            (true, _) => Bytes::ZERO,
            (false, true) => bytes.parameters + bytes.gradients,
            (false, false) => bytes.state(),
        };
        // A frozen layer may save nothing.
        let copies = if figures.frozen > 0 { 0.0 } else { self.copies(choice) };
        let held = state.to_gib() + copies * bytes.saved.to_gib();
        burden.held.add_mul(held, share);
        self.places[choice.place].busy.add_mul(busy, share);
        self.places[choice.place].held.add_mul(held, share);
        if choice.kept == Kept::InHost && figures.frozen == 0 {
            // A stage of one layer keeps its input.
            let leaving = bytes.saved.get().saturating_sub(device.input(layer)) as f64 / 1e9;
            burden.inbound.add_mul(figures.microbatches as f64 * leaving, share);
            burden.outbound.add_mul(figures.microbatches as f64 * leaving, share);
        }
        let trains = bytes.gradients > Bytes::ZERO;
        if figures.training && (streams || (steps_on_host && trains)) {
            burden.inbound.add_mul(bytes.parameters.as_f64() / 1e9, share);
            burden.outbound.add_mul(bytes.gradients.as_f64() / 1e9, share);
        }
        if streams {
            host.held.add_mul(bytes.state().to_gib(), share);
        } else if steps_on_host {
            // A stage through which no backward runs leaves no parameters there.
            let copied = if device.returns(layer + 1) { bytes.parameters } else { Bytes::ZERO };
            host.held.add_mul((bytes.optimizer + bytes.gradients + copied).to_gib(), share);
        }
        if steps_on_host {
            let parameters = figures.context.cost.trained_parameters(layer.into());
            host.busy.add_mul(parameters as f64 / 1e9, share);
        }
    }

    /// The members of a class together are busy at most so long, hold at most so much, and move at most so much.
    fn limit(&mut self, class: &Class, burden: Burden, host: &mut Burden) {
        let (count, device) = (class.members.len() as f64, &self.figures.devices[class.members[0]]);
        self.rows.push(constraint!(burden.busy <= count * self.busiest));
        self.rows.push(constraint!(burden.held.clone() <= count * Bytes::new(device.usable).to_gib()));
        if device.is_cpu {
            host.held += burden.held;
            return;
        }
        for (bytes, inbound) in [(burden.inbound, true), (burden.outbound, false)] {
            let rate = self.rate(class, inbound);
            if rate.is_finite() {
                self.rows.push(constraint!(bytes <= rate * self.unit / 1e3 * self.busiest));
            }
        }
    }

    /// GB per second between a class of GPUs and all DRAM together: every GPU counts at that link on all of its ways for
    /// which it has the least share, and every link once.
    fn rate(&self, class: &Class, inbound: bool) -> f64 {
        let hardware = self.figures.context.hardware;
        let of_member = |member: &usize| common(self.figures, self.figures.devices[*member].memory, inbound);
        let links: Vec<BTreeSet<LinkId>> = class.members.iter().map(of_member).collect();
        let sharers = |link: &LinkId| links.iter().filter(|links| links.contains(link)).count() as f64;
        let rate = |link: &LinkId| hardware.links()[*link].bandwidth.get() / 1e9;
        let share = |link: &LinkId| rate(link) / sharers(link);
        let mut narrow = BTreeSet::new();
        for links in &links {
            match links.iter().min_by(|a, b| share(a).total_cmp(&share(b))) {
                Some(link) => narrow.insert(*link),
                None => return f64::INFINITY,
            };
        }
        narrow.iter().map(rate).sum()
    }

    /// How many billions of parameters all sockets together step per ms.
    fn step_rate(&self) -> f64 {
        let sockets = self.figures.devices.iter().enumerate().filter(|(_, device)| device.is_cpu);
        let billion = |socket: usize| self.figures.context.cost.optimizer_time(1_000_000_000, DeviceId::from(socket));
        sockets.map(|(socket, _)| 1.0 / billion(socket).to_ms()).sum()
    }

    /// All sockets step at most so many parameters, and all DRAM holds at most so much.
    fn limit_host(&mut self, host: Burden) {
        let rate = self.step_rate();
        let sockets = || self.figures.devices.iter().enumerate().filter(|(_, device)| device.is_cpu);
        let drams: BTreeMap<MemoryId, u64> = sockets().map(|(_, device)| (device.memory, device.usable)).collect();
        let usable = Bytes::new(drams.values().sum());
        self.rows.push(constraint!(host.busy <= rate * self.unit * self.busiest));
        self.rows.push(constraint!(host.held <= usable.to_gib()));
    }
}

/// The links on every way between the memory of a GPU and any DRAM, towards the GPU or away from it.
fn common(figures: &Figures<'_>, memory: MemoryId, inbound: bool) -> BTreeSet<LinkId> {
    let hardware = figures.context.hardware;
    let drams = hardware.memories().enumerate().filter(|(_, memory)| memory.kind == MemoryKind::Dram);
    let ways = drams.filter_map(|(dram, _)| {
        let (from, to) = if inbound { (dram, memory) } else { (memory, dram) };
        hardware.route(from, to).map(|route| route.links.iter().copied().collect::<BTreeSet<LinkId>>())
    });
    ways.reduce(|all, way| &all & &way).unwrap_or_default()
}
