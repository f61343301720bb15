//! The machine of a placement as the frame of its program.

use super::folds::fold;
use crate::{Channel, ProgramBuilder, Shape};
use spipe_base::{IdVec, LinkId, SimTime};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement};

/// A note about lanes that stand for several devices of a mesh.
fn stands_for(context: &Context<'_>) -> Option<String> {
    let (data, members) = (context.mesh().data(), context.mesh().members());
    let replicas = if context.cost.shows_all() { 1 } else { data };
    match (replicas, members) {
        (1, 1) => None,
        (1, members) => Some(format!("a device stands for its team of {members}")),
        (replicas, 1) => Some(format!("one replica stands for all {replicas}")),
        (replicas, members) => {
            Some(format!("one replica stands for all {replicas}, and a device for its team of {members}"))
        }
    }
}

/// A builder with the machine's memories, devices and channels, under the machine's own ids.
pub(super) fn machine(context: &Context<'_>, placement: &Placement) -> ProgramBuilder {
    let (model, hardware, workload) = (context.model, context.hardware, context.workload());
    let participants = placement.computing_in(context);
    let used = |device| participants.contains(&device);
    let notes = hardware
        .devices()
        .enumerate()
        .filter(|(id, device)| device.emulated && used(*id))
        .map(|(_, device)| {
            format!("`{}` is an emulated accelerator: CPU cores with a memory cap and a paced link", device.name)
        })
        .chain(stands_for(context))
        .collect();
    let mut builder = ProgramBuilder::new(Shape {
        name: format!("{} of {} on {}", placement.name(), model.name(), hardware.name()),
        layers: model.layers().len(),
        microbatches: workload.microbatches * if context.cost.shows_all() { context.mesh().data() } else { 1 },
        training: workload.mode == Mode::Train,
        without_backward: context.cost.without_backward(),
        feeds_back: context.feeds_back(),
        tokens: Some(context.cost.whole_workload().tokens()),
        notes,
    });
    for memory in hardware.memories() {
        builder.memory(&memory.name, Some(memory.usable()));
    }
    for device in hardware.devices() {
        builder.device(&device.name, device.memory, device.emulated);
    }
    let channels: IdVec<LinkId, Channel> =
        hardware.links().iter().map(|link| Channel { name: link.name.clone(), bandwidth: link.bandwidth }).collect();
    for channel in &channels {
        builder.channel(&channel.name, channel.bandwidth);
    }
    let pause = SimTime::from_seconds(hardware.runtime().iteration());
    let paused = hardware.devices().enumerate().filter(|(_, device)| device.is_gpu() && !device.emulated);
    if pause > SimTime::ZERO {
        paused.for_each(|(id, _)| builder.pause(id, pause));
    }
    fold(context, placement, &mut builder);
    builder
}
