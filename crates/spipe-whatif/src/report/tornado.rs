//! The tornado: a bar for each input, from the margin at its least value to that at its largest. At a margin of zero
//! another machine becomes rank 1.

use super::{
    Subject, amount,
    svg::{COLOURS, LINE, Svg},
};
use crate::{End, Objective, Swing, Tornado};

/// The most bars.
const MOST: usize = 20;

/// The width of the bars in points.
const WIDTH: f64 = 420.0;

/// The widest margin that is drawn to scale: twice the figure of rank 1.
const CLIP: f64 = 2.0;

/// The colour of the zero line.
const ZERO: &str = "#b00020";

/// The scale of margins.
struct Scale {
    left: f64,
    low: f64,
    high: f64,
}

impl Scale {
    /// A scale with zero, with the margin of the table and with all bars, up to the clip.
    fn of(tornado: &Tornado, inputs: &[&Swing], left: f64) -> Self {
        let ends = inputs.iter().flat_map(|swing| [swing.low.margin, swing.high.margin]);
        let all = ends.chain([tornado.margin, Some(0.0)]).flatten().map(|margin| margin.min(CLIP));
        let (low, high) = all.fold((0.0f64, 0.0f64), |range, margin| (range.0.min(margin), range.1.max(margin)));
        let air = 0.05 * (high - low).max(0.01);
        Self { left, low: low - air, high: high + air }
    }

    fn at(&self, margin: f64) -> f64 {
        self.left + (margin.clamp(self.low, self.high) - self.low) / (self.high - self.low) * WIDTH
    }

    /// Round margins, at most eight.
    fn ticks(&self) -> Vec<f64> {
        let steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
        let step = steps.into_iter().find(|step| (self.high - self.low) / step <= 8.0).unwrap_or(1.0);
        let numbers = (self.low / step).ceil() as i32..=(self.high / step).floor() as i32;
        numbers.map(|number| f64::from(number) * step).collect()
    }
}

/// The place of an end: beyond the scale where only one machine meets the deadline.
fn place(scale: &Scale, tornado: &Tornado, end: &End) -> f64 {
    let beyond = if end.first == tornado.machine { scale.high } else { scale.low };
    scale.at(end.margin.unwrap_or(beyond))
}

/// The range of an input with its unit, and the value from which another machine is first.
fn words(swing: &Swing) -> String {
    let range = format!("{} to {} {}", amount(swing.low.value), amount(swing.high.value), swing.unit);
    let turn = swing.turn.as_ref().map(|turn| format!(", turns at {}", amount(turn.value)));
    range + &turn.unwrap_or_default()
}

/// Draws the tornado; empty without a second machine.
pub(super) fn tornado(subject: &Subject<'_>) -> Option<String> {
    let tornado = subject.table.tornado.as_ref()?;
    let inputs: Vec<&Swing> = tornado.inputs.iter().filter(|swing| moves(swing)).take(MOST).collect();
    let longest = inputs.iter().map(|swing| swing.input.chars().count()).max()?;
    let scale = Scale::of(tornado, &inputs, 30.0 + 7.0 * longest as f64);
    let figure = match subject.objective {
        Objective::Cost | Objective::TokensPerEuro => "cost",
        Objective::Time => "time",
        Objective::Energy => "energy",
    };
    let margin = tornado.margin.map_or_else(|| "only one of them meets the deadline".into(), super::signed_percent);
    let notes = [
        format!("Margin: by how much the {figure} of the best other machine exceeds that of rank 1. Below zero another machine is first."),
        format!("Now {margin}: {} before {}.", tornado.machine.replace('_', " "), tornado.other.replace('_', " ")),
        "One input moves, the others stay; nothing is planned again. Blue: down to its least value. Orange: up to its largest.".into(),
    ];
    let (mut svg, top) = Svg::new("What would change rank 1", &notes);
    let bottom = top + 16.0 + inputs.len() as f64 * LINE;
    for tick in scale.ticks() {
        let x = scale.at(tick);
        svg.line(((x, top + 10.0), (x, bottom)), ("#dddddd", 1.0));
        svg.text((x, bottom + 14.0), ("middle", 12, "#5c5c5c"), &super::signed_percent(tick));
    }
    let base = scale.at(tornado.margin.unwrap_or(scale.high));
    for (row, swing) in inputs.iter().enumerate() {
        let y = top + 16.0 + row as f64 * LINE;
        svg.text((scale.left - 10.0, y + 11.0), ("end", 12, "#222222"), &swing.input);
        for (end, colour) in [(&swing.low, COLOURS[0]), (&swing.high, COLOURS[1])] {
            let (from, to) = (base.min(place(&scale, tornado, end)), base.max(place(&scale, tornado, end)));
            let margin = end.margin.map_or_else(|| "none".into(), super::signed_percent);
            let first = end.first.replace('_', " ");
            let tip = format!("{} {} {}: margin {margin}; first: {first}", swing.input, amount(end.value), swing.unit);
            svg.rect((from, y, to - from, LINE - 5.0), colour, &tip);
        }
        svg.text((scale.left + WIDTH + 8.0, y + 11.0), ("start", 12, "#222222"), &words(swing));
    }
    svg.line(((base, top + 10.0), (base, bottom)), ("#222222", 1.0));
    let zero = scale.at(0.0);
    svg.line(((zero, top + 10.0), (zero, bottom)), (ZERO, 1.5));
    svg.text((zero, top + 8.0), ("middle", 12, ZERO), "rank 1 changes");
    let longest = |texts: &mut dyn Iterator<Item = usize>| 7.0 * texts.max().unwrap_or(0) as f64;
    let beside = scale.left + WIDTH + longest(&mut inputs.iter().map(|swing| words(swing).chars().count()));
    let above = longest(&mut notes.iter().map(|note| note.chars().count()));
    Some(svg.finish((beside.max(above) + 28.0, bottom + 26.0)))
}

/// Whether an input moves the margin.
fn moves(swing: &Swing) -> bool {
    swing.turn.is_some() || (swing.low.margin.unwrap_or(0.0) - swing.high.margin.unwrap_or(0.0)).abs() > 5e-4
}
