//! Planners against each other: proven plans are optimal, and no heuristic beats them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must say so")]

mod common;
#[path = "common/runner.rs"]
mod runner;

use common::{
    instances::{Instance, LayerText, MachineText, instance_of, machine_text, model_text, workload},
    schedule::simulate,
};
use proptest::prelude::*;
use runner::for_all;
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{OutcomeStatus, System, check};
use spipe_planner::{Options, PlanError, Problem, Solution, planner};
use std::{cell::Cell, sync::atomic::AtomicBool};

static NEVER: AtomicBool = AtomicBool::new(false);

/// The rounding of the simulator's clock.
const CLOCK: SimTime = SimTime::ns(1000);

fn plan(instance: &Instance, name: &str, options: Options) -> Result<Solution, PlanError> {
    let context = instance.context();
    let score = |placement: &spipe_plan::Placement| simulate(&context, placement, 12);
    let problem = Problem { context, systems: System::ALL.to_vec(), options, evaluator: &score, stop: &NEVER };
    planner(name).unwrap().plan(&problem)
}

/// Options without help of the host, which the list schedule cannot simulate.
fn bare() -> Options {
    Options { host_help: false, ..Options::default() }
}

fn exact(threads: usize) -> Options {
    Options { gap: 0.0, threads, candidates_per_case: usize::MAX, ..bare() }
}

#[test]
fn the_ilp_finds_what_exhaustive_search_finds_and_nothing_beats_it() {
    let found = Cell::new(0);
    for_all(120, &instance_of(6), |instance| {
        let best = plan(&instance, "exhaustive", exact(2));
        let one = plan(&instance, "ilp", exact(1));
        prop_assert_eq!(&one, &plan(&instance, "ilp", exact(4)), "one thread and four");
        let (best, one) = match (best, one) {
            (Ok(best), Ok(one)) => (best, one),
            (Err(PlanError::Infeasible { .. }), Err(PlanError::Infeasible { .. })) => return Ok(()),
            (best, one) => return Err(TestCaseError::fail(format!("{best:?} but {one:?}"))),
        };
        prop_assert!(one.simulated <= best.simulated + CLOCK, "{} but {}", one.simulated, best.simulated);
        prop_assert!(best.simulated <= one.simulated);
        prop_assert_eq!(one.status, OutcomeStatus::Optimal);
        prop_assert!(one.simulated <= one.bound + CLOCK, "the gap is {}", one.gap);
        for name in ["ilp", "dp", "greedy"] {
            let Ok(solution) = plan(&instance, name, bare()) else { continue };
            prop_assert!(best.simulated <= solution.simulated, "`{}` beats exhaustive search", name);
            prop_assert!(solution.bound <= best.simulated, "the bound of `{}` is above an iteration", name);
            prop_assert_eq!(Ok(()), check(&instance.context(), &solution.placement));
        }
        found.set(found.get() + 1);
        Ok(())
    });
    assert!(found.get() >= 40, "{} instances have a plan", found.get());
}

/// A transformer whose state does not fit on two GPUs, beside two sockets.
fn mixed() -> Instance {
    let ends = LayerText {
        count: 1,
        times: [3, 2, 2],
        slowdown: 4,
        parameters: 50_000_000,
        boundary: 16,
        saved: 32,
        workspace: 0,
    };
    let block = LayerText {
        count: 22,
        times: [40, 40, 40],
        slowdown: 6,
        parameters: 100_000_000,
        boundary: 16,
        saved: 500,
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(16 << 10, 25), (12 << 10, 12)], root: 50, sockets: vec![64 << 10; 2] };
    let model = model_text(&[ends.clone(), block, LayerText { times: [20, 20, 20], ..ends }]);
    Instance::new(&model, &machine_text(&machine), &workload(8, Mode::Train))
}

#[test]
fn within_its_gap_the_ilp_is_no_worse_than_the_heuristics_on_any_number_of_threads() {
    let instance = mixed();
    let one = plan(&instance, "ilp", bare()).unwrap();
    assert_eq!(one.status, OutcomeStatus::Optimal, "{one:?}");
    assert!(one.gap <= 0.0051 && one.bound <= one.simulated, "{one:?}");
    for threads in [2, 3, 8] {
        assert_eq!(one, plan(&instance, "ilp", Options { threads, ..bare() }).unwrap());
    }
    for name in ["dp", "greedy"] {
        assert!(one.simulated <= plan(&instance, name, bare()).unwrap().simulated, "`{name}`");
    }
}

#[test]
fn a_subproblem_with_too_many_candidates_stays_open_and_the_plan_is_not_called_optimal() {
    let options = Options { gap: 0.0, candidates_per_case: 0, ..bare() };
    let solution = plan(&mixed(), "ilp", options).unwrap();
    assert_eq!(solution.status, OutcomeStatus::Feasible);
    assert!(solution.gap > 0.0 && solution.bound > SimTime::ZERO);
}
