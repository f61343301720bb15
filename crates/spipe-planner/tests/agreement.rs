//! Planners against each other: branch and bound finds the best placements, and no heuristic beats them.

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

/// By how much a plan of branch and bound may be slower than the fastest: its bounds do not know what
/// simulation adds, such as waits for links.
const NEARLY: f64 = 0.05;

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
    Options { gap: 0.0, threads, ..bare() }
}

#[test]
fn the_ilp_finds_what_exhaustive_search_finds_and_nothing_beats_it() {
    let (found, fastest) = (Cell::new(0), Cell::new(0));
    for_all(120, &instance_of(6), |instance| {
        let best = plan(&instance, "exhaustive", exact(2));
        let one = plan(&instance, "ilp", exact(1));
        prop_assert_eq!(&one, &plan(&instance, "ilp", exact(4)), "one thread and four");
        let (best, one) = match (best, one) {
            (Ok(best), Ok(one)) => (best, one),
            (Err(PlanError::Infeasible { .. }), Err(PlanError::Infeasible { .. })) => return Ok(()),
            (best, one) => return Err(TestCaseError::fail(format!("{best:?} but {one:?}"))),
        };
        prop_assert!(best.simulated <= one.simulated, "{} but {}", one.simulated, best.simulated);
        let most = best.simulated.to_ms() * (1.0 + NEARLY);
        prop_assert!(one.simulated.to_ms() <= most, "{} but {}", one.simulated, best.simulated);
        fastest.set(fastest.get() + usize::from(one.simulated <= best.simulated + CLOCK));
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
    assert!(20 * fastest.get() >= 19 * found.get(), "{} of {} are the fastest", fastest.get(), found.get());
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
