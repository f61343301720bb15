//! The difference of two traces.

use crate::{Metrics, Trace};
use spipe_base::{ActionKind, LaneId, SimTime};
use std::collections::{BTreeMap, BTreeSet};

/// A predicted and a measured time of the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The prediction.
    pub predicted: SimTime,
    /// The measurement.
    pub measured: SimTime,
}

impl Difference {
    /// (predicted − measured) ÷ measured; none where nothing was measured.
    pub fn error(&self) -> Option<f64> {
        (self.measured > SimTime::ZERO)
            .then(|| (self.predicted.to_ms() - self.measured.to_ms()) / self.measured.to_ms())
    }
}

/// Predicted beside measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The steady period.
    pub iteration: Difference,
    /// Busy time of each lane, by name.
    pub by_lane: BTreeMap<String, Difference>,
    /// Busy time by kind of action.
    pub by_kind: BTreeMap<ActionKind, Difference>,
}

/// Compares the iteration, the lanes that worked in either trace, and the kinds of action that occur in either.
pub fn compare(predicted: &Trace, measured: &Trace) -> Comparison {
    let (left, right) = (Metrics::of(predicted), Metrics::of(measured));
    let time = |times: &BTreeMap<String, SimTime>, lane: &str| times.get(lane).copied().unwrap_or_default();
    let (left_lanes, right_lanes) = (by_name(predicted, &left), by_name(measured, &right));
    let lanes: BTreeSet<&String> = left_lanes.keys().chain(right_lanes.keys()).collect();
    let kinds: BTreeSet<ActionKind> = left.kinds.keys().chain(right.kinds.keys()).copied().collect();
    Comparison {
        iteration: Difference { predicted: left.iteration, measured: right.iteration },
        by_lane: lanes
            .into_iter()
            .map(|lane| {
                let difference = Difference { predicted: time(&left_lanes, lane), measured: time(&right_lanes, lane) };
                (lane.clone(), difference)
            })
            .collect(),
        by_kind: kinds
            .into_iter()
            .map(|kind| {
                let of = |times: &BTreeMap<ActionKind, SimTime>| times.get(&kind).copied().unwrap_or_default();
                (kind, Difference { predicted: of(&left.kinds), measured: of(&right.kinds) })
            })
            .collect(),
    }
}

fn by_name(trace: &Trace, metrics: &Metrics) -> BTreeMap<String, SimTime> {
    let name = |lane: &LaneId| trace.lanes[lane.index()].name.clone();
    metrics.busy.iter().map(|(lane, busy)| (name(lane), *busy)).collect()
}
