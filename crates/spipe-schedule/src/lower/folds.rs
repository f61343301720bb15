//! Devices and host memories of a program that stand for others of a mesh.
//!
//! A program has one replica for all, and of each team its lead. Memory of a device is that of one; a host memory is
//! shared by all devices near it, so that each of its buffers is as large as those of all of them together.

use crate::ProgramBuilder;
use spipe_base::{DeviceId, Fold, MemoryId, readable::ranges};
use spipe_plan::{Context, Placement, Stage, Weights};
use std::collections::{BTreeMap, BTreeSet};

/// Tells `builder` which devices and host memories of the program stand for others.
pub(super) fn fold(context: &Context<'_>, placement: &Placement, builder: &mut ProgramBuilder) {
    if context.mesh().is_single() {
        return;
    }
    let (hardware, mesh) = (context.hardware, context.mesh());
    let teams = if context.cost.shows_all() { 1 } else { mesh.data() };
    let mut alike: BTreeMap<MemoryId, BTreeSet<MemoryId>> = BTreeMap::new();
    for (lead, hosts) in hosts(context, placement) {
        let (shown, alone) = (context.shown_by(lead), vec![lead]);
        if shown.len() < 2 {
            continue;
        }
        let team = mesh.team(lead).unwrap_or(&alone).iter().map(|device| hardware.devices()[*device].name.as_str());
        let name = hardware.devices()[lead].name.clone();
        builder.fold(Fold { name, team: ranges(team).join(", "), teams });
        for host in hosts {
            builder.share((lead, host), context.sharers(lead, host));
            alike.entry(host).or_default().extend(shown.iter().map(|other| context.counterpart(host, (lead, *other))));
        }
    }
    // Two memories of the program do not stand for each other.
    let alone = |host: &MemoryId, all: &BTreeSet<MemoryId>| all.iter().all(|m| m == host || !alike.contains_key(m));
    for (host, all) in alike.iter().filter(|(host, all)| all.len() > 1 && alone(host, all)) {
        let memory = &hardware.memories()[*host];
        let socket = memory.device.map(|socket| &hardware.devices()[socket].name);
        for name in std::iter::once(&memory.name).chain(socket) {
            builder.fold(Fold { name: name.clone(), team: name.clone(), teams: all.len() as u64 });
        }
    }
}

/// By device that runs stages in the program, the memories besides its own that hold their data: those that stages name,
/// and the host memory near a device of a sharded system.
fn hosts(context: &Context<'_>, placement: &Placement) -> BTreeMap<DeviceId, BTreeSet<MemoryId>> {
    let mut hosts: BTreeMap<DeviceId, BTreeSet<MemoryId>> = BTreeMap::new();
    for stage in placement.all_stages() {
        for lead in leads(context, stage.lead()) {
            let near = context.hardware.host_memory(lead).filter(|_| placement.shards_parameters());
            let stage = context.as_run_by(stage, lead);
            hosts.entry(lead).or_default().extend(named(context, &stage).chain(near));
        }
    }
    hosts
}

/// The devices of the program that lead the teams at the place of the team of `lead`.
fn leads(context: &Context<'_>, lead: DeviceId) -> Vec<DeviceId> {
    let all = context.mesh().peers(lead).filter_map(|team| team.first().copied());
    let all: Vec<DeviceId> = if context.cost.shows_all() { all.collect() } else { Vec::new() };
    if all.is_empty() { vec![lead] } else { all }
}

/// The memories that a stage names, besides that of its device.
fn named(context: &Context<'_>, stage: &Stage) -> impl Iterator<Item = MemoryId> {
    let streamed = match stage.weights {
        Weights::Streamed(home) => Some(home),
        Weights::Resident => None,
    };
    let socket = stage.optimizer.map(|socket| context.hardware.devices()[socket].memory);
    let own = context.hardware.devices()[stage.lead()].memory;
    [streamed, stage.offload, stage.state, socket].into_iter().flatten().filter(move |memory| *memory != own)
}
