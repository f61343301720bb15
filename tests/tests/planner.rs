//! Plans over all systems, judged by the simulator itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../crates/spipe-planner/tests/common/instances.rs"]
mod instances;

#[path = "planner/bounds.rs"]
mod bounds;
#[path = "planner/draws.rs"]
mod draws;

use draws::{dealt, drawn, pinned};
use instances::{Instance, frozen_instance_of, instance_of, several_socket_instance_of, tied_instance_of};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use spipe_base::{DeviceId, LayerRange, SimTime};
use spipe_cost::Mode;
use spipe_plan::{Knob, OutcomeStatus, Placement, Stage, System, check};
use spipe_planner::{Named, Options, Pin, Pins, PlanError, Problem, Solution, every, generated, plan_all, planner};
use std::{cell::Cell, sync::atomic::AtomicBool, time::Duration};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Long enough for every instance on a busy machine: what is stopped proves nothing.
const PATIENCE: Duration = Duration::from_mins(15);

/// What rounding to the simulator's clock may hide.
const CLOCK: SimTime = SimTime::ns(1000);

/// How many cases to try: at least `least`, more if `SPIPE_CASES` says so.
fn at_least(least: u32) -> u32 {
    let asked = std::env::var("SPIPE_CASES").ok().and_then(|count| count.parse().ok());
    asked.unwrap_or(0).max(least)
}

fn run<T>(cases: u32, test: impl Fn(Instance) -> Result<T, TestCaseError>) {
    run_on(cases, instance_of(6), test);
}

fn run_on<V: std::fmt::Debug, T>(
    cases: u32,
    on: impl Strategy<Value = V>,
    test: impl Fn(V) -> Result<T, TestCaseError>,
) {
    let config = Config { cases: at_least(cases), failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    if let Err(error) = runner.run(&on, |value| test(value).map(|_| ())) {
        panic!("{error}");
    }
}

fn simulated(instance: &Instance, placement: &Placement) -> Option<SimTime> {
    let program = spipe_schedule::lower(&instance.context(), placement).ok()?;
    spipe_sim::iteration_time(&program)
}

fn solve(instance: &Instance, systems: &[System], options: Options, all: bool) -> Result<Solution, PlanError> {
    let context = instance.context();
    let score = |placement: &Placement| simulated(instance, placement);
    let problem = Problem { context, systems: systems.to_vec(), options, score: &score, insight: None, stop: &NEVER };
    if all { plan_all(&problem, planner("ilp").unwrap().as_ref()) } else { generated(&problem) }
}

/// The plan over all systems is no slower than that of any of them, is the same on any number of threads, and comes with a bound
/// below all of them.
#[test]
fn the_plan_over_all_systems_is_the_best_of_all_systems() {
    run(40, |instance| {
        let options = || Options { refinements: 60, every_limit: 0, ..Options::default() };
        let all = solve(&instance, &System::ALL, options(), true);
        let again = solve(&instance, &System::ALL, Options { threads: 3, ..options() }, true);
        prop_assert_eq!(&all, &again, "one thread and three");
        for system in System::ALL {
            let Ok(one) = solve(&instance, &[system], options(), true) else { continue };
            let Ok(all) = &all else { return Err(TestCaseError::fail(format!("{all:?} but {one:?}"))) };
            prop_assert!(all.bound <= one.simulated + CLOCK, "{}: {} but {}", system, all.bound, one.simulated);
            let most = one.simulated.to_ms() * (1.0 + all.gap.max(Options::default().gap)) + 1e-3;
            prop_assert!(all.simulated.to_ms() <= most, "{}: {} but {}", system, all.simulated, one.simulated);
        }
        if instance.cost.workload().mode == Mode::Infer
            && let Ok(all) = &all
        {
            prop_assert!(all.placement.system.infers());
        }
        Ok(())
    });
}

/// Where the host may not help, the systems whose stages are planned leave nothing to it.
#[test]
fn without_help_of_the_host_all_of_a_stage_stays_on_its_device() {
    let found = Cell::new(0);
    run(60, |instance| {
        let options = Options { host_help: false, every_limit: 0, ..Options::default() };
        let Ok(one) = solve(&instance, &[System::OneForwardOneBackward], options, true) else { return Ok(()) };
        let helped = |stage: &Stage| stage.offload.is_some() || stage.optimizer.is_some();
        prop_assert!(!one.placement.stages.iter().any(helped), "{:?}", one.placement);
        found.set(found.get() + 1);
        Ok(())
    });
    assert!(found.get() > 20, "{}", found.get());
}

/// However wide the gap at which the search may end, no heuristic has a faster plan.
#[test]
fn no_heuristic_beats_the_plan_over_all_systems() {
    run(40, |instance| {
        let options = || Options { refinements: 0, gap: 0.5, ..Options::default() };
        let all = solve(&instance, &System::ALL, options(), true);
        for (name, systems) in [
            ("greedy", spipe_planner::SYSTEMS.to_vec()),
            ("dp", spipe_planner::SYSTEMS.to_vec()),
            ("mobius-mip", vec![System::Mobius]),
        ] {
            let context = instance.context();
            let score = |placement: &Placement| simulated(&instance, placement);
            let problem = Problem { context, systems, options: options(), score: &score, insight: None, stop: &NEVER };
            let Ok(one) = planner(name).unwrap().plan(&problem) else { continue };
            let Ok(all) = &all else { return Err(TestCaseError::fail(format!("{all:?} but {one:?}"))) };
            prop_assert!(all.simulated <= one.simulated, "{}: {} but {}", name, all.simulated, one.simulated);
        }
        Ok(())
    });
}

/// A refusal quotes what the closest candidate lacks: with that much more memory, it fits.
#[test]
fn a_refusal_says_how_much_is_missing() {
    let mut refused = 0;
    for memory in [20, 40, 60, 80] {
        let layer = instances::LayerText {
            count: 6,
            times: [10, 10, 10],
            slowdown: 5,
            parameters: 16_000_000,
            boundary: 16,
            saved: 16,
            workspace: 0,
        };
        let machine = instances::MachineText { gpus: vec![(memory, 20)], root: 20, sockets: vec![300] };
        let model = instances::model_text(&[layer]);
        let instance = Instance::new(&model, &instances::machine_text(&machine), &instances::workload(4, Mode::Train));
        let error = solve(&instance, &System::ALL, Options::default(), true).unwrap_err();
        let PlanError::Infeasible { missing, reason, hint, .. } = error else { panic!("{error}") };
        assert!(missing.is_some_and(|missing| missing.get() > 0), "{reason}");
        assert!(!hint.is_empty() && reason.contains('`'), "{reason}: {hint}");
        refused += 1;
    }
    assert_eq!(refused, 4);
}

/// The planner of stages by that name, alone.
fn stages(instance: &Instance, name: &str, options: Options) -> Result<Solution, PlanError> {
    let score = |placement: &Placement| simulated(instance, placement);
    let systems = spipe_planner::SYSTEMS.to_vec();
    let problem = Problem { context: instance.context(), systems, options, score: &score, insight: None, stop: &NEVER };
    planner(name).unwrap().plan(&problem)
}

/// What holds between the planner that proves its plans and the one that tries everything out.
fn agrees(instance: &Instance, host_help: bool) -> Result<(), TestCaseError> {
    agrees_with(instance, &Options { host_help, ..Options::default() })
}

fn agrees_with(instance: &Instance, options: &Options) -> Result<(), TestCaseError> {
    let options = |threads| Options {
        gap: 0.0,
        time_limit: PATIENCE,
        candidates_per_case: usize::MAX,
        threads,
        ..options.clone()
    };
    let best = stages(instance, "exhaustive", options(2));
    let one = stages(instance, "ilp", options(1));
    if instance.cost.workload().microbatches.is_multiple_of(2) {
        prop_assert_eq!(&one, &stages(instance, "ilp", options(3)), "one thread and three");
    }
    let (best, one) = match (best, one) {
        (Ok(best), Ok(one)) => (best, one),
        (
            Err(PlanError::Infeasible { .. } | PlanError::NothingRuns { .. }),
            Err(PlanError::Infeasible { .. } | PlanError::NothingRuns { .. }),
        ) => return Ok(()),
        (best, one) => return Err(TestCaseError::fail(format!("{best:?} but {one:?}"))),
    };
    prop_assert!(best.simulated <= one.simulated && one.simulated <= best.simulated + CLOCK, "{best:?} but {one:?}");
    prop_assert!(one.bound <= best.simulated);
    prop_assert_eq!(simulated(instance, &one.placement), Some(one.simulated));
    for name in ["dp", "greedy"] {
        let Ok(other) = stages(instance, name, options(1)) else { continue };
        prop_assert!(best.simulated <= other.simulated && other.bound <= best.simulated, "`{}`", name);
        prop_assert_eq!(Ok(()), check(&instance.context(), &other.placement));
    }
    prop_assert_eq!(Ok(()), check(&instance.context(), &one.placement));
    Ok(())
}

/// Boundaries, devices, recompute, and what the host does for each stage.
#[test]
fn with_all_choices_the_plan_is_the_best_of_all_placements() {
    run_on(250, instance_of(3), |instance| agrees(&instance, true));
}

/// Boundaries, devices and recompute.
#[test]
fn on_longer_models_the_plan_is_the_best_of_all_placements() {
    run(250, |instance| agrees(&instance, false));
}

/// The same where the first layers are frozen, or some behind them.
#[test]
fn with_frozen_layers_the_plan_is_the_best_of_all_placements() {
    run_on(120, frozen_instance_of(3), |instance| agrees(&instance, true));
}

/// The same where the first layer and the last use the same parameters.
#[test]
fn with_tied_ends_the_plan_is_the_best_of_all_placements() {
    run_on(100, tied_instance_of(1), |instance| agrees(&instance, true));
}

/// The same under pins, of every kind that stages can hold.
#[test]
fn with_pins_the_plan_is_the_best_of_all_placements() {
    let held = Cell::new(0);
    let on = (
        prop_oneof![instance_of(3), several_socket_instance_of(3, 1), several_socket_instance_of(2, 2)],
        prop::collection::vec(any::<u8>(), 8),
    );
    run_on(200, on, |(instance, draws)| {
        let pins = pinned(&instance, &draws);
        let options = Options { pins: pins.clone(), ..Options::default() };
        agrees_with(&instance, &options)?;
        if let Ok(found) = stages(&instance, "ilp", options) {
            prop_assert!(pins.allow(&instance.context(), &found.placement), "{:?} but {:?}", pins, found.placement);
            held.set(held.get() + 1);
        }
        Ok(())
    });
    assert!(held.get() >= 30, "{} plans hold their pins", held.get());
}

/// The same where a stage has what it leaves to the host on one of several sockets.
#[test]
fn with_several_sockets_the_plan_is_the_best_of_all_placements() {
    let far = Cell::new(0);
    run_on(100, several_socket_instance_of(3, 1), |instance| {
        agrees(&instance, true)?;
        let options = Options { gap: 0.0, time_limit: PATIENCE, ..Options::default() };
        if let Ok(found) = stages(&instance, "ilp", options) {
            let socket = instance.hardware.device("cpu1");
            let there = found.placement.stages.iter().any(|stage| stage.optimizer == socket);
            far.set(far.get() + u32::from(there));
        }
        Ok(())
    });
    assert!(far.get() >= 5, "{} plans have something on the far socket", far.get());
}

/// What holds between the plan over all systems and every placement of any of them, one of which is drawn apart from the others.
fn is_the_best(instance: &Instance, draws: &[u8]) -> Result<(), TestCaseError> {
    let context = instance.context();
    let options = |threads| Options { gap: 0.0, time_limit: PATIENCE, threads, ..Options::default() };
    let all = solve(instance, &System::ALL, options(1), true);
    if context.workload().microbatches == 3 {
        prop_assert_eq!(&all, &solve(instance, &System::ALL, options(3), true), "one thread and three");
    }
    let fits = |placement: &Placement| check(&context, placement).is_ok();
    let every = System::ALL.into_iter().flat_map(|system| every(context, system, usize::MAX).unwrap_or_default());
    let stages = [System::OneForwardOneBackward, System::Gpipe, System::Hybrid];
    let drawn = stages.into_iter().map(|system| drawn(&context, system, draws));
    let dealt = [System::Superpipeline, System::Mobius].into_iter().filter_map(|system| dealt(&context, system, draws));
    let trains = context.workload().mode == Mode::Train;
    let list = every.chain(drawn.chain(dealt).filter(|_| trains)).filter(fits);
    let best = list.filter_map(|placement| simulated(instance, &placement)).min();
    match (all, best) {
        (Err(PlanError::Infeasible { .. }), None) => Ok(()),
        (Ok(all), Some(best)) => {
            prop_assert!(all.simulated <= best + CLOCK && best <= all.simulated + CLOCK, "{best} but {all:?}");
            // Limits and groups are not tried one by one, so that systems that have them may be bounded by less.
            let limited = |system| Knob::MemoryLimit.is_of(system) || Knob::Group.is_of(system);
            let tried = all.considered.iter().filter(|known| !limited(known.system));
            let bound = tried.filter_map(|known| known.bound).min().unwrap_or(all.bound);
            prop_assert!(bound.max(all.bound) <= best + CLOCK && all.simulated <= bound + CLOCK, "{best} but {all:?}");
            let proven = all.simulated <= all.bound + CLOCK;
            prop_assert!(!proven || all.status == OutcomeStatus::Optimal, "{all:?}");
            prop_assert_eq!(Ok(()), check(&context, &all.placement));
            Ok(())
        }
        (all, best) => Err(TestCaseError::fail(format!("{best:?} but {all:?}"))),
    }
}

/// The same where all that a stage has on the host is on one of several sockets.
#[test]
fn of_some_systems_the_plan_on_several_sockets_is_the_best_of_all_placements() {
    let systems =
        [System::OneForwardOneBackward, System::Gpipe, System::ZeroOffload, System::Superpipeline, System::Mobius];
    let (found, refused) = (Cell::new(0), Cell::new(0));
    run_on(60, several_socket_instance_of(2, 1), |instance| {
        let context = instance.context();
        for system in systems {
            let one =
                solve(&instance, &[system], Options { gap: 0.0, time_limit: PATIENCE, ..Options::default() }, true);
            let all = every(context, system, usize::MAX).unwrap_or_default().into_iter();
            let fit = all.filter(|placement| check(&context, placement).is_ok());
            let best = fit.filter_map(|placement| simulated(&instance, &placement)).min();
            let agrees = match (&one, best) {
                (Ok(one), Some(best)) => one.simulated <= best + CLOCK && best <= one.simulated + CLOCK,
                (one, best) => one.is_err() && best.is_none(),
            };
            prop_assert!(agrees, "{}: {:?} but {:?}", system, best, one);
            let count = if one.is_ok() { &found } else { &refused };
            count.set(count.get() + 1);
        }
        Ok(())
    });
    assert!(found.get() >= 60 && refused.get() >= 30, "{} plans and {} refusals", found.get(), refused.get());
}

/// Any system, one stage or several on a device, streamed or kept, saved, recomputed or offloaded, stepped here or there.
#[test]
fn of_all_systems_the_plan_is_the_best_of_all_placements() {
    let draws = prop::collection::vec(any::<u8>(), 12);
    run_on(60, (instance_of(3), draws), |(instance, draws)| is_the_best(&instance, &draws));
}

/// The same where the first layers are frozen, or some behind them.
#[test]
fn of_all_systems_the_plan_for_frozen_layers_is_the_best_of_all_placements() {
    let draws = prop::collection::vec(any::<u8>(), 12);
    run_on(25, (frozen_instance_of(3), draws), |(instance, draws)| is_the_best(&instance, &draws));
}

/// The same where the first layer and the last use the same parameters: plans that keep both are among them.
#[test]
fn of_all_systems_the_plan_for_tied_ends_is_the_best_of_all_placements() {
    let draws = prop::collection::vec(any::<u8>(), 12);
    run_on(25, (tied_instance_of(1), draws), |(instance, draws)| is_the_best(&instance, &draws));
}

/// Where a pin makes steps a phase of their own no placement that has it is faster than its bound, and the plan is the best of them.
#[test]
fn steps_that_are_a_phase_of_their_own_have_bounds_of_their_own() {
    let found = Cell::new(0);
    run_on(60, instance_of(3), |instance| {
        let context = instance.context();
        let pin = Pin::Knob(Knob::SynchronousOptimizer, 1);
        for system in [System::ZeroOffload, System::Fsdp, System::ZeroInfinity] {
            let pins = Pins::new(&[Named { words: "pin".into(), pin: pin.clone() }]).unwrap();
            let options = Options { pins, gap: 0.0, time_limit: PATIENCE, ..Options::default() };
            let Ok(one) = solve(&instance, &[system], options, true) else { continue };
            prop_assert!(one.placement.knobs.synchronous_optimizer);
            let phased = |mut placement: Placement| {
                placement.knobs.synchronous_optimizer = true;
                placement
            };
            let all = every(context, system, usize::MAX).unwrap_or_default().into_iter().map(phased);
            let fit = all.filter(|placement| check(&context, placement).is_ok());
            let timed = |placement: Placement| Some((simulated(&instance, &placement)?, placement));
            let (best, fastest) = fit.filter_map(timed).min_by_key(|(time, _)| *time).unwrap();
            let agrees = one.bound <= best + CLOCK && one.simulated <= best + CLOCK;
            prop_assert!(agrees, "{}: {:?} but {}: {:?}", system, one, best, fastest);
            found.set(found.get() + 1);
        }
        Ok(())
    });
    assert!(found.get() >= 40, "{} plans", found.get());
}

/// So many equal layers on two equal GPUs and so many sockets.
fn on_equal_gpus(layers: usize, sockets: usize) -> Instance {
    let layer = instances::LayerText {
        count: layers,
        times: [10, 10, 10],
        slowdown: 5,
        parameters: 1_000_000,
        boundary: 1,
        saved: 8,
        workspace: 0,
    };
    let machine = instances::MachineText { gpus: vec![(600, 20); 2], root: 20, sockets: vec![2000; sockets] };
    let (model, machine) = (instances::model_text(&[layer]), instances::machine_text(&machine));
    Instance::new(&model, &machine, &instances::workload(4, Mode::Train))
}

/// A pin to one of two equal GPUs: every system's plan holds it, and is as fast as without it.
#[test]
fn a_stage_pinned_to_one_of_equal_devices_costs_nothing() {
    let instance = on_equal_gpus(3, 1);
    let gpu = |name: &str| instance.hardware.device(name).unwrap().index();
    let last = Pin::Layers(LayerRange::new(2.into(), 2.into()).unwrap(), [gpu("gpu0")].into());
    for system in [System::OneForwardOneBackward, System::ZbH1, System::ZbV, System::Interleaved, System::Superpipeline]
    {
        let free = solve(&instance, &[system], Options { gap: 0.0, time_limit: PATIENCE, ..Options::default() }, true)
            .unwrap();
        for pin in [Pin::Stage(0, [gpu("gpu1")].into()), last.clone()] {
            let pins = Pins::new(&[Named { words: "pin".into(), pin }]).unwrap();
            let options = Options { gap: 0.0, time_limit: PATIENCE, pins: pins.clone(), ..Options::default() };
            let pinned = solve(&instance, &[system], options, true).unwrap();
            assert!(pins.allow(&instance.context(), &pinned.placement), "{system}");
            assert_eq!(pinned.simulated, free.simulated, "{system}");
        }
    }
}

/// What GPUs share is stepped and held near each of them: pins to sockets are held there, and the plan is the best that does.
#[test]
fn pins_hold_on_every_gpu_that_shares() {
    let instance = on_equal_gpus(2, 2);
    let context = instance.context();
    let device = |name: &str| instance.hardware.device(name).unwrap().index();
    let sockets = [vec![device("cpu0")], vec![device("cpu1")], vec![device("cpu0"), device("cpu1")]];
    let all = LayerRange::new(0.into(), 1.into()).unwrap();
    let mut plans = 0;
    for (system, sockets) in [System::Fsdp, System::ZeroInfinity]
        .into_iter()
        .flat_map(|system| sockets.iter().map(move |sockets| (system, sockets)))
    {
        for pin in
            [Pin::Optimizer(all, sockets.iter().copied().collect()), Pin::Host(all, sockets.iter().copied().collect())]
        {
            let pins = Pins::new(&[Named { words: "pin".into(), pin: pin.clone() }]).unwrap();
            let holds = |placement: &Placement| {
                let near = |gpu: DeviceId| {
                    let host = instance.hardware.host_memory(gpu)?;
                    Some(instance.hardware.memories()[host].device?.index())
                };
                let near: Vec<usize> =
                    placement.participants(&instance.hardware).into_iter().filter_map(near).collect();
                let hosted = |stage: &Stage| stage.optimizer.is_some();
                let pinned = near.iter().all(|socket| sockets.contains(socket));
                match pin {
                    Pin::Host(..) => pinned || !placement.stages.iter().any(hosted),
                    _ => pinned && placement.stages.iter().all(hosted),
                }
            };
            let options = Options { gap: 0.0, time_limit: PATIENCE, pins: pins.clone(), ..Options::default() };
            let found = solve(&instance, &[system], options, true);
            let each = every(context, system, usize::MAX).unwrap_or_default().into_iter();
            let fit = each.filter(|placement| holds(placement) && check(&context, placement).is_ok());
            let best = fit.filter_map(|placement| simulated(&instance, &placement)).min();
            assert_eq!(found.as_ref().ok().map(|found| found.simulated), best, "{system} {pin:?}: {found:?}");
            if let Ok(found) = found {
                assert!(holds(&found.placement) && found.bound <= found.simulated, "{system} {pin:?}");
                plans += 1;
            }
        }
    }
    assert!(plans >= 6, "{plans} plans");
}

/// A system by itself is refused only where none of its placements fits.
#[test]
fn a_system_is_refused_only_where_none_of_its_placements_fits() {
    let refused = Cell::new(0);
    run_on(60, instance_of(3), |instance| {
        let context = instance.context();
        for system in System::ALL {
            let found = solve(&instance, &[system], Options { refinements: 0, ..Options::default() }, true);
            let fits =
                |placement: &Placement| check(&context, placement).is_ok() && simulated(&instance, placement).is_some();
            let any = every(context, system, usize::MAX).unwrap_or_default().iter().any(fits);
            prop_assert_eq!(found.is_ok(), any, "{}: {:?}", system, found);
            refused.set(refused.get() + u32::from(!any));
        }
        Ok(())
    });
    assert!(refused.get() >= 100, "few refusals: {}", refused.get());
}
