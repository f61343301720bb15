//! The program itself: variables, and the rows that bound an iteration.

use crate::formulation::assignment::{Class, positions::Place, single_gpu::Alone, ways};
use crate::{
    costs::{CostSums, DeviceSums},
    space::rules::{Permission, SystemRules, Warmup},
};
use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};
use spipe_base::{Bytes, LinkId, MemoryId};
use spipe_hardware::MemoryKind;
use spipe_plan::{Activations, OFFLOAD_SLOTS};
use std::collections::{BTreeMap, BTreeSet};

/// Of layers of which a device has room for more it is left open how many are whole.
const FINEST: f64 = 32.0;

/// The rows of the linear program.
pub(crate) struct Spread<'f, 'a> {
    pub costs: &'f CostSums<'a>,
    pub rules: &'f SystemRules,
    /// How many ms are 1.
    pub unit: f64,
    pub busiest: Variable,
    /// How microbatches turn around in a chain of devices.
    pub turn: Option<Warmup>,
    /// What there is to do at each place of the chain of devices; at one where they are no chain.
    pub places: Vec<Place>,
    /// What the last place does before the first microbatch turns around there, beside that one's forward.
    pub before_turning: Expression,
    /// The first layer of each run of equal ones, and how many there are.
    pub runs: Vec<(usize, usize)>,
    /// How one device that has all layers streams some of them, where that is told apart.
    alone: Option<Alone>,
    /// For how long chunks that come and go are there, with their copies inbound.
    pub serial: Expression,
    /// Whether layers are whole, and bytes of each device's memory that they leave free.
    whole: Option<&'f [u64]>,
    pub rows: Vec<Constraint>,
    /// How many layers of each run are at each place with each choice.
    pub shares: Vec<(usize, usize, Choice<'f>, Variable)>,
    /// For how long each class of devices, its links and the sockets are busy.
    pub efforts: Vec<Expression>,
    /// All forwards and backwards, recompute included; the backwards alone; and the recompute of one microbatch.
    pub computed: Expression,
    pub returned: Expression,
    pub again: Expression,
}

/// What may be chosen for a layer on a device.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'d> {
    pub device: &'d DeviceSums,
    pub streams: bool,
    pub steps_on_host: bool,
    pub kept: Activations,
    pub place: usize,
}

/// What a class of devices, or the host, has to do and to hold.
#[derive(Default)]
pub(crate) struct Burden {
    pub busy: Expression,
    /// What it has to do after the first microbatch has turned around.
    pub turned: Expression,
    /// What it has to do from its first backward on, without the first recompute.
    pub returned: Expression,
    held: Expression,
    /// GiB that one layer of each share holds.
    whole: Vec<(f64, Variable)>,
    /// Bytes in and out, in GB.
    copied: [Expression; 2],
}

impl<'f, 'a> Spread<'f, 'a> {
    /// For an iteration of `busiest` times `unit` ms.
    pub fn new(
        (costs, rules): (&'f CostSums<'a>, &'f SystemRules),
        (unit, busiest): (f64, Variable),
        turn: Option<Warmup>,
        classes: &[Class],
    ) -> Self {
        let devices: usize = classes.iter().map(|class| class.count).sum();
        let place = || Place::new(classes.len());
        let places = (0..if turn.is_some() { devices } else { 1 }).map(|_| place()).collect();
        let (rows, shares, efforts) = (Vec::new(), Vec::new(), Vec::new());
        let (computed, returned, again, before_turning) = Default::default();
        let runs = costs.runs.clone();
        let (whole, alone, serial) = (None, None, Expression::default());
        Self {
            costs,
            rules,
            unit,
            busiest,
            turn,
            places,
            before_turning,
            runs,
            alone,
            serial,
            whole,
            rows,
            shares,
            efforts,
            computed,
            returned,
            again,
        }
    }

    /// The same for whole layers beside which so many bytes are free on each device.
    pub fn whole(self, free: &'f [u64]) -> Self {
        Self { whole: Some(free), ..self }
    }

    /// The same for one device that streams in a certain way.
    pub fn alone(self, alone: Alone) -> Self {
        Self { alone: Some(alone), ..self }
    }

    /// The same for these layers alone.
    pub fn only(self, runs: &[(usize, usize)]) -> Self {
        Self { runs: runs.to_vec(), ..self }
    }

    pub fn layers(&mut self, classes: &[Class], vars: &mut ProblemVariables) {
        let mut burdens: Vec<Burden> = classes.iter().map(|_| Burden::default()).collect();
        let mut host = Burden::default();
        for (run, (first, count)) in self.runs.clone().iter().enumerate() {
            let mut total = Expression::from(0.0);
            for (index, (class, burden)) in classes.iter().zip(&mut burdens).enumerate() {
                let costs = self.costs;
                let device = &costs.devices[class.members[0]];
                if device.times[*first].is_none() {
                    continue;
                }
                for ((streams, steps_on_host), kept) in self.choices(class, *first) {
                    for place in 0..self.places.len() {
                        let name = format!("share_{run}_{index}_{streams}_{steps_on_host}_{kept:?}_{place}");
                        let share = variable().min(0.0).name(name);
                        let whole = self.whole.is_some();
                        let share = vars.add(if whole { share.integer().max(*count as f64) } else { share });
                        let choice = Choice { device, streams, steps_on_host, kept, place };
                        self.shares.push((run, index, choice, share));
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
            self.chain_of_places((classes, &burdens), vars);
        }
        if let Some(alone) = self.alone {
            self.streamed_alone(alone);
        }
        self.step_at_the_end(classes, &host);
        self.step_after_norm((classes, &burdens), &host);
        for (class, burden) in classes.iter().zip(burdens) {
            self.limit(class, burden, &mut host);
        }
        self.limit_host(host);
    }

    /// A device begins when the first microbatch has come to it, and ends before the last one is back at the first layer, where the next
    /// iteration begins after it. The first layers of u devices are different ones: with p_i for one microbatch's way through the first i
    /// layers and back, and W for all that is computed,
    ///
    /// `u T ≥ W + p_0 + … + p_{u−1}`.
    ///
    /// In rounds a device waits once more: behind all forwards of its last layer, for one microbatch's way through the layers behind that and
    /// back. Those are different layers as well, so that there p_i is the sum of the ways through the first i and through the last i layers.
    /// But what its first backward computes again may be computed while it waits: W is without the recompute of one microbatch.
    ///
    /// That is least where all devices are used, if there is enough to compute for all of them.
    ///
    /// Places of a chain have bounds of their own.
    pub fn fill(&mut self, classes: &[Class]) {
        let first_trained = self.costs.context.cost.trained_parameters(0.into()) > 0;
        let SystemRules { synchronous, splits, apart, in_rounds, .. } = *self.rules;
        if self.turn.is_some() || !self.costs.training || !synchronous || splits || apart || !first_trained {
            return;
        }
        let devices: usize = classes.iter().map(|class| class.count).sum();
        let ways = ways(self.costs, self.rules, classes);
        let all = self.costs.microbatches as f64 * ways.iter().sum::<f64>();
        let (mut way, mut waits) = (0.0, 0.0);
        for (used, (first, last)) in (0..devices).zip(ways.iter().zip(ways.iter().rev())) {
            if all + waits < used as f64 * way {
                return;
            }
            waits += way;
            way += if in_rounds { first + last } else { *first };
        }
        let waiting = if in_rounds { self.again.clone() } else { Expression::default() };
        let (computed, waits) = (self.computed.clone() - waiting, waits / self.unit);
        self.rows.push(constraint!(computed + waits <= devices as f64 * self.busiest));
    }

    /// For all microbatches, in units.
    pub fn ms_of_all(&self, of_one: f64) -> f64 {
        self.costs.microbatches as f64 * of_one / self.unit
    }

    /// What all microbatches compute in one layer, its step aside.
    pub fn computed_in(&self, layer: usize, choice: &Choice<'_>) -> f64 {
        let busy = choice.device.times[layer].unwrap_or_default().busy() + self.again(choice, layer);
        self.ms_of_all(busy)
    }

    /// What a device of a class may hold.
    pub fn usable(&self, class: &Class) -> Bytes {
        let device = &self.costs.devices[class.members[0]];
        let free = class.members.iter().filter_map(|member| self.whole.map(|free| free[*member])).max();
        Bytes::new(device.usable.saturating_sub(class.beside).saturating_sub(free.unwrap_or(0)))
    }

    /// Whether a layer on `device` is streamed and whether it is stepped on the host, and where what it saves is, as far as there is a
    /// choice.
    fn choices(&self, class: &Class, layer: usize) -> Vec<((bool, bool), Activations)> {
        let device = &self.costs.devices[class.members[0]];
        let trains = self.costs.training && !device.is_cpu;
        let streams = SystemRules::buffers(&device.bytes[layer], self.costs.training) < class.streams_below;
        let steps: &[(bool, bool)] = match (self.rules.streams, self.rules.steps_on_host) {
            (Permission::Required, _) if streams => &[(true, trains)],
            (Permission::Free, _) if streams => &[(true, trains), (false, false)],
            (Permission::Free, _) => &[(false, false)],
            (Permission::Required, _) => &[],
            (Permission::Forbidden, Permission::Required) => &[(false, trains)],
            (Permission::Forbidden, Permission::Free) if trains => &[(false, false), (false, true)],
            (Permission::Forbidden, _) => &[(false, false)],
        };
        let may_leave = self.costs.training && !device.is_cpu;
        let keeps = self.rules.keeps(self.costs.training).into_iter();
        let keeps: Vec<Activations> = keeps.filter(|kept| *kept != Activations::Offloaded || may_leave).collect();
        let pinned = device.streamed[layer];
        let steps = steps.iter().filter(|(streams, _)| pinned.is_none_or(|pinned| pinned == *streams));
        steps.flat_map(|steps| keeps.iter().map(move |kept| (*steps, *kept))).collect()
    }

    /// How many microbatches of what one layer saves are on its device at once, at least.
    fn copies(&self, choice: &Choice<'_>) -> f64 {
        let (m, rules) = (self.costs.microbatches, self.rules);
        let in_flight = match self.turn {
            // A stage may hold less than the sum of its layers where each is free to go after the next.
            _ if !self.costs.training => u64::from(rules.one_stage_each),
            None if rules.in_rounds => m,
            None => 1,
            Some(Warmup::GPipe) => m,
            Some(Warmup::OneFOneB(_)) => m.min(self.ahead(choice, false)),
        };
        let copies = match choice.kept {
            Activations::Saved => in_flight,
            // Several stages share the slots for what they offload.
            Activations::Offloaded if rules.one_stage_each => in_flight.min(OFFLOAD_SLOTS),
            Activations::Offloaded => 0,
            Activations::Recomputed => u64::from(rules.one_stage_each),
        };
        copies as f64
    }

    /// What one layer takes at a place.
    fn at(&mut self, layer: usize, (choice, share): (&Choice<'_>, Variable), burden: &mut Burden) {
        let times = choice.device.times[layer].unwrap_or_default();
        let (again, following) = (self.again(choice, layer), self.following(choice));
        let back = (self.costs.microbatches - 1) as f64 * (times.backward + again);
        burden.turned.add_mul((following * times.forward + back) / self.unit, share);
        let forwards = match self.turn {
            Some(Warmup::OneFOneB(_)) => following * times.forward,
            _ => 0.0,
        };
        burden.returned.add_mul((forwards + times.backward + back) / self.unit, share);
        let (last, head_start) = (choice.place + 1 == self.places.len(), self.head_start(choice));
        let (place, unit) = (&mut self.places[choice.place], self.unit);
        place.forward.add_mul(times.forward / unit, share);
        place.backward.add_mul(times.backward / unit, share);
        place.again.add_mul(again / unit, share);
        place.following.add_mul(following * times.forward / unit, share);
        if last {
            self.before_turning.add_mul(head_start * times.forward / unit, share);
        }
        let place = &mut self.places[choice.place];
        if choice.steps_on_host {
            let parameters = self.costs.context.cost.trained_parameters(layer.into());
            place.stepped_by_host.add_mul(parameters as f64 / 1e9, share);
        } else {
            place.stepped.add_mul(times.optimizer / unit, share);
        }
    }

    /// The recompute of one microbatch.
    pub fn again(&self, choice: &Choice<'_>, layer: usize) -> f64 {
        let recomputes =
            choice.kept == Activations::Recomputed && self.costs.training && choice.device.returns(layer + 1);
        if recomputes { choice.device.times[layer].unwrap_or_default().forward } else { 0.0 }
    }

    /// What one layer on a device of a class amounts to.
    fn layer(
        &mut self,
        layer: usize,
        (choice, share): (&Choice<'_>, Variable),
        (burden, host): (&mut Burden, &mut Burden),
    ) {
        let (costs, Choice { device, steps_on_host, streams, .. }) = (self.costs, *choice);
        let (times, bytes) = (device.times[layer].unwrap_or_default(), &device.bytes[layer]);
        let step = if steps_on_host { 0.0 } else { times.optimizer };
        let computed = self.computed_in(layer, choice);
        let busy = computed + step / self.unit;
        burden.busy.add_mul(busy, share);
        self.computed.add_mul(computed, share);
        let again = self.again(choice, layer);
        self.returned.add_mul(self.ms_of_all(times.backward + again), share);
        self.again.add_mul(again / self.unit, share);
        let state = match (streams, steps_on_host) {
            (true, _) => Bytes::ZERO,
            (false, true) if self.rules.gradients_leave => bytes.parameters,
            (false, true) => bytes.parameters + bytes.gradients,
            (false, false) => bytes.state(),
        };
        // No gradient comes to the first frozen layers, and stages of pipelines may begin with them.
        let returns = layer >= costs.frozen;
        let saves = returns && (costs.frozen == 0 || self.rules.in_rounds);
        let copies = if saves { self.copies(choice) } else { 0.0 };
        let alone = self.alone.filter(|_| choice.kept == Activations::Recomputed && streams && returns);
        let input = alone.map_or(0.0, |alone| alone.input);
        let held = state.to_gib() + copies * bytes.saved.to_gib() + input;
        burden.held.add_mul(held, share);
        burden.whole.push((held, share));
        self.places[choice.place].busy.add_mul(busy, share);
        self.places[choice.place].held.add_mul(held, share);
        if let Some(alone) = self.alone.filter(|_| streams) {
            let arrives = bytes.parameters.as_f64() / 1e6 / alone.rate;
            self.serial.add_mul(computed + arrives / self.unit, share);
        }
        let mut copied = [0.0; 2];
        if choice.kept == Activations::Offloaded && costs.frozen == 0 {
            // A stage of one layer keeps its input.
            let leaving = bytes.saved.get().saturating_sub(device.input(layer)) as f64 / 1e9;
            let leaving = costs.microbatches as f64 * leaving;
            copied = [copied[0] + leaving, copied[1] + leaving];
        }
        let trains = bytes.gradients > Bytes::ZERO;
        if costs.training && (streams || (steps_on_host && trains)) {
            copied = [copied[0] + bytes.parameters.as_f64() / 1e9, copied[1] + bytes.gradients.as_f64() / 1e9];
        }
        for (copied, way) in copied.into_iter().zip(0..) {
            burden.copied[way].add_mul(copied, share);
            self.places[choice.place].copied[way].add_mul(copied, share);
        }
        if streams {
            host.held.add_mul(bytes.state().to_gib(), share);
        } else if steps_on_host {
            // A stage through which no backward runs leaves no parameters there.
            let copied = if device.returns(layer + 1) { bytes.parameters } else { Bytes::ZERO };
            host.held.add_mul((bytes.optimizer + bytes.gradients + copied).to_gib(), share);
        }
        if steps_on_host {
            let parameters = costs.context.cost.trained_parameters(layer.into());
            host.busy.add_mul(parameters as f64 / 1e9, share);
        }
    }

    /// The members of a class together are busy at most so long, hold at most so much, and move at most so much.
    fn limit(&mut self, class: &Class, burden: Burden, host: &mut Burden) {
        let (count, device) = (class.count as f64, &self.costs.devices[class.members[0]]);
        self.efforts.push(burden.busy.clone() / count);
        self.rows.push(constraint!(burden.busy <= count * self.busiest));
        self.rows.push(constraint!(burden.held.clone() <= count * self.usable(class).to_gib()));
        if let Some(alone) = self.alone {
            self.room_to_compute((class, alone), &burden.held);
        }
        self.whole_layers(count, self.usable(class).to_gib(), burden.whole);
        if device.is_cpu {
            host.held += burden.held;
            return;
        }
        for (bytes, rate) in burden.copied.into_iter().zip(class.rates) {
            if rate.is_finite() {
                self.efforts.push(bytes.clone() / (rate * self.unit / 1e3));
                self.rows.push(constraint!(bytes <= rate * self.unit / 1e3 * self.busiest));
            }
        }
    }

    /// Of layers that hold at least so much each device has no more than it has room for.
    fn whole_layers(&mut self, count: f64, room: f64, mut layers: Vec<(f64, Variable)>) {
        layers.retain(|(held, _)| *held * FINEST > room);
        layers.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut larger = Expression::default();
        let mut layers = layers.into_iter().peekable();
        while let Some((held, share)) = layers.next() {
            larger += share;
            if layers.peek().is_none_or(|(next, _)| *next < held) {
                // A little more room, because numbers are rounded.
                self.rows.push(constraint!(larger.clone() <= count * (room / held * (1.0 + 1e-9)).floor()));
            }
        }
    }

    /// The sum of what is done.
    pub fn effort(&self) -> Expression {
        self.efforts.iter().cloned().sum()
    }

    /// All sockets step at most so many parameters, and all DRAM holds at most so much.
    fn limit_host(&mut self, host: Burden) {
        let rate = self.step_rate();
        let sockets = || self.costs.devices.iter().enumerate().filter(|(_, device)| device.is_cpu);
        let free = |index: usize| self.whole.map_or(0, |free| free[index]);
        let left = |(index, device): (usize, &DeviceSums)| (device.memory, device.usable.saturating_sub(free(index)));
        let drams: BTreeMap<MemoryId, u64> = sockets().map(left).collect();
        let usable = Bytes::new(drams.values().sum());
        if rate > 0.0 {
            self.efforts.push(host.busy.clone() / (rate * self.unit));
        }
        self.rows.push(constraint!(host.busy <= rate * self.unit * self.busiest));
        self.rows.push(constraint!(host.held <= usable.to_gib()));
    }
}

/// GB per second between GPUs and all DRAM together: every GPU counts at that link on all of its ways for which it has the least share,
/// and every link once. Infinite where a GPU has no such link.
pub(crate) fn rate(costs: &CostSums<'_>, members: &[usize], inbound: bool) -> f64 {
    let hardware = costs.context.hardware;
    let of_member = |member: &usize| common(costs, costs.devices[*member].memory, inbound);
    let links: Vec<BTreeSet<LinkId>> = members.iter().map(of_member).collect();
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

/// The links on every way between the memory of a GPU and any DRAM, towards the GPU or away from it.
fn common(costs: &CostSums<'_>, memory: MemoryId, inbound: bool) -> BTreeSet<LinkId> {
    let hardware = costs.context.hardware;
    let drams = hardware.memories().enumerate().filter(|(_, memory)| memory.kind == MemoryKind::Dram);
    let ways = drams.filter_map(|(dram, _)| {
        let (from, to) = if inbound { (dram, memory) } else { (memory, dram) };
        hardware.route(from, to).map(|route| route.links.iter().copied().collect::<BTreeSet<LinkId>>())
    });
    ways.reduce(|all, way| &all & &way).unwrap_or_default()
}
