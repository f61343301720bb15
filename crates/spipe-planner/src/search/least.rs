//! The least iteration of any system, without a search for a plan.

use crate::{
    bounds::to_time,
    costs::CostSums,
    formulation::assignment::{compute_bound::floor, least},
    problem::{Options, bound::Bound},
};
use spipe_base::SimTime;
use spipe_plan::{Context, System};

/// Returns a lower bound of the iteration of every placement of `systems`, with any number of stages per device;
/// [`SimTime::MAX`] if no placement exists. It is the least of the systems' linear relaxations. The first system
/// whose bound is not above `enough` ends the work, and that bound is returned.
pub fn least_iteration((context, systems): (Context<'_>, &[System]), options: &Options, enough: SimTime) -> SimTime {
    let costs = CostSums::new(context, options);
    let compute = to_time(&costs, Bound::AtLeast(floor(&costs)));
    if compute > enough {
        return compute;
    }
    let suits = |system: &&System| costs.training || system.infers();
    let mut found = SimTime::MAX;
    for system in systems.iter().filter(suits) {
        found = found.min(to_time(&costs, least((&costs, &options.pins), *system, None)));
        if found <= enough {
            break;
        }
    }
    found
}
