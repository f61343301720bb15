//! Plans over all systems, judged by the simulator itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../crates/spipe-planner/tests/common/instances.rs"]
mod instances;
#[path = "../../crates/spipe-planner/tests/common/runner.rs"]
mod runner;

#[path = "planner/bounds.rs"]
mod bounds;
#[path = "planner/draws.rs"]
mod draws;
#[path = "planner/pins.rs"]
mod pins;
#[path = "planner/placements.rs"]
mod placements;
#[path = "planner/stages.rs"]
mod stages;

use instances::{Instance, instance_of};
use proptest::prelude::*;
use runner::for_all;
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{Placement, Stage, System, check};
use spipe_planner::{Options, PlanError, Problem, Solution, every, generated, plan_all, planner};
use spipe_tests::{with_problem, without_early_stops};
use std::{cell::Cell, time::Duration};

/// Long enough for every instance on a busy machine: a search that is stopped proves nothing.
const PATIENCE: Duration = Duration::from_mins(15);

/// The rounding of the simulator's clock.
const CLOCK: SimTime = SimTime::ns(1000);

/// Checks `property` for `cases` values of `strategy`, or as many as `SPIPE_CASES` says if it says
/// more.
fn run<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let asked = std::env::var("SPIPE_CASES").ok().and_then(|count| count.parse().ok());
    for_all(cases.max(asked.unwrap_or(0)), &strategy, property);
}

/// Counts one more.
fn add(count: &Cell<u32>) {
    count.set(count.get() + 1);
}

fn simulated(instance: &Instance, placement: &Placement) -> Option<SimTime> {
    spipe_tests::simulated(&instance.context(), placement)
}

/// The proof of every plan to the last nanosecond.
fn exact() -> Options {
    Options { gap: 0.0, time_limit: PATIENCE, ..Options::default() }
}

fn plan_of(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    plan_all(problem, planner("ilp").unwrap())
}

/// The plan over `systems`, as the command makes it.
fn solve(instance: &Instance, systems: &[System], options: Options) -> Result<Solution, PlanError> {
    with_problem(instance.context(), systems, options, plan_of)
}

/// The plan among generated placements, without the search of stages.
fn generate(instance: &Instance, systems: &[System], options: Options) -> Result<Solution, PlanError> {
    with_problem(instance.context(), systems, options, generated)
}

/// The plan of the planner with that name, alone.
fn planned(instance: &Instance, name: &str, systems: &[System], options: Options) -> Result<Solution, PlanError> {
    with_problem(instance.context(), systems, options, |problem| planner(name).unwrap().plan(problem))
}

/// The planners without proofs, and the systems for which they plan.
fn heuristics() -> [(&'static str, &'static [System]); 3] {
    [("greedy", &spipe_planner::SYSTEMS), ("dp", &spipe_planner::SYSTEMS), ("mobius-mip", &[System::Mobius])]
}

/// The plan over all systems is no slower than that of any of them, its bound is below all of them,
/// and it is the same on any number of threads.
#[test]
fn the_plan_over_all_systems_is_the_best_of_all_systems() {
    let compared = Cell::new(0);
    run(24, instance_of(6), |instance| {
        let options = || Options { refinements: 60, every_limit: 0, ..Options::default() };
        let all = solve(&instance, &System::ALL, options());
        let again = solve(&instance, &System::ALL, Options { threads: 3, ..options() });
        prop_assert_eq!(&all, &again, "one thread and three");
        for system in System::ALL {
            let Ok(one) = solve(&instance, &[system], options()) else { continue };
            let Ok(all) = &all else { return Err(TestCaseError::fail(format!("{all:?} but {one:?}"))) };
            prop_assert!(all.bound <= one.simulated + CLOCK, "{}: {} but {}", system, all.bound, one.simulated);
            let most = one.simulated.to_ms() * (1.0 + all.gap.max(Options::default().gap)) + 1e-3;
            prop_assert!(all.simulated.to_ms() <= most, "{}: {} but {}", system, all.simulated, one.simulated);
            add(&compared);
        }
        if instance.cost.workload().mode == Mode::Infer
            && let Ok(all) = &all
        {
            prop_assert!(all.placement.system.infers());
        }
        Ok(())
    });
    assert!(compared.get() >= 60, "{} plans were compared", compared.get());
}

/// With and without early stops of simulations, bounds hold, no heuristic has a faster plan, and the
/// plan is the same on any number of threads.
#[test]
fn early_stops_change_none_of_the_promises() {
    let compared = Cell::new(0);
    run(12, instance_of(6), |instance| {
        let options = |threads| Options { threads, refinements: 400, every_limit: 0, ..Options::default() };
        let plain = |options| without_early_stops(instance.context(), &System::ALL, options, plan_of);
        let with = solve(&instance, &System::ALL, options(1));
        let without = plain(options(1));
        prop_assert_eq!(&with, &solve(&instance, &System::ALL, options(3)), "one thread and three with early stops");
        prop_assert_eq!(&without, &plain(options(3)), "one thread and three without early stops");
        let (with, without) = match (with, without) {
            (Ok(with), Ok(without)) => (with, without),
            (Err(PlanError::Infeasible { .. }), Err(PlanError::Infeasible { .. })) => return Ok(()),
            (with, without) => return Err(TestCaseError::fail(format!("{with:?} but {without:?}"))),
        };
        for plan in [&with, &without] {
            prop_assert_eq!(Ok(()), check(&instance.context(), &plan.placement));
            prop_assert_eq!(simulated(&instance, &plan.placement), Some(plan.simulated));
            prop_assert!(plan.bound <= with.simulated.min(without.simulated) + CLOCK, "{with:?} but {without:?}");
            for (name, systems) in heuristics() {
                let Ok(one) = planned(&instance, name, systems, options(1)) else { continue };
                prop_assert!(plan.simulated <= one.simulated, "{}: {} but {}", name, plan.simulated, one.simulated);
                add(&compared);
            }
        }
        Ok(())
    });
    assert!(compared.get() >= 24, "{} plans were compared", compared.get());
}

/// Where the host may not help, the systems whose stages are planned leave nothing to it.
#[test]
fn without_help_of_the_host_all_of_a_stage_stays_on_its_device() {
    let found = Cell::new(0);
    run(60, instance_of(6), |instance| {
        let options = Options { host_help: false, every_limit: 0, ..Options::default() };
        let Ok(one) = solve(&instance, &[System::OneForwardOneBackward], options) else { return Ok(()) };
        let helped = |stage: &Stage| stage.offload.is_some() || stage.optimizer.is_some();
        prop_assert!(!one.placement.stages.iter().any(helped), "{:?}", one.placement);
        add(&found);
        Ok(())
    });
    assert!(found.get() > 20, "{} plans", found.get());
}

/// However wide the gap at which the search may end, no heuristic has a faster plan.
#[test]
fn no_heuristic_beats_the_plan_over_all_systems() {
    let compared = Cell::new(0);
    run(40, instance_of(6), |instance| {
        let options = || Options { refinements: 0, gap: 0.5, ..Options::default() };
        let all = solve(&instance, &System::ALL, options());
        for (name, systems) in heuristics() {
            let Ok(one) = planned(&instance, name, systems, options()) else { continue };
            let Ok(all) = &all else { return Err(TestCaseError::fail(format!("{all:?} but {one:?}"))) };
            prop_assert!(all.simulated <= one.simulated, "{}: {} but {}", name, all.simulated, one.simulated);
            add(&compared);
        }
        Ok(())
    });
    assert!(compared.get() >= 24, "{} plans were compared", compared.get());
}

/// Six layers on a GPU and a socket with memories of the given sizes, in MiB.
fn six_layers(memory: u64, dram: u64) -> Instance {
    let layer = instances::LayerText {
        count: 6,
        times: [10, 10, 10],
        slowdown: 5,
        parameters: 16_000_000,
        boundary: 16,
        saved: 16,
        workspace: 0,
    };
    let machine = instances::MachineText { gpus: vec![(memory, 20)], root: 20, sockets: vec![dram] };
    let model = instances::model_text(&[layer]);
    Instance::new(&model, &instances::machine_text(&machine), &instances::workload(4, Mode::Train))
}

/// A refusal states how much memory the closest candidate lacks, and a remedy. With that much more in
/// each memory there is a plan; where the sum of all memories is too small, without it there is none.
#[test]
fn a_refusal_says_how_much_is_missing() {
    let (mut sums, mut closest) = (0, 0);
    let scarce = [20, 40, 60, 80].map(|memory| (memory, 300));
    let close = [(300, 1400), (80, 1400), (100, 1600), (60, 1600), (100, 1450), (200, 1300), (40, 1550)];
    for (memory, dram) in scarce.into_iter().chain(close) {
        let error = solve(&six_layers(memory, dram), &System::ALL, Options::default()).unwrap_err();
        let PlanError::Infeasible { missing, reason, hint, certain } = error else { panic!("{error}") };
        assert!(!hint.is_empty() && reason.contains('`'), "{reason}: {hint}");
        let missing = missing.unwrap_or_default().get();
        assert!(missing > 0, "{reason}");
        let with = |more: u64| solve(&six_layers(memory + more, dram + more), &System::ALL, Options::default());
        if certain {
            // All of it would be needed in one memory; half of it in each of two is not enough.
            assert!(with((missing >> 20) / 2 - 1).is_err(), "{reason}");
            sums += 1;
        } else {
            let enough = with(missing.div_ceil(1 << 20));
            assert!(enough.is_ok(), "{reason}, but {enough:?}");
            closest += 1;
        }
    }
    assert!(sums >= 4 && closest >= 4, "{sums} sums and {closest} candidates");
}

/// A system by itself is refused only where none of its placements fits.
#[test]
fn a_system_is_refused_only_where_none_of_its_placements_fits() {
    let refused = Cell::new(0);
    run(60, instance_of(3), |instance| {
        let context = instance.context();
        for system in System::ALL {
            let found = solve(&instance, &[system], Options { refinements: 0, ..Options::default() });
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
