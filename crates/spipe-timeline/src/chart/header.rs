//! The text above the chart, and the legend.

use super::measures::{LINE, MARGIN};
use crate::{
    DrawError,
    canvas::{Canvas, Type},
    palette::{ALARM, Color, Family, cause_code, cause_color, tint},
    scale::{duration, percent},
    scene::Scene,
};
use plotters::prelude::DrawingBackend;
use spipe_base::{IdleCause, SimTime};
use std::collections::{BTreeMap, BTreeSet};

const TITLE: Type = Type::new(20.0).bold();
const FACT: Type = Type::new(13.0).color([0x33; 3]);
const NOTE: Type = Type::new(13.0).bold().color([0x7A, 0x4B, 0x00]);
const FAULT: Type = Type::new(13.0).bold().color(ALARM);
const LEGEND: Type = Type::new(11.0).color([0x33; 3]);
const SWATCH: f64 = 22.0;

struct Line {
    text: String,
    style: Type,
    baseline: f64,
}

enum Swatch {
    Action(Color),
    Bubble(IdleCause),
    Heading,
}

struct Entry {
    swatch: Swatch,
    text: String,
    x: f64,
    baseline: f64,
}

/// Heading, facts, notes, faults and legend, laid out from the top of the picture.
pub(super) struct Header {
    lines: Vec<Line>,
    entries: Vec<Entry>,
    /// The total height.
    pub(super) height: f64,
}

impl Header {
    /// Lays out the text of `scene` in `width`.
    pub(super) fn of(scene: &Scene, width: f64) -> Self {
        let mut lines = Vec::new();
        let mut y = MARGIN;
        let notes = scene.notes().into_iter().map(|note| format!("⚠ {note}"));
        let facts = scene.facts().into_iter().map(|fact| (fact, FACT));
        let words =
            facts.chain(notes.map(|note| (note, NOTE))).chain(scene.faults().into_iter().map(|fault| (fault, FAULT)));
        let title = if scene.title.is_empty() { "untitled" } else { &scene.title };
        for (text, style) in [(title.to_owned(), TITLE)].into_iter().chain(words) {
            for text in style.wrap(&text, width) {
                y += if style.size > 15.0 { 22.0 } else { LINE };
                lines.push(Line { text, style, baseline: y - 5.0 });
            }
        }
        y += 6.0;
        let mut flow = Flow { entries: Vec::new(), x: MARGIN, y: y + LINE, right: MARGIN + width };
        let families: BTreeSet<Family> = kinds(scene).collect();
        flow.group("actions", families.iter().map(|family| (Swatch::Action(family.color()), family.name().to_owned())));
        flow.group("bubbles", bubbles(scene).into_iter());
        Self { lines, height: flow.y - MARGIN - LINE + 8.0, entries: flow.entries }
    }
}

/// A legend that grows to the right, then downwards.
struct Flow {
    entries: Vec<Entry>,
    x: f64,
    y: f64,
    right: f64,
}

impl Flow {
    fn group(&mut self, heading: &str, entries: impl Iterator<Item = (Swatch, String)>) {
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            return;
        }
        self.x = MARGIN;
        self.push(Swatch::Heading, heading.to_owned());
        for (swatch, text) in entries {
            self.push(swatch, text);
        }
        self.y += LINE;
    }

    fn push(&mut self, swatch: Swatch, text: String) {
        const INDENT: f64 = 64.0;
        if matches!(swatch, Swatch::Heading) {
            self.entries.push(Entry { swatch, text, x: self.x, baseline: self.y - 5.0 });
            self.x = MARGIN + INDENT;
            return;
        }
        let width = SWATCH + 5.0 + LEGEND.width(&text) + 16.0;
        if self.x + width > self.right && self.x > MARGIN + INDENT {
            self.x = MARGIN + INDENT;
            self.y += LINE;
        }
        self.entries.push(Entry { swatch, text, x: self.x, baseline: self.y - 5.0 });
        self.x += width;
    }
}

/// Returns the families in use.
fn kinds(scene: &Scene) -> impl Iterator<Item = Family> {
    scene.tracks.iter().flat_map(|track| track.trace.spans.iter().map(|span| Family::of(span.kind)))
}

/// Returns the causes in use, each with its total over the compute lanes of every track.
fn bubbles(scene: &Scene) -> Vec<(Swatch, String)> {
    let mut totals: BTreeMap<IdleCause, Vec<SimTime>> = BTreeMap::new();
    for (index, track) in scene.tracks.iter().enumerate() {
        for (cause, time) in track.idle_by_cause() {
            totals.entry(cause).or_insert_with(|| vec![SimTime::ZERO; scene.tracks.len()])[index] = time;
        }
    }
    let whole: f64 = totals.values().map(|times| times[0].as_ns() as f64).sum();
    let text = |cause: IdleCause, times: &[SimTime]| match times {
        [time] => format!("{cause} {} ({})", duration(*time), percent(time.as_ns() as f64 / whole.max(1.0))),
        _ => format!("{cause} {}", times.iter().map(|time| duration(*time)).collect::<Vec<_>>().join(" | ")),
    };
    totals.iter().map(|(cause, times)| (Swatch::Bubble(*cause), text(*cause, times))).collect()
}

/// Draws heading and legend.
pub(super) fn draw<DB: DrawingBackend>(canvas: &Canvas<DB>, header: &Header) -> Result<(), DrawError> {
    for line in &header.lines {
        canvas.text(&line.text, (MARGIN, line.baseline), line.style)?;
    }
    for entry in &header.entries {
        let (top, bottom) = (entry.baseline - 10.0, entry.baseline + 3.0);
        let frame = (entry.x, top, entry.x + SWATCH, bottom);
        match entry.swatch {
            Swatch::Heading => {
                canvas.text(&entry.text, (entry.x, entry.baseline), LEGEND.bold())?;
                continue;
            }
            Swatch::Action(color) => canvas.rect(frame, color)?,
            Swatch::Bubble(cause) => draw_bubble(canvas, frame, cause)?,
        }
        canvas.text(&entry.text, (entry.x + SWATCH + 5.0, entry.baseline), LEGEND)?;
    }
    Ok(())
}

/// Draws a bubble: a pale rectangle, underlined in the colour of its cause, with the cause's name
/// or code if it fits.
pub(super) fn draw_bubble<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    (left, top, right, bottom): (f64, f64, f64, f64),
    cause: IdleCause,
) -> Result<(), DrawError> {
    const WORD: Type = Type::new(9.0).color([0x55; 3]).align(crate::canvas::Align::Center);
    let color = cause_color(cause);
    canvas.rect((left, top, right, bottom), tint(color, 0.13))?;
    let line = (bottom - top).min(24.0) / 8.0;
    canvas.rect((left, bottom - line, right, bottom), tint(color, 0.8))?;
    if bottom - top < 11.0 {
        return Ok(());
    }
    let room = right - left - 3.0;
    let word = [cause.name(), cause_code(cause)].into_iter().find(|word| WORD.width(word) <= room);
    match word {
        Some(word) => canvas.text(word, ((left + right) / 2.0, (top + bottom - line) / 2.0 + 3.2), WORD),
        None => Ok(()),
    }
}
