//! The lanes and the time axis.

use super::{
    header::draw_bubble,
    layout::{END_HEIGHT, LANE_TYPE, Layout, PlacedRow, TRACK_TYPE},
    measures::{LINE, MARGIN},
};
use crate::{
    DrawError,
    canvas::{Align, Canvas, Frame, Type},
    palette::{ALARM, Family, cause_color, ink_on, tint},
    scale::{percent, ticks},
    scene::{Row, Scene, Track},
    strip::{Run, is_dense, runs},
};
use plotters::prelude::DrawingBackend;
use spipe_base::{LaneId, SimTime};
use spipe_trace::Span;

const GRID: [u8; 3] = [0xE4; 3];
const AXIS_TYPE: Type = Type::new(10.5).color([0x55; 3]).align(Align::Center);
const SHARE_TYPE: Type = Type::new(10.5).color([0x55; 3]).align(Align::Right);
const LABEL_SIZE: f64 = 10.0;

/// Draws the axis, every lane, and the end of the iteration.
pub(super) fn draw<DB: DrawingBackend>(canvas: &Canvas<DB>, scene: &Scene, layout: &Layout) -> Result<(), DrawError> {
    draw_axis(canvas, scene, layout)?;
    for placed in &layout.rows {
        draw_row_names(canvas, scene, layout, placed)?;
        for (index, track, lane) in scene.lanes(placed.row) {
            let top = placed.top + layout.track_height * index as f64;
            let strip = Strip { canvas, layout, top, bottom: top + layout.track_height - 1.0 };
            let columns = strip.columns();
            if is_dense(track, lane, columns) {
                strip.draw_runs(&runs(track, lane, (scene.end, columns)), columns)?;
            } else {
                strip.draw_bubbles(track, lane)?;
                strip.draw_spans(track, lane)?;
            }
            strip.draw_share(track, lane, placed.row)?;
        }
    }
    draw_marks(canvas, scene, layout)?;
    for (index, line) in layout.omitted.iter().enumerate() {
        let bottom = layout.height - MARGIN - (layout.omitted.len() - 1 - index) as f64 * LINE;
        canvas.text(line, (MARGIN, bottom), Type::new(11.0).color([0x66; 3]))?;
    }
    Ok(())
}

fn draw_axis<DB: DrawingBackend>(canvas: &Canvas<DB>, scene: &Scene, layout: &Layout) -> Result<(), DrawError> {
    let (left, top, right, bottom) = layout.plot;
    let bottom = layout.memories.last().map_or(bottom, |frame| frame.3);
    let axis = ticks(scene.end, 14);
    for (time, label) in &axis.marks {
        let x = layout.x(*time);
        canvas.line(&[(x, top - 6.0), (x, bottom)], GRID, 0.75)?;
        canvas.text(label, (x, top - 10.0), AXIS_TYPE)?;
    }
    canvas.line(&[(left, top - 4.0), (right, top - 4.0)], [0x99; 3], 1.0)?;
    canvas.text(&format!("time in {}", axis.unit), (left - 14.0, top - 10.0), AXIS_TYPE.align(Align::Right))?;
    canvas.text("busy", (layout.width - MARGIN, top - 10.0), SHARE_TYPE)
}

fn draw_row_names<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    scene: &Scene,
    layout: &Layout,
    placed: &PlacedRow,
) -> Result<(), DrawError> {
    let (left, _, right, _) = layout.plot;
    let height = layout.track_height * scene.tracks.len() as f64;
    let baseline = placed.top + (height / 2.0).min(20.0) + 4.0;
    if placed.opens_device {
        canvas.line(&[(MARGIN, placed.top - 3.5), (right, placed.top - 3.5)], [0xCC; 3], 0.75)?;
        let room = layout.lane_names - MARGIN - 6.0;
        canvas.text(&LANE_TYPE.bold().fit(&placed.row.team, room), (MARGIN, baseline), LANE_TYPE.bold())?;
    }
    if height >= 9.0 {
        let name = LANE_TYPE.fit(placed.row.short_name(), left - 6.0 - layout.label_room - layout.lane_names);
        canvas.text(&name, (layout.lane_names, baseline), LANE_TYPE)?;
    }
    if scene.is_double() && layout.track_height >= 10.0 {
        for (index, track, _) in scene.lanes(placed.row) {
            let middle = placed.top + layout.track_height * (index as f64 + 0.5);
            canvas.text(&track.label, (left - 6.0, middle + 3.0), TRACK_TYPE.align(Align::Right))?;
        }
    }
    Ok(())
}

/// One track of one lane.
struct Strip<'c, 'a, DB: DrawingBackend> {
    canvas: &'c Canvas<'a, DB>,
    layout: &'c Layout<'c>,
    top: f64,
    bottom: f64,
}

impl<DB: DrawingBackend> Strip<'_, '_, DB> {
    /// The thinnest bars that stand beside each other in the plot.
    fn columns(&self) -> usize {
        let (left, _, right, _) = self.layout.plot;
        ((right - left) / self.canvas.grain()) as usize
    }

    /// Draws columns that stand for all that happens in their time.
    fn draw_runs(&self, runs: &[Run], columns: usize) -> Result<(), DrawError> {
        let (left, _, right, _) = self.layout.plot;
        let x = |column: usize| left + (right - left) * column as f64 / columns as f64;
        runs.iter()
            .try_for_each(|run| self.canvas.rect((x(run.from), self.top, x(run.to), self.bottom), run.shown.paint()))
    }

    fn draw_bubbles(&self, track: &Track, lane: LaneId) -> Result<(), DrawError> {
        let mut last = f64::NEG_INFINITY;
        for interval in track.idle(lane) {
            let (left, right) = (self.layout.x(interval.start), self.layout.x(interval.end));
            if right - left >= self.canvas.grain() {
                draw_bubble(self.canvas, (left, self.top, right, self.bottom), interval.cause)?;
            } else if left >= last + self.canvas.grain() {
                let frame = (left, self.bottom - 2.0, left + self.canvas.grain(), self.bottom);
                self.canvas.rect(frame, tint(cause_color(interval.cause), 0.8))?;
            }
            last = left.max(last);
        }
        Ok(())
    }

    /// Draws the bars. Neighbours of the same colour that are too thin to distinguish are merged.
    fn draw_spans(&self, track: &Track, lane: LaneId) -> Result<(), DrawError> {
        let mut pending: Option<(Frame, &Span, usize)> = None;
        for (_, span) in track.spans(lane) {
            let (left, right) = (self.layout.x(span.start), self.layout.x(span.end));
            let frame = (left, self.top, right.max(left + self.canvas.grain()), self.bottom);
            match &mut pending {
                Some((bar, first, count))
                    if Family::of(first.kind) == Family::of(span.kind)
                        && left <= bar.2 + 0.1
                        && frame.2 - left < 2.0
                        && (*count > 1 || bar.2 - bar.0 < 2.0) =>
                {
                    bar.2 = bar.2.max(frame.2);
                    *count += 1;
                }
                _ => {
                    self.draw_pending(pending.take())?;
                    pending = Some((frame, span, 1));
                }
            }
        }
        self.draw_pending(pending)
    }

    fn draw_pending(&self, pending: Option<(Frame, &Span, usize)>) -> Result<(), DrawError> {
        let Some(((left, top, right, bottom), span, count)) = pending else { return Ok(()) };
        let color = Family::of(span.kind).color();
        let gap = if count == 1 && right - left > 4.0 { 0.75 } else { 0.0 };
        self.canvas.rect((left, top, right - gap, bottom), color)?;
        if count > 1 || bottom - top < 10.0 {
            return Ok(());
        }
        let style = Type::new(LABEL_SIZE).color(ink_on(color)).align(Align::Center);
        match bar_label(span, style, right - left - 3.0) {
            Some(label) => self.canvas.text(&label, ((left + right) / 2.0, (top + bottom) / 2.0 + 3.7), style),
            None => Ok(()),
        }
    }

    fn draw_share(&self, track: &Track, lane: LaneId, row: &Row) -> Result<(), DrawError> {
        let height = self.layout.track_height;
        let thin = height < 10.0 && !(height >= 5.0 && row.lanes.len() == 1);
        match track.busy_share(lane).filter(|_| !thin) {
            Some(share) => {
                let at = (self.layout.width - MARGIN, (self.top + self.bottom) / 2.0 + 3.7);
                self.canvas.text(&percent(share), at, SHARE_TYPE)
            }
            None => Ok(()),
        }
    }
}

/// Returns the longest label of a bar that fits in `room`.
fn bar_label(span: &Span, style: Type, room: f64) -> Option<String> {
    const NARROWEST: f64 = 5.0;
    if room < NARROWEST {
        return None;
    }
    let mut labels = vec![span.label()];
    if !span.kind.is_compute() {
        let subject = spipe_base::Subject { layers: None, ..span.subject };
        labels.push(format!("{} {subject}", span.kind));
        labels.push(span.subject.to_string());
        labels.push(subject.to_string());
    }
    labels.extend(span.subject.microbatch.map(|microbatch| microbatch.index().to_string()));
    labels.into_iter().find(|label| !label.trim().is_empty() && style.width(label.trim()) <= room)
}

/// Draws the end of the iteration of each track, or the time when memory ran out.
fn draw_marks<DB: DrawingBackend>(canvas: &Canvas<DB>, scene: &Scene, layout: &Layout) -> Result<(), DrawError> {
    let (_, top, right, bottom) = layout.plot;
    for (index, track) in scene.tracks.iter().enumerate() {
        if let Some(shortage) = track.shortage() {
            let x = layout.x(shortage.at);
            canvas.line(&[(x, top - 4.0), (x, bottom)], ALARM, 1.5)?;
            let style =
                Type::new(10.5).bold().color(ALARM).align(if x + 90.0 > right { Align::Right } else { Align::Left });
            canvas.text("out of memory", (x, top - 22.0 - END_HEIGHT * index as f64), style)?;
        } else if track.trace.iteration > SimTime::ZERO {
            let x = layout.x(track.trace.iteration);
            let color = if index == 0 { [0x22; 3] } else { [0x77; 3] };
            canvas.line(&[(x, top - 4.0), (x, bottom)], color, 1.0)?;
            let words = if scene.is_double() { format!("{} ends", track.label) } else { "iteration ends".to_owned() };
            canvas.text(&words, (x, top - 22.0 - END_HEIGHT * index as f64), AXIS_TYPE.align(Align::Right))?;
        }
    }
    Ok(())
}
