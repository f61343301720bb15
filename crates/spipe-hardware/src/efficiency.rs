//! The achieved rate of a device as a function of the size of an operation.
//!
//! Measured points are interpolated linearly over the logarithm of the size, and constant beyond
//! the ends. Without points, the rate follows Hockney's `(r∞, n½)` model (Hockney and Jesshope,
//! Parallel Computers, 1981): an operation of `n` units takes `startup + n / r∞`, so the rate is
//! `r∞ · n / (n + n½)` with `n½ = r∞ · startup`, where `r∞` is a fraction of the peak.

use crate::{Attention, DataType, EfficiencyFile, interpolation::interpolate};
use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
use std::collections::BTreeMap;

/// The achieved rates of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency {
    /// The rate of matmuls without measured points.
    pub matmul: Saturation,
    /// The rate of memory-bound kernels without measured points.
    pub elementwise: Saturation,
    /// Measured rates of matmuls, ascending in work.
    pub matmul_points: BTreeMap<DataType, Vec<(Flops, FlopsPerSecond)>>,
    /// Measured bandwidths of memory-bound kernels, ascending in bytes moved.
    pub elementwise_points: Vec<(Bytes, BytesPerSecond)>,
    /// Measured bandwidths of products of a row with a matrix read from memory, ascending in bytes
    /// of the matrix.
    pub matvec_points: Vec<(Bytes, BytesPerSecond)>,
    /// The share of the peak by smallest dimension of a product, ascending; empty if the file does
    /// not state it.
    pub rows: Vec<(f64, f64)>,
    /// The share of the rates of products and attention in short runs that long ones hold.
    pub sustained: f64,
    /// The rates of fused attention kernels.
    pub attention: Attention,
    /// Whether the fraction of products is the default of its kind of device.
    pub defaults: bool,
}

/// A rate that approaches a fraction of the peak as operations grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saturation {
    /// The fraction of the peak that the largest operations reach, above 0 and at most 1.
    pub fraction: f64,
    /// The time of an operation in addition to `work / (fraction × peak)`.
    pub startup: Seconds,
}

/// The smallest share of the peak: keeps rates above zero, so that they can divide, even with an
/// extreme startup time.
const LEAST_SHARE: f64 = 1e-30;

impl Saturation {
    /// Returns the share of `peak` that an operation of `amount` reaches; `peak` is in units of
    /// `amount` per second.
    pub fn share(&self, amount: f64, peak: f64) -> f64 {
        let half_size = self.fraction * peak * self.startup.get();
        (self.fraction * amount / (amount + half_size)).max(LEAST_SHARE)
    }
}

/// The shares of an A100 SXM by smallest dimension: medians of aiconfigurator's measured products
/// (2025), the other dimensions at least 4,096.
const KIN: [(f64, f64); 7] =
    [(64.0, 0.31), (128.0, 0.55), (256.0, 0.74), (512.0, 0.79), (1024.0, 0.83), (4096.0, 0.89), (8192.0, 0.90)];

/// The largest of these shares.
const KIN_LARGEST: f64 = 0.90;

/// The assumptions about a kind of device without an `efficiency` table.
struct Defaults {
    matmul: (f64, f64),
    elementwise: (f64, f64),
}

/// Estimate: cuBLAS reaches about 70 % of the data-sheet peak on large training matmuls, and about
/// 40 % on an A100 at 1024³, which corresponds to a startup of 8 µs. Copy kernels reach 85 % of the
/// DRAM peak (BabelStream on V100 and A100: 83–92 %).
const GPU: Defaults = Defaults { matmul: (0.70, 8e-6), elementwise: (0.85, 2e-6) };

/// Estimate: OpenBLAS and oneDNN reach about 70 % of the vector peak of a whole socket; waking and
/// joining its threads takes about 10 µs. The bandwidth of a socket's DRAM is already stated as
/// sustained.
const SOCKET: Defaults = Defaults { matmul: (0.70, 10e-6), elementwise: (0.90, 10e-6) };

impl Efficiency {
    pub(crate) fn new(file: Option<&EfficiencyFile>, is_socket: bool) -> Self {
        let defaults = if is_socket { &SOCKET } else { &GPU };
        let or = |fraction: Option<f64>, startup: Option<Seconds>, (share, seconds): (f64, f64)| Saturation {
            fraction: fraction.unwrap_or(share),
            startup: startup.unwrap_or(Seconds::s(seconds)),
        };
        let matmul = file.map_or((None, None), |file| (file.matmul_fraction, file.matmul_startup.map(|text| text.0)));
        let elementwise =
            file.map_or((None, None), |file| (file.elementwise_fraction, file.elementwise_startup.map(|text| text.0)));
        Self {
            matmul: or(matmul.0, matmul.1, defaults.matmul),
            elementwise: or(elementwise.0, elementwise.1, defaults.elementwise),
            matmul_points: BTreeMap::new(),
            elementwise_points: Vec::new(),
            matvec_points: Vec::new(),
            rows: file.map_or_else(Vec::new, |file| {
                file.rows.iter().map(|rows| f64::from(*rows)).zip(file.fraction.iter().copied()).collect()
            }),
            sustained: file.and_then(|file| file.sustained).unwrap_or(1.0),
            attention: Attention::default(),
            defaults: matmul.0.is_none(),
        }
    }

    /// Returns the share of the peak that a product reaches whose smallest dimension is `dimension`:
    /// interpolated between the points of the file, proportional to the dimension below the least.
    /// Without points it is the share of large products times the curve of an A100, its kin. Long runs hold the part
    /// that the file states.
    pub fn dimension_share(&self, dimension: u64) -> f64 {
        let least = self.rows.first().map_or(KIN[0].0, |(least, _)| *least);
        let part = (dimension as f64 / least).clamp(LEAST_SHARE, 1.0);
        let kin = || interpolate(KIN.into_iter(), dimension as f64) * self.matmul.fraction / KIN_LARGEST;
        let share = if self.rows.is_empty() { kin() } else { interpolate(self.rows.iter().copied(), dimension as f64) };
        share * part * self.sustained
    }

    /// Returns the share of the peak that the largest products reach.
    pub fn largest_share(&self) -> f64 {
        self.rows.iter().map(|(_, share)| *share).reduce(f64::max).unwrap_or(self.matmul.fraction)
    }

    /// Whether the file states neither fractions, nor shares, nor measured points of products.
    pub fn is_estimate(&self) -> bool {
        self.defaults && self.rows.is_empty() && self.matmul_points.is_empty()
    }

    pub(crate) fn matmul_rate(&self, data_type: DataType, flops: Flops) -> Option<FlopsPerSecond> {
        let points = self.matmul_points.get(&data_type).filter(|points| !points.is_empty())?;
        FlopsPerSecond::new(interpolate(points.iter().map(|(size, rate)| (size.get(), rate.get())), flops.get()))
    }

    pub(crate) fn elementwise_rate(&self, bytes: Bytes) -> Option<BytesPerSecond> {
        bandwidth(&self.elementwise_points, bytes)
    }

    pub(crate) fn matvec_rate(&self, bytes: Bytes) -> Option<BytesPerSecond> {
        bandwidth(&self.matvec_points, bytes)
    }
}

/// Interpolates a bandwidth; `None` without points.
fn bandwidth(points: &[(Bytes, BytesPerSecond)], bytes: Bytes) -> Option<BytesPerSecond> {
    BytesPerSecond::new(interpolate(points.iter().map(|(size, rate)| (size.as_f64(), rate.get())), bytes.as_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_linear_over_the_logarithm_and_clamped() {
        let points = [(1e6, 10.0), (1e8, 30.0)];
        for (size, rate) in [(1.0, 10.0), (1e6, 10.0), (1e7, 20.0), (1e8, 30.0), (1e12, 30.0)] {
            assert!((interpolate(points.into_iter(), size) - rate).abs() < 1e-9, "{size}");
        }
    }

    #[test]
    fn saturation_is_half_of_its_fraction_at_the_half_size() {
        let saturation = Saturation { fraction: 0.7, startup: Seconds::us(10.0) };
        let half_size = 0.7 * 100e12 * 10e-6;
        assert!((saturation.share(half_size, 100e12) - 0.35).abs() < 1e-12);
        assert!(saturation.share(1e15, 100e12) > 0.69);
    }
}
