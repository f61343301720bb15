use super::*;
use crate::{
    common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    costs::CostSums,
    problem::{Insight, Options, Problem},
    score::estimate::estimate,
};
use rayon::ThreadPoolBuilder;
use spipe_base::{LayerRange, SimTime};
use spipe_plan::{Stage, System, check};
use std::{sync::atomic::AtomicBool, time::Duration};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Twelve layers on two GPUs that hold the state of few of them.
fn crowded() -> Instance {
    let times = [10, 10, 10];
    let layer = LayerText { count: 12, times, slowdown: 9, parameters: 8 << 20, boundary: 1, saved: 32, workspace: 0 };
    let machine = MachineText { gpus: vec![(900, 20); 2], root: 20, sockets: vec![8000] };
    Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(6, Mode::Train))
}

/// The start, the result and the number of simulations of annealing on `threads` threads. It starts with one layer per stage,
/// all of them recomputed and updated on the socket. With `insight`, iterations wait for stages that the socket updates.
fn annealed(instance: &Instance, insight: bool, threads: usize, most: usize) -> (SimTime, Scored, usize) {
    let context = instance.context();
    let device = |name: &str| context.hardware.device(name).unwrap();
    let stage = |layer: usize| {
        let layers = LayerRange::new(layer.into(), layer.into()).unwrap();
        let gpu = device(if layer < 6 { "gpu0" } else { "gpu1" });
        Stage::new(gpu, layers).with_everything_recomputed().with_optimizer_on(device("cpu0"))
    };
    let start = Placement::new(System::OneForwardOneBackward, (0..12).map(stage));
    let options = Options { time_limit: Duration::from_secs(3600), ..Options::default() };
    let costs = CostSums::new(context, &options);
    let score = |placement: &Placement| estimate(&costs, placement).map(|ms| SimTime::ns((ms * 1e6) as u64));
    let systems = vec![System::OneForwardOneBackward];
    let waits = |placement: &Placement| {
        let updated = placement.stages.enumerate().filter(|(_, stage)| stage.optimizer.is_some());
        updated.map(|(id, _)| (id, SimTime::ms(1))).collect()
    };
    let within = |placement: &Placement, limit: SimTime| score(placement).filter(|time| *time <= limit);
    let insight = insight.then_some(Insight { waits: &waits, within: &within });
    let problem = Problem { context, systems, options, score: &score, insight, stop: &NEVER };
    let start = (score(&start).unwrap(), start);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (best, examined) = pool.install(|| anneal((&problem, &costs), &Deadline::new(&problem), (start.clone(), most)));
    (start.0, best, examined)
}

#[test]
fn annealing_finds_a_faster_placement_that_fits() {
    let instance = crowded();
    for insight in [false, true] {
        let (start, (time, placement), examined) = annealed(&instance, insight, 1, 800);
        assert!(time.to_ms() < 0.9 * start.to_ms(), "{start} to {time}");
        assert!(check(&instance.context(), &placement).is_ok());
        assert_eq!(examined, 800);
    }
}

#[test]
fn threads_change_nothing() {
    let instance = crowded();
    for insight in [false, true] {
        assert_eq!(annealed(&instance, insight, 1, 320), annealed(&instance, insight, 3, 320));
    }
}

#[test]
fn without_simulations_annealing_returns_its_start() {
    let instance = crowded();
    let (start, (time, _), examined) = annealed(&instance, true, 1, 0);
    assert_eq!((time, examined), (start, 0));
}

#[test]
fn offload_makes_room_and_free_room_is_used() {
    let instance = crowded();
    let context = instance.context();
    let gpus = ["gpu0", "gpu1"].map(|name| context.hardware.device(name).unwrap());
    let stage = |layer: usize| Stage::new(gpus[layer / 6], LayerRange::new(layer.into(), layer.into()).unwrap());
    let full = Placement::new(System::OneForwardOneBackward, (0..12).map(stage));
    assert!(check(&context, &full).is_err());
    for host_offload in [true, false] {
        let mut random = Rng::with_seed(SEED);
        let made = room::made((&context, host_offload), full.clone(), &mut random).unwrap();
        assert!(check(&context, &made).is_ok());
        let on_host = |stage: &Stage| stage.offload.is_some() || stage.optimizer.is_some();
        assert_eq!(made.stages.iter().any(on_host), host_offload);
        assert_eq!(made.stages.iter().any(|stage| stage.recomputed > 0), !host_offload);
        let all: Placement = (0..40).fold(made.clone(), |placement, _| room::used(&context, placement, &mut random));
        let kept = |placement: &Placement| placement.stages.iter().filter(|stage| stage.offload.is_none()).count();
        let stepped = |placement: &Placement| placement.stages.iter().filter(|stage| stage.optimizer.is_none()).count();
        assert!(check(&context, &all).is_ok());
        assert!(kept(&all) >= kept(&made) && stepped(&all) >= stepped(&made));
        // Nothing more fits.
        assert_eq!(all, (0..40).fold(all.clone(), |placement, _| room::used(&context, placement, &mut random)));
    }
}

#[test]
fn half_of_the_changes_are_of_stages_that_are_waited_for() {
    let instance = crowded();
    let gpu = instance.context().hardware.device("gpu0").unwrap();
    let layers = |layer: usize| LayerRange::new(layer.into(), layer.into()).unwrap();
    let placement = Placement::new(System::OneForwardOneBackward, (0..12).map(|layer| Stage::new(gpu, layers(layer))));
    let waits = [(StageId::new(3), 1.0), (StageId::new(7), 4.0)];
    let mut random = Rng::with_seed(SEED);
    let mut drawn = |waits: &[(StageId, f64)]| {
        let mut counts = [0; 12];
        (0..12_000).for_each(|_| counts[stage(&placement, waits, &mut random).index()] += 1);
        counts
    };
    let (counts, none) = (drawn(&waits), drawn(&[]));
    assert!((1900..2100).contains(&counts[3]) && (4800..5200).contains(&counts[7]), "{counts:?}");
    assert!(counts[0] > 400 && none.iter().all(|count| (850..1150).contains(count)), "{counts:?} {none:?}");
}
