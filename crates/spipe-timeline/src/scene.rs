//! The scene that all renderers draw: one or two traces with aligned lanes, and the text around
//! them.

use crate::{
    Picture,
    scale::{count, duration, percent},
};
use spipe_base::{IdleCause, LaneId, LaneRole, SimTime};
use spipe_trace::{Idle, MemoryTrack, Metrics, Origin, Shortage, Span, Status, Trace, compare};
use std::collections::{BTreeMap, VecDeque};

/// One trace of a picture.
pub(crate) struct Track<'a> {
    /// The trace.
    pub(crate) trace: &'a Trace,
    /// The name that distinguishes it from the other trace: `predicted`, `measured`, or a letter if
    /// both have the same origin.
    pub(crate) label: String,
    /// Its figures, unless it is inconsistent.
    pub(crate) figures: Option<Metrics>,
    spans: Vec<Vec<u32>>,
    idle: Vec<Vec<Idle>>,
}

/// One lane of the picture, with its lane id in each track that has it.
pub(crate) struct Row {
    /// Its name, by which lanes of two traces are one row.
    pub(crate) name: String,
    /// Its name with the team of its device and the number of such teams, where the device stands for others.
    pub(crate) label: String,
    /// The device under which it is listed.
    pub(crate) device: String,
    /// The device's team and the number of such teams; its name where it stands for none.
    pub(crate) team: String,
    /// Its role.
    pub(crate) role: LaneRole,
    /// The lane of each track.
    pub(crate) lanes: Vec<Option<LaneId>>,
}

impl Row {
    /// Returns its name without the device's name in front.
    pub(crate) fn short_name(&self) -> &str {
        self.name.strip_prefix(self.device.as_str()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(&self.name)
    }
}

/// A memory, with its curve in each track that has it.
pub(crate) struct MemoryRow<'a> {
    /// Its name, by which memories of two traces are one row.
    name: String,
    /// Its label: its name, with the memories for which it stands.
    pub(crate) label: String,
    /// The curve of each track.
    pub(crate) curves: Vec<Option<&'a MemoryTrack>>,
}

/// The contents of a picture.
pub(crate) struct Scene<'a> {
    /// The heading.
    pub(crate) title: String,
    /// One or two traces; a prediction comes before a measurement.
    pub(crate) tracks: Vec<Track<'a>>,
    /// The lanes that do something in any track (all lanes if none does), grouped by device.
    pub(crate) rows: Vec<Row>,
    /// The number of lanes without actions, which are omitted.
    pub(crate) quiet: usize,
    /// The memories.
    pub(crate) memories: Vec<MemoryRow<'a>>,
    /// The end of the time axis; positive.
    pub(crate) end: SimTime,
}

impl<'a> Track<'a> {
    fn new(trace: &'a Trace, label: String) -> Self {
        let mut spans = vec![Vec::new(); trace.lanes.len()];
        for (index, span) in trace.spans.iter().enumerate() {
            if span.start <= span.end
                && let (Some(lane), Ok(index)) = (spans.get_mut(span.lane.index()), u32::try_from(index))
            {
                lane.push(index);
            }
        }
        for lane in &mut spans {
            lane.sort_by_key(|index| trace.spans[*index as usize].start);
        }
        let mut idle = vec![Vec::new(); trace.lanes.len()];
        for interval in trace.idle.iter().filter(|interval| interval.start < interval.end) {
            if let Some(lane) = idle.get_mut(interval.lane.index()) {
                lane.push(*interval);
            }
        }
        Self { trace, label, figures: is_sound(trace).then(|| Metrics::of(trace)), spans, idle }
    }

    /// Returns the spans of a lane, sorted by start, with their indices in the trace.
    pub(crate) fn spans(&self, lane: LaneId) -> impl ExactSizeIterator<Item = (u32, &'a Span)> {
        self.spans[lane.index()].iter().map(|index| (*index, &self.trace.spans[*index as usize]))
    }

    /// Returns the idle intervals of a lane.
    pub(crate) fn idle(&self, lane: LaneId) -> &[Idle] {
        &self.idle[lane.index()]
    }

    /// Returns the busy time of a lane divided by the iteration time, if the iteration finished.
    pub(crate) fn busy_share(&self, lane: LaneId) -> Option<f64> {
        let busy: f64 = self.spans(lane).map(|(_, span)| span.duration().as_ns() as f64).sum();
        (self.trace.iteration > SimTime::ZERO && self.shortage().is_none())
            .then(|| busy / self.trace.iteration.as_ns() as f64)
    }

    /// Returns the idle time of all compute lanes by cause, in descending order.
    pub(crate) fn idle_by_cause(&self) -> Vec<(IdleCause, SimTime)> {
        let mut total: BTreeMap<IdleCause, SimTime> = BTreeMap::new();
        for (cause, time) in self.figures.iter().flat_map(|figures| figures.idle.values()).flatten() {
            *total.entry(*cause).or_default() += *time;
        }
        let mut causes: Vec<_> = total.into_iter().collect();
        causes.sort_by_key(|(cause, time)| (std::cmp::Reverse(*time), *cause));
        causes
    }

    /// Returns the shortage that stopped the iteration, if it did not finish.
    pub(crate) fn shortage(&self) -> Option<&'a Shortage> {
        match &self.trace.status {
            Status::Ok => None,
            Status::OutOfMemory(shortage) => Some(shortage),
        }
    }

    /// Formats iteration time, throughput and bubbles as one line.
    pub(crate) fn facts(&self) -> String {
        let Some(figures) = &self.figures else {
            return format!("{} · this trace is inconsistent, so it has no figures", origin(self.trace.origin));
        };
        let mut facts = vec![origin(self.trace.origin).to_owned()];
        if self.shortage().is_none() {
            facts.push(format!("iteration {}", duration(figures.iteration)));
            facts.extend(figures.tokens_per_second.map(|rate| format!("{} tokens/s", count(rate))));
            facts.push(format!("bubbles {} of compute time", percent(figures.bubble_fraction)));
        }
        facts.join(" · ")
    }

    fn does_something(&self, lane: LaneId) -> bool {
        !self.spans[lane.index()].is_empty() || !self.idle[lane.index()].is_empty()
    }
}

impl<'a> Scene<'a> {
    /// Creates the scene of a picture.
    pub(crate) fn of(picture: &Picture<'a>) -> Self {
        let tracks = tracks(picture);
        let mut rows = rows(&tracks);
        let all = rows.len();
        let works = |row: &Row| {
            tracks.iter().zip(&row.lanes).any(|(track, lane)| lane.is_some_and(|lane| track.does_something(lane)))
        };
        if rows.iter().any(works) {
            rows.retain(works);
        }
        let quiet = all - rows.len();
        let title = clean(picture.title.unwrap_or(&picture.trace.name));
        let (memories, end) = (memories(&tracks), end(&tracks));
        Self { title, tracks, rows, quiet, memories, end }
    }

    /// Whether there are two traces.
    pub(crate) fn is_double(&self) -> bool {
        self.tracks.len() > 1
    }

    /// Returns the lines below the heading: a description of each trace, and their difference.
    pub(crate) fn facts(&self) -> Vec<String> {
        if !self.is_double() {
            let track = &self.tracks[0];
            let name = clean(&track.trace.name);
            return if name.is_empty() || name == self.title { vec![track.facts()] } else { vec![name, track.facts()] };
        }
        let mut lines: Vec<String> = self
            .tracks
            .iter()
            .map(|track| {
                let label = (track.label != origin(track.trace.origin)).then(|| format!("{}: ", track.label));
                let name = Some(clean(&track.trace.name)).filter(|name| !name.is_empty() && *name != self.title);
                let name = name.map(|name| format!(" · {name}"));
                format!("{}{}{}", label.unwrap_or_default(), track.facts(), name.unwrap_or_default())
            })
            .collect();
        lines.extend(self.difference());
        lines
    }

    fn difference(&self) -> Option<String> {
        let [first, second] = self.tracks.as_slice() else { return None };
        let known = self.tracks.iter().all(|track| track.figures.is_some() && track.shortage().is_none());
        let iteration = known.then(|| compare(first.trace, second.trace).iteration)?;
        let error = iteration.error()?;
        Some(if (first.trace.origin, second.trace.origin) == (Origin::Predicted, Origin::Measured) {
            let sign = if error < 0.0 { '−' } else { '+' };
            format!("iteration error {sign}{} = (predicted − measured) ÷ measured", percent(error.abs()))
        } else {
            format!(
                "the iteration of {} takes {:.3} times as long as that of {}",
                first.label,
                1.0 + error,
                second.label
            )
        })
    }

    /// Returns the notes of the traces without repetitions. With two traces, a note of only one
    /// names its trace.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<(String, Vec<&str>)> = Vec::new();
        for track in &self.tracks {
            for note in &track.trace.notes {
                let note = clean(note);
                match notes.iter_mut().find(|(known, _)| *known == note) {
                    Some((_, labels)) => labels.push(&track.label),
                    None => notes.push((note, vec![&track.label])),
                }
            }
        }
        let only = |labels: &[&str]| self.is_double() && labels.len() < self.tracks.len();
        let line = |(note, labels): (String, Vec<&str>)| {
            if only(&labels) { format!("{}: {note}", labels.join(", ")) } else { note }
        };
        notes.into_iter().map(line).collect()
    }

    /// Returns the shortages that stopped traces, as text.
    pub(crate) fn faults(&self) -> Vec<String> {
        let fault = |track: &Track| {
            let shortage = track.shortage()?;
            let holders: Vec<String> = shortage
                .holders
                .iter()
                .take(3)
                .map(|holder| format!("{} {}", clean(&holder.what), holder.bytes))
                .collect();
            let label = if self.is_double() { format!("{}: ", track.label) } else { String::new() };
            let most = if holders.is_empty() { String::new() } else { format!("; held by {}", holders.join(", ")) };
            Some(format!(
                "{label}out of memory on {} at {}: {} needs {}, {} is free{most}",
                clean(&shortage.memory),
                duration(shortage.at),
                clean(&shortage.action),
                shortage.needed,
                shortage.free,
            ))
        };
        self.tracks.iter().filter_map(fault).collect()
    }

    /// Iterates over the lanes of a row with their tracks.
    pub(crate) fn lanes<'s>(&'s self, row: &'s Row) -> impl Iterator<Item = (usize, &'s Track<'a>, LaneId)> {
        let present =
            |(index, (track, lane)): (usize, (&'s Track<'a>, &'s Option<LaneId>))| Some((index, track, (*lane)?));
        self.tracks.iter().zip(&row.lanes).enumerate().filter_map(present)
    }
}

/// Formats a count with its noun and verb in singular or plural.
pub(crate) fn plural(count: usize, noun: &str, verb: (&str, &str)) -> String {
    let (plural, verb) = if count == 1 { ("", verb.0) } else { ("s", verb.1) };
    format!("{count} {noun}{plural} {verb}")
}

/// Returns the word for an origin.
pub(crate) const fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Predicted => "predicted",
        Origin::Measured => "measured",
    }
}

/// Replaces characters that are invalid in XML or control a terminal.
pub(crate) fn clean(text: &str) -> String {
    let odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FFFE}' | '\u{FFFF}');
    text.chars().map(|c| if odd(c) { ' ' } else { c }).collect::<String>().trim().to_owned()
}

fn tracks<'a>(picture: &Picture<'a>) -> Vec<Track<'a>> {
    let Some(second) = picture.second else {
        return vec![Track::new(picture.trace, origin(picture.trace.origin).into())];
    };
    let mut pair = [picture.trace, second];
    if (pair[0].origin, pair[1].origin) == (Origin::Measured, Origin::Predicted) {
        pair.reverse();
    }
    let labels = if pair[0].origin == pair[1].origin { ["A", "B"] } else { pair.map(|trace| origin(trace.origin)) };
    pair.into_iter().zip(labels).map(|(trace, label)| Track::new(trace, label.into())).collect()
}

/// Assigns lanes with equal names to one row. Devices are sorted by first occurrence, their lanes
/// by role.
fn rows(tracks: &[Track]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, track) in tracks.iter().enumerate() {
        let mut free: BTreeMap<String, VecDeque<usize>> = BTreeMap::new();
        for (number, row) in rows.iter().enumerate() {
            free.entry(row.name.clone()).or_default().push_back(number);
        }
        for (number, lane) in track.trace.lanes.iter().enumerate() {
            let name = clean(&lane.name);
            let row = free.get_mut(&name).and_then(VecDeque::pop_front).unwrap_or_else(|| {
                let lanes = vec![None; tracks.len()];
                let (label, team) = (clean(&track.trace.lane_label(lane)), clean(&track.trace.label_of(&lane.device)));
                rows.push(Row { name, label, device: clean(&lane.device), team, role: lane.role, lanes });
                rows.len() - 1
            });
            rows[row].lanes[index] = Some(LaneId::from(number));
        }
    }
    let mut devices: BTreeMap<String, usize> = BTreeMap::new();
    for row in &rows {
        let next = devices.len();
        devices.entry(row.device.clone()).or_insert(next);
    }
    rows.sort_by_key(|row| (devices[&row.device], row.role));
    rows
}

fn memories<'a>(tracks: &[Track<'a>]) -> Vec<MemoryRow<'a>> {
    let mut rows: Vec<MemoryRow<'a>> = Vec::new();
    for (index, track) in tracks.iter().enumerate() {
        for memory in &track.trace.memories {
            let name = clean(&memory.name);
            let row = match rows.iter_mut().find(|row| row.name == name && row.curves[index].is_none()) {
                Some(row) => row,
                None => {
                    let label = clean(&track.trace.label_of(&memory.name));
                    rows.push(MemoryRow { name, label, curves: vec![None; tracks.len()] });
                    let last = rows.len() - 1;
                    &mut rows[last]
                }
            };
            row.curves[index] = Some(memory);
        }
    }
    rows
}

fn end(tracks: &[Track]) -> SimTime {
    let times = tracks.iter().flat_map(|track| {
        let spans = track.trace.spans.iter().map(|span| span.end);
        let idle = track.trace.idle.iter().map(|interval| interval.end);
        let whole = track.shortage().map_or(track.trace.iteration, |shortage| shortage.at);
        spans.chain(idle).chain([whole])
    });
    times.max().unwrap_or_default().max(SimTime::ns(1))
}

/// Whether a trace is consistent: its spans and idle intervals are on existing lanes, do not end
/// before they start, and add up to times within the range of the clock.
fn is_sound(trace: &Trace) -> bool {
    let lanes = trace.lanes.len();
    let intervals = || {
        let spans = trace.spans.iter().map(|span| (span.lane, span.start, span.end));
        spans.chain(trace.idle.iter().map(|interval| (interval.lane, interval.start, interval.end)))
    };
    let total: u128 = intervals().map(|(_, start, end)| u128::from(end.saturating_sub(start).as_ns())).sum();
    let available = u128::from(trace.iteration.as_ns()) * lanes as u128;
    intervals().all(|(lane, start, end)| lane.index() < lanes && start <= end)
        && total.max(available) < u128::from(u64::MAX)
}
