//! Strips: a lane as coloured runs of equal columns, for charts that are too small for single bars.
//!
//! A column shows one of the families of actions, or causes of idle time, within it. Neighbours that show the same are one run, so a strip of a hundred thousand actions is no larger than one of
//! a hundred.

use crate::{
    palette::{Color, Family, cause_color, hex, tint},
    scene::Track,
};
use spipe_base::{IdleCause, LaneId, SimTime};
use std::fmt::Write as _;

/// The share of its colour that a bubble has in a strip.
const PALE: f64 = 0.28;

/// The content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    /// Actions.
    Busy(Family),
    /// Idle time of a compute lane.
    Idle(IdleCause),
}

impl Shown {
    /// Its colour.
    pub(crate) fn paint(self) -> Color {
        match self {
            Self::Busy(family) => family.color(),
            Self::Idle(cause) => tint(cause_color(cause), PALE),
        }
    }

    /// Its colour, as `#rrggbb`.
    pub(crate) fn color(self) -> String {
        hex(self.paint())
    }

    /// Its name in legends and in pointers' titles.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Busy(family) => family.name(),
            Self::Idle(cause) => cause.name(),
        }
    }
}

/// Consecutive columns that show the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first column.
    pub(crate) from: usize,
    /// The column after the last one.
    pub(crate) to: usize,
    /// Their content.
    pub(crate) shown: Shown,
}

/// The kinds of things that a column can show.
pub(crate) const KINDS: usize = Family::ALL.len() + IdleCause::ALL.len();

/// Whether a lane has more than `most` actions and bubbles.
pub(crate) fn is_dense(track: &Track, lane: LaneId, most: usize) -> bool {
    track.spans(lane).len() + track.idle(lane).len() > most
}

/// Returns the runs of a lane in `columns` equal parts of the time from zero to `end`. Columns in
/// which nothing happens are in no run.
///
/// A column shows one of the kinds within it. If several share a column, the time of those that it
/// does not show is owed to them in later columns, so a kind is drawn for as long as it takes, to
/// within a few columns, on any part of the axis (error diffusion, after Floyd and Steinberg 1976).
/// An action alone in its column is shown, however short it is.
pub(crate) fn runs(track: &Track, lane: LaneId, (end, columns): (SimTime, usize)) -> Vec<Run> {
    let mut owed = [0.0; KINDS + 1];
    let mut all: Vec<Run> = Vec::new();
    for (column, shares) in shares(track, lane, (end, columns)).iter().enumerate() {
        let Some(shown) = choice(shares, &mut owed) else { continue };
        match all.last_mut().filter(|last| last.shown == shown && last.to == column) {
            Some(last) => last.to = column + 1,
            None => all.push(Run { from: column, to: column + 1, shown }),
        }
    }
    all
}

/// The contents of a column.
#[derive(Clone)]
struct Column {
    /// The share of each kind; less than one together where nothing happens in the rest.
    shares: [f64; KINDS],
    /// The actions and bubbles in it.
    count: usize,
}

/// The shares of every kind in each column.
fn shares(track: &Track, lane: LaneId, (end, columns): (SimTime, usize)) -> Vec<Column> {
    let mut all = vec![Column { shares: [0.0; KINDS], count: 0 }; columns];
    let width = (end.as_ns().max(1) as f64 / columns as f64).max(f64::MIN_POSITIVE);
    let mut add = |(from, to): (SimTime, SimTime), kind: usize| {
        let (from, to) = (from.as_ns() as f64 / width, to.as_ns() as f64 / width);
        let last = (to.ceil() as usize).min(columns);
        for (column, content) in all.iter_mut().enumerate().take(last).skip(from as usize) {
            let share = to.min((column + 1) as f64) - from.max(column as f64);
            if share > 0.0 {
                content.shares[kind] += share;
                content.count += 1;
            }
        }
    };
    for (_, span) in track.spans(lane) {
        add((span.start, span.end), Family::of(span.kind) as usize);
    }
    for idle in track.idle(lane) {
        add((idle.start, idle.end), Family::ALL.len() + idle.cause as usize);
    }
    all
}

/// The kind that a column shows, given the columns that are `owed` to each kind so far; the last of
/// them is owed to nothing at all.
fn choice(Column { shares, count }: &Column, owed: &mut [f64; KINDS + 1]) -> Option<Shown> {
    const NOTHING: usize = KINDS;
    // Actions that overlap in a lane share their columns.
    let total = shares.iter().sum::<f64>().max(1.0);
    let parts: Vec<f64> =
        shares.iter().map(|share| share / total).chain([1.0 - shares.iter().sum::<f64>() / total]).collect();
    let mut present = (0..KINDS).filter(|kind| parts[*kind] > 0.0);
    let most = if *count < 2 {
        present.next_back()?
    } else {
        owed.iter_mut().zip(&parts).for_each(|(owed, part)| *owed += part);
        let present = present.chain((parts[NOTHING] > 1e-9).then_some(NOTHING));
        // The first of equals, so that actions come before bubbles.
        let most = present.reduce(|best, kind| if owed[kind] > owed[best] + 1e-9 { kind } else { best })?;
        owed[most] -= 1.0;
        most
    };
    match most.checked_sub(Family::ALL.len()) {
        None => Some(Shown::Busy(Family::ALL[most])),
        Some(cause) => IdleCause::ALL.get(cause).copied().map(Shown::Idle),
    }
}

/// Returns one SVG path for each thing that `runs` show, in a box one unit per column wide and
/// `height` high, with its left top corner at (`x`, `y`); a column is `scale` units wide.
pub(crate) fn paths(runs: &[Run], (x, y): (f64, f64), (scale, height): (f64, f64)) -> Vec<(Shown, String)> {
    let mut shown: Vec<Shown> = runs.iter().map(|run| run.shown).collect();
    shown.sort_unstable();
    shown.dedup();
    let path = |shown: Shown| {
        let mut path = String::new();
        for run in runs.iter().filter(|run| run.shown == shown) {
            let (left, width) = (x + run.from as f64 * scale, (run.to - run.from) as f64 * scale);
            let _infallible = write!(path, "M{left:.4} {y}h{width:.4}v{height}h{:.4}z", -width);
        }
        (shown, path)
    };
    shown.into_iter().map(path).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Picture, scene::Scene};
    use proptest::prelude::*;
    use spipe_base::{ActionKind, LaneRole, Subject};
    use spipe_trace::{FORMAT_VERSION, Idle, Lane, Origin, Span, Status, Trace};

    /// A compute lane without gaps: actions and bubbles one behind the other.
    pub(crate) fn lane(parts: &[(usize, u64)]) -> Trace {
        let kinds: Vec<ActionKind> = ActionKind::all().collect();
        let (lane, mut at) = (LaneId::new(0), SimTime::ZERO);
        let (mut spans, mut idle) = (Vec::new(), Vec::new());
        for (kind, length) in parts {
            let (start, end) = (at, at + SimTime::ns(*length));
            match kinds.get(*kind) {
                Some(kind) => spans.push(Span {
                    lane,
                    kind: *kind,
                    subject: Subject::default(),
                    start,
                    end,
                    bytes: None,
                    waited_for: None,
                }),
                None => {
                    let cause = IdleCause::ALL[(kind - kinds.len()) % IdleCause::ALL.len()];
                    idle.push(Idle { lane, start, end, cause });
                }
            }
            at = end;
        }
        Trace {
            format_version: FORMAT_VERSION,
            name: String::new(),
            origin: Origin::Predicted,
            notes: vec![],
            status: Status::Ok,
            iteration: at,
            iterations: vec![],
            tokens: None,
            lanes: vec![Lane { name: "gpu0.compute".into(), device: "gpu0".into(), role: LaneRole::Compute }],
            spans,
            arrows: vec![],
            idle,
            memories: vec![],
            iteration_without_profiler: None,
            folds: Vec::new(),
            explanation: None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// At every level, each kind is drawn for the time that it takes.
        #[test]
        fn columns_have_the_time_of_what_they_stand_for(
            parts in prop::collection::vec((0..30usize, 1..1000u64), 1..400), columns in 1..300usize,
        ) {
            let trace = lane(&parts);
            let scene = Scene::of(&Picture { trace: &trace, second: None, title: None });
            let (track, lane) = (&scene.tracks[0], LaneId::new(0));
            let width = trace.iteration.as_ns() as f64 / columns as f64;
            let runs = runs(track, lane, (trace.iteration, columns));
            let drawn: usize = runs.iter().map(|run| run.to - run.from).sum();
            prop_assert_eq!(drawn, columns, "no column is empty");
            let mut wrong = [0.0f64; KINDS];
            for run in &runs {
                let kind = match run.shown {
                    Shown::Busy(family) => family as usize,
                    Shown::Idle(cause) => Family::ALL.len() + cause as usize,
                };
                wrong[kind] += (run.to - run.from) as f64;
            }
            for (_, span) in track.spans(lane) {
                wrong[Family::of(span.kind) as usize] -= span.duration().as_ns() as f64 / width;
            }
            for idle in track.idle(lane) {
                wrong[Family::ALL.len() + idle.cause as usize] -= (idle.end - idle.start).as_ns() as f64 / width;
            }
            for (kind, columns) in wrong.iter().enumerate() {
                prop_assert!(columns.abs() < MOST_WRONG, "{kind} has {columns} columns too many: {wrong:?}");
            }
        }
    }

    /// The most columns by which a kind may be drawn too long or too short.
    const MOST_WRONG: f64 = 3.0;

    #[test]
    fn a_lane_of_many_actions_has_their_shares() {
        let parts: Vec<(usize, u64)> = (0..30_000).map(|index| (index % 3, [500, 300, 200][index % 3])).collect();
        let trace = lane(&parts);
        let scene = Scene::of(&Picture { trace: &trace, second: None, title: None });
        let runs = runs(&scene.tracks[0], LaneId::new(0), (trace.iteration, 100));
        let shown = |kind: ActionKind| {
            let same = runs.iter().filter(|run| run.shown == Shown::Busy(Family::of(kind)));
            same.map(|run| run.to - run.from).sum::<usize>()
        };
        let kinds: Vec<ActionKind> = ActionKind::all().take(3).collect();
        let of = |family: Family| {
            let same = kinds.iter().zip([50, 30, 20]).filter(|(kind, _)| Family::of(**kind) == family);
            same.map(|(_, share)| share).sum::<usize>()
        };
        for kind in &kinds {
            assert!(shown(*kind).abs_diff(of(Family::of(*kind))) <= 1, "{kind}");
        }
    }
}
