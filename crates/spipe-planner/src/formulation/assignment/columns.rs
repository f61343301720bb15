//! Columns and rows of the assignment program.

use crate::{
    costs::{CostSums, DeviceSums},
    formulation::assignment::{DeviceClass, position::Position, ways},
    problem::tolerances::ROUNDING,
    space::rules::{Permission, SystemRules, Warmup},
};
use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable, variables};
use spipe_base::{Bytes, DeviceId, LinkId, MemoryId};
use spipe_plan::{Activations, OFFLOAD_SLOTS};
use std::collections::{BTreeMap, BTreeSet};

/// Limit on the layers per device up to which the program counts them as whole: beyond it, the part of a
/// layer that is rounded off is at most 3 % of the memory.
const FINEST: f64 = 32.0;

/// The assignment program: its variables, and the rows that bound an iteration from below.
pub(crate) struct AssignmentProgram<'f, 'a> {
    pub costs: &'f CostSums<'a>,
    pub rules: &'f SystemRules,
    /// Milliseconds that are 1 in the program.
    pub unit: f64,
    pub busiest: Variable,
    /// Warm-up of a chain of devices.
    pub turn: Option<Warmup>,
    /// Load of each position in the chain of devices; one entry where devices form no chain.
    pub places: Vec<Position>,
    /// Forwards of the last position before its first backward, besides that of the first
    /// microbatch.
    pub before_turning: Expression,
    /// Bytes to leave free in each device's memory, if layers are whole.
    whole: Option<&'f [u64]>,
    pub rows: Vec<Constraint>,
    pub shares: Vec<Column<'f>>,
    /// Loads of each class of devices, its links and the sockets.
    pub efforts: Vec<Expression>,
    /// All passes, recompute included; the backwards with their recompute; the recompute of one
    /// microbatch.
    pub computed: Expression,
    pub returned: Expression,
    pub again: Expression,
}

/// Number of layers of a run with a choice: run, class, choice and variable.
pub(crate) type Column<'d> = (usize, usize, LayerMode<'d>, Variable);

/// Mode of a layer on a device.
#[derive(Clone, Copy)]
pub(crate) struct LayerMode<'d> {
    pub device: &'d DeviceSums,
    pub streams: bool,
    pub steps_on_host: bool,
    pub kept: Activations,
    pub place: usize,
}

/// Load of a class of devices, or of the host: time and bytes.
#[derive(Default)]
pub(crate) struct ResourceLoad {
    pub busy: Expression,
    /// Work after the first microbatch has turned around.
    pub turned: Expression,
    /// Work from the first backward on, without the first recompute.
    pub returned: Expression,
    held: Expression,
    /// GiB per layer of each share.
    whole: Vec<(f64, Variable)>,
    /// GB copied in and out.
    copied: [Expression; 2],
}

impl<'f, 'a> AssignmentProgram<'f, 'a> {
    /// Creates the program of an iteration, where one microbatch takes `chain` ms. With `whole`,
    /// layers are whole, and these bytes are left free on each device.
    pub fn new(
        (costs, rules): (&'f CostSums<'a>, &'f SystemRules),
        classes: &[DeviceClass],
        (chain, turn): (f64, Option<Warmup>),
        whole: Option<&'f [u64]>,
    ) -> (ProblemVariables, Self) {
        let mut vars = variables!();
        let devices: usize = classes.iter().map(|class| class.count).sum();
        let places = if turn.is_some() { devices } else { 1 };
        let mut program = Self {
            costs,
            rules,
            // Values are near one then.
            unit: if chain > 0.0 { chain } else { 1.0 },
            busiest: vars.add(variable().min(0.0).name("busiest")),
            turn,
            places: (0..places).map(|_| Position::new(classes.len())).collect(),
            before_turning: Expression::default(),
            whole,
            rows: Vec::new(),
            shares: Vec::new(),
            efforts: Vec::new(),
            computed: Expression::default(),
            returned: Expression::default(),
            again: Expression::default(),
        };
        program.layers(classes, &mut vars);
        program.fill(classes);
        (vars, program)
    }

    fn layers(&mut self, classes: &[DeviceClass], vars: &mut ProblemVariables) {
        let mut burdens: Vec<ResourceLoad> = classes.iter().map(|_| ResourceLoad::default()).collect();
        let mut host = ResourceLoad::default();
        for (run, (first, count)) in self.costs.runs.iter().enumerate() {
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
                        let choice = LayerMode { device, streams, steps_on_host, kept, place };
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
        self.step_at_the_end(classes, &host);
        self.step_after_norm((classes, &burdens), &host);
        for (class, burden) in classes.iter().zip(burdens) {
            self.limit(class, burden, &mut host);
        }
        self.limit_host(host);
    }

    /// Adds the pipeline-fill bound. A device starts when the first microbatch arrives, and ends
    /// before the last one is back at the first layer, where the next iteration starts. The first
    /// layers of u devices are distinct. With p_i for one microbatch's time through the first i
    /// layers and back, and W for all computation,
    ///
    /// `u T ≥ W + p_0 + … + p_{u−1}`.
    ///
    /// In rounds a device waits once more: after all forwards of its last layer, for one microbatch
    /// to pass the layers behind that and return. Those layers are distinct as well, so p_i is then
    /// the sum of the times through the first i and the last i layers. The recompute of the first
    /// backward may fill this wait: W is without the recompute of one microbatch.
    ///
    /// The bound is weakest with all devices used, provided that there is enough work for all of
    /// them. Positions of a chain have bounds of their own instead.
    fn fill(&mut self, classes: &[DeviceClass]) {
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

    /// Converts ms per microbatch to units for all microbatches.
    pub fn ms_of_all(&self, of_one: f64) -> f64 {
        self.costs.microbatches as f64 * of_one / self.unit
    }

    /// Returns the passes of all microbatches through one layer, in units, without its optimizer
    /// step.
    pub fn computed_in(&self, layer: usize, choice: &LayerMode<'_>) -> f64 {
        let busy = choice.device.times[layer].unwrap_or_default().busy() + self.again(choice, layer);
        self.ms_of_all(busy)
    }

    /// Returns the bytes that a device of a class may hold.
    pub fn usable(&self, class: &DeviceClass) -> Bytes {
        let device = &self.costs.devices[class.members[0]];
        let free = class.members.iter().filter_map(|member| self.whole.map(|free| free[*member])).max();
        Bytes::new(device.usable.saturating_sub(class.beside).saturating_sub(free.unwrap_or(0)))
    }

    /// Returns the modes of `layer` on a class: (streamed, optimizer step on the host), and where
    /// its activations are.
    fn choices(&self, class: &DeviceClass, layer: usize) -> Vec<((bool, bool), Activations)> {
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

    /// Returns the minimal number of microbatches of a layer's saved activations that its device
    /// holds at once.
    fn copies(&self, choice: &LayerMode<'_>) -> f64 {
        let (m, rules) = (self.costs.microbatches, self.rules);
        let in_flight = match self.turn {
            // Where the next layer may be on any device, a stage may hold less than the sum of its
            // layers.
            _ if !self.costs.training => u64::from(rules.one_stage_each),
            None if rules.in_rounds => m,
            None => 1,
            Some(Warmup::GPipe) => m,
            Some(Warmup::OneFOneB(_)) => m.min(self.ahead(choice, false)),
        };
        let copies = match choice.kept {
            Activations::Saved => in_flight,
            // The stages of a device share the slots for what they offload.
            Activations::Offloaded if rules.one_stage_each => in_flight.min(OFFLOAD_SLOTS),
            Activations::Offloaded => 0,
            Activations::Recomputed => u64::from(rules.one_stage_each),
        };
        copies as f64
    }

    /// Adds the times of one layer at its position.
    fn at(&mut self, layer: usize, (choice, share): (&LayerMode<'_>, Variable), burden: &mut ResourceLoad) {
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

    /// Returns the recompute of one microbatch, in ms.
    pub fn again(&self, choice: &LayerMode<'_>, layer: usize) -> f64 {
        let recomputes =
            choice.kept == Activations::Recomputed && self.costs.training && choice.device.returns(layer + 1);
        if recomputes { choice.device.times[layer].unwrap_or_default().forward } else { 0.0 }
    }

    /// Adds the load of one layer on a device of a class.
    fn layer(
        &mut self,
        layer: usize,
        (choice, share): (&LayerMode<'_>, Variable),
        (burden, host): (&mut ResourceLoad, &mut ResourceLoad),
    ) {
        let (costs, LayerMode { device, steps_on_host, streams, .. }) = (self.costs, *choice);
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
        // The first frozen layers receive no gradient, and stages of pipelines may begin with them.
        let returns = layer >= costs.frozen;
        let saves = returns && (costs.frozen == 0 || self.rules.in_rounds);
        let copies = if saves { self.copies(choice) } else { 0.0 };
        let held = state.to_gib() + copies * bytes.saved.to_gib();
        burden.held.add_mul(held, share);
        burden.whole.push((held, share));
        self.places[choice.place].busy.add_mul(busy, share);
        self.places[choice.place].held.add_mul(held, share);
        let mut copied = [0.0; 2];
        if choice.kept == Activations::Offloaded && costs.frozen == 0 {
            // A stage of one layer keeps its input on the device.
            let leaving = bytes.saved.get().saturating_sub(device.input(layer)) as f64 / 1e9;
            let leaving = costs.microbatches as f64 * leaving;
            copied = [copied[0] + leaving, copied[1] + leaving];
        }
        let trains = bytes.gradients > Bytes::ZERO;
        if costs.training && (streams || (steps_on_host && trains)) {
            let inward = if streams { bytes.streamed } else { bytes.updated };
            copied = [copied[0] + inward.as_f64() / 1e9, copied[1] + bytes.gradients.as_f64() / 1e9];
        }
        for (copied, way) in copied.into_iter().zip(0..) {
            burden.copied[way].add_mul(copied, share);
            self.places[choice.place].copied[way].add_mul(copied, share);
        }
        if streams {
            host.held.add_mul(bytes.state().to_gib(), share);
        } else if steps_on_host {
            // A stage without a backward leaves no parameters on the host.
            let copied = if device.returns(layer + 1) { bytes.updated } else { Bytes::ZERO };
            host.held.add_mul((bytes.optimizer + bytes.gradients + copied).to_gib(), share);
        }
        if steps_on_host {
            let parameters = costs.context.cost.trained_parameters(layer.into());
            host.busy.add_mul(parameters as f64 / 1e9, share);
        }
    }

    /// Adds the rows of a class: time, memory and copies of its members together.
    fn limit(&mut self, class: &DeviceClass, burden: ResourceLoad, host: &mut ResourceLoad) {
        let (count, device) = (class.count as f64, &self.costs.devices[class.members[0]]);
        self.efforts.push(burden.busy.clone() / count);
        self.rows.push(constraint!(burden.busy <= count * self.busiest));
        self.rows.push(constraint!(burden.held.clone() <= count * self.usable(class).to_gib()));
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

    /// Limits large layers to whole numbers per device: of layers that hold at least `held` GiB,
    /// each of `count` devices has at most ⌊`room` ÷ `held`⌋.
    fn whole_layers(&mut self, count: f64, room: f64, mut layers: Vec<(f64, Variable)>) {
        layers.retain(|(held, _)| *held * FINEST > room);
        layers.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut larger = Expression::default();
        let mut layers = layers.into_iter().peekable();
        while let Some((held, share)) = layers.next() {
            larger += share;
            if layers.peek().is_none_or(|(next, _)| *next < held) {
                self.rows.push(constraint!(larger.clone() <= count * (room / held * (1.0 + ROUNDING)).floor()));
            }
        }
    }

    /// Returns the sum of all loads.
    pub fn effort(&self) -> Expression {
        self.efforts.iter().cloned().sum()
    }

    /// Adds the rows of the host: parameters that all sockets update, and bytes that all DRAM
    /// holds.
    fn limit_host(&mut self, host: ResourceLoad) {
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

/// Returns the rate in GB/s between `members` and the DRAMs of their computers together. Every GPU counts at the link
/// with its smallest share among the links on all of its paths, and every link counts once.
/// Infinite where a GPU has no such link.
pub(crate) fn rate(costs: &CostSums<'_>, members: &[usize], inbound: bool) -> f64 {
    let hardware = costs.context.hardware;
    let of_member = |member: &usize| common(costs, (*member).into(), inbound);
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

/// Returns the links on every path between a GPU's memory and any DRAM of its computer, in one direction.
fn common(costs: &CostSums<'_>, gpu: DeviceId, inbound: bool) -> BTreeSet<LinkId> {
    let hardware = costs.context.hardware;
    let memory = hardware.devices()[gpu].memory;
    let ways = hardware.host_memories(gpu).iter().filter_map(|dram| {
        let (from, to) = if inbound { (*dram, memory) } else { (memory, *dram) };
        hardware.route(from, to).map(|route| route.links.iter().copied().collect::<BTreeSet<LinkId>>())
    });
    ways.reduce(|all, way| &all & &way).unwrap_or_default()
}
