//! Colours and shapes of series.

use crate::{DrawError, canvas::Canvas, palette::Color};
use plotters::prelude::DrawingBackend;
use std::f64::consts::TAU;

/// The colours of Okabe and Ito ("Color Universal Design", 2008) that are visible on white.
const COLORS: [Color; 7] = [
    [0x00, 0x72, 0xB2],
    [0xD5, 0x5E, 0x00],
    [0x00, 0x9E, 0x73],
    [0xCC, 0x79, 0xA7],
    [0xE6, 0x9F, 0x00],
    [0x56, 0xB4, 0xE9],
    [0x22, 0x22, 0x22],
];
/// Half the height of a mark, in points.
const RADIUS: f64 = 4.0;
/// The width of the white edge that separates overlapping marks.
const EDGE: f64 = 1.0;

/// The shapes: the number of corners, and the direction of the first in turns. The numbers of
/// shapes and colours are coprime, so that a pair repeats late.
const SHAPES: [(usize, f64); 6] = [(24, 0.0), (4, 0.125), (3, 0.75), (4, 0.0), (3, 0.25), (5, 0.75)];

/// Returns the colour of a series.
pub(super) const fn color(series: usize) -> Color {
    COLORS[series % COLORS.len()]
}

/// Draws a point of a series.
pub(super) fn draw<DB: DrawingBackend>(canvas: &Canvas<DB>, series: usize, at: (f64, f64)) -> Result<(), DrawError> {
    canvas.area(&corners(series, at, RADIUS + EDGE), [255; 3])?;
    canvas.area(&corners(series, at, RADIUS), color(series))
}

/// Draws a mark that stands for the points of all `count` series.
pub(super) fn draw_all<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    count: usize,
    (x, y): (f64, f64),
) -> Result<(), DrawError> {
    let shown = count.min(2);
    for series in 0..shown {
        let step = 2.0 * (RADIUS + EDGE);
        draw(canvas, series, (x + step * (series as f64 - (shown as f64 - 1.0) / 2.0), y))?;
    }
    Ok(())
}

/// Returns the corners of a mark. Shapes with few corners are enlarged, so that all look equally
/// large.
fn corners(series: usize, (x, y): (f64, f64), radius: f64) -> Vec<(f64, f64)> {
    let (count, start) = SHAPES[series % SHAPES.len()];
    let radius = radius * if count < 5 { 1.25 } else { 1.0 };
    let corner = |index: usize| {
        let angle = (start + index as f64 / count as f64) * TAU;
        (x + radius * angle.cos(), y + radius * angle.sin())
    };
    (0..count).map(corner).collect()
}
