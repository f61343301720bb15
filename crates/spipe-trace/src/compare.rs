//! The comparison of two traces.

use crate::{Metrics, Trace};
use spipe_base::{ActionKind, LaneId, SimTime};
use std::collections::{BTreeMap, BTreeSet};

/// A predicted and a measured time of the same quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The prediction.
    pub predicted: SimTime,
    /// The measurement.
    pub measured: SimTime,
}

impl Difference {
    /// Returns (predicted − measured) ÷ measured; `None` if nothing was measured.
    pub fn error(&self) -> Option<f64> {
        (self.measured > SimTime::ZERO)
            .then(|| (self.predicted.to_ms() - self.measured.to_ms()) / self.measured.to_ms())
    }
}

/// A comparison of a predicted and a measured trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The steady-state period.
    pub iteration: Difference,
    /// Busy time of each lane, by name.
    pub by_lane: BTreeMap<String, Difference>,
    /// Busy time by kind of action.
    pub by_kind: BTreeMap<ActionKind, Difference>,
    /// The notes of the measurement that the prediction lacks.
    pub notes: Vec<String>,
}

/// Compares the iterations, the busy time of the lanes that work in either trace, and of the kinds
/// of action in either. The iteration measured without a profiler counts, if there is one.
pub fn compare(predicted: &Trace, measured: &Trace) -> Comparison {
    let (left, right) = (Metrics::of(predicted), Metrics::of(measured));
    let time = |times: &BTreeMap<String, SimTime>, lane: &str| times.get(lane).copied().unwrap_or_default();
    let (left_lanes, right_lanes) = (by_name(predicted, &left), by_name(measured, &right));
    let lanes: BTreeSet<&String> = left_lanes.keys().chain(right_lanes.keys()).collect();
    let kinds: BTreeSet<ActionKind> = left.kinds.keys().chain(right.kinds.keys()).copied().collect();
    Comparison {
        iteration: Difference {
            predicted: left.iteration,
            measured: measured.iteration_without_profiler.unwrap_or(right.iteration),
        },
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
        notes: measured.notes.iter().filter(|note| !predicted.notes.contains(note)).cloned().collect(),
    }
}

fn by_name(trace: &Trace, metrics: &Metrics) -> BTreeMap<String, SimTime> {
    let name = |lane: &LaneId| trace.lanes[lane.index()].name.clone();
    metrics.busy.iter().map(|(lane, busy)| (name(lane), *busy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FORMAT_VERSION, Origin, Status};

    fn trace(iteration: u64, notes: &[&str]) -> Trace {
        Trace {
            format_version: FORMAT_VERSION,
            name: "nothing".into(),
            origin: Origin::Measured,
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            status: Status::Ok,
            iteration: SimTime::ms(iteration),
            iterations: Vec::new(),
            tokens: None,
            lanes: Vec::new(),
            spans: Vec::new(),
            arrows: Vec::new(),
            idle: Vec::new(),
            memories: Vec::new(),
            iteration_without_profiler: None,
            folds: Vec::new(),
            explanation: None,
        }
    }

    #[test]
    fn notes_of_the_measurement_alone_are_kept() {
        let comparison = compare(&trace(9, &["emulated"]), &trace(10, &["emulated", "others took 9 %"]));
        assert_eq!(comparison.notes, ["others took 9 %"]);
        assert!((comparison.iteration.error().unwrap() + 0.1).abs() < 1e-12);
        assert_eq!(compare(&trace(9, &[]), &trace(0, &[])).iteration.error(), None);
    }

    #[test]
    fn an_iteration_without_the_profiler_is_the_one_that_counts() {
        let profiled = Trace { iteration_without_profiler: Some(SimTime::ms(10)), ..trace(14, &[]) };
        let found = compare(&trace(9, &[]), &profiled).iteration;
        assert_eq!((found.predicted, found.measured), (SimTime::ms(9), SimTime::ms(10)));
    }
}
