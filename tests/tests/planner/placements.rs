//! Plans over all systems against every placement of each.

use super::{
    CLOCK, add,
    draws::{random_stages, random_streamed},
    exact,
    instances::{Instance, frozen_instance_of, instance_of, several_socket_instance_of, tied_instance_of},
    run, simulated, solve,
};
use proptest::prelude::*;
use spipe_cost::Mode;
use spipe_plan::{Knob, OutcomeStatus, Placement, System, check};
use spipe_planner::{Options, PlanError, every};
use std::cell::Cell;

/// Checks the plan over all systems against every placement of each of them, and some at random.
/// Returns whether there is a plan.
fn is_the_best(instance: &Instance, draws: &[u8]) -> Result<bool, TestCaseError> {
    let context = instance.context();
    let options = |threads| Options { threads, ..exact() };
    let all = solve(instance, &System::ALL, options(1));
    if context.workload().microbatches == 3 {
        prop_assert_eq!(&all, &solve(instance, &System::ALL, options(3)), "one thread and three");
    }
    let fits = |placement: &Placement| check(&context, placement).is_ok();
    let every = System::ALL.into_iter().flat_map(|system| every(context, system, usize::MAX).unwrap_or_default());
    let stages = [System::OneForwardOneBackward, System::Gpipe, System::Hybrid];
    let stages = stages.into_iter().map(|system| random_stages(&context, system, draws));
    let streamed = [System::Superpipeline, System::Mobius];
    let streamed = streamed.into_iter().filter_map(|system| random_streamed(&context, system, draws));
    let trains = context.workload().mode == Mode::Train;
    let list = every.chain(stages.chain(streamed).filter(|_| trains)).filter(fits);
    let best = list.filter_map(|placement| simulated(instance, &placement)).min();
    match (all, best) {
        (Err(PlanError::Infeasible { .. }), None) => Ok(false),
        (Ok(all), Some(best)) => {
            prop_assert!(all.simulated <= best + CLOCK && best <= all.simulated + CLOCK, "{best} but {all:?}");
            // Limits and groups are not enumerated, so that the bounds of systems that have them
            // may be lower.
            let limited = |system| Knob::MemoryLimit.is_of(system) || Knob::Group.is_of(system);
            let tried = all.considered.iter().filter(|known| !limited(known.system));
            let bound = tried.filter_map(|known| known.bound).min().unwrap_or(all.bound);
            prop_assert!(bound.max(all.bound) <= best + CLOCK && all.simulated <= bound + CLOCK, "{best} but {all:?}");
            let proven = all.simulated <= all.bound + CLOCK;
            prop_assert!(!proven || all.status == OutcomeStatus::Optimal, "{all:?}");
            prop_assert_eq!(Ok(()), check(&context, &all.placement));
            Ok(true)
        }
        (all, best) => Err(TestCaseError::fail(format!("{best:?} but {all:?}"))),
    }
}

/// Several sockets, on any of which a stage may keep its state.
#[test]
fn with_several_sockets_the_plan_of_a_system_is_the_best_of_all_its_placements() {
    let systems =
        [System::OneForwardOneBackward, System::Gpipe, System::ZeroOffload, System::Superpipeline, System::Mobius];
    let (found, refused) = (Cell::new(0), Cell::new(0));
    run(60, several_socket_instance_of(2, 1), |instance| {
        let context = instance.context();
        for system in systems {
            let one = solve(&instance, &[system], exact());
            let all = every(context, system, usize::MAX).unwrap_or_default().into_iter();
            let fit = all.filter(|placement| check(&context, placement).is_ok());
            let best = fit.filter_map(|placement| simulated(&instance, &placement)).min();
            let agrees = match (&one, best) {
                (Ok(one), Some(best)) => one.simulated <= best + CLOCK && best <= one.simulated + CLOCK,
                (one, best) => one.is_err() && best.is_none(),
            };
            prop_assert!(agrees, "{}: {:?} but {:?}", system, best, one);
            add(if one.is_ok() { &found } else { &refused });
        }
        Ok(())
    });
    assert!(found.get() >= 60 && refused.get() >= 30, "{} plans and {} refusals", found.get(), refused.get());
}

/// Checks the best plan of `cases` instances, at least `least` of which have one.
fn are_the_best((cases, least): (u32, u32), on: impl Strategy<Value = Instance>) {
    let found = Cell::new(0);
    run(cases, (on, prop::collection::vec(any::<u8>(), 12)), |(instance, draws)| {
        if is_the_best(&instance, &draws)? {
            add(&found);
        }
        Ok(())
    });
    assert!(found.get() >= least, "{} instances have a plan", found.get());
}

/// Any system, with one stage or several on a device, and every choice for each stage.
#[test]
fn of_all_systems_the_plan_is_the_best_of_all_placements() {
    are_the_best((36, 18), instance_of(3));
}

/// The same with frozen layers: the first ones, and perhaps some behind them.
#[test]
fn of_all_systems_the_plan_for_frozen_layers_is_the_best_of_all_placements() {
    are_the_best((15, 6), frozen_instance_of(3));
}

/// The same with a first and a last layer that share parameters: plans that keep both are among
/// them.
#[test]
fn of_all_systems_the_plan_for_tied_ends_is_the_best_of_all_placements() {
    are_the_best((15, 6), tied_instance_of(1));
}
