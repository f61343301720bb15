//! A page that compares systems: a table that can be sorted, and a small chart of each system's
//! iteration. All charts have one time axis.
//!
//! ```text
//! heading, notes
//! table of figures              one row for each system, refused ones with their reason
//! legend
//! system  lane ▇▇▇▇▇▁▁▇▇▇       one strip for each lane
//! ```
//!
//! The page needs no script but for sorting.

use crate::{
    Picture,
    palette::{cause_on_dark, hex},
    scale::{duration, ticks},
    scene::{Scene, clean},
    strip::{Shown, paths, runs},
};
use minijinja::Environment;
use serde::Serialize;
use spipe_base::SimTime;
use spipe_trace::Trace;
use std::collections::BTreeSet;

const PAGE: &str = include_str!("systems/page.html");
const STYLE: &str = concat!(include_str!("html/colors.css"), include_str!("systems/style.css"));
const SCRIPT: &str = include_str!("systems/sort.js");

/// The columns of a strip: about as many as pixels on a wide screen.
const COLUMNS: usize = 1200;
/// The end of the time axis, in iterations of the fastest system; slower ones are cut there.
const MOST: u64 = 4;
/// The height of a strip, in its own units.
const HEIGHT: f64 = 10.0;

/// The contents of the page.
#[derive(Clone, Debug, Default)]
pub struct Systems<'a> {
    /// The heading.
    pub title: String,
    /// Lines below the heading.
    pub notes: Vec<String>,
    /// The headings of the columns behind the system's name.
    pub headings: Vec<String>,
    /// A row for each system, in the order of the page.
    pub rows: Vec<SystemRow<'a>>,
}

/// A system.
#[derive(Clone, Debug, Default)]
pub struct SystemRow<'a> {
    /// Its name.
    pub name: String,
    /// Its figures, one for each heading; none for a refused system.
    pub cells: Vec<SystemCell>,
    /// Why it has no figures, or what must be known about them.
    pub reason: Option<String>,
    /// Its iteration, if it was simulated.
    pub trace: Option<&'a Trace>,
}

/// A figure of a system.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SystemCell {
    /// Its text.
    pub text: String,
    /// The number by which the column is sorted; `None` sorts last.
    pub order: Option<f64>,
}

#[derive(Serialize)]
struct Page<'p> {
    title: String,
    notes: Vec<String>,
    headings: &'p [String],
    rows: Vec<RowData<'p>>,
    charts: Vec<Chart>,
    legend: Vec<Entry>,
    ticks: Vec<Tick>,
    unit: &'static str,
    columns: usize,
    style: &'static str,
    script: &'static str,
}

#[derive(Serialize)]
struct RowData<'p> {
    name: String,
    cells: &'p [SystemCell],
    reason: Option<String>,
    anchor: Option<usize>,
}

#[derive(Serialize)]
struct Chart {
    index: usize,
    name: String,
    facts: String,
    lanes: Vec<Strip>,
    /// The end of the iteration, in percent of the axis, if it is on it.
    end: Option<f64>,
}

#[derive(Serialize)]
struct Strip {
    name: String,
    opens: bool,
    paths: Vec<Path>,
}

#[derive(Serialize)]
struct Path {
    /// The tone of idle time on a dark page.
    dark: Option<String>,
    color: String,
    name: &'static str,
    d: String,
}

#[derive(Serialize)]
struct Entry {
    color: String,
    name: &'static str,
    /// The tone of idle time on a dark page.
    dark: Option<String>,
}

#[derive(Serialize)]
struct Tick {
    /// In percent of the axis.
    at: f64,
    label: String,
}

/// Draws the page.
pub fn systems_page(systems: &Systems<'_>) -> String {
    let mut environment = Environment::new();
    // minijinja escapes inserted text because of the name's extension.
    let rendered = environment
        .add_template("page.html", PAGE)
        .and_then(|()| environment.get_template("page.html")?.render(Page::of(systems)));
    match rendered {
        Ok(page) => page,
        Err(error) => unreachable!("the template is part of this crate and its context has every name: {error}"),
    }
}

impl<'p> Page<'p> {
    fn of(systems: &'p Systems<'p>) -> Self {
        let traces = || systems.rows.iter().filter_map(|row| row.trace);
        let fastest = traces().map(|trace| trace.iteration).min().unwrap_or_default();
        let end = traces().map(reach).max().unwrap_or_default().min(fastest * MOST).max(SimTime::ns(1));
        let mut shown = BTreeSet::new();
        let mut charts = Vec::new();
        let mut rows = Vec::new();
        for (index, row) in systems.rows.iter().enumerate() {
            let chart = row.trace.map(|trace| chart((index, row), trace, (end, &mut shown)));
            rows.push(RowData {
                name: clean(&row.name),
                cells: &row.cells,
                reason: row.reason.as_deref().map(clean),
                anchor: chart.as_ref().map(|chart| chart.index),
            });
            charts.extend(chart);
        }
        let axis = ticks(end, 8);
        let percent = |time: SimTime| 100.0 * time.as_ns() as f64 / end.as_ns() as f64;
        let entry = |shown: Shown| Entry { color: shown.color(), name: shown.name(), dark: dark(shown) };
        Self {
            title: clean(&systems.title),
            notes: systems.notes.iter().map(|note| clean(note)).collect(),
            headings: &systems.headings,
            rows,
            charts,
            legend: shown.into_iter().map(entry).collect(),
            ticks: axis.marks.into_iter().map(|(time, label)| Tick { at: percent(time), label }).collect(),
            unit: axis.unit,
            columns: COLUMNS,
            style: STYLE,
            script: SCRIPT,
        }
    }
}

fn dark(shown: Shown) -> Option<String> {
    match shown {
        Shown::Busy(_) => None,
        Shown::Idle(cause) => Some(hex(cause_on_dark(cause))),
    }
}

/// The end of the last thing that a chart of `trace` shows.
fn reach(trace: &Trace) -> SimTime {
    trace.spans.iter().map(|span| span.end).max().unwrap_or_default().max(trace.iteration)
}

fn chart((index, row): (usize, &SystemRow<'_>), trace: &Trace, (end, shown): (SimTime, &mut BTreeSet<Shown>)) -> Chart {
    let scene = Scene::of(&Picture { trace, second: None, title: None });
    let mut device = None;
    let mut lanes = Vec::new();
    for this in &scene.rows {
        for (_, track, lane) in scene.lanes(this) {
            let runs = runs(track, lane, (end, COLUMNS));
            shown.extend(runs.iter().map(|run| run.shown));
            let paths = paths(&runs, (0.0, 0.0), (1.0, HEIGHT));
            lanes.push(Strip {
                name: this.name.clone(),
                opens: device.is_some_and(|device| device != &this.device),
                paths: paths
                    .into_iter()
                    .map(|(shown, d)| Path { dark: dark(shown), color: shown.color(), name: shown.name(), d })
                    .collect(),
            });
            device = Some(&this.device);
        }
    }
    Chart {
        index,
        name: clean(&row.name),
        facts: format!(
            "iteration {}{}",
            duration(trace.iteration),
            if trace.iteration > end { ", longer than the time axis" } else { "" }
        ),
        lanes,
        end: (trace.iteration <= end).then(|| 100.0 * trace.iteration.as_ns() as f64 / end.as_ns() as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::Family;

    #[test]
    fn markup_in_names_is_text() {
        let rows = vec![SystemRow {
            name: "<script>alert(1)</script>".into(),
            reason: Some("\"><img src=x onerror=alert(1)>".into()),
            ..SystemRow::default()
        }];
        let page = systems_page(&Systems { title: "<b>".into(), rows, ..Systems::default() });
        assert!(!page.contains("<script>alert") && !page.contains("<img") && !page.contains("<b>"));
    }

    #[test]
    fn families_have_their_own_colours() {
        let colors: BTreeSet<String> = Family::ALL.into_iter().map(|family| Shown::Busy(family).color()).collect();
        assert_eq!(colors.len(), Family::ALL.len());
    }
}
