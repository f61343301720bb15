//! The choice of parameters, optimizer states and activations that are on drives.

use crate::{
    Context, Footprint, HostedState, Placement, Stage, StageFootprint, Weights, footprint, footprint::add,
    hosted_states, staging,
};
use spipe_base::{Bytes, MemoryId, StageId};
use spipe_hardware::MemoryKind;
use std::collections::BTreeMap;

/// A placement on a machine whose DRAMs are too small, with the optimizer states of as few stages as
/// possible on drives; or, where `on` names a drive, with all states there that a host steps. `None` if
/// DRAM or the drives are too small even so, or if no host steps anything for `on`.
///
/// The last stages come first: their steps run while the backward goes on, so that less of the time
/// of a drive lies behind it. Each state is on the drive that is done with it first.
pub fn with_states_on_drives(context: &Context<'_>, placement: &Placement, on: Option<MemoryId>) -> Option<Placement> {
    let fits = |placement: &Placement| hosts_hold(context, &footprint(context, placement));
    if on.is_none() && fits(placement) {
        return Some(placement.clone());
    }
    let chosen = chosen(context, placement, on);
    let moved = |count: usize| with_states(placement, &chosen[..count]);
    let all = moved(chosen.len());
    if chosen.is_empty() || !fits(&all) {
        return None;
    }
    let (mut few, mut enough) = (if on.is_some() { chosen.len() } else { 1 }, chosen.len());
    while few < enough {
        let middle = few.midpoint(enough);
        if fits(&moved(middle)) { enough = middle } else { few = middle + 1 }
    }
    Some(if enough == chosen.len() { all } else { moved(enough) })
}

/// The same with all states that can be on drives, whether or not memories hold that. `None` if no
/// host steps anything for `on`.
pub fn with_all_states_on_drives(
    context: &Context<'_>,
    placement: &Placement,
    on: Option<MemoryId>,
) -> Option<Placement> {
    let chosen = chosen(context, placement, on);
    (on.is_none() || !chosen.is_empty()).then(|| with_states(placement, &chosen))
}

/// A placement with the states of stages on drives.
fn with_states(placement: &Placement, chosen: &[(StageId, MemoryId)]) -> Placement {
    let mut moved = placement.clone();
    let stages = if moved.backward.is_empty() { &mut moved.stages } else { &mut moved.backward };
    for (stage, drive) in chosen {
        stages[*stage].state = Some(*drive);
    }
    moved
}

/// Whether any parameters of a placement are on a drive.
pub fn keeps_parameters_on_drives(context: &Context<'_>, placement: &Placement) -> bool {
    placement.all_stages().any(|stage| context.drive_of(stage).is_some())
}

/// Whether any optimizer state of a placement is on a drive.
pub fn keeps_state_on_drives(placement: &Placement) -> bool {
    placement.all_stages().any(|stage| stage.state.is_some())
}

/// A placement with all activations that GPUs offload on `drive`. `None` if no GPU offloads any.
pub fn with_activations_on(context: &Context<'_>, placement: &Placement, drive: MemoryId) -> Option<Placement> {
    let mut moved = placement.clone();
    let leaves = |stage: &&mut Stage| stage.offload.is_some() && !context.is_cpu(stage.lead());
    let mut any = false;
    for stage in moved.stages.iter_mut().chain(moved.backward.iter_mut()).filter(leaves) {
        stage.offload = Some(drive);
        any |= context.backward_of(stage.layers).is_some();
    }
    any.then_some(moved)
}

/// A placement with all parameters that are streamed on `drive`. `None` if none are.
pub fn with_parameters_on(placement: &Placement, drive: MemoryId) -> Option<Placement> {
    let mut moved = placement.clone();
    let streams = |stage: &&mut Stage| matches!(stage.weights, Weights::Streamed(_));
    let mut any = false;
    for stage in moved.stages.iter_mut().chain(moved.backward.iter_mut()).filter(streams) {
        (stage.weights, any) = (Weights::Streamed(drive), true);
    }
    (any && placement.system.streams_from_drives() && !placement.is_pipeline()).then_some(moved)
}

/// Whether anything of a placement is on a drive.
pub fn uses_drives(context: &Context<'_>, placement: &Placement) -> bool {
    let uses =
        |stage: &Stage| stage.state.is_some() || context.drive_of(stage).is_some() || staging(context, stage).is_some();
    placement.all_stages().any(uses)
}

/// The stages whose states can be on a drive, the last one first, each with its drive.
fn chosen(context: &Context<'_>, placement: &Placement, on: Option<MemoryId>) -> Vec<(StageId, MemoryId)> {
    // By drive: the seconds for a byte both ways, and the free bytes.
    let mut drives: BTreeMap<MemoryId, (f64, Bytes)> = BTreeMap::new();
    let allowed = |id: MemoryId| on.is_none_or(|on| on == id);
    for (id, memory) in context.hardware.memories().enumerate() {
        if memory.kind != MemoryKind::Nvme || !allowed(id) {
            continue;
        }
        let rate = |way: &str| {
            let link = context.hardware.link(&format!("{}.{way}", memory.name));
            link.map_or(f64::INFINITY, |link| context.hardware.links()[link].bandwidth.get().recip())
        };
        drives.insert(id, (rate("read") + rate("write"), memory.usable()));
    }
    let mut of_stage: BTreeMap<StageId, Vec<HostedState>> = BTreeMap::new();
    for state in hosted_states(context, placement) {
        of_stage.entry(state.stage).or_default().push(state);
    }
    let mut busy: BTreeMap<MemoryId, f64> = BTreeMap::new();
    let mut chosen = Vec::new();
    for (stage, states) in of_stage.into_iter().rev() {
        let bytes: Bytes = states.iter().map(|state| state.bytes).sum();
        let joined = |drive: MemoryId| {
            let joins = |from, to| context.hardware.route(from, to).is_some();
            states.iter().all(|state| joins(drive, state.host) && joins(state.host, drive))
        };
        let done = |(drive, (time, _)): (&MemoryId, &(f64, Bytes))| {
            busy.get(drive).copied().unwrap_or_default() + time * bytes.as_f64()
        };
        let able = drives.iter().filter(|(drive, (_, free))| *free >= bytes && joined(**drive));
        let Some((drive, until)) = able.map(|one| (*one.0, done(one))).min_by(|one, other| one.1.total_cmp(&other.1))
        else {
            continue;
        };
        busy.insert(drive, until);
        if let Some((_, free)) = drives.get_mut(&drive) {
            *free -= bytes;
        }
        chosen.push((stage, drive));
    }
    chosen
}

/// Whether all memories but those of devices hold their part of a footprint: the planner sees to the
/// devices.
fn hosts_hold(context: &Context<'_>, needs: &Footprint) -> bool {
    let mut pools = Footprint::new();
    for (memory, stages) in needs {
        stages.iter().for_each(|(id, need)| add(&mut pools, context.hardware.pool(*memory), (*id, *need)));
    }
    pools.iter().all(|(memory, stages)| {
        let memory = &context.hardware.memories()[*memory];
        memory.kind == MemoryKind::Gpu || stages.values().map(StageFootprint::total).sum::<Bytes>() <= memory.usable()
    })
}
