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

/// One of how many plans may be slower than that, beside a first one: local search comes after branch and
/// bound.
const ONE_OF: u32 = 20;

/// How a plan of branch and bound compares with the fastest.
#[derive(PartialEq)]
enum Found {
    Nearly,
    Slower,
    /// There is no plan.
    Nothing,
}

/// Checks that branch and bound, on any number of threads, and exhaustive search find plans, that no
/// heuristic beats exhaustive search, and that all bounds hold. Returns whether both are equally fast but
/// for [`NEARLY`].
fn agrees(instance: &Instance, options: &Options) -> Result<Found, TestCaseError> {
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
        ) => return Ok(Found::Nothing),
        (best, one) => return Err(TestCaseError::fail(format!("{best:?} but {one:?}"))),
    };
    prop_assert!(best.simulated <= one.simulated, "{best:?} but {one:?}");
    prop_assert!(one.bound <= best.simulated);
    prop_assert_eq!(simulated(instance, &one.placement), Some(one.simulated));
    for name in ["dp", "greedy"] {
        let Ok(other) = stages(instance, name, options(1)) else { continue };
        prop_assert!(best.simulated <= other.simulated && other.bound <= best.simulated, "`{}`", name);
        prop_assert_eq!(Ok(()), check(&instance.context(), &other.placement));
    }
    prop_assert_eq!(Ok(()), check(&instance.context(), &one.placement));
    let nearly = one.simulated.to_ms() <= best.simulated.to_ms() * (1.0 + NEARLY);
    Ok(if nearly { Found::Nearly } else { Found::Slower })
}

/// Counts of results.
#[derive(Default)]
struct Counts {
    plans: Cell<u32>,
    slower: Cell<u32>,
}

impl Counts {
    fn add(&self, found: &Found) {
        if *found != Found::Nothing {
            add(&self.plans);
        }
        if *found == Found::Slower {
            add(&self.slower);
        }
    }

    /// Checks that at least `least` instances had a plan, and that few of these were slower.
    fn suffice(&self, least: u32) {
        let (plans, slower) = (self.plans.get(), self.slower.get());
        assert!(plans >= least, "{plans} instances have a plan");
        assert!(slower <= 1 + plans / ONE_OF, "{slower} of {plans} plans are over {NEARLY} slower than the fastest");
    }
}

/// Checks agreement on `cases` instances, at least `least` of which have a plan.
fn agree((cases, least): (u32, u32), on: impl Strategy<Value = Instance>, host_help: bool) {
    let counts = Counts::default();
    run(cases, on, |instance| {
        counts.add(&agrees(&instance, &Options { host_help, ..Options::default() })?);
        Ok(())
    });
    counts.suffice(least);
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
    let (held, counts) = (Cell::new(0), Counts::default());
    let on = (
        prop_oneof![instance_of(3), several_socket_instance_of(3, 1), several_socket_instance_of(2, 2)],
        prop::collection::vec(any::<u8>(), 8),
    );
    run(100, on, |(instance, draws)| {
        let pins = random_pins(&instance, &draws);
        let options = Options { pins: pins.clone(), ..Options::default() };
        counts.add(&agrees(&instance, &options)?);
        if let Ok(found) = stages(&instance, "ilp", options) {
            prop_assert!(pins.allow(&instance.context(), &found.placement), "{:?} but {:?}", pins, found.placement);
            add(&held);
        }
        Ok(())
    });
    counts.suffice(15);
    assert!(held.get() >= 15, "{} plans satisfy their pins", held.get());
}

/// The same with several sockets, on any of which a stage may keep its offloaded state.
#[test]
fn with_several_sockets_the_plan_is_the_best_of_all_placements() {
    let (far, counts) = (Cell::new(0), Counts::default());
    run(60, several_socket_instance_of(3, 1), |instance| {
        counts.add(&agrees(&instance, &Options::default())?);
        if let Ok(found) = stages(&instance, "ilp", exact()) {
            let socket = instance.hardware.device("cpu1");
            let there = found.placement.stages.iter().any(|stage| stage.optimizer == socket);
            far.set(far.get() + u32::from(there));
        }
        Ok(())
    });
    counts.suffice(15);
    assert!(far.get() >= 1, "{} plans use the far socket", far.get());
}
