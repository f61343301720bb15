//! Layers described by measurements.

use crate::Batch;
use spipe_base::{Bytes, Seconds};
use std::collections::BTreeMap;

/// The times and bytes of a layer per microbatch of a stated size.
///
/// For other microbatches and sequence lengths, both are scaled in proportion to the number of
/// tokens. This is inexact for attention, launch overheads and caches: measure near the planned
/// size.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledLayer {
    /// The name of its `[[layer]]` table, shared by all layers of the group.
    pub group: String,
    /// The microbatch at which the figures were measured.
    pub measured_at: Batch,
    /// Bytes of the output.
    pub boundary: Bytes,
    /// Bytes saved between forward and backward without recompute.
    pub saved: Bytes,
    /// The same under a selective recompute.
    pub selective: Bytes,
    /// The same under a full recompute: the layer's inputs.
    pub recompute: Bytes,
    /// Bytes that live only within a pass.
    pub workspace: Bytes,
    /// Times by device name or by kind (`gpu`, `cpu`); a device name takes precedence.
    pub times: BTreeMap<String, ProfiledTime>,
}

/// The durations of a layer's three passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfiledTime {
    /// The forward.
    pub forward: Seconds,
    /// The gradient of the input.
    pub backward_input: Seconds,
    /// The gradients of the parameters.
    pub backward_weight: Seconds,
}

impl ProfiledLayer {
    fn scale(&self, batch: Batch) -> f64 {
        batch.microbatch as f64 * batch.seq_len as f64
            / (self.measured_at.microbatch as f64 * self.measured_at.seq_len as f64)
    }

    pub(crate) fn scaled(&self, bytes: Bytes, batch: Batch) -> Bytes {
        if batch == self.measured_at {
            bytes
        } else {
            // The cap is far above any memory and still a valid size.
            Bytes::from_f64((bytes.as_f64() * self.scale(batch)).min(2.0_f64.powi(63)))
        }
    }

    /// Returns the times on a device: those under its own name, otherwise those of its kind.
    pub fn time(&self, device: &str, is_gpu: bool, batch: Batch) -> Option<ProfiledTime> {
        let kind = if is_gpu { "gpu" } else { "cpu" };
        let time = self.times.get(device).or_else(|| self.times.get(kind))?;
        if batch == self.measured_at {
            return Some(*time);
        }
        let scale = self.scale(batch);
        Some(ProfiledTime {
            forward: time.forward * scale,
            backward_input: time.backward_input * scale,
            backward_weight: time.backward_weight * scale,
        })
    }
}
