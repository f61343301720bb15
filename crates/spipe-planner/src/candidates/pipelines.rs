//! Placements of resident pipelines: one stage per device, round robin, or down the devices and up
//! again.

use crate::{
    candidates::{
        cuts::{self, Weight},
        streamed::gpu_orders,
    },
    hosts::{gpus, socket},
    space::{
        distinct,
        rules::{DeviceSet, OffloadedChunks, Permission, SystemSpec},
    },
};
use spipe_base::{DeviceId, LayerRange};
use spipe_plan::{Context, Dealing, GradientsLeave, Knob, Placement, Stage, System, check};

/// Limit on chunks per device: c chunks leave 1/c of the bubble, so that a fifth one saves a twentieth.
const MOST_CHUNKS: usize = 4;

pub(crate) fn candidates(context: &Context<'_>, system: System) -> Option<Vec<Placement>> {
    let (spec, gpus) = (SystemSpec::of(system), gpus(context));
    let sockets: Vec<DeviceId> = context.cost.devices().filter(|device| context.is_cpu(*device)).collect();
    let devices = if spec.rules.computing == DeviceSet::Sockets { sockets } else { gpus };
    let first = *devices.first()?;
    let mut placements = Vec::new();
    match system.dealing() {
        Dealing::Single => {
            for count in 1..=devices.len() {
                let pieces = cuts::balanced(context, first, count).unwrap_or_default();
                placements.extend(fitting(context, system, (first, count), &|index| devices[index]));
                if spec.by_layer {
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
        Dealing::RoundRobin => placements.extend(in_orders(context, &|devices| {
            let device = |index: usize| devices[index % devices.len()];
            let of_chunks = |chunks: usize| fitting(context, system, (devices[0], chunks * devices.len()), &device);
            (1..=MOST_CHUNKS).flat_map(of_chunks).collect()
        })),
        Dealing::Vee => placements.extend(in_orders(context, &|devices| {
            let last = 2 * devices.len() - 1;
            fitting(context, system, (devices[0], last + 1), &|index: usize| devices[index.min(last - index)])
        })),
    }
    Some(placements)
}

/// Returns the placements on the GPUs in each of their [`gpu_orders`].
fn in_orders(context: &Context<'_>, on: &dyn Fn(&[DeviceId]) -> Vec<Placement>) -> Vec<Placement> {
    let of_order = |gpus: Vec<DeviceId>| on_most(context, &gpus, on);
    gpu_orders(context, &gpus(context)).into_iter().flat_map(of_order).collect()
}

/// Returns the placements on the largest number of `gpus` for which one fits: models may have few
/// layers, and batches few microbatches.
fn on_most(context: &Context<'_>, gpus: &[DeviceId], on: &dyn Fn(&[DeviceId]) -> Vec<Placement>) -> Vec<Placement> {
    let mut list = Vec::new();
    for count in (1..=gpus.len()).rev() {
        let more = on(&gpus[..count]);
        let possible = more.iter().any(|placement| check(context, placement).is_ok());
        list.extend(more);
        if possible {
            break;
        }
    }
    list
}

/// Adds, for each placement whose gradients may leave with each microbatch, the variant in which
/// they do.
pub(crate) fn leaving_or_not(list: &mut Vec<Placement>) {
    let may = |placement: &&Placement| {
        Knob::GradientsLeave.is_of(placement.system) && placement.gradients_leave == GradientsLeave::Complete
    };
    let leave = |placement: &Placement| placement.clone().with(Knob::GradientsLeave, 1);
    let leaving: Vec<Placement> = list.iter().filter(may).map(leave).filter(|leave| !list.contains(leave)).collect();
    list.extend(leaving);
}

/// Returns the variants of `count` pieces balanced in time. If none fits, also those balanced in
/// time and bytes, then those in bytes alone.
fn fitting(
    context: &Context<'_>,
    system: System,
    (first, count): (DeviceId, usize),
    device: &dyn Fn(usize) -> DeviceId,
) -> Vec<Placement> {
    let mut list: Vec<Placement> = Vec::new();
    for weight in [Weight::Time, Weight::Both, Weight::Bytes] {
        let pieces = cuts::balanced_in(context, (first, weight), count).unwrap_or_default();
        list.extend(variants(context, system, &pieces, device));
        if list.iter().any(|placement| check(context, placement).is_ok()) {
            break;
        }
    }
    distinct(list)
}

/// Returns the placements of `pieces` with everything saved and with everything recomputed, as the
/// system allows.
fn variants(
    context: &Context<'_>,
    system: System,
    pieces: &[LayerRange],
    device: &dyn Fn(usize) -> DeviceId,
) -> Vec<Placement> {
    if pieces.is_empty() {
        return Vec::new();
    }
    let spec = SystemSpec::of(system);
    let devices: std::collections::BTreeSet<DeviceId> = (0..pieces.len()).map(device).collect();
    let chunks = pieces.len().div_ceil(devices.len());
    let stage = |index: usize, recompute: bool| -> Option<Stage> {
        let here = device(index);
        let mut stage = Stage::new(here, pieces[index]);
        if recompute {
            stage = stage.with_everything_recomputed();
        }
        let offloaded = match spec.offloaded {
            OffloadedChunks::None => 0,
            OffloadedChunks::Half => chunks.div_ceil(2),
            OffloadedChunks::All => chunks,
        };
        // The chunks with the lowest numbers wait longest for their backward.
        if index / devices.len() < offloaded {
            stage = stage.with_activations_in(context.hardware.host_memory(here)?);
        }
        let steps_on_host = spec.rules.steps_on_host == Permission::Required;
        Some(if steps_on_host { stage.with_optimizer_on(socket(context, here)?) } else { stage })
    };
    let recomputes: &[bool] = match spec.rules.recomputes {
        Permission::Required => &[true],
        Permission::Free if spec.offloaded == OffloadedChunks::None => &[false, true],
        _ => &[false],
    };
    recomputes
        .iter()
        .filter_map(|recompute| {
            let stages: Option<Vec<Stage>> = (0..pieces.len()).map(|index| stage(index, *recompute)).collect();
            Some(Placement::new(system, stages?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, MachineText, machine_text, model_text, workload};
    use spipe_cost::Mode;

    const LAYER: LayerText =
        LayerText { count: 4, times: [1, 1, 1], slowdown: 2, parameters: 0, boundary: 1, saved: 1, workspace: 0 };

    /// With recompute layer by layer, only one layer's saved activations of one microbatch are
    /// present.
    #[test]
    fn a_socket_that_holds_one_layer_at_a_time_has_a_plan() {
        let layer = LayerText { parameters: 1_000_000, saved: 40, ..LAYER };
        for (system, machine) in [
            (System::CpuOnly, MachineText { gpus: vec![(10, 20)], root: 20, sockets: vec![200] }),
            (System::Checkpointing, MachineText { gpus: vec![(200, 20)], root: 20, sockets: vec![10] }),
        ] {
            let instance = Instance::new(
                &model_text(std::slice::from_ref(&layer)),
                &machine_text(&machine),
                &workload(2, Mode::Train),
            );
            let context = instance.context();
            let list = candidates(&context, system).unwrap_or_default();
            let fit: Vec<&Placement> = list.iter().filter(|placement| check(&context, placement).is_ok()).collect();
            assert!(!fit.is_empty() && fit.iter().all(|placement| placement.stages.len() == 4), "{system}: {fit:?}");
        }
    }

    /// Slow layers without parameters before fast ones, two of which fill a GPU.
    #[test]
    fn pieces_are_balanced_in_bytes_where_time_alone_leaves_no_room() {
        let slow = LayerText { times: [20, 20, 20], ..LAYER };
        let large = LayerText { parameters: 16_000_000, ..LAYER };
        for (memory, system) in [(560, System::ZbH1), (560, System::ZbV), (560, System::Interleaved)] {
            let machine = MachineText { gpus: vec![(memory, 20); 2], root: 20, sockets: vec![1000] };
            let model = model_text(&[slow.clone(), large.clone()]);
            let instance = Instance::new(&model, &machine_text(&machine), &workload(4, Mode::Train));
            let context = instance.context();
            let fit = |placement: &Placement| check(&context, placement).is_ok();
            let list = candidates(&context, system).unwrap_or_default();
            assert!(list.iter().any(fit), "{system}");
            let gpus = gpus(&context);
            let pieces = cuts::balanced(&context, gpus[0], 2).unwrap_or_default();
            let balanced = variants(&context, System::ZbH1, &pieces, &|index| gpus[index]);
            assert!(!balanced.is_empty() && !balanced.iter().any(fit), "{system}");
        }
    }
}
