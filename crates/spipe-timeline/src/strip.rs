//! Strips: a lane as coloured runs of equal columns, for charts that are too small for single bars.
//!
//! A column shows the family of actions, or the cause of idle time, that takes most of it. Neighbours
//! that show the same are one run, so a strip of a hundred thousand actions is no larger than one of
//! a hundred.

use crate::{
    palette::{Family, cause_color, hex, tint},
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
    /// Its colour, as `#rrggbb`.
    pub(crate) fn color(self) -> String {
        match self {
            Self::Busy(family) => hex(family.color()),
            Self::Idle(cause) => hex(tint(cause_color(cause), PALE)),
        }
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

/// Returns the runs of a lane in `columns` equal parts of the time from zero to `end`. Columns in
/// which nothing happens are in no run.
pub(crate) fn runs(track: &Track, lane: LaneId, (end, columns): (SimTime, usize)) -> Vec<Run> {
    const KINDS: usize = Family::ALL.len() + IdleCause::ALL.len();
    let mut time = vec![[0u64; KINDS]; columns];
    let width = (end.as_ns().max(1) as f64 / columns as f64).max(f64::MIN_POSITIVE);
    let mut add = |(from, to): (SimTime, SimTime), kind: usize| {
        let first = (from.as_ns() as f64 / width) as usize;
        let last = ((to.as_ns() as f64 / width).ceil() as usize).min(columns);
        for (column, kinds) in time.iter_mut().enumerate().take(last).skip(first) {
            let (left, right) = (column as f64 * width, (column + 1) as f64 * width);
            let share = (to.as_ns() as f64).min(right) - (from.as_ns() as f64).max(left);
            kinds[kind] += share.max(0.0).round() as u64;
        }
    };
    for (_, span) in track.spans(lane) {
        add((span.start, span.end), Family::of(span.kind) as usize);
    }
    for idle in track.idle(lane) {
        add((idle.start, idle.end), Family::ALL.len() + idle.cause as usize);
    }
    let mut all: Vec<Run> = Vec::new();
    for (column, kinds) in time.iter().enumerate() {
        let Some(most) = (0..KINDS).rev().max_by_key(|kind| kinds[*kind]).filter(|most| kinds[*most] > 0) else {
            continue;
        };
        let shown = match most.checked_sub(Family::ALL.len()) {
            None => Shown::Busy(Family::ALL[most]),
            Some(cause) => Shown::Idle(IdleCause::ALL[cause]),
        };
        match all.last_mut().filter(|last| last.shown == shown && last.to == column) {
            Some(last) => last.to = column + 1,
            None => all.push(Run { from: column, to: column + 1, shown }),
        }
    }
    all
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
