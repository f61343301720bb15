//! The idle time of compute lanes, derived from spans.

use crate::{Idle, Lane, Span};
use spipe_base::{IdleCause, LaneId, LaneRole, SimTime};

/// Returns the idle intervals, over one period, of every compute lane that works.
///
/// For each lane, the durations of spans and idle intervals add up to exactly `period`. The cause
/// of an interval between two spans is the last event that the later span waited for
/// ([`IdleCause::Order`] if it states none). The rest of the period lies between the lane's last
/// span and its first span of the next iteration. The part before the lane's first span of this
/// iteration is warm-up, the rest is drain.
///
/// `spans` must be sorted by lane and start; spans of one lane must not overlap.
pub fn idle_intervals(lanes: &[Lane], spans: &[Span], period: SimTime) -> Vec<Idle> {
    spans
        .chunk_by(|before, after| before.lane == after.lane)
        .filter(|spans| lanes[spans[0].lane.index()].role == LaneRole::Compute)
        .flat_map(|spans| lane_intervals(spans[0].lane, spans, period))
        .collect()
}

fn lane_intervals(lane: LaneId, spans: &[Span], period: SimTime) -> Vec<Idle> {
    let (first, last) = (spans[0].start, spans[spans.len() - 1].end);
    let outside = period.saturating_sub(last - first);
    let warm_up = first.min(outside);
    let drain = outside - warm_up;
    let between = spans.windows(2).map(|pair| Idle {
        lane,
        start: pair[0].end,
        end: pair[1].start,
        cause: pair[1].waited_for.unwrap_or(IdleCause::Order),
    });
    let before = Idle { lane, start: first - warm_up, end: first, cause: IdleCause::WarmUp };
    let after = Idle { lane, start: last, end: last + drain, cause: IdleCause::Drain };
    std::iter::once(before).chain(between).chain([after]).filter(|idle| idle.start < idle.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::{ActionKind, Subject};

    fn span(start: u64, end: u64, waited_for: Option<IdleCause>) -> Span {
        Span {
            lane: LaneId::new(0),
            kind: ActionKind::Forward,
            subject: Subject::default(),
            start: SimTime::ns(start),
            end: SimTime::ns(end),
            bytes: None,
            waited_for,
        }
    }

    fn idle(spans: &[Span], period: u64) -> Vec<(u64, IdleCause)> {
        let lanes = [Lane { name: "gpu0.compute".into(), device: "gpu0".into(), role: LaneRole::Compute }];
        idle_intervals(&lanes, spans, SimTime::ns(period))
            .iter()
            .map(|idle| ((idle.end - idle.start).as_ns(), idle.cause))
            .collect()
    }

    #[test]
    fn warm_up_gap_and_drain() {
        let spans = [span(2, 5, None), span(9, 10, Some(IdleCause::Activation))];
        assert_eq!(idle(&spans, 12), [(2, IdleCause::WarmUp), (4, IdleCause::Activation), (2, IdleCause::Drain)]);
    }

    #[test]
    fn iterations_that_overlap_still_add_up() {
        let spans = [span(4, 14, None)];
        assert_eq!(idle(&spans, 12), [(2, IdleCause::WarmUp)]);
    }
}
