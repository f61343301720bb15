//! Pictures of traces: what every lane of a machine did, when, and why it was idle.
//!
//! ```text
//!                    ┌─ svg       static chart, for papers and web pages
//!                    ├─ png       the same chart in pixels
//! Trace (+ Trace) ───┼─ html      one self-contained file to zoom, pan and ask
//!                    ├─ perfetto  JSON for ui.perfetto.dev and chrome://tracing
//!                    └─ text      plain characters for a terminal
//! ```
//!
//! One record, five renderers. With a second trace every lane is drawn twice on one time axis, the prediction above the
//! measurement. The notes of a trace ("emulated accelerator") stand in every picture of it.
//!
//! Figures of many traces, or of none, go on a [`Plot`]: lines and points between two axes, in SVG and PNG.
//!
//! ```
//! # use spipe_base::{ActionKind, LaneId, LaneRole, MicrobatchId, SimTime, StageId, Subject};
//! # use spipe_trace::{Lane, Origin, Span, Status, Trace, FORMAT_VERSION};
//! # let span = |start, end, microbatch| Span {
//! #     lane: LaneId::new(0), kind: ActionKind::Forward, subject: Subject::work(StageId::new(0), MicrobatchId::new(microbatch)),
//! #     start: SimTime::ms(start), end: SimTime::ms(end), bytes: None, waited_for: None };
//! # let trace = Trace {
//! #     format_version: FORMAT_VERSION, name: "two forwards".into(), origin: Origin::Predicted, notes: vec![],
//! #     status: Status::Ok, iteration: SimTime::ms(20), iterations: vec![], tokens: None,
//! #     lanes: vec![Lane { name: "gpu0.compute".into(), device: "gpu0".into(), role: LaneRole::Compute }],
//! #     spans: vec![span(0, 10, 0), span(10, 20, 1)], arrows: vec![], idle: vec![], memories: vec![] };
//! let picture = spipe_timeline::Picture { trace: &trace, second: None, title: None };
//! let text = spipe_timeline::text(&picture, 60);
//! assert!(text.contains("F0fff"), "a forward of microbatch 0");
//! assert!(spipe_timeline::svg(&picture)?.starts_with("<svg"));
//! # Ok::<(), spipe_timeline::DrawError>(())
//! ```

mod canvas;
mod chart;
mod html;
mod palette;
mod perfetto;
mod plot;
mod scale;
mod scene;
mod text;

pub use chart::{png, svg};
pub use html::html;
pub use perfetto::perfetto;
pub use plot::{Axis, Plot, Scale, Series, plot_png, plot_svg};
pub use text::text;

use spipe_trace::Trace;

/// What to draw.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Another trace to draw beside it, lane by lane on the same time axis; a prediction stands above a measurement.
    pub second: Option<&'a Trace>,
    /// The heading; the name of the trace if there is none.
    pub title: Option<&'a str>,
}

/// Why a picture could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The fonts that this crate carries are damaged.
    #[error("cannot read the font of the pictures")]
    Font,
    /// The drawing library failed.
    #[error("cannot draw: {message}")]
    Drawing {
        /// What it said.
        message: String,
    },
    /// The pixels could not be encoded.
    #[error("cannot encode the picture as PNG: {0}")]
    Encoding(#[from] png::EncodingError),
}
