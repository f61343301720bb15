//! Interpolation between measured points.

/// Interpolates the rate at `size` between points in ascending order: linear over ln(size),
/// constant beyond the ends.
pub(crate) fn interpolate(points: impl Iterator<Item = (f64, f64)>, size: f64) -> f64 {
    let mut below: Option<(f64, f64)> = None;
    for (at, rate) in points {
        if size <= at {
            return below
                .map_or(rate, |(from, slower)| slower + (rate - slower) * (size / from).ln() / (at / from).ln());
        }
        below = Some((at, rate));
    }
    below.map_or(0.0, |(_, rate)| rate)
}
