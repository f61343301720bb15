//! Stages that keep their parameters: one per device, dealt out in turn, or down the devices and up again.

use super::{cuts, gpus, socket};
use spipe_base::{DeviceId, LayerRange};
use spipe_plan::{Context, Dealing, Placement, Stage, System};

/// The most chunks per device that are tried.
const MOST_CHUNKS: usize = 4;

pub(super) fn candidates(context: &Context<'_>, system: System) -> Option<Vec<Placement>> {
    let gpus = gpus(context);
    let sockets: Vec<DeviceId> = context.cost.devices().filter(|device| context.is_cpu(*device)).collect();
    let devices = if system == System::CpuOnly { sockets } else { gpus };
    let first = *devices.first()?;
    let mut placements = Vec::new();
    match system.dealing() {
        Dealing::Single => {
            for count in 1..=devices.len() {
                let pieces = cuts::balanced(context, first, count).unwrap_or_default();
                let device = |index: usize| devices[index];
                placements.extend(variants(context, system, &pieces, &device));
                if matches!(system, System::ZeroOffload | System::ZeroOffloadDelayed) {
                    // One stage per layer, so that gradients leave and parameters return while others compute.
                    let of_layer = |layer: &LayerRange| {
                        let index = pieces.iter().position(|piece| piece.contains(layer.first()));
                        devices[index.unwrap_or(0)]
                    };
                    let layers = cuts::single(context);
                    let device = |index: usize| of_layer(&layers[index]);
                    placements.extend(variants(context, system, &layers, &device));
                }
            }
        }
        Dealing::RoundRobin => {
            for chunks in 1..=MOST_CHUNKS {
                let pieces = cuts::balanced(context, first, chunks * devices.len()).unwrap_or_default();
                placements.extend(variants(context, system, &pieces, &|index| devices[index % devices.len()]));
            }
        }
        Dealing::Vee => {
            let pieces = cuts::balanced(context, first, 2 * devices.len()).unwrap_or_default();
            let device = |index: usize| devices[index.min(2 * devices.len() - 1 - index)];
            placements.extend(variants(context, system, &pieces, &device));
        }
    }
    Some(placements)
}

/// The stages of `pieces`, with everything saved and with everything recomputed.
fn variants(
    context: &Context<'_>,
    system: System,
    pieces: &[LayerRange],
    device: &dyn Fn(usize) -> DeviceId,
) -> Vec<Placement> {
    if pieces.is_empty() {
        return Vec::new();
    }
    let devices: std::collections::BTreeSet<DeviceId> = (0..pieces.len()).map(device).collect();
    let chunks = pieces.len().div_ceil(devices.len());
    let stage = |index: usize, recompute: bool| -> Option<Stage> {
        let here = device(index);
        let mut stage = Stage::new(here, pieces[index]);
        if recompute {
            stage = stage.with_everything_recomputed();
        }
        let offloaded = match system {
            System::PoH => chunks.div_ceil(2),
            System::PoF => chunks,
            _ => 0,
        };
        // The chunks with the lowest numbers wait longest for their backward.
        if index / devices.len() < offloaded {
            stage = stage.with_activations_in(context.hardware.host_memory(here)?);
        }
        match system {
            System::ZeroOffload | System::ZeroOffloadDelayed => Some(stage.with_optimizer_on(socket(context, here)?)),
            _ => Some(stage),
        }
    };
    let recomputes: &[bool] = match system {
        System::Checkpointing => &[true],
        System::GpuOnly | System::PoH | System::PoF => &[false],
        _ => &[false, true],
    };
    recomputes
        .iter()
        .filter_map(|recompute| {
            let stages: Option<Vec<Stage>> = (0..pieces.len()).map(|index| stage(index, *recompute)).collect();
            Some(Placement::new(system, stages?))
        })
        .collect()
}
