//! The space of placements: the decisions of each system, device orders, and changes of stages.
//!
//! - [`rules`]: [`rules::SystemRules`], the decision space of each system
//! - [`device_orders`]: the orders of devices up to symmetry
//! - [`subproblem`]: a device order with a schedule, and a partition of the layers over it
//! - [`sharded`]: stage lengths and modes of sharded systems
//! - [`stage_edits`]: single changes of a stage
//! - [`pinned`]: changes of a placement that make it satisfy pins
//! - [`enumerate`]: all placements of a system, where they are few

pub(crate) mod device_orders;
pub(crate) mod enumerate;
mod pinned;
pub(crate) mod rules;
pub(crate) mod sharded;
pub(crate) mod stage_edits;
pub(crate) mod subproblem;

/// Returns `items` without repetition, in their order.
pub(crate) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
