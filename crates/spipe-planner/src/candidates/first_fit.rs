//! First fit of stages to GPUs, for models with one layer far larger than the others, such as a
//! large embedding.

use crate::{
    candidates::residency::with_least_recompute,
    hosts::{elsewhere, gpus, on_device},
};
use spipe_base::{DeviceId, MemoryId};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, Stage, Weights, check, footprint, needed};

/// Limit on stages, for the time it takes.
const MOST_STAGES: usize = 256;

/// Assigns each stage of `placement` to the next GPU with enough memory, using the nearest DRAM
/// with enough memory, and then recomputes as little as fits; none if some stage fits nowhere.
pub(crate) fn dealt(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let (gpus, stages) = (gpus(context), placement.stages.as_slice());
    if stages.len() > MOST_STAGES {
        return None;
    }
    let mut dealt: Vec<Stage> = Vec::new();
    let mut next = 0;
    for (index, stage) in stages.iter().enumerate() {
        let turns = (0..gpus.len()).map(|offset| (next + offset) % gpus.len());
        let places = turns.flat_map(|turn| {
            let near = on_device(context, stage, gpus[turn]);
            let others = elsewhere(context, &near);
            std::iter::once(near).chain(others).map(move |here| (turn, here))
        });
        let has_room = |(turn, here): &(usize, Stage)| {
            // Boundaries that leave for another device count as well.
            let behind = stages.get(index + 1).map(|behind| on_device(context, behind, gpus[(turn + 1) % gpus.len()]));
            let stages = dealt.iter().copied().chain([*here]).chain(behind).collect();
            has_room(context, &Placement { stages, ..placement.clone() }, *here)
        };
        let (turn, here) = places.into_iter().find(has_room)?;
        dealt.push(here);
        next = (turn + 1) % gpus.len();
    }
    let mut dealt = Placement { stages: dealt.into_iter().collect(), ..placement.clone() };
    if context.workload().mode == Mode::Train {
        let devices: Vec<DeviceId> = dealt.devices();
        devices.into_iter().for_each(|device| with_least_recompute(context, &mut dealt, device));
    }
    Some(dealt).filter(|dealt| check(context, dealt).is_ok())
}

/// Returns whether the memories that `stage` uses hold everything in them.
fn has_room(context: &Context<'_>, placement: &Placement, stage: Stage) -> bool {
    let needs = footprint(context, placement);
    let holds = |memory: MemoryId| needed(&needs, memory) <= context.hardware.memories()[memory].usable();
    let home = match stage.weights {
        Weights::Streamed(home) => Some(home),
        Weights::Resident => None,
    };
    [Some(context.hardware.devices()[stage.lead()].memory), home].into_iter().flatten().all(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        candidates::candidates,
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    };
    use spipe_plan::{Knob, System};

    /// A large layer and seven small ones, with boundaries of 32 MiB for each of four microbatches,
    /// on three GPUs of `memory` MiB.
    fn fitting(memory: u64) -> Vec<Placement> {
        let small = LayerText {
            count: 7,
            times: [1, 2, 0],
            slowdown: 9,
            parameters: 1 << 20,
            boundary: 32,
            saved: 32,
            workspace: 0,
        };
        let large = LayerText { count: 1, parameters: 64 << 20, ..small };
        let machine = MachineText { gpus: vec![(memory, 20); 3], root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[large, small]), &machine_text(&machine), &workload(4, Mode::Train));
        let context = instance.context();
        let list = candidates(&context, System::Superpipeline).into_iter();
        list.filter(|placement| check(&context, placement).is_ok()).collect()
    }

    #[test]
    fn a_large_layer_leaves_the_small_ones_to_other_devices() {
        let on_the_first = |placement: &Placement| {
            let first = placement.stages.as_slice()[0].lead();
            placement.stages.iter().filter(|stage| stage.lead() == first).count()
        };
        let all_of = |memory: u64| -> Vec<(Option<u64>, usize)> {
            fitting(memory).iter().map(|placement| (Knob::Resident.of(placement), on_the_first(placement))).collect()
        };
        assert_eq!(all_of(640), []);
        assert_eq!(all_of(700), [(Some(2), 1)]);
        // With more memory, some small layers stay on the first GPU.
        assert!(all_of(780).contains(&(Some(2), 2)) && !all_of(780).contains(&(Some(2), 3)));
        assert!(all_of(1200).contains(&(Some(2), 3)));
    }
}
