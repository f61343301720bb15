use super::*;
use crate::{
    common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    problem::{Deadline, Options, Problem},
    score::judge::Scored,
};
use spipe_base::{DeviceId, LayerRange, SimTime};
use spipe_cost::Mode;
use spipe_plan::{Context, System, check};
use std::sync::atomic::AtomicBool;

const GPUS: usize = 2;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Twelve layers of which every other one saves four times as much, with 128 MiB of state each.
fn unlike(memory: u64) -> Instance {
    let layer = |index: u64| LayerText {
        count: 1,
        times: [10, 10, 10],
        slowdown: 9,
        parameters: (8 << 20) + index,
        boundary: 1,
        saved: if index.is_multiple_of(2) { 16 } else { 64 },
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(memory, 20); GPUS], root: 40, sockets: vec![8000] };
    let layers: Vec<LayerText> = (0..12).map(layer).collect();
    Instance::new(&model_text(&layers), &machine_text(&machine), &workload(6, Mode::Train))
}

/// Six layers on each GPU, of which hosts step for so many ms, and whose activations are on their way for that part of 100 ms.
fn hint(context: &Context<'_>, (hosted, ways): (f64, f64)) -> Hint {
    let gpus: Vec<DeviceId> = context.cost.devices().filter(|device| !context.is_cpu(*device)).collect();
    let layers = |first: usize| LayerRange::new(first.into(), (first + 5).into()).unwrap();
    let stage = |(index, gpu): (usize, &DeviceId)| Stage::new(*gpu, layers(6 * index));
    Hint {
        placement: Placement::new(System::OneForwardOneBackward, gpus.iter().enumerate().map(stage)),
        hosted: vec![hosted; GPUS],
        iteration: 100.0,
        ways,
    }
}

/// Which layers are recomputed, offloaded and stepped on the host by the first placement near a hint.
fn chosen(memory: u64, given: (f64, f64)) -> [Vec<usize>; 3] {
    let instance = unlike(memory);
    let context = instance.context();
    let costs = CostSums::new(context, &Options::default());
    let points = Point::near(&costs, &hint(&context, given));
    let all: Vec<Placement> = points.iter().flat_map(|point| point.placements(&costs)).collect();
    assert!(all.iter().all(|placement| check(&context, placement).is_ok()));
    let first = &all[0];
    let layers = |chosen: &dyn Fn(&Stage) -> bool| {
        let stages = first.stages.iter().filter(|stage| chosen(stage));
        stages.flat_map(|stage| stage.layers.iter().map(|layer| layer.index())).collect()
    };
    [
        layers(&|stage| stage.recomputed > 0),
        layers(&|stage| stage.offload.is_some()),
        layers(&|stage| stage.optimizer.is_some()),
    ]
}

#[test]
fn nothing_leaves_a_gpu_that_has_room() {
    assert_eq!(chosen(4000, (0.0, 1.0)), [const { Vec::<usize>::new() }; 3]);
}

#[test]
fn what_frees_most_for_its_time_is_computed_again() {
    let [recomputed, offloaded, hosted] = chosen(910, (0.0, 0.0));
    assert!(!recomputed.is_empty() && offloaded.is_empty() && hosted.is_empty());
    for gpu in [0..6, 6..12] {
        let of_gpu: Vec<&usize> = recomputed.iter().filter(|layer| gpu.contains(*layer)).collect();
        let odd = of_gpu.iter().filter(|layer| ***layer % 2 == 1).count();
        assert!(odd == 3 || odd == of_gpu.len(), "{recomputed:?}");
    }
}

#[test]
fn hosts_take_what_is_theirs() {
    let [alone, ..] = chosen(910, (0.0, 0.0));
    let [recomputed, offloaded, hosted] = chosen(910, (50.0, 0.0));
    assert!(recomputed.len() < alone.len() && offloaded.is_empty() && !hosted.is_empty(), "{recomputed:?} {hosted:?}");
    let [recomputed, offloaded, _] = chosen(910, (0.0, 1.0));
    assert!(recomputed.len() < alone.len() && !offloaded.is_empty(), "{recomputed:?} {offloaded:?}");
    // What does not fit otherwise is stepped on the host, whatever is its.
    let [.., hosted] = chosen(550, (0.0, 0.0));
    assert!(!hosted.is_empty());
}

/// Where each layer of the first GPU counts, as many as can be are moved to the second.
#[test]
fn climbing_moves_layers() {
    let instance = unlike(4000);
    let context = instance.context();
    let count = |placement: &Placement| {
        let first = placement.stages.iter().filter(|stage| stage.device == placement.stages[StageId::from(0)].device);
        first.map(|stage| stage.layers.count()).sum::<usize>()
    };
    let score = |placement: &Placement| Some(SimTime::ms(count(placement) as u64));
    let options = Options::default();
    let systems = vec![System::OneForwardOneBackward];
    let problem = Problem { context, systems, options, score: &score, insight: None, stop: &NEVER };
    let costs = CostSums::new(context, &problem.options);
    let (list, examined): (Vec<Scored>, usize) =
        best((&problem, &costs), &[hint(&context, (0.0, 0.0))], (0.0, &Deadline::new(&problem)));
    let last = list.iter().map(|(_, placement)| count(placement)).min();
    assert!(examined > list.len() && last == Some(1), "{examined} {last:?}");
}
