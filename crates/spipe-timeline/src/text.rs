//! The text renderer for terminals: plain characters, readable without colour.
//!
//! | trace | characters |
//! |---|---|
//! | span | its letter, its microbatch, then its letter in lower case: `F12fff` |
//! | transfer, collective | `>---`, `====` |
//! | transfers in less than half of a column | `,` |
//! | bubble of a compute lane | `....` |
//! | memory | tenths of its capacity (or of its peak): `0` to `9`, and `#` for full |
//!
//! A column shows the action that took most of its time. In lanes with many actions for each column,
//! columns have letters alone and show every kind for as long as it takes.

use crate::{
    Picture,
    palette::{Color, Family, cause_color, ink_on},
    scale::{duration, percent, ticks},
    scene::{Scene, Track, clean},
    strip::{Run, Shown, is_dense, runs},
};
use spipe_base::{Bytes, LaneId, LaneRole, SimTime};
use spipe_trace::{MemoryTrack, Span, Trace};
use std::{collections::BTreeSet, fmt::Write as _};

/// The smallest number of columns of the chart.
const LEAST: usize = 20;
/// The first character of a transfer's bar.
const TRANSFER: char = '>';
/// A column of which short transfers take less than half.
const LITTLE: char = ',';
/// The actions and bubbles for each column from which columns stand for many of them; below, the number
/// of the longest one says more than the shares of all.
const MANY: usize = 4;
/// The width of the busy share at the end of a line.
const SHARE: usize = 9;

/// The window in which a chart is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its width, in characters.
    pub width: usize,
    /// The most lanes that are drawn; `None` for all. Below them is the number of the others.
    pub lanes: Option<usize>,
    /// Whether bars have the colours of their actions, in the 256 colours of terminals. Letters stay,
    /// so that the chart can be read without.
    pub colored: bool,
}

/// Draws the chart in lines of about `width` characters.
pub fn text(picture: &Picture, width: usize) -> String {
    text_in(picture, Window { width, lanes: None, colored: false })
}

/// Draws the chart in a window.
pub fn text_in(picture: &Picture, window: Window) -> String {
    let scene = Scene::of(picture);
    let width = window.width;
    let page = Page::new(&scene, window);
    let notes = scene.notes().into_iter().map(|note| format!("note: {note}"));
    let words = std::iter::once(scene.title.clone()).chain(scene.facts()).chain(notes).chain(scene.faults());
    let mut lines: Vec<String> = words.flat_map(|line| wrap(&line, width)).collect();
    lines.push(String::new());
    lines.extend(page.ruler());
    let (mut device, mut short) = (None, false);
    let most = window.lanes.unwrap_or(usize::MAX);
    for row in scene.rows.iter().take(most) {
        if device.is_some_and(|device| device != &row.device) {
            lines.push(String::new());
        }
        device = Some(&row.device);
        for (index, (number, track, lane)) in scene.lanes(row).enumerate() {
            let name = if index == 0 { row.label.as_str() } else { "" };
            let share = track.busy_share(lane).map(percent).unwrap_or_default();
            let bars = page.bars(track, lane, row.role);
            short |= bars.iter().any(|cell| cell.letter == LITTLE);
            lines.push(page.line(name, number, &page.painted(&bars), &share));
        }
    }
    if scene.rows.len() > most {
        lines.push(format!("… and {} more lanes", scene.rows.len() - most));
    }
    if !scene.memories.is_empty() {
        lines.push(String::new());
    }
    for row in &scene.memories {
        let name = format!("memory {}", row.label);
        for (number, curve) in row.curves.iter().enumerate() {
            let Some(curve) = curve else { continue };
            lines.push(page.line(&name, number, &page.curve(curve), ""));
        }
    }
    lines.push(String::new());
    lines.extend(page.legend(short).into_iter().chain(summary(&scene)).flat_map(|line| wrap(&line, width)));
    let mut text = String::new();
    for line in lines {
        let _infallible = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The number of characters of `text` outside escape sequences, each of which ends with an `m`.
fn visible(text: &str) -> usize {
    let mut escaped = false;
    let shows = |letter: char| {
        let hidden = escaped || letter == '\x1b';
        escaped = hidden && letter != 'm';
        !hidden
    };
    text.chars().map(shows).filter(|shown| *shown).count()
}

/// Breaks a line into lines of at most `width` characters; lines after the first are indented.
fn wrap(line: &str, width: usize) -> Vec<String> {
    const NARROWEST: usize = 40;
    let width = width.max(NARROWEST);
    let mut lines: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match lines.last_mut() {
            Some(last) if visible(last) + 1 + visible(word) <= width => {
                last.push(' ');
                last.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The columns of the chart.
struct Page<'s> {
    scene: &'s Scene<'s>,
    /// The widths of names, track labels and the time axis, in characters.
    names: usize,
    labels: usize,
    columns: usize,
    colored: bool,
}

/// A character of a bar, with what it shows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cell {
    letter: char,
    shown: Option<Shown>,
}

impl Cell {
    /// The escape sequence before it: actions on their colour, bubbles in that of their cause.
    fn escape(self) -> String {
        match self.shown {
            Some(Shown::Busy(family)) => {
                let ink = if ink_on(family.color()) == [0; 3] { 16 } else { 231 };
                format!("\x1b[48;5;{};38;5;{ink}m", xterm(family.color()))
            }
            Some(Shown::Idle(cause)) => format!("\x1b[38;5;{}m", xterm(cause_color(cause))),
            None => String::new(),
        }
    }
}

/// The nearest colour of the 6 × 6 × 6 cube of terminals with 256 colours; its levels are 0, 95, 135,
/// 175, 215 and 255.
fn xterm(color: Color) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let level = |part: u8| (0u8..6).min_by_key(|level| LEVELS[usize::from(*level)].abs_diff(part)).unwrap_or(0);
    let [red, green, blue] = color.map(level);
    16 + 36 * red + 6 * green + blue
}

impl<'s> Page<'s> {
    fn new(scene: &'s Scene<'s>, Window { width, colored, .. }: Window) -> Self {
        let length = |text: &str| text.chars().count();
        let lanes = scene.rows.iter().map(|row| length(&row.label));
        let memories = scene.memories.iter().map(|row| length(&row.label) + 7);
        let names = lanes.chain(memories).max().unwrap_or(0).clamp(4, 28);
        let labels = if scene.is_double() {
            scene.tracks.iter().map(|track| length(&track.label) + 1).max().unwrap_or(0)
        } else {
            0
        };
        let columns = width.saturating_sub(names + labels + 2 + SHARE).clamp(LEAST, 10_000);
        Self { scene, names, labels, columns, colored }
    }

    fn line(&self, name: &str, track: usize, bars: &str, share: &str) -> String {
        let label = if self.scene.is_double() { self.scene.tracks[track].label.as_str() } else { "" };
        let name: String = name.chars().take(self.names).collect();
        format!("{name:<names$} {label:<labels$}|{bars}|{share:>7}", names = self.names, labels = self.labels)
    }

    /// Returns the first column that begins at `time` or later.
    fn column(&self, time: SimTime) -> usize {
        let share = time.as_ns() as f64 / self.scene.end.as_ns() as f64;
        ((share * self.columns as f64).round() as usize).min(self.columns)
    }

    /// Returns the time at which a column begins.
    fn time(&self, column: usize) -> u64 {
        let end = u128::from(self.scene.end.as_ns());
        (end * column as u128 / self.columns as u128) as u64
    }

    fn ruler(&self) -> [String; 2] {
        let axis = ticks(self.scene.end, (self.columns / 12).max(2));
        let (mut labels, mut marks) = (vec![' '; self.columns + 12], vec!['-'; self.columns]);
        let mut free = 0;
        for (time, label) in &axis.marks {
            let column = self.column(*time);
            if let Some(mark) = marks.get_mut(column) {
                *mark = '+';
            }
            if column >= free && column + label.len() < labels.len() {
                for (place, letter) in labels[column..].iter_mut().zip(label.chars()) {
                    *place = letter;
                }
                free = column + label.len() + 1;
            }
        }
        let indent = self.names + self.labels + 2;
        let unit = format!("time in {}", axis.unit);
        let labels: String = labels.into_iter().collect();
        let marks: String = marks.into_iter().collect();
        [format!("{unit:<indent$}{}", labels.trim_end()), format!("{:<indent$}{marks}  busy", "")]
    }

    /// The characters of cells, with colours if the page has any.
    fn painted(&self, cells: &[Cell]) -> String {
        let same = |one: &Cell, next: &Cell| one.shown == next.shown;
        let run = |run: &[Cell]| {
            let letters: String = run.iter().map(|cell| cell.letter).collect();
            let escape = if self.colored { run[0].escape() } else { String::new() };
            if escape.is_empty() { letters } else { format!("{escape}{letters}\x1b[0m") }
        };
        cells.chunk_by(same).map(run).collect()
    }

    /// Draws the bars and bubbles of a lane.
    fn bars(&self, track: &Track, lane: LaneId, role: LaneRole) -> Vec<Cell> {
        if is_dense(track, lane, self.columns * MANY) {
            return self.columns_of(&runs(track, lane, (self.scene.end, self.columns)));
        }
        let spans: Vec<&Span> = track.spans(lane).map(|(_, span)| span).collect();
        // Short transfers are shown; short actions between bubbles would hide the bubbles.
        let least = if role == LaneRole::Compute { 2 } else { u64::MAX };
        let owners = self.owners(&spans, least);
        let mut line = vec![Cell { letter: ' ', shown: None }; self.columns];
        for interval in track.idle(lane) {
            let (from, to) = (self.column(interval.start), self.column(interval.end));
            line[from..to].fill(Cell { letter: '.', shown: Some(Shown::Idle(interval.cause)) });
        }
        let mut column = 0;
        while column < self.columns {
            let owner = owners[column];
            let length = owners[column..].iter().take_while(|other| **other == owner).count();
            if let Some(owner) = owner {
                let shown = Some(Shown::Busy(Family::of(spans[owner.span].kind)));
                for (place, letter) in line[column..column + length].iter_mut().zip(owner.letters(&spans)) {
                    *place = Cell { letter, shown };
                }
            }
            column += length;
        }
        line
    }

    /// Draws columns that stand for many actions: letters without numbers.
    fn columns_of(&self, runs: &[Run]) -> Vec<Cell> {
        let mut line = vec![Cell { letter: ' ', shown: None }; self.columns];
        for run in runs {
            let letter = match run.shown {
                Shown::Busy(family) => family.letters().0,
                Shown::Idle(_) => '.',
            };
            line[run.from..run.to].fill(Cell { letter, shown: Some(run.shown) });
        }
        line
    }

    /// Returns the span that takes most of each column, if spans take at least one `least`-th of
    /// it.
    fn owners(&self, spans: &[&Span], least: u64) -> Vec<Option<Owner>> {
        let mut first = 0;
        let owner = |column: usize| {
            let (from, to) = (self.time(column), self.time(column + 1).max(self.time(column) + 1));
            while spans.get(first).is_some_and(|span| span.end.as_ns() <= from && span.end > span.start) {
                first += 1;
            }
            let shared = |span: &Span| span.end.as_ns().min(to).saturating_sub(span.start.as_ns().max(from));
            let here = spans[first..].iter().enumerate().take_while(|(_, span)| span.start.as_ns() < to);
            let (mut total, mut best) = (0, None);
            for (index, span) in here {
                let share = shared(span);
                total += share;
                if share > 0 && best.is_none_or(|(most, _)| share > most) {
                    best = Some((share, first + index));
                }
            }
            let (_, span) = best.filter(|_| total.saturating_mul(least) >= to - from)?;
            let (chosen, width) = (spans[span], to - from);
            let short = chosen.end.as_ns() - chosen.start.as_ns() < width;
            let transfer = Family::of(chosen.kind).letters().0 == TRANSFER;
            Some(Owner { span, little: transfer && short && 2 * total < width })
        };
        (0..self.columns).map(owner).collect()
    }

    /// Draws the largest use of a memory within each column.
    fn curve(&self, curve: &MemoryTrack) -> String {
        let whole = curve.capacity.unwrap_or(curve.peak).max(Bytes::new(1));
        let mut samples = curve.samples.iter().peekable();
        let mut held = Bytes::ZERO;
        let level = |column: usize| {
            let mut most = held;
            while let Some(sample) = samples.next_if(|sample| sample.at.as_ns() < self.time(column + 1).max(1)) {
                held = sample.bytes;
                // A sample at the very start of a column replaces the earlier value.
                let starts = sample.at.as_ns() <= self.time(column);
                most = if starts { held } else { most.max(held) };
            }
            let tenths = (most.as_f64() / whole.as_f64() * 10.0) as u32;
            char::from_digit(tenths, 10).filter(|_| tenths < 10).unwrap_or('#')
        };
        (0..self.columns).map(level).collect()
    }
}

/// The span drawn in a column.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    /// The index of the span that takes most of the column.
    span: usize,
    /// Whether it is a transfer shorter than the column, which is mostly idle.
    little: bool,
}

impl Owner {
    /// Returns the characters of its bar, without end.
    fn letters(self, spans: &[&Span]) -> impl Iterator<Item = char> {
        let little = self.little.then_some(LITTLE).into_iter().cycle();
        little.chain(bar(spans[self.span]))
    }
}

/// Returns the characters of a bar, without end.
fn bar(span: &Span) -> impl Iterator<Item = char> {
    let (first, rest) = Family::of(span.kind).letters();
    let number =
        span.subject.microbatch.filter(|_| span.kind.is_compute()).map(|microbatch| microbatch.index().to_string());
    let number: Vec<char> = number.unwrap_or_default().chars().collect();
    std::iter::once(first).chain(number).chain(std::iter::repeat(rest))
}

impl Page<'_> {
    /// Explains the characters in use; `short` if there are short transfers. With colours, each family
    /// has an entry of its own.
    fn legend(&self, short: bool) -> Option<String> {
        let scene = self.scene;
        let spans = scene.tracks.iter().flat_map(|track| &track.trace.spans);
        let families: BTreeSet<Family> = spans.map(|span| Family::of(span.kind)).collect();
        let mut words: Vec<(char, &str, Option<Family>)> = Vec::new();
        for family in families {
            let (letter, word) = (family.letters().0, family.name().split(" (").next().unwrap_or_default());
            let word = if letter == TRANSFER && !self.colored { "transfer" } else { word };
            if !words.iter().any(|known| (known.0, known.1) == (letter, word)) {
                words.push((letter, word, Some(family)));
            }
        }
        if let Some(transfer) = words.iter().position(|(letter, ..)| *letter == TRANSFER).filter(|_| short) {
            words.insert(transfer + 1, (LITTLE, "short transfers", None));
        }
        if scene.tracks.iter().any(|track| !track.trace.idle.is_empty()) {
            words.push(('.', "idle", None));
        }
        let word = |(letter, word, family): (char, &str, Option<Family>)| {
            let letter = self.painted(&[Cell { letter, shown: family.map(Shown::Busy) }]);
            format!("{letter} {word}")
        };
        let mut words: Vec<String> = words.into_iter().map(word).collect();
        if !scene.memories.is_empty() {
            words.push("0 to 9, # tenths of a memory".into());
        }
        (!words.is_empty()).then(|| words.join("   "))
    }
}

/// Lists idle time by cause and memory peaks for each track.
fn summary(scene: &Scene) -> Vec<String> {
    let mut lines = Vec::new();
    for track in &scene.tracks {
        let label = if scene.is_double() { format!("{} ", track.label) } else { String::new() };
        lines.extend(idle_line(track).map(|causes| format!("{label}idle: {causes}")));
        lines.extend(waits(track.trace).into_iter().map(|wait| format!("{label}{wait}")));
        for memory in &track.trace.memories {
            let of = memory.capacity.map(|capacity| format!(" of {capacity}")).unwrap_or_default();
            let holders: Vec<String> = memory
                .holders
                .iter()
                .take(3)
                .map(|holder| format!("{} {}", clean(&holder.what), holder.bytes))
                .collect();
            let holders = if holders.is_empty() { String::new() } else { format!(" ({})", holders.join(", ")) };
            lines.push(format!(
                "{label}peak of {}: {}{of}{holders}",
                clean(&track.trace.label_of(&memory.name)),
                memory.peak
            ));
        }
    }
    lines
}

/// The longest waits of a trace that was explained, each with the resource behind it.
fn waits(trace: &Trace) -> Vec<String> {
    const MOST: usize = 4;
    let explained = trace.explanation.iter().flat_map(|explanation| &explanation.waits);
    let wait = |wait: &spipe_trace::Wait| {
        let by = wait.resource.as_ref().map(|resource| format!(", by way of {}", clean(resource)));
        format!("{} waits {:.1} ms: {}{}", clean(&wait.lane), wait.ms, wait.cause, by.unwrap_or_default())
    };
    explained.take(MOST).map(wait).collect()
}

fn idle_line(track: &Track) -> Option<String> {
    let causes = track.idle_by_cause();
    let total: f64 = causes.iter().map(|(_, time)| time.as_ns() as f64).sum();
    let word = |(cause, time): &(_, SimTime)| {
        format!("{cause} {} ({})", duration(*time), percent(time.as_ns() as f64 / total.max(1.0)))
    };
    (!causes.is_empty()).then(|| causes.iter().map(word).collect::<Vec<_>>().join(", "))
}
