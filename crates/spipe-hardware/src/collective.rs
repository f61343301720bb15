//! Measured times of collectives, as `nccl-tests` defines their bus bandwidth.

use crate::{CollectiveFile, CollectiveKind, interpolation::interpolate};
use spipe_base::{Bytes, BytesPerSecond, Seconds};

/// A collective of a number of GPUs of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// The kind.
    pub kind: CollectiveKind,
    /// The participants.
    pub gpus: usize,
    /// The time of the shortest message.
    pub latency: Seconds,
    /// Bus bandwidths by bytes of the whole message, ascending.
    pub bandwidth: Vec<(Bytes, BytesPerSecond)>,
}

impl Collective {
    pub(crate) fn new(file: &CollectiveFile) -> Self {
        let plain = file.bandwidth.iter().map(|(bytes, rate)| (bytes.0, rate.0)).collect();
        Self { kind: file.kind, gpus: file.gpus as usize, latency: file.latency.0, bandwidth: plain }
    }

    /// Returns the time of a message of `bytes` in the whole. Bus bandwidth is 2(n−1)/n · bytes ÷ time
    /// of an all-reduce, and (n−1)/n · bytes ÷ time of the other two. It is interpolated over the
    /// logarithm of the bytes and constant above the largest size. Below the least, the time is linear
    /// from the latency on.
    pub fn time(&self, bytes: Bytes) -> Seconds {
        let n = self.gpus as f64;
        let turns = if self.kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 } * (n - 1.0) / n;
        let points = self.bandwidth.iter().map(|(size, rate)| (size.as_f64(), rate.get()));
        let at = |size: f64| turns * size / interpolate(points.clone(), size);
        let least = self.bandwidth.first().map_or(0.0, |(size, _)| size.as_f64());
        let size = bytes.as_f64();
        let seconds = match size < least {
            true => self.latency.get() + (at(least) - self.latency.get()).max(0.0) * size / least,
            false => at(size).max(self.latency.get()),
        };
        Seconds::s(seconds)
    }
}
