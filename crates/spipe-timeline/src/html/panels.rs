//! The panels below the chart: the explanation of each trace, and the differences between two.

use crate::{
    scale::percent,
    scene::{Scene, Track, clean},
};
use serde::Serialize;
use spipe_base::{ActionKind, SimTime};
use spipe_trace::{Explanation, Piece, Wait, explanation_of};
use std::collections::BTreeMap;

/// The most rows of each list.
const MOST: usize = 12;

/// The explanation of a trace.
#[derive(Serialize)]
pub(super) struct ExplanationPanel {
    /// The trace, if there are two.
    track: String,
    waits: Vec<WaitEntry>,
    path: Vec<PathEntry>,
    changes: Vec<ChangeEntry>,
    pitfalls: Vec<PitfallEntry>,
    /// Whether the trace was explained; otherwise waits and path are those that its spans show.
    complete: bool,
}

#[derive(Serialize)]
struct WaitEntry {
    lane: String,
    time: String,
    cause: &'static str,
    /// The chain of causes and the resource behind it.
    behind: String,
}

#[derive(Serialize)]
struct PathEntry {
    lane: String,
    kind: String,
    time: String,
    share: String,
}

#[derive(Serialize)]
struct ChangeEntry {
    change: String,
    time: String,
    gain: String,
    replay: String,
}

#[derive(Serialize)]
struct PitfallEntry {
    name: String,
    place: String,
    cost: String,
    words: String,
}

/// The explanations of all traces of `scene`.
pub(super) fn explanations(scene: &Scene) -> Vec<ExplanationPanel> {
    scene.tracks.iter().filter(|track| track.figures.is_some()).map(|track| panel(scene, track)).collect()
}

fn panel(scene: &Scene, track: &Track) -> ExplanationPanel {
    let derived;
    let explanation: &Explanation = match &track.trace.explanation {
        Some(explanation) => explanation,
        None => {
            derived = explanation_of(track.trace);
            &derived
        }
    };
    ExplanationPanel {
        track: if scene.is_double() { track.label.clone() } else { String::new() },
        waits: explanation.waits.iter().take(MOST).map(|one| wait(track, one)).collect(),
        path: path(track, &explanation.critical_path),
        changes: explanation
            .changes
            .iter()
            .map(|tried| ChangeEntry {
                change: clean(&tried.change),
                time: milliseconds(tried.iteration_ms),
                gain: percent(tried.gain),
                replay: tried.replay.as_deref().map(clean).unwrap_or_default(),
            })
            .collect(),
        pitfalls: explanation
            .pitfalls
            .iter()
            .map(|pitfall| PitfallEntry {
                name: clean(&pitfall.name),
                place: clean(&pitfall.place),
                cost: milliseconds(pitfall.cost_ms),
                words: clean(&pitfall.words),
            })
            .collect(),
        complete: track.trace.explanation.is_some(),
    }
}

fn wait(track: &Track, wait: &Wait) -> WaitEntry {
    let chain = wait.chain.iter().take(4).map(|piece| format!("◄ {} on {}", clean(&piece.action), clean(&piece.lane)));
    let resource = wait.resource.as_deref().map(clean);
    let full = wait.full.map(|share| percent(share.clamp(0.0, 1.0)));
    let resource = match (resource, full) {
        (Some(resource), Some(full)) => Some(format!("— {resource}, {full} in use")),
        (resource, _) => resource,
    };
    WaitEntry {
        lane: clean(&track.trace.label_of_lane(&wait.lane)),
        time: milliseconds(wait.ms),
        cause: wait.cause.name(),
        behind: chain.chain(resource).collect::<Vec<_>>().join(" "),
    }
}

/// The time of the critical path by lane and kind, the longest first.
fn path(track: &Track, pieces: &[Piece]) -> Vec<PathEntry> {
    let mut total: BTreeMap<(String, String), f64> = BTreeMap::new();
    for piece in pieces {
        let kind = piece.action.split(' ').next().unwrap_or_default();
        *total.entry((clean(&piece.lane), clean(kind))).or_default() += piece.ms;
    }
    let mut all: Vec<_> = total.into_iter().collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    let whole = track.trace.iteration.to_ms().max(f64::MIN_POSITIVE);
    let entry = |((lane, kind), ms): ((String, String), f64)| PathEntry {
        lane: clean(&track.trace.label_of_lane(&lane)),
        kind,
        time: milliseconds(ms),
        share: percent(ms / whole),
    };
    all.into_iter().take(MOST).map(entry).collect()
}

/// The differences between two traces.
#[derive(Serialize)]
pub(super) struct Differences {
    labels: Vec<String>,
    rows: Vec<DifferenceEntry>,
    /// Lanes that only one of the traces has.
    unmatched: Vec<String>,
}

#[derive(Serialize)]
struct DifferenceEntry {
    lane: String,
    kind: &'static str,
    times: [Time; 2],
    difference: Time,
}

/// A time with its text.
#[derive(Serialize)]
struct Time {
    ms: f64,
    text: String,
}

/// The differences by lane and kind of action, the largest first; `None` for a single trace.
pub(super) fn differences(scene: &Scene) -> Option<Differences> {
    if !scene.is_double() || scene.tracks.iter().any(|track| track.figures.is_none()) {
        return None;
    }
    let mut rows = Vec::new();
    let mut unmatched = Vec::new();
    for row in &scene.rows {
        let mut times: BTreeMap<ActionKind, [SimTime; 2]> = BTreeMap::new();
        for (index, track, lane) in scene.lanes(row) {
            for (_, span) in track.spans(lane) {
                times.entry(span.kind).or_default()[index.min(1)] += span.duration();
            }
        }
        if let Some(index) = row.lanes.iter().position(Option::is_none) {
            unmatched.push(format!("{} (only {})", row.name, scene.tracks[1 - index.min(1)].label));
        }
        rows.extend(times.into_iter().map(|(kind, [one, other])| {
            let ms = other.to_ms() - one.to_ms();
            DifferenceEntry {
                lane: row.name.clone(),
                kind: kind.name(),
                times: [one, other].map(|time| Time { ms: time.to_ms(), text: milliseconds(time.to_ms()) }),
                difference: Time {
                    ms,
                    text: format!("{}{}", if ms < 0.0 { "−" } else { "+" }, milliseconds(ms.abs())),
                },
            }
        }));
    }
    rows.sort_by(|one, other| other.difference.ms.abs().total_cmp(&one.difference.ms.abs()));
    rows.truncate(3 * MOST);
    let labels = scene.tracks.iter().map(|track| track.label.clone()).collect();
    Some(Differences { labels, rows, unmatched })
}

fn milliseconds(ms: f64) -> String {
    if ms >= 1e4 { format!("{:.2} s", ms / 1e3) } else { format!("{ms:.3} ms") }
}
