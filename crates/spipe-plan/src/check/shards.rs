//! Stages that GPUs share.

use super::Found;
use crate::{Context, Placement, Stage, System, Weights};
use spipe_base::{DeviceId, Diagnostic, MemoryId, StageId};

/// Participants exist, have each other's memory in reach, and get the same number of microbatches; each has its part on the host near it.
pub(super) fn check_shards(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let participants = placement.participants(context.hardware);
    let gpus = context.hardware.devices().iter().filter(|device| device.is_gpu()).count();
    let (count, microbatches) = (participants.len() as u64, context.workload().microbatches);
    if count == 0 || placement.knobs.shards.is_some_and(|shards| shards != count) {
        let asked = placement.knobs.shards.unwrap_or(1);
        faults.push(
            Diagnostic::error(format!("{asked} GPUs are to share, but `{}` has {gpus}", context.hardware.name()))
                .hint(format!("use between 1 and {gpus}")),
        );
        return;
    }
    if !microbatches.is_multiple_of(count) {
        let near = microbatches.next_multiple_of(count);
        faults.push(
            Diagnostic::error(format!("{microbatches} microbatches cannot be shared out evenly among {count} GPUs"))
                .hint(format!("use {near} microbatches")),
        );
    }
    for (id, stage) in placement.stages.enumerate().filter(|(_, stage)| stage.device != participants[0]) {
        let name = |device| &context.hardware.devices()[device].name;
        faults.push_at(
            id,
            Diagnostic::error(format!(
                "stage `{id}` is on `{}`, but system `{}` names the first of the GPUs that share it",
                name(stage.device),
                placement.system
            ))
            .hint(format!("put it on `{}`", name(participants[0]))),
        );
    }
    let memory = |device: &DeviceId| context.hardware.devices()[*device].memory;
    for (from, to) in participants.iter().zip(participants.iter().cycle().skip(1)) {
        if from != to && context.hardware.route(memory(from), memory(to)).is_none() {
            let name = |device: &DeviceId| &context.hardware.devices()[*device].name;
            faults.push(Diagnostic::error(format!("no link joins `{}` and `{}`", name(from), name(to))));
        }
    }
    let streams = |(_, stage): &(StageId, &Stage)| matches!(stage.weights, Weights::Streamed(_));
    for (id, _) in placement.stages.enumerate().filter(streams).filter(|_| placement.system == System::Fsdp) {
        faults.push_at(
            id,
            Diagnostic::error(format!("stage `{id}` is streamed, but under system `fsdp` all parameters stay on GPUs"))
                .hint("use system `zero-infinity`"),
        );
    }
    // What stays on a GPU that shares it with nobody needs no shard beside it.
    let alone = count == 1 && placement.system == System::ZeroInfinity;
    for (id, _) in placement.stages.enumerate().filter(|stage| alone && !streams(stage)) {
        let what =
            format!("stage `{id}` stays on its GPU, but under system `zero-infinity` one GPU alone streams everything");
        faults.push_at(id, Diagnostic::error(what).hint("use system `superpipeline`, or more GPUs"));
    }
    check_hosts(context, placement, &participants, faults);
}

/// What is on the host is near each GPU, under the name of what is near the first.
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
        let shared = format!("but what GPUs share is near each of them, which has `{}` as a name", memory(home));
        if let Weights::Streamed(other) = stage.weights
            && other != home
        {
            refuse(format!("streamed from `{}`, {shared}", memory(other)), format!("use `{}`", memory(home)));
        }
        if let (Some(other), Some(socket)) = (stage.optimizer.filter(|other| Some(*other) != socket), socket) {
            refuse(format!("stepped on `{}`, {shared}", device(other)), format!("use `{}`", device(socket)));
        }
        if stage.offload.is_some() {
            let what = format!("to offload what it saves, but system `{}` does not", placement.system);
            refuse(what, "leave `offload-to` out, or recompute it".into());
        }
    }
}
