//! Plans of stages, one on each device: the ILP against exhaustive search and the heuristics.

use super::{
    PATIENCE, add,
    draws::random_pins,
    exact,
    instances::{Instance, frozen_instance_of, instance_of, several_socket_instance_of, tied_instance_of},
    planned, run, simulated,
};
use proptest::prelude::*;
use spipe_plan::check;
use spipe_planner::{Options, PlanError, SYSTEMS, Solution};
use std::cell::Cell;

/// The plan of stages of the planner with that name.
fn stages(instance: &Instance, name: &str, options: Options) -> Result<Solution, PlanError> {
    planned(instance, name, &SYSTEMS, options)
}

/// By how much a plan of branch and bound may be slower than the fastest: its bounds do not know what
/// simulation adds, such as waits for links.
const NEARLY: f64 = 0.05;

/// Checks that branch and bound, on any number of threads, and exhaustive search find plans that are
/// equally fast but for [`NEARLY`],
/// that no heuristic beats them, and that all bounds hold. Returns whether there is a plan.
fn agrees(instance: &Instance, options: &Options) -> Result<bool, TestCaseError> {
    let options = |threads| Options { gap: 0.0, time_limit: PATIENCE, threads, ..options.clone() };
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
        ) => return Ok(false),
        (best, one) => return Err(TestCaseError::fail(format!("{best:?} but {one:?}"))),
    };
    let most = best.simulated.to_ms() * (1.0 + NEARLY);
    prop_assert!(best.simulated <= one.simulated && one.simulated.to_ms() <= most, "{best:?} but {one:?}");
    prop_assert!(one.bound <= best.simulated);
    prop_assert_eq!(simulated(instance, &one.placement), Some(one.simulated));
    for name in ["dp", "greedy"] {
        let Ok(other) = stages(instance, name, options(1)) else { continue };
        prop_assert!(best.simulated <= other.simulated && other.bound <= best.simulated, "`{}`", name);
        prop_assert_eq!(Ok(()), check(&instance.context(), &other.placement));
    }
    prop_assert_eq!(Ok(()), check(&instance.context(), &one.placement));
    Ok(true)
}

/// Checks agreement on `cases` instances, at least `least` of which have a plan.
fn agree((cases, least): (u32, u32), on: impl Strategy<Value = Instance>, host_help: bool) {
    let found = Cell::new(0);
    run(cases, on, |instance| {
        if agrees(&instance, &Options { host_help, ..Options::default() })? {
            add(&found);
        }
        Ok(())
    });
    assert!(found.get() >= least, "{} instances have a plan", found.get());
}

/// Boundaries, devices, recompute, and the help of the host for each stage.
#[test]
fn with_all_choices_the_plan_is_the_best_of_all_placements() {
    agree((120, 48), instance_of(3), true);
}

/// Boundaries, devices and recompute.
#[test]
fn on_longer_models_the_plan_is_the_best_of_all_placements() {
    agree((120, 48), instance_of(6), false);
}

/// The same with frozen layers: the first ones, and perhaps some behind them.
#[test]
fn with_frozen_layers_the_plan_is_the_best_of_all_placements() {
    agree((60, 25), frozen_instance_of(3), true);
}

/// The same with a first and a last layer that share parameters.
#[test]
fn with_tied_ends_the_plan_is_the_best_of_all_placements() {
    agree((60, 24), tied_instance_of(1), true);
}

/// The same under pins of every kind that stages can satisfy.
#[test]
fn with_pins_the_plan_is_the_best_of_all_placements() {
    let held = Cell::new(0);
    let on = (
        prop_oneof![instance_of(3), several_socket_instance_of(3, 1), several_socket_instance_of(2, 2)],
        prop::collection::vec(any::<u8>(), 8),
    );
    run(100, on, |(instance, draws)| {
        let pins = random_pins(&instance, &draws);
        let options = Options { pins: pins.clone(), ..Options::default() };
        agrees(&instance, &options)?;
        if let Ok(found) = stages(&instance, "ilp", options) {
            prop_assert!(pins.allow(&instance.context(), &found.placement), "{:?} but {:?}", pins, found.placement);
            add(&held);
        }
        Ok(())
    });
    assert!(held.get() >= 15, "{} plans satisfy their pins", held.get());
}

/// The same with several sockets, on any of which a stage may keep its offloaded state.
#[test]
fn with_several_sockets_the_plan_is_the_best_of_all_placements() {
    let far = Cell::new(0);
    run(60, several_socket_instance_of(3, 1), |instance| {
        agrees(&instance, &Options::default())?;
        if let Ok(found) = stages(&instance, "ilp", exact()) {
            let socket = instance.hardware.device("cpu1");
            let there = found.placement.stages.iter().any(|stage| stage.optimizer == socket);
            far.set(far.get() + u32::from(there));
        }
        Ok(())
    });
    assert!(far.get() >= 3, "{} plans use the far socket", far.get());
}
