//! An explanation of an iteration in words.

use spipe_base::readable::{few, percent};
use spipe_trace::{Explanation, Piece, Wait};
use std::fmt::Write;

/// The waits, and the pieces of the critical path, that are printed.
const MOST: usize = 8;

/// The least share of the iteration of a wait or a lane of the critical path that is printed.
const LEAST: f64 = 0.005;

/// The share from which a resource counts as full.
const FULL: f64 = 0.9;

/// The explanation of an iteration that takes `iteration_ms`.
pub fn human(explanation: &Explanation, iteration_ms: f64) -> String {
    let mut text = String::from("\nWhy lanes wait\n");
    let large = |wait: &&Wait| wait.ms >= LEAST * iteration_ms;
    for wait in explanation.waits.iter().filter(large).take(MOST) {
        let _ = writeln!(text, "  {}", waits(wait));
    }
    if !explanation.waits.iter().any(|wait| large(&wait)) {
        text += "  No device waits for long.\n";
    }
    text += "\nWhat the iteration is made of: its critical path\n";
    for (lane, kind, ms) in by_lane(&explanation.critical_path).into_iter().take(MOST) {
        if ms >= LEAST * iteration_ms {
            let share = percent(ms / iteration_ms.max(f64::MIN_POSITIVE));
            let _ = writeln!(text, "  {:>9} {share:>7}  {kind} on {lane}", milliseconds(ms));
        }
    }
    text += "\nWhat would help: tried, planned again and simulated\n";
    if explanation.changes.is_empty() {
        text += "  Nothing that was tried gains 1 %.\n";
    }
    for tried in &explanation.changes {
        let replay = tried.replay.as_ref().map_or_else(String::new, |command| format!("; {command}"));
        let _ = writeln!(
            text,
            "  {} ({} less): {}{replay}",
            milliseconds(tried.iteration_ms),
            percent(tried.gain),
            tried.change
        );
    }
    if !explanation.pitfalls.is_empty() {
        text += "\nPitfalls\n";
    }
    for pitfall in &explanation.pitfalls {
        let _ = writeln!(
            text,
            "  {} costs {}: {} ({})",
            pitfall.name,
            milliseconds(pitfall.cost_ms),
            pitfall.words,
            few(pitfall.place.split(", "))
        );
    }
    text
}

/// A wait with the chain of its causes.
fn waits(wait: &Wait) -> String {
    let times = if wait.count == 1 { String::new() } else { format!(" in {} intervals", wait.count) };
    let mut text = format!("{} waits {}{times}: {}", wait.lane, milliseconds(wait.ms), wait.cause);
    let chain: Vec<String> =
        wait.chain.iter().take(3).map(|piece| format!("{} on {}", piece.action, piece.lane)).collect();
    if !chain.is_empty() {
        let _ = write!(text, " ◄ {}", chain.join(" ◄ "));
    }
    match (&wait.resource, wait.full) {
        (Some(resource), Some(share)) if share >= FULL => {
            let _ = write!(text, "; {resource} is full");
        }
        (Some(resource), Some(share)) => {
            let _ = write!(text, "; {resource} is in use {}", percent(share));
        }
        (Some(resource), None) => {
            let _ = write!(text, "; by way of {resource}");
        }
        _ => {}
    }
    text
}

/// The time of the path by lane and kind of action, the longest first.
fn by_lane(path: &[Piece]) -> Vec<(&str, &str, f64)> {
    let mut all: Vec<(&str, &str, f64)> = Vec::new();
    for piece in path {
        let kind = piece.action.split(' ').next().unwrap_or_default();
        match all.iter_mut().find(|(lane, known, _)| (*lane, *known) == (piece.lane.as_str(), kind)) {
            Some((_, _, ms)) => *ms += piece.ms,
            None => all.push((&piece.lane, kind, piece.ms)),
        }
    }
    all.sort_by(|one, other| other.2.total_cmp(&one.2));
    all
}

fn milliseconds(ms: f64) -> String {
    if ms >= 1e4 { format!("{:.2} s", ms / 1e3) } else { format!("{ms:.1} ms") }
}
