//! The rules of drives, which hold parameters, optimizer state and offloaded activations.

use super::found::Found;
use crate::{
    Context, Family, Placement, Stage, Weights,
    footprint::{hosted_states, speculates, staging, steps_on_a_host},
};
use spipe_base::{Diagnostic, MemoryId, StageId};
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
    let name = |memory: MemoryId| &context.hardware.memories()[memory].name;
    for state in hosted_states(context, placement) {
        let Some(drive) = state.drive else { continue };
        let joined = |from, to| context.hardware.route(from, to).is_some();
        if !joined(drive, state.host) || !joined(state.host, drive) {
            let what = format!("no link joins `{}` and `{}`", name(drive), name(state.host));
            faults.push_at(state.stage, Diagnostic::error(what).hint("add the link of the drive to the machine"));
        }
    }
}

/// Parameters on a drive pass through the DRAM of their GPU, in systems that stream them chunk by
/// chunk and undo no step.
fn streams_from_a_drive(
    context: &Context<'_>,
    placement: &Placement,
    (id, stage): (StageId, &Stage),
) -> Option<Diagnostic> {
    let (drive, system) = (context.drive_of(stage)?, placement.system);
    let name = |memory: MemoryId| &context.hardware.memories()[memory].name;
    let streams = format!("stage `{id}` streams its parameters from `{}`", name(drive));
    if system.family() != Family::Streamed {
        let what = format!("{streams}, but system `{system}` does not stream from drives");
        return Some(Diagnostic::error(what).hint("use `superpipeline` or `mobius`, or name a DRAM in `weights-in`"));
    }
    if context.workload().mode == Mode::Train && speculates(context, placement) {
        let what = format!("{streams}, but system `{system}` undoes steps, for which parameters stay in DRAM");
        return Some(Diagnostic::error(what).hint("set `synchronous-optimizer`, or name a DRAM in `weights-in`"));
    }
    let joined = |from, to| context.hardware.route(from, to).is_some();
    let Some(host) = context.host_of(stage) else {
        let what = format!("{streams}, but its device has no DRAM in between");
        return Some(Diagnostic::error(what).hint("add the DRAM and its link to the machine"));
    };
    (!joined(host, drive) || !joined(drive, host)).then(|| {
        let what = format!("no link joins `{}` and `{}`", name(host), name(drive));
        Diagnostic::error(what).hint("add the link of the drive to the machine")
    })
}

/// Offloaded activations pass through the DRAM of their GPU.
fn offloads_to_a_drive(context: &Context<'_>, (id, stage): (StageId, &Stage)) -> Option<Diagnostic> {
    let drive = stage.offload.filter(|memory| context.is_drive(*memory))?;
    let (name, device) = (|memory: MemoryId| &context.hardware.memories()[memory].name, stage.device);
    if context.is_cpu(device) {
        let device = &context.hardware.devices()[device].name;
        let what = format!("stage `{id}` on `{device}` offloads to `{}`, but only GPUs do that", name(drive));
        return Some(Diagnostic::error(what).hint("leave `offload-to` out, or put the stage on a GPU"));
    }
    let joined = |from, to| context.hardware.route(from, to).is_some();
    let Some(host) = staging(context, stage) else {
        let what = format!("stage `{id}` offloads to `{}`, but its device has no DRAM in between", name(drive));
        return Some(Diagnostic::error(what).hint("add the DRAM and its link to the machine"));
    };
    (!joined(host, drive) || !joined(drive, host)).then(|| {
        let what = format!("no link joins `{}` and `{}`", name(host), name(drive));
        Diagnostic::error(what).hint("add the link of the drive to the machine")
    })
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
        let what = format!("{keeps}, but system `{}` undoes steps, for which state stays in DRAM", placement.system);
        return Some(Diagnostic::error(what).hint("set `synchronous-optimizer`, or leave `state-on` out"));
    }
    None
}
