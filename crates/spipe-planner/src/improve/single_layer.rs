//! Cuts of all stages into single layers, each with choices of its own. Offloaded activations then
//! need small buffers, and a device's free memory can hold the optimizer state of its first layers,
//! whose steps nothing hides.

use crate::{
    candidates::repair::free_bytes,
    costs::bytes_of,
    space::stage_edits::{equal_parts, stepped_on_socket},
};
use crate::{problem::SYSTEMS, space::enumerate::slots};
use spipe_base::StageId;
use spipe_cost::Mode;
use spipe_plan::{Context, Knob, Placement, Stage, footprint};

/// Limit on layers, since each becomes a stage that is counted and simulated.
const MOST_LAYERS: usize = 256;

/// Cuts every stage into single layers. With `host_offload`, also runs the optimizer steps of as
/// many first layers of each GPU as fit there and of all others on a socket, for every number of
/// slots for offloaded activations.
pub(crate) fn changed(context: &Context<'_>, placement: &Placement, host_offload: bool) -> Vec<Placement> {
    let Some(fine) = fine(context, placement) else { return Vec::new() };
    let mut list = vec![fine.clone()];
    if host_offload {
        let with = |offload_slots| fine.clone().with_option(Knob::OffloadSlots, offload_slots);
        list.extend(slots(context, &fine).into_iter().filter_map(|slots| stepped(context, &with(slots))));
    }
    list.retain(|other| other != placement);
    list
}

/// Cuts every stage into single layers, where this may help and there are not too many.
pub(crate) fn fine(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let few = context.model.layers().len() <= MOST_LAYERS && SYSTEMS.contains(&placement.system);
    let stages = || placement.stages.iter().flat_map(|stage| equal_parts(stage, stage.layers.count())).collect();
    (few && context.workload().mode == Mode::Train).then(|| Placement { stages: stages(), ..placement.clone() })
}

/// Runs the optimizer steps of as many first stages of each GPU as fit there, and of the others on
/// a socket.
fn stepped(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let on_socket = |stage: &Stage| stepped_on_socket(context, stage).filter(|_| !context.is_cpu(stage.lead()));
    let mut changed = placement.clone();
    changed.stages.iter_mut().for_each(|stage| *stage = on_socket(stage).unwrap_or(*stage));
    let needs = footprint(context, &changed);
    for device in placement.devices().into_iter().filter(|device| !context.is_cpu(*device)) {
        let mut left = free_bytes(context, &needs, device)?;
        let own: Vec<StageId> =
            changed.stages.enumerate().filter(|(_, stage)| stage.lead() == device).map(|(id, _)| id).collect();
        for id in own {
            let stage = &mut changed.stages[id];
            let held = bytes_of(context, (stage.layers, stage.lead()), |memory| memory.optimizer);
            let Some(less) = left.checked_sub(held.get()) else { break };
            left = less;
            stage.optimizer = None;
        }
    }
    Some(changed)
}
