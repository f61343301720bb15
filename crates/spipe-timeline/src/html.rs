//! The HTML renderer: a self-contained page with an interactive canvas chart, and with tables that
//! need no script.
//!
//! | part | file |
//! |---|---|
//! | words, legend, tables | `html/page.html`, a minijinja template |
//! | explanations, differences of two traces | `html/panels.rs` |
//! | light, dark and printed looks | `html/style.css` |
//! | the traces and what can be asked of them | `html/model.js` |
//! | drawing what is visible | `html/view.js` |
//! | columns that stand for many actions | `html/detail.js` |
//! | wheel, drag, keys, pointing, choosing | `html/controls.js` |
//!
//! The traces are embedded as JSON columns, with one number per span and column, so 50,000 spans
//! take a few megabytes. Columns of time stand for the actions of traces with more than half a million
//! (`html/columns.rs`). The page's content security policy forbids network access.

mod columns;
mod panels;

use crate::{
    Picture,
    palette::{Family, cause_code, cause_color, cause_meaning, hex, ink_on},
    scale::{duration, percent},
    scene::{Row, Scene, Track, clean},
};
use columns::Columns;
use minijinja::Environment;
use panels::{Differences, ExplanationPanel, differences, explanations};
use serde::Serialize;
use spipe_base::{ActionKind, Bytes, IdleCause, LaneId, SimTime};
use spipe_trace::{Holder, MemoryTrack, Sample};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// The most samples of a memory's curve: ten for each pixel of a screen.
const MOST_SAMPLES: usize = 20_000;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = concat!(include_str!("html/colors.css"), include_str!("html/style.css"));
const SCRIPT: &str = concat!(
    include_str!("html/model.js"),
    include_str!("html/detail.js"),
    include_str!("html/view.js"),
    include_str!("html/controls.js"),
    include_str!("systems/sort.js")
);

/// Draws the page.
pub fn html(picture: &Picture) -> String {
    let scene = Scene::of(picture);
    let mut environment = Environment::new();
    // minijinja escapes inserted text because of the name's extension.
    let rendered = environment
        .add_template("page.html", PAGE)
        .and_then(|()| environment.get_template("page.html")?.render(Page::of(&scene)));
    match rendered {
        Ok(page) => page,
        Err(error) => unreachable!("the template is part of this crate and its context has every name: {error}"),
    }
}

/// The context of the template.
#[derive(Serialize)]
struct Page {
    title: String,
    facts: Vec<String>,
    notes: Vec<String>,
    faults: Vec<String>,
    double: bool,
    families: Vec<FamilyEntry>,
    causes: Vec<CauseEntry>,
    rows: Vec<LaneEntry>,
    memories: Vec<MemoryEntry>,
    explanations: Vec<ExplanationPanel>,
    differences: Option<Differences>,
    style: &'static str,
    script: &'static str,
    data: String,
}

#[derive(Serialize)]
struct FamilyEntry {
    index: usize,
    name: &'static str,
    color: String,
}

#[derive(Serialize)]
struct CauseEntry {
    index: usize,
    name: &'static str,
    meaning: &'static str,
    color: String,
    total: String,
}

#[derive(Serialize)]
struct LaneEntry {
    lane: String,
    track: String,
    actions: usize,
    busy: String,
    share: String,
    idle: String,
    causes: Vec<String>,
}

#[derive(Serialize)]
struct MemoryEntry {
    name: String,
    track: String,
    peak: String,
    capacity: String,
    holders: String,
}

impl Page {
    fn of(scene: &Scene) -> Self {
        let (causes, data) = (causes(scene), ChartData::of(scene));
        let lanes = scene.rows.iter().flat_map(|row| scene.lanes(row).map(move |(_, track, lane)| (row, track, lane)));
        let rows = lanes.map(|(row, track, lane)| lane_entry(row, track, lane, &causes)).collect();
        let curves = scene.memories.iter().flat_map(|row| row.curves.iter().zip(&scene.tracks));
        let memories = curves.filter_map(|(curve, track)| Some(memory_entry((*curve)?, track))).collect();
        Self {
            title: scene.title.clone(),
            facts: scene.facts().into_iter().chain(in_columns(scene, &data)).collect(),
            notes: scene.notes(),
            faults: scene.faults(),
            double: scene.is_double(),
            families: families(scene),
            causes,
            rows,
            memories,
            explanations: explanations(scene),
            differences: differences(scene),
            style: STYLE,
            script: SCRIPT,
            data: data.to_script(),
        }
    }
}

/// Says which traces are drawn as columns.
fn in_columns(scene: &Scene, data: &ChartData) -> Vec<String> {
    let drawn = scene.tracks.iter().zip(&data.tracks);
    let line = |(track, data): (&Track, &TrackData)| {
        let columns = data.columns.as_ref()?;
        let label = if scene.is_double() { format!("{}: ", track.label) } else { String::new() };
        let width = SimTime::ns(scene.end.as_ns() / columns.count as u64);
        Some(format!(
            "{label}{} actions, drawn as columns: each stands for all that happens in {} of its lane; search and \
             single actions are left out",
            crate::scale::count(track.trace.spans.len() as f64),
            duration(width)
        ))
    };
    drawn.filter_map(line).collect()
}

fn families(scene: &Scene) -> Vec<FamilyEntry> {
    let spans = scene.tracks.iter().flat_map(|track| &track.trace.spans);
    let present: BTreeSet<Family> = spans.map(|span| Family::of(span.kind)).collect();
    let entry =
        |family: Family| FamilyEntry { index: family as usize, name: family.name(), color: hex(family.color()) };
    present.into_iter().map(entry).collect()
}

fn causes(scene: &Scene) -> Vec<CauseEntry> {
    let mut totals: BTreeMap<IdleCause, Vec<String>> = BTreeMap::new();
    for (index, track) in scene.tracks.iter().enumerate() {
        for (cause, time) in track.idle_by_cause() {
            let zero = || vec![duration(SimTime::ZERO); scene.tracks.len()];
            totals.entry(cause).or_insert_with(zero)[index] = duration(time);
        }
    }
    let entry = |(cause, totals): (IdleCause, Vec<String>)| CauseEntry {
        index: cause as usize,
        name: cause.name(),
        meaning: cause_meaning(cause),
        color: hex(cause_color(cause)),
        total: totals.join(" | "),
    };
    totals.into_iter().map(entry).collect()
}

fn lane_entry(row: &Row, track: &Track, lane: LaneId, causes: &[CauseEntry]) -> LaneEntry {
    let times = track.figures.as_ref().and_then(|figures| figures.idle.get(&lane));
    let of = |entry: &CauseEntry| times.and_then(|times| times.get(&IdleCause::ALL[entry.index])).copied();
    let total: Option<SimTime> = times.map(|times| times.values().copied().sum());
    let busy = track.figures.as_ref().and_then(|figures| figures.busy.get(&lane)).copied();
    LaneEntry {
        lane: row.label.clone(),
        track: track.label.clone(),
        actions: track.spans(lane).count(),
        busy: busy.map(duration).unwrap_or_default(),
        share: track.busy_share(lane).map(percent).unwrap_or_default(),
        idle: total.map(duration).unwrap_or_default(),
        causes: causes.iter().map(|entry| of(entry).map(duration).unwrap_or_default()).collect(),
    }
}

fn memory_entry(curve: &MemoryTrack, track: &Track) -> MemoryEntry {
    let holder = |holder: &Holder| format!("{} {}", clean(&holder.what), holder.bytes);
    MemoryEntry {
        name: clean(&track.trace.label_of(&curve.name)),
        track: track.label.clone(),
        peak: curve.peak.to_string(),
        capacity: curve.capacity.map(|capacity| capacity.to_string()).unwrap_or_default(),
        holders: curve.holders.iter().map(holder).collect::<Vec<_>>().join(", "),
    }
}

/// The data of the script.
#[derive(Serialize)]
struct ChartData {
    end: u64,
    families: Vec<FamilyData>,
    kinds: Vec<KindData>,
    causes: Vec<CauseData>,
    layers: Vec<String>,
    rows: Vec<RowData>,
    memories: Vec<MemoryData>,
    tracks: Vec<TrackData>,
}

#[derive(Serialize)]
struct FamilyData {
    name: &'static str,
    color: String,
    ink: String,
    /// Whether it is grey and needs another tone on a dark background.
    neutral: bool,
}

#[derive(Serialize)]
struct KindData {
    name: &'static str,
    family: usize,
    /// PyTorch's letter, for arithmetic.
    letter: Option<char>,
}

#[derive(Serialize)]
struct CauseData {
    name: &'static str,
    code: &'static str,
    meaning: &'static str,
    color: String,
    neutral: bool,
}

#[derive(Serialize)]
struct RowData {
    name: String,
    short: String,
    device: String,
    /// The lane of each track, and its busy share.
    lanes: Vec<Option<usize>>,
    share: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct MemoryData {
    name: String,
    curves: Vec<Option<CurveData>>,
}

#[derive(Serialize)]
struct CurveData {
    capacity: Option<Bytes>,
    peak: Bytes,
    at: Vec<u64>,
    bytes: Vec<Bytes>,
}

/// Columns with one element per span; −1 stands for an absent value.
#[derive(Default, Serialize)]
struct TrackData {
    label: String,
    iteration: u64,
    shortage: Option<u64>,
    row: Vec<i64>,
    kind: Vec<usize>,
    start: Vec<u64>,
    end: Vec<u64>,
    stage: Vec<i64>,
    microbatch: Vec<i64>,
    layers: Vec<i64>,
    bytes: Vec<i64>,
    wait: Vec<i64>,
    /// The spans that are drawn, by row and start.
    order: Vec<u32>,
    /// Alternating sources and targets.
    arrows: Vec<u32>,
    /// Row, start, end, cause.
    idle: Vec<(usize, u64, u64, usize)>,
    /// In place of all these where there are too many actions.
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<Columns>,
}

impl ChartData {
    fn of(scene: &Scene) -> Self {
        let mut layers = Table::default();
        let tracks = (0..scene.tracks.len()).map(|index| TrackData::of(scene, index, &mut layers)).collect();
        let neutral = |color: [u8; 3]| color[0] == color[1] && color[1] == color[2];
        let family = |family: Family| FamilyData {
            name: family.name(),
            color: hex(family.color()),
            ink: hex(ink_on(family.color())),
            neutral: neutral(family.color()),
        };
        let cause = |cause: IdleCause| CauseData {
            name: cause.name(),
            code: cause_code(cause),
            meaning: cause_meaning(cause),
            color: hex(cause_color(cause)),
            neutral: cause == IdleCause::Check,
        };
        let kind = |kind: ActionKind| KindData {
            name: kind.name(),
            family: Family::of(kind) as usize,
            letter: kind.is_compute().then(|| Family::of(kind).letters().0),
        };
        Self {
            end: scene.end.as_ns(),
            families: Family::ALL.map(family).into(),
            kinds: ActionKind::all().map(kind).collect(),
            causes: IdleCause::ALL.map(cause).into(),
            layers: layers.texts,
            rows: scene.rows.iter().map(|row| row_data(scene, row)).collect(),
            memories: scene.memories.iter().map(|row| memory_data(&row.label, &row.curves)).collect(),
            tracks,
        }
    }

    /// Formats the JSON for a script element: nothing in it can end the element or start a comment.
    fn to_script(&self) -> String {
        match serde_json::to_string(self) {
            Ok(json) => json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"),
            Err(error) => unreachable!("the data has string keys and finite numbers only: {error}"),
        }
    }
}

/// A table of texts shared by many spans.
#[derive(Default)]
struct Table {
    texts: Vec<String>,
    places: BTreeMap<String, i64>,
}

impl Table {
    fn place(&mut self, text: String) -> i64 {
        let next = self.texts.len() as i64;
        let place = *self.places.entry(text.clone()).or_insert(next);
        if place == next {
            self.texts.push(text);
        }
        place
    }
}

fn row_data(scene: &Scene, row: &Row) -> RowData {
    let mut share = vec![None; scene.tracks.len()];
    for (index, track, lane) in scene.lanes(row) {
        share[index] = track.busy_share(lane);
    }
    RowData {
        name: row.label.clone(),
        short: row.short_name().to_owned(),
        device: row.team.clone(),
        lanes: row.lanes.iter().map(|lane| lane.map(LaneId::index)).collect(),
        share,
    }
}

fn memory_data(name: &str, curves: &[Option<&MemoryTrack>]) -> MemoryData {
    let curve = |curve: &MemoryTrack| {
        let samples = thinned(&curve.samples);
        CurveData {
            capacity: curve.capacity,
            peak: curve.peak,
            at: samples.iter().map(|sample| sample.at.as_ns()).collect(),
            bytes: samples.iter().map(|sample| sample.bytes).collect(),
        }
    };
    MemoryData { name: name.to_owned(), curves: curves.iter().map(|track| track.map(curve)).collect() }
}

/// The samples of a curve; of more than [`MOST_SAMPLES`] the highest and the last of each of as many
/// equal parts, halved.
fn thinned(samples: &[Sample]) -> Cow<'_, [Sample]> {
    if samples.len() <= MOST_SAMPLES {
        return samples.into();
    }
    let ends = |part: &[Sample]| {
        let last = part.len() - 1;
        // The first of the highest.
        let top = (0..=last).rev().max_by_key(|at| part[*at].bytes).unwrap_or(last);
        [Some(part[top]), (top < last).then(|| part[last])]
    };
    let parts = samples.chunks(samples.len().div_ceil(MOST_SAMPLES / 2));
    parts.flat_map(ends).flatten().collect::<Vec<_>>().into()
}

impl TrackData {
    fn of(scene: &Scene, index: usize, layers: &mut Table) -> Self {
        let track = &scene.tracks[index];
        let kinds: BTreeMap<ActionKind, usize> = ActionKind::all().enumerate().map(|(at, kind)| (kind, at)).collect();
        let id = |number: Option<usize>| number.map_or(-1, |number| number as i64);
        let mut data = Self {
            label: track.label.clone(),
            iteration: track.trace.iteration.as_ns(),
            shortage: track.shortage().map(|shortage| shortage.at.as_ns()),
            columns: Columns::of(scene, index),
            ..Self::default()
        };
        if data.columns.is_some() {
            return data;
        }
        data.row = vec![-1; track.trace.spans.len()];
        for span in &track.trace.spans {
            data.kind.push(kinds.get(&span.kind).copied().unwrap_or_default());
            data.start.push(span.start.as_ns());
            data.end.push(span.end.as_ns());
            data.stage.push(id(span.subject.stage.map(Into::into)));
            data.microbatch.push(id(span.subject.microbatch.map(Into::into)));
            data.layers.push(span.subject.layers.map_or(-1, |range| layers.place(range.to_string())));
            data.bytes.push(span.bytes.map_or(-1, |bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX)));
            data.wait.push(id(span.waited_for.map(|cause| cause as usize)));
        }
        for (at, row) in scene.rows.iter().enumerate() {
            let Some(lane) = row.lanes[index] else { continue };
            for (span, _) in track.spans(lane) {
                data.row[span as usize] = at as i64;
                data.order.push(span);
            }
            let idle = track.idle(lane).iter();
            data.idle.extend(idle.map(|idle| (at, idle.start.as_ns(), idle.end.as_ns(), idle.cause as usize)));
        }
        let known = |span: u32| data.row.get(span as usize).is_some_and(|row| *row >= 0);
        let arrows = track.trace.arrows.iter().filter(|arrow| known(arrow.from) && known(arrow.to));
        data.arrows = arrows.flat_map(|arrow| [arrow.from, arrow.to]).collect();
        data
    }
}
