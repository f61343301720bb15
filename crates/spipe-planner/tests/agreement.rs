//! Planners against each other: claims hold, and no heuristic beats them.

mod common;

use common::{Instance, instance, simulate};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use spipe_base::SimTime;
use spipe_plan::{OutcomeStatus, System, check};
use spipe_planner::{Options, PlanError, Problem, Solution, planner};
use std::sync::atomic::AtomicBool;

static NEVER: AtomicBool = AtomicBool::new(false);

/// What rounding to the simulator's clock may hide.
const CLOCK: SimTime = SimTime::ns(1000);

fn plan(instance: &Instance, name: &str, options: Options) -> Result<Solution, PlanError> {
    let context = instance.context();
    let score = |placement: &spipe_plan::Placement| simulate(&context, placement);
    let problem = Problem { context, systems: System::ALL.to_vec(), options, score: &score, stop: &NEVER };
    planner(name).unwrap().plan(&problem)
}

fn exact(threads: usize) -> Options {
    Options { gap: 0.0, threads, candidates_per_case: usize::MAX, ..Options::default() }
}

#[test]
fn the_ilp_finds_what_exhaustive_search_finds_and_nothing_beats_it() {
    let config = Config { cases: 120, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let agreed = runner
        .run(&instance(), |instance| {
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
                let Ok(solution) = plan(&instance, name, Options::default()) else { continue };
                prop_assert!(best.simulated <= solution.simulated, "`{}` beats exhaustive search", name);
                prop_assert!(solution.bound <= best.simulated, "the bound of `{}` is not one", name);
                prop_assert_eq!(Ok(()), check(&instance.context(), &solution.placement));
            }
            Ok(())
        })
        .unwrap();
}
