//! The rules of sharded systems.

use super::{found::Found, mesh::check_ring};
use crate::{Context, Knob, Placement, ShardGroups, Stage, System, Team, Weights};
use spipe_base::{DeviceId, Diagnostic, MemoryId, StageId, readable::nearest};
use spipe_hardware::Hardware;
use std::collections::BTreeSet;

/// Checks that the GPUs exist, that routes join neighbours in the ring, that all get the same
/// number of microbatches, and that host memories are named as expected.
pub(super) fn check(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let participants = placement.replicas();
    let (count, microbatches) = (participants.len() as u64, context.workload().microbatches);
    if count == 0 {
        let fault = Diagnostic::error("parameters are sharded over no GPUs");
        faults.push(fault.hint("name the GPUs in `replicas` of the `mesh`, or use a machine with GPUs"));
        return;
    }
    if let Some(fault) = placement.mesh.replicas.iter().find_map(|teams| wrong_replica(context, teams)) {
        faults.push(fault);
        return;
    }
    if !microbatches.is_multiple_of(count) {
        let near = microbatches.next_multiple_of(count);
        faults.push(
            Diagnostic::error(format!("{microbatches} microbatches cannot be divided evenly among {count} GPUs"))
                .hint(format!("use {near} microbatches")),
        );
    }
    for (id, stage) in placement.stages.enumerate().filter(|(_, stage)| stage.lead() != participants[0]) {
        let name = |device| &context.hardware.devices()[device].name;
        faults.push_at(
            id,
            Diagnostic::error(format!(
                "stage `{id}` is on `{}`, but {} names the first of its GPUs",
                name(stage.lead()),
                placement.fixed_by()
            ))
            .hint(format!("put it on `{}`", name(participants[0]))),
        );
    }
    let groups = placement.shard_groups();
    let size = Knob::ShardGroup.of(placement);
    if let Some(fault) = size.and_then(|size| check_groups(context.hardware, &participants, size).err()) {
        faults.push(fault);
        return;
    }
    groups.groups().iter().chain(&groups.across()).for_each(|ring| check_ring(context, ring, faults));
    let streams = |(_, stage): &(StageId, &Stage)| matches!(stage.weights, Weights::Streamed(_));
    for (id, _) in placement.stages.enumerate().filter(streams).filter(|_| placement.system == System::Fsdp) {
        faults.push_at(
            id,
            Diagnostic::error(format!("stage `{id}` is streamed, but under system `fsdp` all parameters stay on GPUs"))
                .hint("use system `zero-infinity`"),
        );
    }
    // Where each GPU has a copy of its own, a resident stage would be held twice, as a shard and gathered.
    let alone = groups.size() == 1 && placement.system == System::ZeroInfinity;
    for (id, _) in placement.stages.enumerate().filter(|stage| alone && !streams(stage)) {
        let what =
            format!("stage `{id}` stays on its GPU, but under system `zero-infinity` a single GPU streams everything");
        faults.push_at(id, Diagnostic::error(what).hint("use system `superpipeline`, or more GPUs"));
    }
    check_hosts(context, placement, &participants, faults);
}

/// Checks that groups of `size` devices each divide `devices`, and that each group is within a computer or has all devices
/// of its computers.
///
/// # Errors
/// The first fault.
pub fn check_groups(hardware: &Hardware, devices: &[DeviceId], size: u64) -> Result<(), Diagnostic> {
    let count = devices.len() as u64;
    let node = |device: &DeviceId| hardware.devices()[*device].node;
    let divides = |size: u64| {
        let is_whole = |group: &Vec<DeviceId>| {
            let nodes: BTreeSet<_> = group.iter().map(node).collect();
            nodes.len() == 1 || devices.iter().filter(|device| nodes.contains(&node(device))).count() == group.len()
        };
        let groups = ShardGroups::new(devices.to_vec(), size as usize).groups();
        size > 0 && count.is_multiple_of(size) && groups.iter().all(is_whole)
    };
    if divides(size) {
        return Ok(());
    }
    let message = if size > 0 && count.is_multiple_of(size) {
        format!("a group of {size} GPUs would have a part of a computer's and others")
    } else {
        format!("{count} GPUs cannot be divided into groups of {size}")
    };
    Err(Diagnostic::error(message).hint(format!("use groups of {}", nearest(size.min(count + 1), count, divides))))
}

/// The fault of a replica of several teams or devices, or of one that is no GPU.
fn wrong_replica(context: &Context<'_>, teams: &[Team]) -> Option<Diagnostic> {
    match teams {
        [team] if team.len() == 1 => {
            let device = &context.hardware.devices()[team[0]];
            let fault = || Diagnostic::error(format!("a replica with sharded parameters is on `{}`", device.name));
            (!device.is_gpu()).then(|| fault().hint("use GPUs"))
        }
        _ => Some(
            Diagnostic::error("a replica with sharded parameters has several teams or devices")
                .hint("give each replica one team of one GPU"),
        ),
    }
}

/// Checks that every GPU reaches a host memory, if one is used, and that stages name the memory and
/// socket near the first GPU.
fn check_hosts(context: &Context<'_>, placement: &Placement, participants: &[DeviceId], faults: &mut Found<'_>) {
    let hosted =
        placement.stages.iter().any(|stage| stage.optimizer.is_some() || matches!(stage.weights, Weights::Streamed(_)));
    let hidden = participants.iter().find(|device| hosted && context.hardware.host_memory(**device).is_none());
    if let Some(device) = hidden {
        let name = &context.hardware.devices()[*device].name;
        faults.push(Diagnostic::error(format!("`{name}` reaches no host memory")));
    }
    let Some(home) = context.hardware.host_memory(participants[0]) else { return };
    let socket = context.hardware.memories()[home].device;
    let memory = |memory: MemoryId| &context.hardware.memories()[memory].name;
    let device = |device: DeviceId| &context.hardware.devices()[device].name;
    for (id, stage) in placement.stages.enumerate() {
        let mut refuse = |what: String, hint: String| {
            faults.push_at(id, Diagnostic::error(format!("stage `{id}` is {what}")).hint(hint));
        };
        let shared =
            format!("but each GPU uses the host memory near it, and plans name that of the first, `{}`", memory(home));
        if let Weights::Streamed(other) = stage.weights
            && other != home
            && !context.is_drive(other)
        {
            refuse(format!("streamed from `{}`, {shared}", memory(other)), format!("use `{}`", memory(home)));
        }
        if let (Some(other), Some(socket)) = (stage.optimizer.filter(|other| Some(*other) != socket), socket) {
            refuse(format!("updated on `{}`, {shared}", device(other)), format!("use `{}`", device(socket)));
        }
        if stage.offload.is_some() {
            let what = format!("to offload its activations, but {} does not", placement.fixed_by());
            refuse(what, "leave `offload-to` out, or recompute the layers".into());
        }
    }
}
