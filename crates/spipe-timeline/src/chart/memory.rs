//! The memories: a step curve of each over time, with its capacity and peak.

use super::{
    layout::{LANE_TYPE, Layout},
    measures::MARGIN,
};
use crate::{
    DrawError,
    canvas::{Align, Canvas, Frame, Type},
    palette::{ALARM, Color, tint},
    scene::{MemoryRow, Scene, clean},
};
use plotters::prelude::DrawingBackend;
use spipe_base::{Bytes, SimTime};
use spipe_trace::MemoryTrack;

/// The curves of the first and of the second track.
const CURVES: [Color; 2] = [[0x2F, 0x5D, 0x8A], [0xB4, 0x4E, 0x00]];
const NOTE: Type = Type::new(10.5).color([0x55; 3]);
/// The largest ratio of capacity to peak at which the capacity is drawn. A larger one would flatten
/// the curve and is only written.
const CAPACITY_REACH: f64 = 3.0;

/// Draws all memories.
pub(super) fn draw<DB: DrawingBackend>(canvas: &Canvas<DB>, scene: &Scene, layout: &Layout) -> Result<(), DrawError> {
    for (row, frame) in scene.memories.iter().zip(&layout.memories) {
        draw_memory(canvas, scene, layout, (row, *frame))?;
    }
    Ok(())
}

fn draw_memory<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    scene: &Scene,
    layout: &Layout,
    (row, frame): (&MemoryRow, Frame),
) -> Result<(), DrawError> {
    let (left, top, right, bottom) = frame;
    let curves: Vec<&MemoryTrack> = row.curves.iter().flatten().copied().collect();
    let peak = curves.iter().map(|curve| highest(curve)).max().unwrap_or_default();
    let capacity = curves.iter().filter_map(|curve| curve.capacity).max();
    let reachable = capacity.filter(|capacity| capacity.as_f64() <= peak.as_f64() * CAPACITY_REACH);
    let most = peak.max(reachable.unwrap_or_default()).as_f64().max(1.0);
    let y = |bytes: Bytes| bottom - (bottom - top) * bytes.as_f64() / most;
    for (index, curve) in row.curves.iter().enumerate() {
        let Some(curve) = curve else { continue };
        let points = steps(curve, layout, y);
        if index == 0 {
            let closed: Vec<(f64, f64)> =
                [(left, bottom)].into_iter().chain(points.iter().copied()).chain([(right, bottom)]).collect();
            canvas.area(&closed, tint(CURVES[0], 0.3))?;
        }
        canvas.line(&points, CURVES[index.min(1)], 1.25)?;
    }
    canvas.line(&[(left, bottom), (right, bottom)], [0x99; 3], 0.75)?;
    if let Some(capacity) = reachable {
        canvas.dashes((left, right), y(capacity), ALARM)?;
        canvas.text("capacity", (right + 6.0, y(capacity) + 4.0), NOTE.color(ALARM))?;
    }
    canvas.text(&LANE_TYPE.bold().fit(&row.label, left - MARGIN - 8.0), (MARGIN, top + 14.0), LANE_TYPE.bold())?;
    draw_peaks(canvas, scene, row, capacity, frame)
}

fn draw_peaks<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    scene: &Scene,
    row: &MemoryRow,
    capacity: Option<Bytes>,
    (left, top, right, _): Frame,
) -> Result<(), DrawError> {
    let mut line = top + 29.0;
    for (index, curve) in row.curves.iter().enumerate() {
        let Some(curve) = curve else { continue };
        let color = if row.curves.len() > 1 { CURVES[index.min(1)] } else { NOTE.color };
        let label = if scene.is_double() { format!("{} ", scene.tracks[index].label) } else { String::new() };
        canvas.text(&format!("{label}peak {}", curve.peak), (MARGIN, line), NOTE.color(color))?;
        line += 14.0;
        if index == 0 && !curve.holders.is_empty() {
            let holders: Vec<String> = curve
                .holders
                .iter()
                .take(3)
                .map(|holder| format!("{} {}", clean(&holder.what), holder.bytes))
                .collect();
            let words = NOTE.fit(&format!("at the peak: {}", holders.join(", ")), right - left - 8.0);
            canvas.text(&words, (left + 4.0, top - 4.0), NOTE.color([0x77; 3]))?;
        }
    }
    match capacity {
        Some(capacity) => canvas.text(&format!("of {capacity}"), (MARGIN, line), NOTE.align(Align::Left)),
        None => Ok(()),
    }
}

/// Returns the larger of the stated and the sampled peak.
fn highest(curve: &MemoryTrack) -> Bytes {
    curve.samples.iter().map(|sample| sample.bytes).max().unwrap_or_default().max(curve.peak)
}

/// Returns the curve with at most a few vertices per horizontal point. The highest value within
/// half a point is kept.
fn steps(curve: &MemoryTrack, layout: &Layout, y: impl Fn(Bytes) -> f64) -> Vec<(f64, f64)> {
    let (left, _, right, _) = layout.plot;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut held =
        curve.samples.first().filter(|first| first.at == SimTime::ZERO).map_or(Bytes::ZERO, |first| first.bytes);
    points.push((left, y(held)));
    let mut samples = curve.samples.iter().peekable();
    while let Some(sample) = samples.next() {
        let x = layout.x(sample.at);
        let (mut highest, mut last) = (sample.bytes, sample.bytes);
        while let Some(next) = samples.next_if(|next| layout.x(next.at) < x + 0.5) {
            highest = highest.max(next.bytes);
            last = next.bytes;
        }
        points.extend([(x, y(held)), (x, y(highest))]);
        if last != highest {
            points.push((x + 0.5, y(last)));
        }
        held = last;
    }
    points.push((right, y(held)));
    points
}
