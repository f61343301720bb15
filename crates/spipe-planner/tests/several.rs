//! Feasibility with one stage or several on each device, against an exhaustive search.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must say so")]

#[path = "common/instances.rs"]
mod instances;
#[path = "common/memory.rs"]
mod memory;
#[path = "common/runner.rs"]
mod runner;
#[path = "common/several.rs"]
mod several;

use instances::{Instance, layer, machine, machine_text, model_text, workload};
use memory::{systems, with_problem};
use proptest::prelude::*;
use runner::for_all;
use several::any_fitting;
use spipe_base::LayerRange;
use spipe_cost::{CostTable, Mode};
use spipe_plan::{System, check};
use spipe_planner::{Fit, PlanError, fits, planner};
use std::cell::Cell;

/// Models of up to four layers on machines that are too small for many of them, with large and
/// small transient memory.
fn tight() -> impl Strategy<Value = (Instance, Vec<System>)> {
    let layers = (prop::collection::vec(layer(2), 1..=2), prop::sample::select(vec![1u64, 4, 16]));
    let counts = (1u64..9, prop::bool::weighted(0.1), prop::bool::weighted(0.3));
    (layers, machine(), 1u64..10, counts, systems()).prop_map(
        |((mut layers, heavier), mut machine, smaller, (microbatches, infer, frozen), systems)| {
            machine.gpus.iter_mut().for_each(|(memory, _)| *memory = (*memory / smaller).max(1));
            machine.sockets.iter_mut().for_each(|dram| *dram = (*dram / smaller / 3).max(1));
            layers.iter_mut().for_each(|layer| layer.parameters *= heavier);
            let workload = workload(microbatches, if infer { Mode::Infer } else { Mode::Train });
            let instance = Instance::new(&model_text(&layers), &machine_text(&machine), &workload);
            let first = LayerRange::new(0.into(), 0.into()).filter(|_| frozen && instance.model.layers().len() > 1);
            let model = instance.model.with_frozen(&first.into_iter().collect::<Vec<_>>()).unwrap();
            let cost = CostTable::new(&model, &instance.hardware, &workload).unwrap();
            (Instance { model, cost, ..instance }, systems)
        },
    )
}

#[test]
fn feasibility_agrees_with_exhaustive_search() {
    let (fitting, several, refused) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let add = |count: &Cell<u32>| count.set(count.get() + 1);
    for_all(3000, &tight(), |(instance, systems)| {
        let found = with_problem(instance.context(), &systems, fits);
        let exists = any_fitting(&instance.context(), &systems);
        match &found {
            Fit::Found(placement) => prop_assert!(check(&instance.context(), placement).is_ok()),
            Fit::Never => prop_assert!(exists.is_none(), "{:?}", exists),
            Fit::NotFound | Fit::Late => {
                prop_assert!(false, "undecided beside {:?}", exists)
            }
        }
        prop_assert_eq!(found == Fit::Never, exists.is_none());
        add(if exists.is_some() { &fitting } else { &refused });
        let whole = with_problem(instance.context(), &systems, |problem| planner("exhaustive").unwrap().plan(problem));
        prop_assert!(whole.is_err() || exists.is_some());
        if exists.is_some() && matches!(whole, Err(PlanError::Infeasible { .. } | PlanError::NothingRuns { .. })) {
            add(&several);
        }
        Ok(())
    });
    let seen = [&fitting, &several, &refused].map(Cell::get);
    assert!(seen.iter().all(|count| *count >= 20), "too few feasible, multi-stage or infeasible cases: {seen:?}");
}
