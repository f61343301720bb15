//! The input of all renderers.

use spipe_trace::Trace;

/// The contents of a picture.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// A second trace, drawn beside the first lane by lane on the same time axis. A prediction is
    /// drawn above a measurement.
    pub second: Option<&'a Trace>,
    /// The heading; by default the name of the trace.
    pub title: Option<&'a str>,
}
