//! The distances that all parts of the chart keep, in points.

/// The width of the border.
pub(super) const MARGIN: f64 = 24.0;
/// The distance between lines of text.
pub(super) const LINE: f64 = 19.0;
