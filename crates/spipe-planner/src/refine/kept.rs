//! More, fewer or other stages whose parameters stay on their device although others are streamed.

use super::equal_parts;
use crate::systems::{keep, kept, socket, streamed, with_least_recompute};
use spipe_base::{DeviceId, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, Stage, System};

/// On all devices one, two or four stages more or fewer kept, on each device one, or another one; and the same with as little recomputed
/// there as then fits.
pub(super) fn changed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    if !placement.system.may_keep() {
        return Vec::new();
    }
    let devices = placement.devices();
    let recomputes = context.workload().mode == Mode::Train && placement.system != System::Mobius;
    let mut list: Vec<Placement> = Vec::new();
    let mut add = |devices: &[DeviceId], (more, fewer): (usize, usize)| {
        let mut other = placement.clone();
        for device in devices {
            change(context, (&mut other, *device), (more, fewer));
        }
        let mut least = other.clone();
        if recomputes {
            devices.iter().for_each(|device| with_least_recompute(context, &mut least, *device));
        }
        for other in [least, other] {
            if other != *placement && !list.contains(&other) {
                list.push(other);
            }
        }
    };
    for by in [1, 2, 4] {
        add(&devices, (by, 0));
        add(&devices, (0, by));
    }
    for device in devices.chunks(1) {
        add(device, (1, 0));
        add(device, (0, 1));
        add(device, (1, 1));
    }
    list
}

/// Keeps more of the first streamed stages, and streams others: the last ones that are kept, or in exchange the first ones.
fn change(context: &Context<'_>, (placement, device): (&mut Placement, DeviceId), (more, fewer): (usize, usize)) {
    let (streamed, kept) = (streamed(context, placement, device), kept(placement, device));
    let fewer = fewer.min(kept.len());
    let gone: &[StageId] = if more > 0 { &kept[..fewer] } else { &kept[kept.len() - fewer..] };
    gone.iter().for_each(|gone| stream(context, placement, *gone));
    keep(placement, &streamed[..more.min(streamed.len())]);
    // One layer after the other they need least room.
    if placement.devices().len() == 1 {
        let each = |(id, stage): (StageId, &Stage)| {
            let parts = if gone.contains(&id) { stage.layers.count() } else { 1 };
            equal_parts(stage, parts)
        };
        placement.stages = placement.stages.enumerate().flat_map(each).collect();
    }
}

/// Streams a stage from the host near its device.
fn stream(context: &Context<'_>, placement: &mut Placement, id: StageId) {
    let stage = placement.stages[id];
    if let Some(home) = context.hardware.host_memory(stage.device) {
        let streamed = Stage::new(stage.device, stage.layers).with_weights_in(home);
        let optimizer = socket(context, stage.device);
        placement.stages[id] = Stage { recomputed: stage.recomputed, offload: stage.offload, optimizer, ..streamed };
    }
}
