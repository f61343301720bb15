//! Lowering: from a placement and an order to a program.

mod bare;
mod stages;

pub use bare::{StageTimes, bare};

use crate::{Channel, Order, Program, ProgramBuilder, Shape, system_order};
use spipe_base::{Faults, IdVec, LinkId};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement};

/// The order in which `placement` computes: in inference every stage runs its forwards in turn.
pub fn order_of(context: &Context<'_>, placement: &Placement) -> Order {
    let stages = placement.stages.len();
    let microbatches = context.workload().microbatches as usize;
    let last_cpu = placement.stages.enumerate().rfind(|(_, stage)| context.is_cpu(stage.device));
    let reached = last_cpu.map_or(0, |(id, _)| id.index() + 1);
    system_order(placement.system, stages, microbatches, &vec![placement.knobs.head_start as usize; reached])
}

/// The program of one iteration of `placement`.
///
/// Every stage keeps its parameters, gradients and optimizer state on its device. Boundaries are double-buffered: an input
/// arrives while the stage computes on the one before it, and an output is copied out while the next one is computed. That
/// bounds the memory to what [`spipe_plan::footprint`] counts.
pub fn lower(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let order = order_of(context, placement);
    let mut builder = machine(context, placement);
    stages::Lowering::new(context, placement, &mut builder).run(&order)?;
    builder.build()
}

/// A builder with the machine's memories, devices and channels, under the machine's own ids.
fn machine(context: &Context<'_>, placement: &Placement) -> ProgramBuilder {
    let (model, hardware, workload) = (context.model, context.hardware, context.workload());
    let used = |device| placement.stages.iter().any(|stage| stage.device == device);
    let notes = hardware
        .devices()
        .enumerate()
        .filter(|(id, device)| device.emulated && used(*id))
        .map(|(_, device)| {
            format!("`{}` is an emulated accelerator: CPU cores with a memory cap and a paced link", device.name)
        })
        .collect();
    let mut builder = ProgramBuilder::new(Shape {
        name: format!("{} of {} on {}", placement.system, model.name(), hardware.name()),
        layers: model.layers().len(),
        microbatches: workload.microbatches,
        training: workload.mode == Mode::Train,
        tokens: Some(workload.tokens()),
        notes,
    });
    for memory in hardware.memories() {
        builder.memory(&memory.name, Some(memory.capacity.saturating_sub(memory.reserved)));
    }
    for device in hardware.devices() {
        builder.device(&device.name, device.memory, device.emulated);
    }
    let channels: IdVec<LinkId, Channel> =
        hardware.links().iter().map(|link| Channel { name: link.name.clone(), bandwidth: link.bandwidth }).collect();
    for channel in &channels {
        builder.channel(&channel.name, channel.bandwidth);
    }
    builder
}
