//! A run on a GPU beside its prediction: how far off it was, and which lanes were late.

use spipe_base::{Diagnostic, readable::percent};
use spipe_trace::{Trace, compare};

/// A run that takes this much longer than predicted is no longer within the errors of predictions that are known
/// (`reports/accuracy.md`).
const LATE: f64 = 0.3;
/// The share of an iteration below which a lane's delay explains nothing.
const NOTABLE: f64 = 0.02;
/// The lanes that are named.
const NAMED: usize = 4;

/// The sentence about a measured iteration beside the predicted one; a warning if it is much longer. `export` is the
/// command that exports the plan to another engine, if one runs it.
pub fn verdict(predicted: &Trace, measured: &Trace, export: Option<&str>) -> Option<Verdict> {
    let comparison = compare(predicted, measured);
    let (before, after) = (comparison.iteration.predicted.to_ms(), comparison.iteration.measured.to_ms());
    if before <= 0.0 || after <= 0.0 {
        return None;
    }
    let longer = after / before - 1.0;
    let word = if longer < 0.0 { "shorter" } else { "longer" };
    let said = format!(
        "an iteration took {:.3}, {} {word} than the {:.3} predicted for `spipe run`",
        comparison.iteration.measured,
        percent(longer.abs()),
        comparison.iteration.predicted
    );
    if longer <= LATE {
        return Some(Verdict::Near(said));
    }
    let mut late: Vec<(&String, f64)> = comparison
        .by_lane
        .iter()
        .map(|(lane, busy)| (lane, busy.measured.to_ms() - busy.predicted.to_ms()))
        .filter(|(_, more)| *more > NOTABLE * after)
        .collect();
    late.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let lanes: Vec<String> =
        late.iter().take(NAMED).map(|(lane, more)| format!("`{lane}` was busy for {more:.1} ms more")).collect();
    let lanes = if lanes.is_empty() { "its lanes waited longer for each other".to_owned() } else { lanes.join(", ") };
    let hint = match export {
        Some(command) => format!("`{command}` exports the plan to another engine"),
        None => "no other engine runs this plan; `spipe calibrate` measures this machine for new plans".into(),
    };
    Some(Verdict::Late(Diagnostic::warning(format!("{said}: {lanes}")).hint(hint)))
}

/// A verdict on a prediction.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Within the known errors, or faster.
    Near(String),
    /// Much longer.
    Late(Diagnostic),
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::{ActionKind, LaneId, LaneRole, SimTime, Subject};
    use spipe_trace::{FORMAT_VERSION, Lane, Origin, Span, Status};

    /// A trace of an iteration with the busy times of its compute lane and of its copies, in ms.
    fn trace(iteration: u64, busy: [u64; 2]) -> Trace {
        let lane = |name: &str, role| Lane { name: format!("gpu0.{name}"), device: "gpu0".into(), role };
        let span = |(lane, busy): (usize, u64)| Span {
            lane: LaneId::from(lane),
            kind: ActionKind::Forward,
            subject: Subject { stage: None, microbatch: None, layers: None },
            start: SimTime::ZERO,
            end: SimTime::ms(busy),
            bytes: None,
            waited_for: None,
        };
        Trace {
            format_version: FORMAT_VERSION,
            name: "a plan".into(),
            origin: Origin::Measured,
            notes: Vec::new(),
            status: Status::Ok,
            iteration: SimTime::ms(iteration),
            iteration_without_profiler: None,
            folds: Vec::new(),
            iterations: Vec::new(),
            tokens: None,
            lanes: vec![lane("compute", LaneRole::Compute), lane("h2d", LaneRole::H2d)],
            spans: busy.into_iter().enumerate().map(span).collect(),
            arrows: Vec::new(),
            idle: Vec::new(),
            memories: Vec::new(),
            explanation: None,
        }
    }

    #[test]
    fn a_run_near_its_prediction_is_told_as_it_is() {
        let said = |measured: u64| verdict(&trace(100, [90, 40]), &trace(measured, [95, 40]), None).unwrap();
        assert_eq!(
            said(120),
            Verdict::Near(
                "an iteration took 120.000 ms, 20.0 % longer than the 100.000 ms predicted for `spipe run`".into()
            )
        );
        assert_eq!(
            said(80),
            Verdict::Near(
                "an iteration took 80.000 ms, 20.0 % shorter than the 100.000 ms predicted for `spipe run`".into()
            )
        );
        assert_eq!(verdict(&trace(0, [0, 0]), &trace(80, [1, 1]), None), None);
    }

    #[test]
    fn late_lanes_are_named_with_the_command_that_exports_the_plan() {
        let command = "spipe export torch plan.json -o FOLDER";
        let late = |busy: [u64; 2], export| match verdict(&trace(100, [90, 40]), &trace(400, busy), export) {
            Some(Verdict::Late(warning)) => warning.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            late([100, 390], Some(command)),
            "warning: an iteration took 400.000 ms, 300.0 % longer than the 100.000 ms predicted for `spipe run`: `gpu0.h2d` was busy for 350.0 ms more, \
             `gpu0.compute` was busy for 10.0 ms more\nhint: `spipe export torch plan.json -o FOLDER` exports the plan to another engine"
        );
        let said = late([90, 41], None);
        assert!(
            said.contains("its lanes waited longer for each other") && said.contains("no other engine runs"),
            "{said}"
        );
    }
}
