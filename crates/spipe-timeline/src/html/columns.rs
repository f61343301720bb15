//! Columns in place of actions, for pages of traces that have too many.
//!
//! The time axis has equal columns. For each lane and each kind of thing in it (families of actions,
//! then causes of idle time) there is one byte per column: its share of the column in 255ths. Bytes are
//! differences of rounded running sums, so the sum over any columns is exact to one 255th of a column.

use crate::{
    palette::Family,
    scene::{Row, Scene, Track},
};
use serde::Serialize;
use spipe_base::{LaneId, SimTime};

/// The most actions and idle intervals of a trace that a page lists one by one: about 60 bytes each.
const MOST: usize = 500_000;

/// The bytes of all columns of a trace, before they are written as text.
const BUDGET: usize = 24 << 20;

/// The most columns: 34 for each pixel of a screen 1920 pixels wide.
const FINEST: usize = 1 << 16;

/// The shares of a full column.
const WHOLE: f64 = 255.0;

/// The columns of a trace.
#[derive(Serialize)]
pub(super) struct Columns {
    pub(super) count: usize,
    /// By row of the scene; `None` where the trace has no such lane.
    rows: Vec<Option<RowColumns>>,
}

/// The columns of a lane.
#[derive(Serialize)]
struct RowColumns {
    /// Families by number, then causes.
    kinds: Vec<usize>,
    /// One byte for each kind and column, kind by kind, in base 64.
    shares: String,
}

impl Columns {
    /// The columns of a track; `None` if its actions are few enough to be listed.
    pub(super) fn of(scene: &Scene, index: usize) -> Option<Self> {
        let track = &scene.tracks[index];
        let trace = track.trace;
        (trace.spans.len() + trace.idle.len() > MOST).then(|| Self::with_budget(scene, index, BUDGET))
    }

    fn with_budget(scene: &Scene, index: usize, budget: usize) -> Self {
        let track = &scene.tracks[index];
        let kinds_of = |row: &Row| row.lanes[index].map(|lane| (lane, kinds(track, lane)));
        let lanes: Vec<Option<(LaneId, Vec<usize>)>> = scene.rows.iter().map(kinds_of).collect();
        let all: usize = lanes.iter().flatten().map(|(_, kinds)| kinds.len()).sum();
        let count = (budget / all.max(1)).clamp(1, FINEST);
        let row = |(lane, kinds): (LaneId, Vec<usize>)| RowColumns {
            shares: base64(&shares(track, (lane, &kinds), (scene.end, count))),
            kinds,
        };
        Self { count, rows: lanes.into_iter().map(|lane| lane.map(row)).collect() }
    }
}

/// The kinds in a lane, ascending.
fn kinds(track: &Track, lane: LaneId) -> Vec<usize> {
    let mut present = [false; crate::strip::KINDS];
    for (_, span) in track.spans(lane) {
        present[Family::of(span.kind) as usize] = true;
    }
    for idle in track.idle(lane) {
        present[Family::ALL.len() + idle.cause as usize] = true;
    }
    present.iter().enumerate().filter(|(_, present)| **present).map(|(kind, _)| kind).collect()
}

/// The shares of the kinds of a lane in columns of equal time, from zero to `end`.
fn shares(track: &Track, (lane, kinds): (LaneId, &[usize]), (end, columns): (SimTime, usize)) -> Vec<u8> {
    let mut place = [0; crate::strip::KINDS];
    kinds.iter().enumerate().for_each(|(at, kind)| place[*kind] = at);
    let width = end.as_ns().max(1) as f64 / columns as f64;
    let mut all = vec![0.0; kinds.len() * columns];
    let mut add = |from: SimTime, to: SimTime, kind: usize| {
        let (from, to) = (from.as_ns() as f64 / width, (to.as_ns() as f64 / width).min(columns as f64));
        let row = &mut all[place[kind] * columns..][..columns];
        let mut at = from;
        while at < to {
            let column = (at as usize).min(columns - 1);
            let until = to.min((column + 1) as f64);
            row[column] += until - at;
            at = until.max(at + f64::EPSILON * at);
        }
    };
    for (_, span) in track.spans(lane) {
        add(span.start, span.end, Family::of(span.kind) as usize);
    }
    for idle in track.idle(lane) {
        add(idle.start, idle.end, Family::ALL.len() + idle.cause as usize);
    }
    all.chunks(columns).flat_map(rounded).collect()
}

/// Differences of rounded running sums. A column of actions that overlap has 255 at most, and the rest
/// goes into the next ones.
fn rounded(shares: &[f64]) -> impl Iterator<Item = u8> {
    let (mut sum, mut written) = (0.0, 0.0);
    shares.iter().map(move |share| {
        sum += share * WHOLE;
        let byte = (f64::round(sum) - written).clamp(0.0, WHOLE);
        written += byte;
        byte as u8
    })
}

/// Base 64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let known = digit <= three.len();
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if known { DIGITS[value] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Picture, strip::tests::lane};
    use proptest::prelude::*;

    #[test]
    fn base_64_is_that_of_the_standard() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn few_actions_are_listed() {
        let trace = lane(&[(0, 5), (25, 3)]);
        assert!(Columns::of(&Scene::of(&Picture { trace: &trace, second: None, title: None }), 0).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Up to any column, every kind has the time that it takes, to one 255th of a column.
        #[test]
        fn columns_have_the_time_of_what_they_stand_for(
            parts in prop::collection::vec((0..30usize, 1..1000u64), 1..300), budget in 1..2000usize,
        ) {
            let trace = lane(&parts);
            let scene = Scene::of(&Picture { trace: &trace, second: None, title: None });
            let (track, id) = (&scene.tracks[0], LaneId::new(0));
            let columns = Columns::with_budget(&scene, 0, budget).count;
            let (kinds, width) = (kinds(track, id), scene.end.as_ns() as f64 / columns as f64);
            let bytes = shares(track, (id, &kinds), (scene.end, columns));
            prop_assert_eq!(bytes.len(), kinds.len() * columns);
            for (kind, bytes) in kinds.iter().zip(bytes.chunks(columns)) {
                let mut drawn = 0.0;
                for (column, byte) in bytes.iter().enumerate() {
                    drawn += f64::from(*byte) / WHOLE;
                    let until = |start: SimTime, end: SimTime| {
                        let most = (column + 1) as f64 * width;
                        (end.as_ns() as f64).min(most) - (start.as_ns() as f64).min(most)
                    };
                    let spans = track.spans(id).filter(|(_, span)| Family::of(span.kind) as usize == *kind);
                    let idle = track.idle(id).iter().filter(|idle| Family::ALL.len() + idle.cause as usize == *kind);
                    let busy: f64 = spans.map(|(_, span)| until(span.start, span.end)).sum();
                    let time = busy + idle.map(|idle| until(idle.start, idle.end)).sum::<f64>();
                    prop_assert!((drawn - time / width).abs() <= 1.0 / WHOLE, "{kind}, column {column}");
                }
            }
        }
    }
}
