//! The enumeration of all placements of a system, where they are few.
//!
//! Layers are cut into stages in every way. Each stage is on each device, with each choice that its
//! system's [`SystemRules`] allow and with its host data on each node that its device may use.
//! Knobs that planners turn have every value that makes a difference. Interchangeable GPUs are used
//! in ascending order.

use crate::{
    costs::CostSums,
    hosts::{elsewhere, socket_of, sockets},
    problem::{MOST_OFFLOAD_SLOTS, Options, SYSTEMS, pins::Pins},
    space::{
        device_orders::{Coverage, classes},
        rules::{DeviceSet, Permission, Streaming, SystemRules, SystemSpec},
        sharded::shares,
    },
};
use spipe_base::{DeviceId, LayerRange, StageId};
use spipe_plan::{
    Context, Dealing, FEWEST_OFFLOAD_SLOTS, FEWEST_RESIDENT, InFlight, Knob, Placement, Stage, System, check_shape,
};
use std::collections::BTreeSet;

/// The most devices with which placements are counted: with more, most systems have too many.
const MOST_DEVICES: usize = 16;

/// Returns every placement of `system` with the right shape, whether it fits or not; `None` if
/// there are more than `most`.
pub fn every(context: Context<'_>, system: System, most: usize) -> Option<Vec<Placement>> {
    let options = Options::default();
    of_costs(&CostSums::new(context, &options), &options.pins, (system, most))
}

/// Whether there may be at most `most` ways to place the stages of a model on at most
/// [`MOST_DEVICES`] devices. Each subset of the boundaries between layers is one way, except for
/// systems with a fixed number of stages.
pub(crate) fn few(costs: &CostSums<'_>, most: usize) -> bool {
    costs.layers <= most.max(1).ilog2() as usize + 1 && costs.devices.len() <= MOST_DEVICES
}

/// Like [`every`], with the costs of a problem, and every placement that satisfies its pins.
pub(crate) fn of_costs(costs: &CostSums<'_>, pins: &Pins, (system, most): (System, usize)) -> Option<Vec<Placement>> {
    let context = &costs.context;
    if !costs.training && !system.infers() {
        return Some(Vec::new());
    }
    let rules = SystemRules::of(system);
    if !few(costs, most) {
        return None;
    }
    let computes = |device: &DeviceId| rules.computing.allows(device.index(), costs);
    let devices: Vec<DeviceId> = context.cost.devices().filter(computes).collect();
    let alone = || (0..costs.devices.len()).collect();
    // Pins name devices, so that none is interchangeable.
    let mut classes = if pins.is_empty() { classes(costs, Coverage::Exact) } else { alone() };
    // Equal sockets differ if GPUs offload to one of them.
    (0..classes.len()).filter(|device| costs.devices[*device].is_cpu).for_each(|socket| classes[socket] = socket);
    let mut walk = PlacementWalk { costs, system, rules, devices, classes, most, list: Vec::new() };
    walk.extend(&mut Vec::new())?;
    let forward = std::mem::take(&mut walk.list);
    if !rules.apart {
        return with_knobs((costs, pins), system, &forward, most);
    }
    // Devices that are interchangeable in the forward are no longer so in the backward.
    walk.classes = alone();
    walk.extend(&mut Vec::new())?;
    // Parameters are where the stages of the backward have them.
    let near = |stages: &&Vec<Stage>| {
        stages.iter().all(|stage| socket_of(context, stage) == sockets(context, stage.lead()).first().copied())
    };
    let pairs = forward.iter().filter(near).flat_map(|ahead| walk.list.iter().map(move |back| (ahead, back)));
    let plain = |stages: &Vec<Stage>| Placement::new(system, stages.iter().copied());
    let apart = pairs.map(|(ahead, back)| plain(ahead).with_backward(back.iter().copied()));
    let all: Vec<Placement> = forward.iter().map(plain).chain(apart).take(most.saturating_add(1)).collect();
    (all.len() <= most).then(|| shaped(context, all))
}

fn shaped(context: &Context<'_>, list: Vec<Placement>) -> Vec<Placement> {
    list.into_iter().filter(|placement| check_shape(context, placement).is_ok()).collect()
}

/// Returns the placements of these lists of stages with every value of the knobs.
fn with_knobs(
    (costs, pins): (&CostSums<'_>, &Pins),
    system: System,
    lists: &[Vec<Stage>],
    most: usize,
) -> Option<Vec<Placement>> {
    let mut all = Vec::new();
    for stages in lists {
        let plain = Placement::new(system, stages.iter().copied());
        for placement in turned(costs, &plain) {
            all.extend(helped((&costs.context, pins), &placement));
        }
        if all.len() > most {
            return None;
        }
    }
    Some(shaped(&costs.context, all))
}

/// Returns `placement` with every value of the knobs of host offloads: slots, and the order of
/// optimizer steps.
pub(crate) fn helped((context, pins): (&Context<'_>, &Pins), placement: &Placement) -> Vec<Placement> {
    let pinned = |knob: Knob| pins.knob(knob).filter(|_| knob.is_of(placement.system));
    let slots = pinned(Knob::OffloadSlots).map_or_else(|| slots(context, placement), |pinned| vec![Some(pinned)]);
    let orders = pinned(Knob::UrgentSteps).map_or_else(|| orders(placement).to_vec(), |pinned| vec![pinned > 0]);
    let with = |slots: Option<u64>, urgent: bool| {
        let held = placement.clone().with_option(Knob::OffloadSlots, slots);
        held.with(Knob::UrgentSteps, u64::from(urgent))
    };
    slots.iter().flat_map(|slots| orders.iter().map(move |urgent| with(*slots, *urgent))).collect()
}

/// Returns `placement` with every value of the other knobs that planners turn.
fn turned(costs: &CostSums<'_>, placement: &Placement) -> Vec<Placement> {
    let (with, stages) = (|knob, value| placement.clone().with(knob, value), placement.stages.len() as u64);
    let shared = |shards: usize| {
        let others = (FEWEST_RESIDENT + 1..=stages).map(Some);
        let resident = std::iter::once(None).chain(others);
        let shared = placement.clone().over_gpus(costs.context.hardware, Some(shards as u64));
        resident.map(move |resident| shared.clone().with_option(Knob::Resident, resident))
    };
    let spec = SystemSpec::of(placement.system);
    if spec.rules.shared {
        return shares(&costs.context).flat_map(shared).collect();
    }
    if spec.streaming == Some(Streaming::OneByOne) {
        return (1..=stages).map(|k| with(Knob::Resident, k)).collect();
    }
    if spec.streaming == Some(Streaming::Mixed) {
        let swaps = |k: u64| (1..=k).map(move |swap| with(Knob::Resident, k).with(Knob::Swap, swap));
        return (1..=stages).flat_map(swaps).collect();
    }
    if Knob::GradientsLeave.is_of(placement.system) {
        return [0, 1].map(|leave| with(Knob::GradientsLeave, leave)).to_vec();
    }
    // Without a CPU stage there is no head start.
    let has_cpu = placement.stages.iter().any(|stage| costs.context.is_cpu(stage.lead()));
    let most = if has_cpu { spec.largest_head_start() } else { 0 };
    (0..=most).map(|head_start| with(Knob::HeadStart, head_start)).collect()
}

/// Returns the numbers of offload slots worth a try: the fewest, and more if stages of a device
/// share them or one stage has as many microbatches to offload.
pub(crate) fn slots(context: &Context<'_>, placement: &Placement) -> Vec<Option<u64>> {
    let offloading = |device: DeviceId| {
        placement.stages.iter().filter(move |stage| stage.lead() == device && stage.offload.is_some()).count()
    };
    let microbatches = context.workload().microbatches;
    // Where an algorithm makes the order, all microbatches may be in flight.
    let in_flight = |id: StageId| match placement.system {
        system if SYSTEMS.contains(&system) => {
            InFlight::of(placement, id, microbatches, |device| context.is_cpu(device)).0
        }
        _ => microbatches,
    };
    let used = match placement.devices().into_iter().map(offloading).max() {
        None | Some(0) => 0,
        Some(1) => {
            let offloading = placement.stages.enumerate().filter(|(_, stage)| stage.offload.is_some());
            offloading.map(|(id, _)| in_flight(id)).max().unwrap_or(0).min(MOST_OFFLOAD_SLOTS)
        }
        Some(_) => MOST_OFFLOAD_SLOTS,
    };
    let has = Knob::OffloadSlots.is_of(placement.system);
    std::iter::once(None).chain((FEWEST_OFFLOAD_SLOTS + 1..=used).filter(|_| has).map(Some)).collect()
}

/// Returns the orders of optimizer steps worth a try: by arrival, and by priority where a socket
/// runs the steps of several stages.
pub(crate) fn orders(placement: &Placement) -> &'static [bool] {
    let elsewhere = |stage: &Stage| stage.optimizer.filter(|socket| *socket != stage.lead());
    let stepping: Vec<DeviceId> = placement.backward_stages().iter().filter_map(elsewhere).collect();
    let sockets: BTreeSet<&DeviceId> = stepping.iter().collect();
    if sockets.len() < stepping.len() && Knob::UrgentSteps.is_of(placement.system) { &[false, true] } else { &[false] }
}

/// A walk through all lists of stages that cover the model.
struct PlacementWalk<'f, 'a> {
    costs: &'f CostSums<'a>,
    system: System,
    rules: SystemRules,
    devices: Vec<DeviceId>,
    /// The first device with which each is interchangeable.
    classes: Vec<usize>,
    most: usize,
    list: Vec<Vec<Stage>>,
}

impl PlacementWalk<'_, '_> {
    /// Adds every list that begins with `stages`; `None` if there are too many.
    fn extend(&mut self, stages: &mut Vec<Stage>) -> Option<()> {
        let from = stages.last().map_or(0, |stage| stage.layers.last().index() + 1);
        if from == self.costs.layers {
            self.list.push(stages.clone());
            return (self.list.len() <= self.most).then_some(());
        }
        for last in from..self.costs.layers {
            let Some(layers) = LayerRange::new(from.into(), last.into()) else { continue };
            for device in self.devices.clone() {
                if !self.may_follow(stages, device) {
                    continue;
                }
                for stage in self.choices(device, layers) {
                    stages.push(stage);
                    let more = self.extend(stages);
                    stages.pop();
                    more?;
                }
            }
        }
        Some(())
    }

    /// Whether a stage on `device` may come after `stages`.
    fn may_follow(&self, stages: &[Stage], device: DeviceId) -> bool {
        let has = |device: DeviceId| stages.iter().any(|stage| stage.lead() == device);
        let lower = |other: &&DeviceId| **other < device && self.classes[other.index()] == self.classes[device.index()];
        let new = !has(device) && self.devices.iter().filter(lower).all(|other| has(*other));
        let is = |index: usize| stages.get(index).is_some_and(|stage| stage.lead() == device);
        let (count, used) = (stages.len(), self.devices.iter().filter(|device| has(**device)).count());
        match self.system.dealing() {
            _ if self.rules.computing == DeviceSet::OneGpu => has(device) || (new && used == 0),
            _ if !self.system.is_pipeline() => new || has(device),
            Dealing::Single => new || is(count.wrapping_sub(1)),
            Dealing::RoundRobin if count > used => is(count % used),
            Dealing::RoundRobin => new || is(0),
            Dealing::Vee if count > used => count < 2 * used && is(2 * used - 1 - count),
            Dealing::Vee => new || is(count.wrapping_sub(1)),
        }
    }

    /// Returns every stage of `layers` on `device`.
    fn choices(&self, device: DeviceId, layers: LayerRange) -> Vec<Stage> {
        let (context, rules, count) = (&self.costs.context, self.rules, layers.count());
        let (training, is_cpu) = (self.costs.training, context.is_cpu(device));
        let plain = Stage::new(device, layers);
        let near = context.hardware.host_memory(device).zip(sockets(context, device).first().copied());
        // Without host offloads, systems that rest on them keep them.
        let helped = self.costs.host_help || !SYSTEMS.contains(&self.system);
        let mut places: Vec<Stage> = Vec::new();
        if rules.streams != Permission::Forbidden {
            places.extend(near.map(|(home, socket)| plain.with_weights_in(home).with_optimizer_on(socket)));
        }
        if rules.streams != Permission::Required {
            let apart = rules.streams == Permission::Forbidden || rules.shared;
            let steps = if apart && training { rules.steps_on_host } else { Permission::Forbidden };
            if steps != Permission::Required || is_cpu {
                places.push(plain);
            }
            if steps == Permission::Required || (steps == Permission::Free && helped) {
                places.extend(near.map(|(_, socket)| plain.with_optimizer_on(socket)));
            }
        }
        let offloads = training && rules.offloads != Permission::Forbidden && helped;
        let saved = [None, near.map(|(home, _)| home).filter(|_| offloads)];
        let saved = &saved[..if saved[1].is_some() { 2 } else { 1 }];
        let recomputes = match rules.recomputes {
            _ if !training => 0..=0,
            Permission::Forbidden => 0..=0,
            Permission::Required => count..=count,
            Permission::Free => 0..=count,
        };
        let with = |place: Stage| {
            let recomputes = recomputes.clone();
            saved.iter().flat_map(move |offload| {
                recomputes.clone().map(move |recomputed| Stage { offload: *offload, recomputed, ..place })
            })
        };
        let near = places.into_iter().flat_map(with);
        // A sharded stage has its host data on the host near each device.
        let others = |stage: &Stage| if rules.shared { Vec::new() } else { elsewhere(context, stage) };
        near.flat_map(|stage| std::iter::once(stage).chain(others(&stage))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, MachineText, machine_text, model_text, workload};
    use spipe_cost::Mode;

    fn count(gpus: usize, system: System, most: usize) -> Option<usize> {
        let layer =
            LayerText { count: 3, times: [1, 1, 1], slowdown: 2, parameters: 1, boundary: 1, saved: 1, workspace: 0 };
        let machine = MachineText { gpus: vec![(1000, 20); gpus], root: 20, sockets: vec![1000] };
        let instance = Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(4, Mode::Train));
        every(instance.context(), system, most).map(|list| list.len())
    }

    /// Three layers are one stage of three, two of one and two, or three of one; a stage of n
    /// recomputes up to n.
    #[test]
    fn placements_of_three_layers_are_as_many_as_choices() {
        assert_eq!(count(1, System::GpuOnly, 9), Some(1 + 1 + 1 + 1));
        // Two stages on one device.
        assert_eq!(count(1, System::ZbV, 99), Some(2 * (2 * 3)));
        // Streamed or kept, and k′ ≤ k ≤ stages.
        assert_eq!(count(1, System::Superpipeline, 999), Some(2 * 4 + 2 * (4 * 6) * 3 + 4 * 4 * 4 * 6));
        // The optimizer and the activations are on the GPU or the host, where there are three
        // numbers of slots: 2 (1 + 3) (n + 1) choices on the GPU, n + 1 on the socket; each comes
        // once.
        let one = 8 * 4 + 4;
        // If a socket updates two or more stages of the GPU there are two orders. So two stages
        // without recomputation have (1 + 3 · 3)(3 + 1 · 2) choices, and three have
        // (1 + 7 · 3)(4 + 4 · 2).
        let two = 2 * (2 * 3 * 50 + 2 * 3 + 16 * 3 + 2 * 24);
        let three = 8 * (22 * 12) + 2 * 2 * 2 + 2 * (2 * 2 * 50 * 2 + 16 * 2 * 2);
        assert_eq!(count(1, System::Gpipe, 9999), Some(one + two + three));
    }

    #[test]
    fn equal_devices_are_used_in_ascending_order() {
        // One device, or two with one or two layers on the first.
        assert_eq!(count(2, System::GpuOnly, 99), Some(4 + (2 + 2)));
        assert_eq!(count(2, System::Spipe, 9999), Some((1 + 2 * 2 + 4) * (1 + 2 + 2 * 4 + 8)));
    }

    #[test]
    fn too_many_are_none() {
        assert_eq!(count(1, System::Superpipeline, 535), None);
        assert_eq!(count(2, System::Spipe, 10), None);
    }
}
