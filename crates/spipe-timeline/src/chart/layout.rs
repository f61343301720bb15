//! The layout of the chart, in points.

use super::{
    header::Header,
    measures::{LINE, MARGIN},
};
use crate::{
    canvas::{Frame, Type},
    scene::{Row, Scene, plural},
};
use spipe_base::SimTime;

/// The width of the picture.
const WIDTH: f64 = 1400.0;
/// The width of the busy share at the right end of lanes.
const RIGHT: f64 = 78.0;
/// The total height of lanes above which they become thinner.
const LANES_HEIGHT: f64 = 3000.0;
/// The normal and the smallest height of one track of a lane.
const TRACK_HEIGHT: (f64, f64) = (24.0, 3.0);
/// The largest numbers of lanes and memories that are drawn.
const MAX_ROWS: usize = 1000;
const MAX_MEMORIES: usize = 40;
/// The distances between lanes, devices and memories.
const LANE_GAP: f64 = 5.0;
const DEVICE_GAP: f64 = 9.0;
const MEMORY_HEIGHT: f64 = 64.0;
const MEMORY_GAP: f64 = 18.0;
/// The height of the time axis, and of the line above it that marks the end of a track's iteration.
const AXIS_HEIGHT: f64 = 24.0;
pub(super) const END_HEIGHT: f64 = 12.0;

/// The text style of lane names.
pub(super) const LANE_TYPE: Type = Type::new(11.5);
/// The text style of track labels beside the lane's name.
pub(super) const TRACK_TYPE: Type = Type::new(9.0).color([0x66; 3]);

/// A lane on the chart.
pub(super) struct PlacedRow<'s> {
    pub(super) row: &'s Row,
    pub(super) top: f64,
    /// Whether the device's name is drawn before it.
    pub(super) opens_device: bool,
}

/// The finished layout.
pub(super) struct Layout<'s> {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) header: Header,
    pub(super) rows: Vec<PlacedRow<'s>>,
    /// The height of one track of a lane.
    pub(super) track_height: f64,
    /// The start of lane names, after the device's name.
    pub(super) lane_names: f64,
    /// The width of track labels, after the lane's name.
    pub(super) label_room: f64,
    /// The frame of the lanes, which is that of the time axis.
    pub(super) plot: Frame,
    /// The frames of the memories.
    pub(super) memories: Vec<Frame>,
    /// Text about omitted lanes and memories.
    pub(super) omitted: Vec<String>,
    end: SimTime,
}

impl<'s> Layout<'s> {
    /// Lays out `scene`.
    pub(super) fn of(scene: &'s Scene) -> Self {
        let header = Header::of(scene, WIDTH - 2.0 * MARGIN);
        let shown = &scene.rows[..scene.rows.len().min(MAX_ROWS)];
        let (lane_names, label_room, left) = name_columns(scene, shown);
        let tracks = scene.tracks.len() as f64;
        let track_height = track_height(shown.len() as f64 * tracks);
        let gap = if track_height < 9.0 { 1.0 } else { LANE_GAP };
        let top = MARGIN + header.height + AXIS_HEIGHT + END_HEIGHT * tracks;
        let mut y = top;
        let mut rows: Vec<PlacedRow> = Vec::with_capacity(shown.len());
        for row in shown {
            let opens_device = rows.last().is_none_or(|before| before.row.device != row.device);
            if opens_device && !rows.is_empty() {
                y += DEVICE_GAP;
            }
            rows.push(PlacedRow { row, top: y, opens_device });
            y += track_height * tracks + gap;
        }
        let plot = (left, top, WIDTH - MARGIN - RIGHT, y.max(top + 20.0));
        let memories = memory_frames(scene, plot);
        let bottom = memories.last().map_or(plot.3, |frame| frame.3);
        let omitted = omitted(scene, shown.len(), memories.len());
        let height = bottom + 8.0 + omitted.len() as f64 * LINE + MARGIN;
        Self {
            width: WIDTH,
            height,
            header,
            rows,
            track_height,
            lane_names,
            label_room,
            plot,
            memories,
            omitted,
            end: scene.end,
        }
    }

    /// Width and height.
    pub(super) fn size(&self) -> (f64, f64) {
        (self.width, self.height)
    }

    /// Returns the horizontal position of a point in time.
    pub(super) fn x(&self, time: SimTime) -> f64 {
        let (left, _, right, _) = self.plot;
        left + (right - left) * (time.as_ns() as f64 / self.end.as_ns() as f64).min(1.0)
    }
}

fn track_height(tracks: f64) -> f64 {
    let (normal, least) = TRACK_HEIGHT;
    (LANES_HEIGHT / tracks.max(1.0) - 1.0).clamp(least, normal)
}

/// Returns the start of lane names, the width of track labels, and the start of the plot.
fn name_columns(scene: &Scene, rows: &[Row]) -> (f64, f64, f64) {
    let widest = |texts: &mut dyn Iterator<Item = f64>, most: f64| texts.fold(0.0, f64::max).min(most);
    let devices = rows.iter().map(|row| LANE_TYPE.bold().width(&row.team));
    let devices = widest(&mut devices.into_iter(), 140.0);
    let memories = scene.memories.iter().map(|row| LANE_TYPE.bold().width(&row.label) - 60.0);
    let lanes = rows.iter().map(|row| LANE_TYPE.width(row.short_name())).chain(memories);
    let lanes = widest(&mut lanes.into_iter(), 180.0);
    let labels = if scene.is_double() {
        widest(&mut scene.tracks.iter().map(|track| TRACK_TYPE.width(&track.label) + 8.0), 80.0)
    } else {
        0.0
    };
    let start = MARGIN + devices + 12.0;
    (start, labels, start + lanes.max(40.0) + labels + 10.0)
}

fn memory_frames(scene: &Scene, (left, _, right, bottom): Frame) -> Vec<Frame> {
    let first = bottom + 14.0;
    let frame = |index: usize| {
        let top = first + MEMORY_GAP + index as f64 * (MEMORY_HEIGHT + MEMORY_GAP);
        (left, top, right, top + MEMORY_HEIGHT)
    };
    (0..scene.memories.len().min(MAX_MEMORIES)).map(frame).collect()
}

fn omitted(scene: &Scene, rows: usize, memories: usize) -> Vec<String> {
    let lanes = scene.rows.len() - rows;
    let curves = scene.memories.len() - memories;
    let elsewhere = "fit here; the HTML and Perfetto files show all";
    let lines = [
        (scene.quiet > 0)
            .then(|| plural(scene.quiet, "lane", ("without actions is omitted", "without actions are omitted"))),
        (lanes > 0).then(|| format!("{} {elsewhere}", plural(lanes, "lane", ("does not", "do not")))),
        (curves > 0).then(|| format!("{} {elsewhere}", plural(curves, "memory curve", ("does not", "do not")))),
    ];
    lines.into_iter().flatten().collect()
}
