//! The rules of meshes.

use super::found::Found;
use crate::{Context, GradientsLeave, OrderKind, Placement, Update};
use spipe_base::{DeviceId, Diagnostic};
use spipe_cost::{CostError, Mesh, collectives::hops};
use spipe_hardware::{Hardware, Memory};
use std::collections::BTreeSet;

/// Checks a mesh by itself: replicas of as many teams, teams of as many devices, each device once, and like devices.
///
/// # Errors
/// The first fault.
pub fn check_mesh(hardware: &Hardware, mesh: &Mesh) -> Result<(), Diagnostic> {
    let Some(first) = mesh.replicas.first() else { return Ok(()) };
    let name = |device: &DeviceId| &hardware.devices()[*device].name;
    let teams = mesh.replicas.iter().map(Vec::len);
    if let Some(other) = teams.clone().find(|teams| *teams != first.len() || *teams == 0) {
        let message = format!("a replica has {other} teams, and the first one {}", first.len());
        return Err(Diagnostic::error(message).hint("give each replica as many teams"));
    }
    let members = mesh.members() as usize;
    if let Some(team) = mesh.replicas.iter().flatten().find(|team| team.len() != members || team.is_empty()) {
        let message = format!("a team has {} devices, and the first one {members}", team.len());
        return Err(Diagnostic::error(message).hint("give each team as many devices"));
    }
    check_degrees(mesh)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = mesh.devices().find(|device| !seen.insert(*device)) {
        let message = format!("`{}` is twice in the mesh", name(&twice));
        return Err(Diagnostic::error(message).hint("name each device once"));
    }
    for (place, team) in first.iter().enumerate() {
        let runners = mesh.replicas.iter().flat_map(|teams| &teams[place]);
        if let Some(other) = runners.into_iter().find(|other| !alike(hardware, team[0], **other)) {
            let message = format!("`{}` and `{}` run the same stage, but differ", name(&team[0]), name(other));
            return Err(Diagnostic::error(message).hint("put like devices at the same place of each team and replica"));
        }
    }
    Ok(())
}

/// Checks that sequences are divided among the members of a team, and experts among the holders of the same layers.
fn check_degrees(mesh: &Mesh) -> Result<(), Diagnostic> {
    let (members, context, holders, expert) = (mesh.members(), mesh.context, mesh.holders(), mesh.expert);
    if context == 0 || !members.is_multiple_of(context) {
        let message = format!("sequences are divided among {context} devices, but a team has {members}");
        return Err(Diagnostic::error(message).hint("use a number that divides the devices of a team"));
    }
    if expert == 0 || !holders.is_multiple_of(expert) {
        return Err(undivided(CostError::ExpertGroups { holders, expert }));
    }
    Ok(())
}

/// Whether two devices compute and hold the same.
fn alike(hardware: &Hardware, one: DeviceId, other: DeviceId) -> bool {
    let (one, other) = (&hardware.devices()[one], &hardware.devices()[other]);
    let room = |memory| {
        let memory: &Memory = &hardware.memories()[memory];
        (memory.capacity, memory.usable())
    };
    let figures = one.kind == other.kind && one.peak == other.peak && one.memory_bandwidth == other.memory_bandwidth;
    figures && room(one.memory) == room(other.memory) && one.efficiency == other.efficiency
}

/// The fault of a mesh that does not divide a model or a batch.
pub fn undivided(error: CostError) -> Diagnostic {
    let fault = Diagnostic::error(error.to_string());
    match error {
        CostError::Replicas { microbatches, data } => fault.hint(format!(
            "use {} microbatches, or as many replicas as divide them",
            microbatches.max(1).next_multiple_of(data)
        )),
        CostError::Team { .. } => fault.hint("use a number of devices that divides its heads and its inner width"),
        CostError::Sequence { seq_len, context } => {
            let least = (2 * context).max(2);
            fault.hint(format!("use sequences of {} tokens", seq_len.max(1).next_multiple_of(least)))
        }
        CostError::Tokens { .. } => fault.hint("sequences of decoders alone are divided, in training for every token"),
        CostError::NoTraining => fault.hint("divide matrices or batches instead"),
        CostError::Experts { .. } => fault.hint("use a number of devices that divides the experts, and no adapters"),
        CostError::NoExperts { .. } => fault.hint("leave the degree out, or use a model with experts"),
        CostError::ExpertGroups { holders, .. } => fault.hint(format!("use a number that divides {holders}")),
        _ => fault,
    }
}

/// Checks that the mesh of the context suits the placement's other answers, and that routes join what exchanges data.
pub(super) fn check(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let mesh = context.mesh();
    let own = &placement.mesh;
    if !own.replicas.is_empty() && !placement.shards_parameters() && own != mesh {
        let message = "the mesh of the plan is not the one whose times and bytes are known";
        faults.push(Diagnostic::error(message).hint("this is a bug: a placement was judged on another mesh"));
    }
    if mesh.is_single() {
        return;
    }
    if placement.shards_parameters() {
        let message = format!("{} has replicas of its own, and no teams", placement.fixed_by());
        faults.push(Diagnostic::error(message).hint("leave the mesh out, or use another system"));
        return;
    }
    let lead = |device: DeviceId| mesh.leads().any(|lead| lead == device);
    for (id, stage) in placement.all_stages().enumerate().filter(|(_, stage)| !lead(stage.lead())) {
        let name = &context.hardware.devices()[stage.lead()].name;
        let message = format!("stage `s{id}` is on `{name}`, which leads no team of the first replica");
        faults.push(Diagnostic::error(message).hint("name the first device of one of its teams"));
    }
    if crate::uses_drives(context, placement) {
        let fault = Diagnostic::error("what several replicas or members of a team keep on drives is in no Program yet");
        faults.push(fault.hint("keep it in memory, or use one replica on teams of one device"));
    }
    check_replicas(context, placement, faults);
    let holders = mesh.leads().flat_map(|lead| mesh.holders_of(lead));
    for ring in mesh.tensor_groups().iter().chain(&mesh.context_groups()).chain(&holders.collect::<Vec<_>>()) {
        check_ring(context, ring, faults);
    }
}

/// Checks that several holders of the same layers have gradients to reduce on devices.
fn check_replicas(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let mesh = context.mesh();
    if mesh.holders() == 1 {
        return;
    }
    if matches!(placement.order, OrderKind::Rounds(_)) {
        check_streamed(mesh, faults);
        return;
    }
    if placement.gradients_leave == GradientsLeave::EachMicrobatch {
        let message = "replicas reduce the sums of their gradients on devices, but these leave after each microbatch";
        faults.push(Diagnostic::error(message).hint("leave `gradients-leave` out, or use one replica"));
    }
    if placement.update == Update::Delayed {
        let fault = Diagnostic::error("the update `delayed` of several replicas is in no Program yet");
        faults.push(fault.hint("use one replica, or the update `as-ready`"));
    }
    let hosted = placement.stages.enumerate().find(|(_, stage)| context.steps(stage) != stage.lead());
    if let Some((id, _)) = hosted.filter(|_| mesh.state_parts() == 1) {
        let message = format!("the hosts of {} replicas would each step all of stage `{id}`", mesh.holders());
        faults.push_at(id, Diagnostic::error(message).hint("divide the optimizer among them: sharding `optimizer`"));
    }
}

/// Checks that each replica of stages in rounds has a copy of everything.
fn check_streamed(mesh: &Mesh, faults: &mut Found<'_>) {
    if mesh.state_parts() > 1 {
        let message = "each replica streams from a copy of its own on its host, of which the optimizer is a part";
        faults.push(Diagnostic::error(message).hint("divide nothing: sharding `none`, or use the order of a pipeline"));
    }
    if mesh.context > 1 || mesh.expert > 1 {
        let message =
            "stages that stream their parameters on devices that divide sequences or experts are in no Program yet";
        faults.push(Diagnostic::error(message).hint("use replicas and tensor parallelism, or the order of a pipeline"));
    }
}

/// Checks that routes join the neighbours of a ring.
pub(super) fn check_ring(context: &Context<'_>, ring: &[DeviceId], faults: &mut Found<'_>) {
    let devices = context.hardware.devices();
    let apart = |[from, to]: &[DeviceId; 2]| {
        from != to && context.hardware.route(devices[*from].memory, devices[*to].memory).is_none()
    };
    for [from, to] in hops(ring).filter(apart) {
        let message = format!("no link joins `{}` and `{}`", devices[from].name, devices[to].name);
        faults.push(Diagnostic::error(message));
    }
}
