//! Lowering: from a placement and an order to a program.

mod bare;
mod flows;
mod pipeline;
mod rounds;
mod sharded;
mod slots;
mod steps;
mod turns;

pub use bare::{StageTimes, bare, bare_offloaded};
pub use rounds::{RoundTimes, UnitTimes, bare_rounds, bare_superpipeline, bare_superpipeline_after};
pub use turns::{in_flight, order_of};

use crate::{Channel, Program, ProgramBuilder, Shape};
use spipe_base::{Faults, IdVec, LinkId};
use spipe_cost::Mode;
use spipe_plan::{Context, Family, Placement};

/// The program of one iteration of `placement`.
///
/// Boundaries are double-buffered: an input arrives while the stage computes on the one before it, and an output is copied
/// out while the next one is computed. That bounds the memory to what [`spipe_plan::footprint_with`] counts with [`in_flight`].
pub fn lower(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    match placement.system.family() {
        Family::Pipeline => pipeline(context, placement),
        Family::Sharded => {
            let mut builder = machine(context, placement);
            sharded::Lowering::new(context, placement, &mut builder).run()?;
            builder.build()
        }
        Family::Rounds => rounds::lower_rounds(context, placement),
    }
}

fn pipeline(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let order = order_of(context, placement)?;
    let mut builder = machine(context, placement);
    let depth = slots::slots_of(&order);
    pipeline::Lowering::new(context, placement, depth, &mut builder).run(&order, placement.system)?;
    builder.build()
}

/// A builder with the machine's memories, devices and channels, under the machine's own ids.
fn machine(context: &Context<'_>, placement: &Placement) -> ProgramBuilder {
    let (model, hardware, workload) = (context.model, context.hardware, context.workload());
    let participants = match placement.system.family() {
        Family::Sharded => placement.participants(hardware),
        _ => placement.devices(),
    };
    let used = |device| participants.contains(&device);
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
        without_backward: context.cost.without_backward(),
        feeds_back: context.feeds_back(),
        tokens: Some(workload.tokens()),
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
    builder
}
