//! Lower bounds of the iteration time.

pub(crate) mod partition_dp;

use crate::costs::CostSums;
use crate::problem::bound::Bound;
use crate::problem::tolerances::TIE;
use spipe_base::SimTime;

/// Converts a bound to the simulator's clock, which rounds every action to whole nanoseconds.
/// Each action of a cycle may be half a nanosecond shorter there.
pub(crate) fn to_time(costs: &CostSums<'_>, bound: Bound) -> SimTime {
    let Bound::AtLeast(bound) = bound else { return SimTime::MAX };
    let stages = costs.devices.len().max(costs.layers) as f64;
    let actions = 5.0 * costs.microbatches as f64 * stages + 10.0;
    let ns = (bound * 1e6 * (1.0 - TIE) - 0.5 * actions).max(0.0);
    if ns < u64::MAX as f64 { SimTime::ns(ns as u64) } else { SimTime::MAX }
}
