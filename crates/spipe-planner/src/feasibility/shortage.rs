//! Reasons why no partition fits, with remedies.

use crate::{
    costs::{CostSums, HostOffload, StageSlot},
    feasibility::closest::closest as shortage_of_closest,
    problem::PlanError,
    space::subproblem::{Partition, Subproblem},
};
use rayon::prelude::*;
use spipe_base::{Bytes, LayerId, MemoryId, readable::listed};
use spipe_cost::Mode;
use spipe_hardware::{Memory, MemoryKind};
use spipe_plan::{Context, Placement, System};
use std::collections::BTreeMap;

/// Checks that every layer fits some device, and that all memories together can hold the model.
///
/// # Errors
///
/// The layer, or the missing bytes.
pub(crate) fn obvious(costs: &CostSums<'_>) -> Result<(), PlanError> {
    lonely_layers(costs)?;
    let state = |layer: usize| {
        let able = costs.devices.iter().filter(|device| device.able(layer, layer + 1));
        able.map(|device| device.state(layer, layer + 1, Some(HostOffload::NONE))).min().unwrap_or(0)
    };
    let needed: u64 = (0..costs.layers).map(state).sum();
    let memories = memories(costs);
    let usable: u64 = memories.values().sum();
    if needed <= usable {
        return Ok(());
    }
    let caches = costs.devices.iter().any(|device| device.bytes.iter().any(|layer| layer.cache > Bytes::ZERO));
    let (what, hint) = match (costs.training, caches) {
        (true, _) => ("parameters, gradients and optimizer state", "train in a narrower precision"),
        (false, true) => ("parameters and caches", "use a smaller global batch: each sequence has a cache"),
        (false, false) => ("parameters", "infer in a narrower precision"),
    };
    Err(PlanError::Infeasible {
        reason: format!(
            "the model needs at least {} of {what}, and {} {} {}: {} more are needed",
            Bytes::new(needed),
            names(costs, &memories),
            if memories.len() == 1 { "has" } else { "together have" },
            Bytes::new(usable),
            Bytes::new(needed - usable)
        ),
        hint: format!("add memory or devices, use a smaller model, or {hint}"),
        missing: Some(Bytes::new(needed - usable)),
        certain: true,
    })
}

/// The sum settles the question where it exceeds the memories by this factor. Below it, the sum lacks
/// too much of what a plan holds (gradients, a seventh of it, and activations) for its shortage to be
/// of use.
const CLEARLY: f64 = 1.5;

/// Checks that all memories of the machine together hold what every placement of any system holds:
/// parameters, optimizer state and caches. Gradients are left out, since some systems free those of
/// a stage at once.
///
/// # Errors
///
/// The missing bytes, as a [`PlanError::Infeasible`]: no search can find a plan.
pub fn enough_in_total(context: &Context<'_>) -> Result<(), PlanError> {
    let cost = context.cost;
    let held = |layer: LayerId| {
        let able = cost.devices().filter(|device| cost.time(layer, *device).is_some());
        let bytes = able.map(|device| cost.memory(layer, device));
        bytes.map(|bytes| bytes.parameters + bytes.optimizer + bytes.cache).min().unwrap_or(Bytes::ZERO)
    };
    let needed: Bytes = cost.layers().map(held).sum();
    // A search with drives has their room in its DRAMs.
    let holds = |memory: &&Memory| memory.pageable_view_of.is_none() && memory.kind != MemoryKind::Nvme;
    let own = context.hardware.memories().iter().filter(holds);
    let usable: Bytes = own.clone().map(|memory| memory.usable()).sum();
    if needed.as_f64() <= usable.as_f64() * CLEARLY {
        return Ok(());
    }
    let missing = needed - usable;
    let names: Vec<&str> = own.clone().map(|memory| memory.name.as_str()).collect();
    let dram = own.filter(|memory| memory.kind == MemoryKind::Dram).max_by_key(|memory| memory.capacity);
    let grown = dram.map_or("the machine", |memory| memory.name.as_str());
    let (what, other) = match context.workload().mode {
        Mode::Train => ("parameters and optimizer state", "a smaller model"),
        _ => ("parameters and caches", "a smaller model or batch"),
    };
    let (have, reason) = (if names.len() == 1 { "has" } else { "together have" }, context.model.name());
    Err(PlanError::Infeasible {
        reason: format!(
            "`{reason}` needs at least {needed} for {what}, and {} {have} {usable}: {missing} are missing",
            listed(&names)
        ),
        hint: format!("give `{grown}` at least {missing} more, or use {other}"),
        missing: Some(missing),
        certain: true,
    })
}

/// Checks that every layer fits some device by itself.
pub(crate) fn lonely_layers(costs: &CostSums<'_>) -> Result<(), PlanError> {
    (0..costs.layers).try_for_each(|layer| lonely(costs, layer))
}

/// Checks that layer `layer` fits some device by itself: its state, and the activations and
/// workspace of one microbatch. The input is left out, since it depends on the stage.
fn lonely(costs: &CostSums<'_>, layer: usize) -> Result<(), PlanError> {
    let need = |index: usize| {
        let device = &costs.devices[index];
        let host_offload = Some(HostOffload::NONE).filter(|_| costs.host_offloads(index).len() == 1);
        let held = (device.bytes[layer].saved + device.bytes[layer].workspace).get();
        device.able(layer, layer + 1).then(|| device.state(layer, layer + 1, host_offload) + held)
    };
    let needs: Vec<(u64, usize)> =
        (0..costs.devices.len()).filter_map(|device| Some((need(device)?, device))).collect();
    if needs.iter().any(|(need, device)| *need <= costs.devices[*device].usable) {
        return Ok(());
    }
    let name = &costs.context.model.layers()[LayerId::from(layer)].name;
    let Some((need, device)) = needs.into_iter().max_by_key(|(_, device)| costs.devices[*device].usable) else {
        return Err(PlanError::Infeasible {
            reason: format!(
                "layer `{name}` has no time on any device of `{}` on which it may be",
                costs.context.hardware.name()
            ),
            hint: "add its times for one of the devices to the model file, or drop a pin".into(),
            missing: None,
            certain: true,
        });
    };
    let device = &costs.devices[device];
    Err(PlanError::Infeasible {
        reason: format!(
            "layer `{name}` needs at least {}, and the largest memory, `{}`, has {}",
            Bytes::new(need),
            costs.context.hardware.memories()[device.memory].name,
            Bytes::new(device.usable)
        ),
        hint: if device.state(layer, layer + 1, None) > device.usable {
            "use a device with more memory, or a smaller model".into()
        } else {
            "use a smaller microbatch or a shorter sequence, or a device with more memory".into()
        },
        missing: Some(Bytes::new(need.saturating_sub(device.usable))),
        certain: true,
    })
}

/// Returns the reason why no partition of any subproblem fits: the one with the least shortage,
/// without host offloads.
pub(crate) fn closest(costs: &CostSums<'_>, cases: &[Subproblem]) -> PlanError {
    let placements: Vec<Placement> = cases.par_iter().filter_map(|case| least_short(costs, case)).collect();
    if let Some(shortage) = shortage_of_closest(&costs.context, &placements) {
        return shortage.error(&costs.context);
    }
    let (model, hardware) = (costs.context.model.name(), costs.context.hardware.name());
    PlanError::Infeasible {
        reason: if placements.is_empty() {
            format!("no chain of connected devices of `{hardware}` can run the layers of `{model}` in order")
        } else {
            format!("no division of the {} layers of `{model}` over `{hardware}` is allowed", costs.layers)
        },
        hint: "add the missing times to the model file, or the missing links to the hardware file, or drop a pin"
            .into(),
        missing: None,
        certain: placements.is_empty(),
    }
}

/// Returns the reason why greedy filling has no plan, although another planner may have one.
pub(crate) fn greedy(costs: &CostSums<'_>, systems: &[System], examined: usize) -> PlanError {
    if systems.is_empty() {
        return PlanError::NoSystem;
    }
    if examined > 0 {
        return PlanError::NothingRuns { examined };
    }
    PlanError::Infeasible {
        reason: format!("filling {} in order leaves layers that fit nowhere", names(costs, &memories(costs))),
        hint: "use the planner `ilp`, which searches other partitions".into(),
        missing: None,
        certain: false,
    }
}

/// Returns the partition of `case` without host offloads whose worst stage lacks the fewest bytes.
/// `None` if the devices of `case` cannot run all layers.
fn least_short(costs: &CostSums<'_>, case: &Subproblem) -> Option<Placement> {
    let case = case.clone().with_host_offload(costs, Some(HostOffload::NONE));
    let (layers, stages) = (costs.layers, case.stages());
    // By stage and end: the shortage of the worst stage so far, the start of the last one, and its
    // recompute.
    let mut table: Vec<Vec<Option<(u64, usize, usize)>>> = vec![vec![None; layers + 1]; stages + 1];
    table[0][0] = Some((0, 0, 0));
    for stage in 0..stages {
        let device = case.device(costs, stage);
        let (before, next) = table.split_at_mut(stage + 1);
        let farthest = layers.checked_sub(stages - 1 - stage)?;
        for (from, before) in before[stage].iter().enumerate() {
            let Some((worst, _, _)) = before else { continue };
            for to in (from + 1..=farthest).take_while(|to| device.able(from, *to)) {
                // The worst shortage never shrinks from stage to stage.
                if next[0][to].is_some_and(|(least, _, _)| least <= *worst) {
                    continue;
                }
                let Some((least, most)) = device.recomputes(costs.training, from, to) else { continue };
                let slot = StageSlot { last: to == layers, ..case.stage_slots[stage] };
                let need = |recomputed: usize| (device.need(slot, (from, to), recomputed), recomputed);
                let (need, recomputed) = need(least).min(need(most));
                let worst = need.saturating_sub(device.usable).max(*worst);
                if next[0][to].is_none_or(|(least, _, _)| worst < least) {
                    next[0][to] = Some((worst, from, recomputed));
                }
            }
        }
    }
    let (mut partition, mut end) = (Partition { ends: vec![0; stages], recomputed: vec![0; stages] }, layers);
    for stage in (0..stages).rev() {
        let (_, from, recomputed) = table[stage + 1][end]?;
        (partition.ends[stage], partition.recomputed[stage]) = (end, recomputed);
        end = from;
    }
    Some(case.placement(costs, &partition))
}

/// Returns the usable bytes of each memory from which a device computes.
fn memories(costs: &CostSums<'_>) -> BTreeMap<MemoryId, u64> {
    costs.devices.iter().map(|device| (device.memory, device.usable)).collect()
}

/// Returns the names of `memories` as [`listed`] joins them.
fn names(costs: &CostSums<'_>, memories: &BTreeMap<MemoryId, u64>) -> String {
    let names = memories.keys().map(|memory| costs.context.hardware.memories()[*memory].name.as_str());
    listed(&names.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::Options,
        space::subproblem::ScheduleKind,
    };
    use spipe_cost::Mode;

    /// Returns the reason for chains of the first GPUs of two, with `memories` in MiB. Each of four
    /// layers has 128 MiB of state and saves 33 MiB.
    fn of_gpus(memories: [u64; 2], chains: &[usize]) -> String {
        let layer = LayerText {
            count: 4,
            times: [1, 2, 0],
            slowdown: 9,
            parameters: 8 << 20,
            boundary: 1,
            saved: 32,
            workspace: 0,
        };
        let machine = MachineText { gpus: memories.map(|memory| (memory, 20)).to_vec(), root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(4, Mode::Train));
        let costs = CostSums::new(instance.context(), &Options { host_help: false, ..Options::default() });
        let schedule = ScheduleKind { system: System::OneForwardOneBackward, head_start: 0 };
        let gpus: Vec<usize> = (0..costs.devices.len()).filter(|device| !costs.devices[*device].is_cpu).collect();
        let cases: Vec<Subproblem> =
            chains.iter().map(|count| Subproblem::new(&costs, &gpus[..*count], schedule)).collect();
        closest(&costs, &cases).to_string()
    }

    /// Two recomputed layers need their state, the activations of both, an input for each of two
    /// microbatches, and slots of 1 MiB.
    #[test]
    fn the_closest_division_says_what_it_lacks() {
        let said = |lacks: &str, devices: &str| {
            format!("no placement fits: the closest one, system `1f1b` on {devices}, needs {lacks}")
        };
        assert_eq!(of_gpus([300, 300], &[2, 1]), said("28.0 MiB more in `gpu0`", "`gpu0` and `gpu1`"));
        // Three layers are on the first GPU; with two there, the other would lack 226 MiB.
        assert_eq!(of_gpus([300, 100], &[2, 1]), said("189.0 MiB more in `gpu0`", "`gpu0` and `gpu1`"));
        assert_eq!(of_gpus([300, 300], &[1]), said("344.0 MiB more in `gpu0`", "`gpu0`"));
    }

    #[test]
    fn where_no_devices_are_connected_that_is_the_reason() {
        let none = "no chain of connected devices of `random` can run the layers of `random` in order";
        assert_eq!(of_gpus([300, 300], &[]), none);
    }
}
