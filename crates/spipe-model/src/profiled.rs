//! A layer that someone measured.

use crate::Batch;
use spipe_base::{Bytes, Seconds};
use std::collections::BTreeMap;

/// Times and bytes of a layer, per microbatch of a stated size.
///
/// Other microbatches and sequence lengths scale both in proportion to their tokens. That is exact for everything but
/// attention, launch overheads and caches: measure near the size that is planned.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledLayer {
    /// The `[[layer]]` it comes from; its copies share the name.
    pub group: String,
    /// What the figures are for.
    pub measured_at: Batch,
    /// Bytes of the output.
    pub boundary: Bytes,
    /// Bytes kept between forward and backward when everything is kept.
    pub saved: Bytes,
    /// The same under a selective recompute.
    pub selective: Bytes,
    /// The same under a full recompute: the layer's inputs.
    pub recompute: Bytes,
    /// Bytes that live within a pass only.
    pub workspace: Bytes,
    /// Times by `gpu`, `cpu` or the name of a device, which goes first.
    pub times: BTreeMap<String, ProfiledTime>,
}

/// How long the three passes of a layer take.
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
            // Far beyond any memory, and still a size.
            Bytes::from_f64((bytes.as_f64() * self.scale(batch)).min(2.0_f64.powi(63)))
        }
    }

    /// The times on a device: those under its own name, otherwise those of its kind.
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
