//! Pictures of traces: the actions of every lane of a machine, their times, and the causes of idle
//! time.
//!
//! ```text
//!                    ┌─ svg       static chart, for papers and web pages
//!                    ├─ png       the same chart in pixels
//! Trace (+ Trace) ───┼─ html      one self-contained file to zoom, pan and ask
//!                    ├─ perfetto  JSON for ui.perfetto.dev and chrome://tracing
//!                    └─ text      plain characters for a terminal
//! ```
//!
//! There are five renderers for one record. With a second trace, every lane is drawn twice on one
//! time axis, the prediction above the measurement. The notes of a trace ("emulated accelerator")
//! appear in every picture of it.
//!
//! Figures that do not belong to one trace are drawn as a [`Plot`]: lines and points between two
//! axes, in SVG and PNG.
//!
//! ```
//! # use spipe_base::{ActionKind, LaneId, LaneRole, MicrobatchId, SimTime, StageId, Subject};
//! # use spipe_trace::{Lane, Origin, Span, Status, Trace, FORMAT_VERSION};
//! # let span = |start, end, microbatch| Span {
//! #     lane: LaneId::new(0), kind: ActionKind::Forward,
//! #     subject: Subject::work(StageId::new(0), MicrobatchId::new(microbatch)),
//! #     start: SimTime::ms(start), end: SimTime::ms(end), bytes: None, waited_for: None };
//! # let (name, device) = ("gpu0.compute".into(), "gpu0".into());
//! # let trace = Trace {
//! #     format_version: FORMAT_VERSION, name: "two forwards".into(), origin: Origin::Predicted,
//! #     notes: vec![], status: Status::Ok, iteration: SimTime::ms(20), iterations: vec![],
//! #     tokens: None, folds: vec![], lanes: vec![Lane { name, device, role: LaneRole::Compute }],
//! #     spans: vec![span(0, 10, 0), span(10, 20, 1)],
//! #     arrows: vec![], idle: vec![], memories: vec![], explanation: None, iteration_without_profiler: None };
//! let picture = spipe_timeline::Picture { trace: &trace, second: None, title: None };
//! let text = spipe_timeline::text(&picture, 60);
//! assert!(text.contains("F0fff"), "a forward of microbatch 0");
//! assert!(spipe_timeline::svg(&picture)?.starts_with("<svg"));
//! # Ok::<(), spipe_timeline::DrawError>(())
//! ```

mod bars;
mod canvas;
mod chart;
mod error;
mod fill;
mod heading;
mod html;
mod palette;
mod perfetto;
mod picture;
mod plot;
mod scale;
mod scene;
mod strip;
mod systems;
mod text;

pub use bars::{Bar, Bars, bars_png, bars_svg};
pub use chart::{png, svg};
pub use error::DrawError;
pub use fill::{Fill, FilledMemory, fill_png, fill_svg};
pub use html::html;
pub use perfetto::{perfetto, write_perfetto};
pub use picture::Picture;
pub use plot::{Axis, Plot, Scale, Series, plot_png, plot_svg};
pub use systems::{SystemCell, SystemRow, Systems, systems_page};
pub use text::{Window, text, text_in};
