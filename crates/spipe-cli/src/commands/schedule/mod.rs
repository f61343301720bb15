//! `spipe schedule`: a schedule by itself, from given stage times.

mod options;
mod orders;
mod rounds;
mod times;

use crate::{
    Failure, args,
    args::{Format, Given},
    output,
    report::picture,
    tables::{table, width},
};
use serde::{Serialize, Serializer};
use spipe_base::{LaneRole, SimTime, readable::percent};
use spipe_schedule::{Order, Program, StageTimes, Word};
use spipe_sim::{Iterations, Options, simulate};
use spipe_trace::{Span, Trace};
use std::cell::Cell;

/// Builds the order, simulates one iteration, and prints its figures and a picture.
pub fn run(what: &args::Schedule, given: &Given, format: Format) -> Result<(), Failure> {
    options::check(what, given)?;
    if let Some(chosen) = rounds::chosen(what) {
        let (program, steady) = chosen?;
        let order = rounds::order(&program);
        return show(what, format, &program, (Words::Listed(order), steady));
    }
    let times = times::Times::given(what)?;
    let chosen = orders::chosen(what, &times)?;
    let program = chosen.program(&what.system, &times)?;
    show(what, format, &program, (Words::Of(chosen.order()), None))
}

fn show(
    what: &args::Schedule,
    format: Format,
    program: &Program,
    (order, steady): (Words<'_>, Option<f64>),
) -> Result<(), Failure> {
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let mut trace = simulate(program, &options).trace;
    if let Some(path) = &what.output {
        picture::write(path, &trace)?;
    }
    let data = ScheduleOutput { steady_unit_ms: steady, ..ScheduleOutput::of(order, program, &trace) };
    match format {
        // Memories of bare schedules count activations, not bytes, so they are left out of the picture.
        Format::Human => {
            trace.memories = Vec::new();
            output::print(&human(&data, &trace))
        }
        Format::Json => output::print_json(&data),
    }
}

/// The order of each device. Those of large schedules are not made into text before they are printed.
enum Words<'a> {
    Listed(Vec<Vec<String>>),
    Of(&'a Order),
}

impl Serialize for Words<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Listed(words) => words.serialize(serializer),
            Self::Of(order) => serializer.collect_seq(order.words().map(|words| Row(Cell::new(Some(words))))),
        }
    }
}

/// The words of one device.
struct Row<I>(Cell<Option<I>>);

impl<I: Iterator<Item = Word>> Serialize for Row<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten().map(AsText))
    }
}

struct AsText(Word);

impl Serialize for AsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl std::fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Listed(words) => words.iter().try_for_each(|words| writeln!(f, "{}", words.join(","))),
            Self::Of(order) => order.fmt(f),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ScheduleOutput<'a> {
    format_version: u32,
    span_ms: f64,
    makespan_ms: f64,
    work_ms: f64,
    bubble_fraction: f64,
    span_bubble_fraction: f64,
    peak_activation_units: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steady_unit_ms: Option<f64>,
    actions: usize,
    order: Words<'a>,
}

impl<'a> ScheduleOutput<'a> {
    fn of(order: Words<'a>, program: &Program, trace: &Trace) -> Self {
        // Spans are sorted by lane.
        let by_device = || {
            let of_one_lane = trace.spans.chunk_by(|left, right| left.lane == right.lane);
            of_one_lane.filter(|spans| trace.lanes[spans[0].lane.index()].role == LaneRole::Compute)
        };
        let reach = |spans: &[Span]| spans[spans.len() - 1].end - spans[0].start;
        let makespan = by_device().map(reach).max().unwrap_or_default().to_ms();
        let work: fn(&[Span]) -> SimTime = |spans| spans.iter().map(Span::duration).sum();
        let work = by_device().map(work).max().unwrap_or_default().to_ms();
        let span = trace.iteration.to_ms();
        let idle_share = |whole: f64| if whole > 0.0 { (whole - work) / whole } else { 0.0 };
        Self {
            format_version: 1,
            span_ms: span,
            makespan_ms: makespan,
            work_ms: work,
            bubble_fraction: idle_share(makespan),
            span_bubble_fraction: idle_share(span),
            peak_activation_units: peaks(program, trace),
            steady_unit_ms: None,
            actions: program.actions().len(),
            order,
        }
    }
}

/// The peak of each device, in activations (or units).
fn peaks(program: &Program, trace: &Trace) -> Vec<f64> {
    let peak = |device: &spipe_schedule::Device| {
        let name = &program.memories()[device.memory].name;
        let track = trace.memories.iter().find(|memory| memory.name == *name);
        track.map_or(0.0, |memory| memory.peak.as_f64() / StageTimes::UNIT.as_f64())
    };
    program.devices().iter().map(peak).collect()
}

fn human(data: &ScheduleOutput<'_>, trace: &Trace) -> String {
    let mut figures = table(&["span", "makespan", "work", "bubble", "span bubble", "actions"], &[0, 1, 2, 3, 4, 5]);
    figures.add_row(vec![
        format!("{:.3} ms", data.span_ms),
        format!("{:.3} ms", data.makespan_ms),
        format!("{:.3} ms", data.work_ms),
        percent(data.bubble_fraction),
        percent(data.span_bubble_fraction),
        data.actions.to_string(),
    ]);
    let steady = data.steady_unit_ms.map(|time| format!("\n\nSteady time per unit: {time:.3} ms")).unwrap_or_default();
    let peaks: Vec<String> = data.peak_activation_units.iter().map(ToString::to_string).collect();
    let picture =
        spipe_timeline::text(&spipe_timeline::Picture { trace, second: None, title: None }, usize::from(width()));
    let peaks = peaks.join(", ");
    format!("{figures}{steady}\n\nPeak activations per device: {peaks}\n\n{picture}\nOrder:\n{}", data.order)
}
