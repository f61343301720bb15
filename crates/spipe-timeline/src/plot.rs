//! Plots of figures: lines and points of several series between two axes.
//!
//! ```text
//! heading, notes
//! y, unit                        ● first     legend
//!  40 ┤        ╭──●──            ■ second
//!  20 ┤   ●────╯   ■             ● published
//!   0 ┼────┬────┬────┬           ─ predicted
//!     0    10   20   30
//!            x, unit
//! ```
//!
//! Series differ in colour and in the shape of their points, so they are distinguishable without
//! hue.

mod axis;
mod marks;

use crate::{
    DrawError,
    canvas::{Align, Canvas, Frame, Medium, Type, bitmap, register_fonts, with_header},
    palette::Color,
};
use axis::Ruler;
use plotters::{
    backend::{DrawingBackend, SVGBackend},
    drawing::IntoDrawingArea,
};

/// The length of the dash for a line with a single point.
const DASH: f64 = 16.0;
/// The width and the smallest height of the plot's frame.
const FRAME: (f64, f64) = (520.0, 340.0);
const MARGIN: f64 = 20.0;
/// The distance between lines of text.
const LINE: f64 = 18.0;
/// The distance between frame and legend, and the width of its swatches.
const GAP: f64 = 22.0;
const SWATCH: f64 = 26.0;
/// The width at which names in the legend are broken.
const NAME: f64 = 260.0;
const TITLE: Type = Type::new(16.0).bold();
const NOTE: Type = Type::new(12.0).color([0x55; 3]);
const LABEL: Type = Type::new(12.0);
const TICK: Type = Type::new(12.0).color([0x44; 3]);
const GRID: Color = [0xE4; 3];
const INK: Color = [0x55; 3];

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal distances.
    #[default]
    Linear,
    /// Equal ratios have equal distances; values must be positive.
    Logarithmic,
}

/// One of the two axes.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// The quantity and its unit.
    pub label: String,
    /// The scale.
    pub scale: Scale,
}

/// A series of figures.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points joined by straight lines, in this order; a single one is drawn as a short dash.
    pub line: Vec<(f64, f64)>,
    /// Separate points.
    pub points: Vec<(f64, f64)>,
}

/// The contents of a plot.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// The heading.
    pub title: String,
    /// Smaller lines below the heading, for sources and fitted parameters.
    pub notes: Vec<String>,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The figures.
    pub series: Vec<Series>,
    /// The meaning of points in all series, for the legend.
    pub points_are: Option<String>,
    /// The meaning of lines in all series, for the legend.
    pub lines_are: Option<String>,
    /// The meaning of the diagonal, where x equals y. If given, the diagonal is drawn and both axes
    /// have the same range.
    pub diagonal: Option<String>,
}

/// Draws the plot as SVG.
///
/// ```
/// use spipe_timeline::{Axis, Plot, Series, plot_svg};
/// let plot = Plot {
///     title: "bubbles".into(),
///     x: Axis { label: "microbatches".into(), ..Axis::default() },
///     y: Axis { label: "bubble, %".into(), ..Axis::default() },
///     series: vec![Series {
///         name: "1F1B".into(),
///         line: vec![(24.0, 24.3), (32.0, 19.9)],
///         points: vec![],
///     }],
///     ..Plot::default()
/// };
/// assert!(plot_svg(&plot)?.contains("microbatches"));
/// # Ok::<(), spipe_timeline::DrawError>(())
/// ```
///
/// # Errors
///
/// A figure is not finite, or not positive on a logarithmic axis.
pub fn plot_svg(plot: &Plot) -> Result<String, DrawError> {
    register_fonts()?;
    let layout = Layout::of(plot)?;
    let medium = Medium::svg();
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, medium.pixels(layout.size)), medium, plot, &layout)?;
    Ok(with_header(&text, layout.size, &plot.title, &plot.notes.join("; ")))
}

/// Draws the plot as a PNG file with two pixels per point.
///
/// # Errors
///
/// The same as [`plot_svg`].
pub fn plot_png(plot: &Plot) -> Result<Vec<u8>, DrawError> {
    register_fonts()?;
    let layout = Layout::of(plot)?;
    bitmap(layout.size, 2, |backend, medium| draw(backend, medium, plot, &layout))
}

/// An entry of the legend.
struct Entry {
    /// The series; `None` for an entry about all of them.
    series: Option<usize>,
    line: bool,
    points: bool,
    text: Vec<String>,
}

struct Layout {
    size: (f64, f64),
    words: Vec<(String, Type)>,
    frame: Frame,
    x: Ruler,
    y: Ruler,
    legend: Vec<Entry>,
}

impl Layout {
    fn of(plot: &Plot) -> Result<Self, DrawError> {
        let (x, y) = rulers(plot)?;
        let legend = legend(plot);
        let names = legend.iter().flat_map(|entry| &entry.text).map(|text| LABEL.width(text)).fold(0.0, f64::max);
        let ticks = y.marks.iter().map(|(_, text)| TICK.width(text)).fold(0.0, f64::max);
        let left = MARGIN + ticks + 8.0;
        let right = left + FRAME.0;
        let width = right + GAP + SWATCH + names + MARGIN;
        let headings = TITLE.wrap(&plot.title, width - 2.0 * MARGIN).into_iter().map(|text| (text, TITLE));
        let notes = plot.notes.iter().flat_map(|note| NOTE.wrap(note, width - 2.0 * MARGIN));
        let words: Vec<(String, Type)> = headings.chain(notes.map(|text| (text, NOTE))).collect();
        let top = MARGIN + words.len() as f64 * LINE + 2.0 * LINE;
        let lines: usize = legend.iter().map(|entry| entry.text.len()).sum();
        let bottom = top + FRAME.1.max(lines as f64 * LINE);
        let height = bottom + 2.0 * LINE + MARGIN;
        Ok(Self { size: (width, height), words, frame: (left, top, right, bottom), x, y, legend })
    }

    /// Returns the position of a point.
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (left, top, right, bottom) = self.frame;
        (left + (right - left) * self.x.place(x), bottom - (bottom - top) * self.y.place(y))
    }
}

fn rulers(plot: &Plot) -> Result<(Ruler, Ruler), DrawError> {
    let all = || plot.series.iter().flat_map(|series| series.line.iter().chain(&series.points));
    let (mut across, mut up): (Vec<f64>, Vec<f64>) = all().copied().unzip();
    if plot.diagonal.is_some() {
        across.append(&mut up);
        up.clone_from(&across);
    }
    Ok((Ruler::of(&across, &plot.x)?, Ruler::of(&up, &plot.y)?))
}

fn legend(plot: &Plot) -> Vec<Entry> {
    let entry = |(index, series): (usize, &Series)| Entry {
        series: Some(index),
        line: !series.line.is_empty(),
        points: !series.points.is_empty(),
        text: LABEL.wrap(&series.name, NAME),
    };
    let about = |text: &Option<String>, points: bool| {
        text.as_ref().map(|text| Entry { series: None, line: !points, points, text: LABEL.wrap(text, NAME) })
    };
    let own = plot.series.iter().enumerate().map(entry);
    let general = [about(&plot.points_are, true), about(&plot.lines_are, false), about(&plot.diagonal, false)];
    own.chain(general.into_iter().flatten()).collect()
}

fn draw<DB: DrawingBackend>(backend: DB, medium: Medium, plot: &Plot, layout: &Layout) -> Result<(), DrawError> {
    let area = backend.into_drawing_area();
    let canvas = Canvas::new(&area, medium);
    canvas.rect((0.0, 0.0, layout.size.0, layout.size.1), [255; 3])?;
    let mut baseline = MARGIN + 8.0;
    for (text, style) in &layout.words {
        canvas.text(text, (MARGIN, baseline), *style)?;
        baseline += LINE;
    }
    draw_axes(&canvas, plot, layout)?;
    if plot.diagonal.is_some() {
        let ends = [layout.x.low, layout.x.high].map(|end| layout.at((end, end)));
        canvas.line(&ends, INK, 1.0)?;
    }
    for (index, series) in plot.series.iter().enumerate() {
        let mut line: Vec<(f64, f64)> = series.line.iter().map(|point| layout.at(*point)).collect();
        if let [(x, y)] = line[..] {
            line = vec![(x - DASH / 2.0, y), (x + DASH / 2.0, y)];
        }
        if !line.is_empty() {
            canvas.line(&line, marks::color(index), 1.5)?;
        }
    }
    for (index, series) in plot.series.iter().enumerate() {
        for point in &series.points {
            marks::draw(&canvas, index, layout.at(*point))?;
        }
    }
    draw_legend(&canvas, plot, layout)?;
    canvas.finish()
}

fn draw_axes<DB: DrawingBackend>(canvas: &Canvas<DB>, plot: &Plot, layout: &Layout) -> Result<(), DrawError> {
    let (left, top, right, bottom) = layout.frame;
    for (value, text) in &layout.x.marks {
        let x = left + (right - left) * layout.x.place(*value);
        canvas.line(&[(x, top), (x, bottom)], GRID, 0.5)?;
        canvas.text(text, (x, bottom + LINE - 3.0), TICK.align(Align::Center))?;
    }
    for (value, text) in &layout.y.marks {
        let y = bottom - (bottom - top) * layout.y.place(*value);
        canvas.line(&[(left, y), (right, y)], GRID, 0.5)?;
        canvas.text(text, (left - 6.0, y + 4.0), TICK.align(Align::Right))?;
    }
    canvas.line(&[(left, top), (left, bottom), (right, bottom)], INK, 1.0)?;
    canvas.text(&plot.y.label, (MARGIN, top - LINE / 2.0), LABEL)?;
    canvas.text(&plot.x.label, ((left + right) / 2.0, bottom + 2.0 * LINE), LABEL.align(Align::Center))
}

fn draw_legend<DB: DrawingBackend>(canvas: &Canvas<DB>, plot: &Plot, layout: &Layout) -> Result<(), DrawError> {
    let start = layout.frame.2 + GAP;
    let mut y = layout.frame.1 + LINE / 2.0;
    for entry in &layout.legend {
        let color = entry.series.map_or(INK, marks::color);
        if entry.line {
            canvas.line(&[(start, y), (start + SWATCH - 8.0, y)], color, 1.5)?;
        }
        let middle = (start + (SWATCH - 8.0) / 2.0, y);
        match entry.series {
            Some(index) if entry.points => marks::draw(canvas, index, middle)?,
            None if entry.points => marks::draw_all(canvas, plot.series.len(), middle)?,
            _ => {}
        }
        for text in &entry.text {
            canvas.text(text, (start + SWATCH, y + 4.0), LABEL)?;
            y += LINE;
        }
    }
    Ok(())
}
