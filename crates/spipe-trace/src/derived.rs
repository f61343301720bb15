//! Explanations from a trace alone: waits, and the path of its dependencies.

use crate::{Explanation, Piece, Trace, Wait};
use spipe_base::{IdleCause, LaneId, LaneRole, SimTime};
use std::collections::BTreeMap;

/// The part of an explanation that a trace alone gives: waits by lane and cause, and the path of
/// dependencies back from the last span. The path ends where the trace shows no dependency.
pub fn explanation_of(trace: &Trace) -> Explanation {
    Explanation { waits: waits(trace), critical_path: path(trace), ..Explanation::default() }
}

fn waits(trace: &Trace) -> Vec<Wait> {
    let mut total: BTreeMap<(LaneId, IdleCause), (SimTime, u64)> = BTreeMap::new();
    for idle in trace.idle.iter().filter(|idle| idle.start < idle.end && idle.lane.index() < trace.lanes.len()) {
        let (time, count) = total.entry((idle.lane, idle.cause)).or_default();
        (*time, *count) = (*time + (idle.end - idle.start), *count + 1);
    }
    let wait = |((lane, cause), (time, count)): ((LaneId, IdleCause), (SimTime, u64))| Wait {
        lane: trace.lanes[lane.index()].name.clone(),
        cause,
        ms: time.to_ms(),
        count,
        resource: None,
        full: None,
        chain: Vec::new(),
    };
    let mut waits: Vec<Wait> = total.into_iter().map(wait).collect();
    waits.sort_by(|one, other| other.ms.total_cmp(&one.ms));
    waits
}

/// The path back from the span of a compute lane that ends last, along arrows and lanes.
fn path(trace: &Trace) -> Vec<Piece> {
    let mut before: Vec<Option<u32>> = vec![None; trace.spans.len()];
    for arrow in &trace.arrows {
        if let (Some(place), true) = (before.get_mut(arrow.to as usize), (arrow.from as usize) < trace.spans.len()) {
            *place = Some(arrow.from);
        }
    }
    let in_lane = |span: usize| {
        let before = span.checked_sub(1)?;
        (trace.spans[before].lane == trace.spans[span].lane).then_some(before)
    };
    let known = |span: &usize| trace.spans[*span].lane.index() < trace.lanes.len();
    let computes = |span: &usize| trace.lanes[trace.spans[*span].lane.index()].role == LaneRole::Compute;
    let all = (0..trace.spans.len()).filter(known);
    let Some(last) = all.filter(computes).max_by_key(|span| trace.spans[*span].end) else { return Vec::new() };
    let (mut at, mut until, mut pieces) = (last, trace.spans[last].end, Vec::new());
    for _ in 0..trace.spans.len() {
        let span = &trace.spans[at];
        let lane = &trace.lanes[span.lane.index()].name;
        pieces.push(Piece {
            lane: lane.clone(),
            action: format!("{} {}", span.kind, span.subject).trim_end().to_owned(),
            start_ms: span.start.to_ms(),
            ms: until.saturating_sub(span.start).to_ms(),
            resource: None,
            full: None,
        });
        until = span.start;
        // The later of the two ends is what let the span start.
        let candidates = before[at].map(|before| before as usize).into_iter().chain(in_lane(at));
        let earlier = candidates.filter(known).filter(|span| trace.spans[*span].start < until);
        match earlier.max_by_key(|span| trace.spans[*span].end.min(until)) {
            Some(next) => at = next,
            None => break,
        }
    }
    pieces.reverse();
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrow, FORMAT_VERSION, Idle, Lane, Origin, Span, Status};
    use spipe_base::{ActionKind, Subject};

    #[test]
    fn the_path_follows_arrows_and_lanes() {
        let lane = |name: &str| Lane { name: name.into(), device: "gpu0".into(), role: LaneRole::Compute };
        let span = |lane: u32, start: u64, end: u64| Span {
            lane: LaneId::new(lane),
            kind: ActionKind::Forward,
            subject: Subject::default(),
            start: SimTime::ms(start),
            end: SimTime::ms(end),
            bytes: None,
            waited_for: None,
        };
        let trace = Trace {
            format_version: FORMAT_VERSION,
            name: "path".into(),
            origin: Origin::Predicted,
            notes: Vec::new(),
            status: Status::Ok,
            iteration: SimTime::ms(10),
            iterations: Vec::new(),
            tokens: None,
            lanes: vec![lane("a"), lane("b")],
            spans: vec![span(0, 0, 3), span(0, 3, 6), span(1, 1, 2), span(1, 6, 10)],
            arrows: vec![Arrow { from: 1, to: 3 }],
            idle: vec![Idle {
                lane: LaneId::new(1),
                start: SimTime::ms(2),
                end: SimTime::ms(6),
                cause: IdleCause::Activation,
            }],
            memories: Vec::new(),
            iteration_without_profiler: None,
            folds: Vec::new(),
            explanation: None,
        };
        let explained = explanation_of(&trace);
        let pieces: Vec<(&str, f64)> =
            explained.critical_path.iter().map(|piece| (piece.lane.as_str(), piece.ms)).collect();
        assert_eq!(pieces, [("a", 3.0), ("a", 3.0), ("b", 4.0)]);
        assert_eq!((explained.waits.len(), explained.waits[0].ms), (1, 4.0));
    }
}
