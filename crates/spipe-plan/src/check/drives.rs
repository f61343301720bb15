//! The rules of drives, which hold parameters, optimizer state and offloaded activations.

use super::found::Found;
use crate::{
    Context, Placement, Stage, Weights,
    footprint::{hosted_states, speculates, steps_on_a_host},
};
use spipe_base::{DeviceId, Diagnostic, MemoryId, StageId};
use spipe_cost::Mode;

/// Checks that states are on drives, that their steps run on a socket that a route joins with the
/// drive, and that no step is undone; that activations reach their drive through DRAM.
pub(super) fn check(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    for (index, stage) in placement.all_stages().enumerate() {
        let id = StageId::from(index);
        if let Some(fault) = streams_from_a_drive(context, placement, (id, stage)) {
            faults.push_at(id, fault);
        }
        if let Some(fault) = offloads_to_a_drive(context, (id, stage)) {
            faults.push_at(id, fault);
        }
    }
    let drives = || placement.all_stages().enumerate().filter_map(|(index, stage)| Some((index, stage, stage.state?)));
    for (index, stage, drive) in drives() {
        let id = StageId::from(index);
        if let Some(fault) = of_stage(context, placement, (id, stage, drive)) {
            faults.push_at(id, fault);
        }
    }
    if drives().next().is_none() || !faults.all.is_harmless() {
        return;
    }
    for state in hosted_states(context, placement) {
        if let Some(fault) = state.drive.and_then(|drive| unlinked(context, (state.host, drive))) {
            faults.push_at(state.stage, fault);
        }
    }
}

/// Parameters on a drive pass through the DRAM of their GPUs, in systems that stream them and undo no
/// step.
fn streams_from_a_drive(
    context: &Context<'_>,
    placement: &Placement,
    (id, stage): (StageId, &Stage),
) -> Option<Diagnostic> {
    let (drive, fixed_by) = (context.drive_of(stage)?, placement.fixed_by());
    let streams = format!("stage `{id}` streams its parameters from `{}`", name(context, drive));
    if !placement.system.streams_from_drives() || placement.is_pipeline() {
        let what = format!("{streams}, but {fixed_by} does not stream from drives");
        let hint = "use `superpipeline`, `mobius` or `zero-infinity`, or name a DRAM in `weights-in`";
        return Some(Diagnostic::error(what).hint(hint));
    }
    if context.workload().mode == Mode::Train && speculates(context, placement) {
        let what = format!("{streams}, but {fixed_by} undoes steps, for which parameters stay in DRAM");
        return Some(Diagnostic::error(what).hint("set `synchronous-optimizer`, or name a DRAM in `weights-in`"));
    }
    let devices = if placement.shards_parameters() { placement.replicas() } else { vec![stage.lead()] };
    devices.into_iter().find_map(|device| through_dram(context, (streams.clone(), device), drive))
}

/// Offloaded activations pass through the DRAM of their GPU.
fn offloads_to_a_drive(context: &Context<'_>, (id, stage): (StageId, &Stage)) -> Option<Diagnostic> {
    let drive = stage.offload.filter(|memory| context.is_drive(*memory))?;
    let device = stage.lead();
    if context.is_cpu(device) {
        let device = &context.hardware.devices()[device].name;
        let what = format!("stage `{id}` on `{device}` offloads to `{}`, but only GPUs do that", name(context, drive));
        return Some(Diagnostic::error(what).hint("leave `offload-to` out, or put the stage on a GPU"));
    }
    through_dram(context, (format!("stage `{id}` offloads to `{}`", name(context, drive)), device), drive)
}

/// The fault of a stage that uses a drive from a device without a DRAM between the two.
fn through_dram(context: &Context<'_>, (what, device): (String, DeviceId), drive: MemoryId) -> Option<Diagnostic> {
    let Some(host) = context.hardware.host_memory(device) else {
        let what = format!("{what}, but its device has no DRAM in between");
        return Some(Diagnostic::error(what).hint("add the DRAM and its link to the machine"));
    };
    unlinked(context, (host, drive))
}

/// The fault of a DRAM and a drive that no link joins both ways.
fn unlinked(context: &Context<'_>, (host, drive): (MemoryId, MemoryId)) -> Option<Diagnostic> {
    let joined = |from, to| context.hardware.route(from, to).is_some();
    (!joined(host, drive) || !joined(drive, host)).then(|| {
        let what = format!("no link joins `{}` and `{}`", name(context, drive), name(context, host));
        Diagnostic::error(what).hint("add the link of the drive to the machine")
    })
}

fn name<'a>(context: &Context<'a>, memory: MemoryId) -> &'a str {
    &context.hardware.memories()[memory].name
}

fn of_stage(
    context: &Context<'_>,
    placement: &Placement,
    (id, stage, drive): (StageId, &Stage, MemoryId),
) -> Option<Diagnostic> {
    let memory = &context.hardware.memories()[drive];
    let keeps = format!("stage `{id}` keeps its optimizer state on `{}`", memory.name);
    if !context.is_drive(drive) {
        let what = format!("{keeps}, which is no drive");
        return Some(Diagnostic::error(what).hint("leave `state-on` out, or name a drive of the machine"));
    }
    if context.workload().mode != Mode::Train {
        return Some(Diagnostic::error(format!("{keeps}, but only training has such state")).hint("leave it out"));
    }
    let runs_here = !steps_on_a_host(context, stage);
    let stays = matches!(stage.weights, Weights::Resident) && stage.optimizer.is_none();
    if runs_here || stays {
        let what = format!("{keeps}, but its optimizer step runs on its own device");
        return Some(Diagnostic::error(what).hint("name a socket in `optimizer-on`, or leave `state-on` out"));
    }
    if speculates(context, placement) {
        let what = format!("{keeps}, but {} undoes steps, for which state stays in DRAM", placement.fixed_by());
        return Some(Diagnostic::error(what).hint("set `synchronous-optimizer`, or leave `state-on` out"));
    }
    None
}
