//! An exhaustive search for a placement that fits, with one stage or several on each device.

use spipe_base::{DeviceId, LayerRange, MemoryId, StageId};
use spipe_plan::{Context, Placement, Stage, System, check, footprint};
use std::{cell::RefCell, collections::BTreeMap};

/// Bytes by memory.
type Needs = BTreeMap<MemoryId, u64>;

/// The memory that stages of a part of the layers need on a device, and the stages.
type Part = (Needs, Vec<Stage>);

/// A placement of `system` that fits, among all device orders, all partitions of each device's
/// layers into stages, and all choices of recompute and of help of the host.
pub fn fitting(context: &Context<'_>, system: System) -> Option<Placement> {
    let devices: Vec<DeviceId> = context.cost.devices().collect();
    let search = Search { context, system, parts: RefCell::default() };
    let mut orders: Vec<Vec<DeviceId>> = vec![Vec::new()];
    let mut next = 0;
    while next < orders.len() {
        let order = orders[next].clone();
        next += 1;
        let others = devices.iter().filter(|device| !order.contains(device));
        orders.extend(others.map(|device| [order.as_slice(), &[*device]].concat()));
    }
    let suits = |order: &Vec<DeviceId>| system != System::Hybrid || order.iter().any(|device| context.is_cpu(*device));
    let layers = context.cost.layers().len();
    let mut orders = orders.into_iter().filter(|order| !order.is_empty() && order.len() <= layers).filter(suits);
    orders.find_map(|order| search.over(&order, 0, (Needs::new(), Vec::new())))
}

/// A placement that fits of any of `systems`.
pub fn any_fitting(context: &Context<'_>, systems: &[System]) -> Option<Placement> {
    systems.iter().find_map(|system| fitting(context, *system))
}

struct Search<'a> {
    context: &'a Context<'a>,
    system: System,
    parts: RefCell<Parts>,
}

/// By device, first and last layer, and number of later devices.
type Parts = BTreeMap<(usize, usize, usize, usize), Vec<Part>>;

impl Search<'_> {
    /// Places the layers from `from` on over the devices of `order`, beside the stages placed
    /// already.
    fn over(&self, order: &[DeviceId], from: usize, (needs, stages): Part) -> Option<Placement> {
        let layers = self.context.cost.layers().len();
        let Some((device, behind)) = order.split_first() else {
            let placement = Placement::new(self.system, stages);
            return (from == layers && check(self.context, &placement).is_ok()).then_some(placement);
        };
        let nearest = if behind.is_empty() { layers } else { from + 1 };
        (nearest..=layers.saturating_sub(behind.len())).find_map(|to| {
            self.parts(*device, (from, to), behind).into_iter().find_map(|(more, added)| {
                let sum = sum(&needs, &more);
                let stages = [stages.as_slice(), &added].concat();
                fit(self.context, &sum).then(|| self.over(behind, to, (sum, stages))).flatten()
            })
        })
    }

    /// The non-dominated needs of layers `from..to` on a device before the devices `behind`.
    fn parts(&self, device: DeviceId, (from, to): (usize, usize), behind: &[DeviceId]) -> Vec<Part> {
        let key = (device.index(), from, to, behind.len());
        if let Some(parts) = self.parts.borrow().get(&key) {
            return parts.clone();
        }
        let layers = self.context.cost.layers().len();
        // Other devices have the stages before and behind, in any shape.
        let before = (from > 0).then(|| {
            let is_before = |other: &DeviceId| *other != device && !behind.contains(other);
            let other = self.context.cost.devices().filter(is_before).max();
            Stage::new(other.unwrap(), range(0, from))
        });
        let mut rest: Vec<Stage> = Vec::new();
        let mut next = to;
        for (index, device) in behind.iter().enumerate() {
            let end = if index + 1 == behind.len() { layers } else { next + 1 };
            rest.push(Stage::new(*device, range(next, end)));
            next = end;
        }
        let mut parts: Vec<Part> = Vec::new();
        for stages in self.cuts(device, from, to) {
            let first = usize::from(before.is_some());
            let ids = first..first + stages.len();
            let all = before.iter().chain(&stages).chain(&rest).copied();
            let mut needs = Needs::new();
            for (memory, by_stage) in footprint(self.context, &Placement::new(self.system, all)) {
                let own = by_stage.iter().filter(|(id, _)| ids.contains(&StageId::index(**id)));
                needs.insert(memory, own.map(|(_, need)| need.total().get()).sum());
            }
            let no_more =
                |one: &Needs, other: &Needs| one.iter().all(|(memory, need)| need <= other.get(memory).unwrap_or(&0));
            if fit(self.context, &needs) && !parts.iter().any(|(other, _)| no_more(other, &needs)) {
                parts.retain(|(other, _)| !no_more(&needs, other));
                parts.push((needs, stages));
            }
        }
        self.parts.borrow_mut().insert(key, parts.clone());
        parts
    }

    /// Every partition of layers `from..to` into stages, with every choice.
    fn cuts(&self, device: DeviceId, from: usize, to: usize) -> Vec<Vec<Stage>> {
        if from == to {
            return vec![Vec::new()];
        }
        let able = |end: &usize| range(from, *end).iter().all(|layer| self.context.cost.time(layer, device).is_some());
        let mut list = Vec::new();
        for end in (from + 1..=to).take_while(able) {
            let rest = self.cuts(device, end, to);
            for stage in self.choices(Stage::new(device, range(from, end))) {
                list.extend(rest.iter().map(|rest| [&[stage], rest.as_slice()].concat()));
            }
        }
        list
    }

    fn choices(&self, stage: Stage) -> Vec<Stage> {
        let recomputed = (0..=stage.layers.count()).map(|recomputed| stage.with_recomputed(recomputed));
        let plain: Vec<Stage> = recomputed.collect();
        let host = self.context.hardware.host_memory(stage.lead()).filter(|_| !self.context.is_cpu(stage.lead()));
        let socket = |host: MemoryId| {
            let mut sockets = self.context.cost.devices().filter(|id| self.context.is_cpu(*id));
            sockets.find(|id| self.context.hardware.devices()[*id].memory == host)
        };
        let Some((host, socket)) = host.and_then(|host| Some((host, socket(host)?))) else { return plain };
        let helped = plain.iter().flat_map(|stage| {
            let stepped = stage.with_optimizer_on(socket);
            [*stage, stepped, stage.with_activations_in(host), stepped.with_activations_in(host)]
        });
        helped.collect()
    }
}

fn range(from: usize, to: usize) -> LayerRange {
    LayerRange::new(from.into(), (to - 1).into()).unwrap()
}

fn sum(one: &Needs, other: &Needs) -> Needs {
    let mut sum = one.clone();
    for (memory, need) in other {
        *sum.entry(*memory).or_default() += need;
    }
    sum
}

fn fit(context: &Context<'_>, needs: &Needs) -> bool {
    needs.iter().all(|(memory, need)| {
        let memory = &context.hardware.memories()[*memory];
        *need <= memory.usable().get()
    })
}
