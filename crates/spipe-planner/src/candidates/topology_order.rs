//! Devices that are alike in an order in which neighbours have as little of their ways to the host in common as there can be: what the first
//! ones of a chain offload most would otherwise wait for each other. Mobius has an order of its own ([`crate::candidates::streamed::cross_mapped`]), of all GPUs
//! and by what takes turns on them; here only those that are alike change places in a placement.

use crate::hosts::socket;
use crate::{costs::CostSums, hosts::exchanged};
use spipe_base::{DeviceId, LinkId};
use spipe_plan::{Context, Placement};
use std::{cmp::Reverse, collections::BTreeMap};

/// `plain` with devices that are alike exchanged so that each shares the links to its host with as few as possible of those before it, and
/// neighbours have different sockets near them, which then step for as long.
pub(crate) fn apart(costs: &CostSums<'_>, plain: &Placement) -> Placement {
    let context = &costs.context;
    let model = |device: DeviceId| costs.models[device.index()];
    let devices = plain.devices();
    let mut left = devices.clone();
    let mut used: BTreeMap<LinkId, u32> = BTreeMap::new();
    let mut last = None;
    let mut instead: BTreeMap<DeviceId, DeviceId> = BTreeMap::new();
    for device in &devices {
        let shares = |other: DeviceId| {
            let links = links(context, other).into_iter();
            let bandwidth = |link: LinkId| context.hardware.links()[link].bandwidth.get();
            let time = |link: LinkId| f64::from(1 + used.get(&link).copied().unwrap_or(0)) / bandwidth(link);
            links.map(time).fold(0.0, f64::max)
        };
        let alike = left.iter().copied().filter(|other| model(*other) == model(*device));
        // Another socket than the last one's, and of those the one near which most are left.
        let turn =
            |other: DeviceId| (socket(context, other) == last, Reverse(near(context, &left, socket(context, other))));
        let Some(next) = alike.min_by(|one, other| {
            shares(*one).total_cmp(&shares(*other)).then_with(|| turn(*one).cmp(&turn(*other))).then(one.cmp(other))
        }) else {
            continue;
        };
        left.retain(|other| *other != next);
        last = socket(context, next);
        for link in links(context, next) {
            *used.entry(link).or_default() += 1;
        }
        instead.insert(*device, next);
    }
    exchanged(context, plain, &|device| instead.get(&device).copied().unwrap_or(device))
}

/// How many of `devices` have that socket near them.
fn near(context: &Context<'_>, devices: &[DeviceId], of: Option<DeviceId>) -> usize {
    devices.iter().filter(|device| socket(context, **device) == of).count()
}

/// The links between a device and the host near it, both ways.
fn links(context: &Context<'_>, device: DeviceId) -> Vec<LinkId> {
    let memory = context.hardware.devices()[device].memory;
    let Some(host) = context.hardware.host_memory(device) else { return Vec::new() };
    let ways = [context.hardware.route(memory, host), context.hardware.route(host, memory)];
    ways.into_iter().flatten().flat_map(|route| route.links.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::Options,
    };
    use spipe_base::LayerRange;
    use spipe_cost::Mode;
    use spipe_plan::{Stage, System};

    /// Four GPUs of so much memory, two on each of two narrow switches, with a stage each in the order of their names; and the order apart.
    fn order(memory: [u64; 4]) -> Vec<String> {
        let layer =
            LayerText { count: 4, times: [1, 1, 1], slowdown: 9, parameters: 9, boundary: 1, saved: 1, workspace: 0 };
        let gpus = memory.map(|memory| (memory, 20)).to_vec();
        let mut text = machine_text(&MachineText { gpus, root: 50, sockets: vec![8000] });
        for gpu in 0..4 {
            let link = |to: &str| format!("between = [\"gpu{gpu}\", \"{to}\"]");
            text = text.replace(&link("root0"), &link(&format!("switch{}", gpu / 2)));
        }
        for switch in 0..2 {
            text += &format!(
                "[[link]]\nname = \"uplink{switch}\"\nbetween = [\"switch{switch}\", \"root0\"]\nbandwidth = \"20 GB/s\"\n"
            );
        }
        let instance = Instance::new(&model_text(&[layer]), &text, &workload(4, Mode::Train));
        let context = instance.context();
        let costs = CostSums::new(context, &Options::default());
        let stage = |index: usize| {
            let device = context.hardware.device(&format!("gpu{index}")).unwrap();
            let stage = Stage::new(device, LayerRange::new(index.into(), index.into()).unwrap());
            stage.with_optimizer_on(socket(&context, device).unwrap())
        };
        let plain = Placement::new(System::OneForwardOneBackward, (0..4).map(stage));
        let moved = apart(&costs, &plain);
        assert!(moved.stages.iter().all(|stage| stage.optimizer.is_some()));
        moved.devices().into_iter().map(|device| context.hardware.devices()[device].name.clone()).collect()
    }

    #[test]
    fn neighbours_share_no_switch_if_they_are_alike() {
        assert_eq!(order([900; 4]), ["gpu0", "gpu2", "gpu1", "gpu3"]);
        assert_eq!(order([900, 900, 800, 800]), ["gpu0", "gpu1", "gpu2", "gpu3"]);
    }
}
