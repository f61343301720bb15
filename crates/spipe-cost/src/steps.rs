//! The work of optimizer steps, per trained parameter of a model.

use crate::{ADAMW_STEP_BYTES, Workload, groups};
use spipe_base::Bytes;
use spipe_model::{Layer, Precision};

/// The sum over all trained groups of what a step moves and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepWork {
    parameters: u64,
    bytes: u128,
    flops: f64,
}

impl StepWork {
    /// Returns the work of the step of `layers` that store parameters in `precision`.
    pub(crate) fn of<'a>(layers: impl Iterator<Item = &'a Layer>, workload: &Workload, precision: Precision) -> Self {
        let mut work = Self::default();
        for group in layers.flat_map(|layer| groups(layer, workload, precision)) {
            let Some(training) = group.training else { continue };
            work.parameters = work.parameters.saturating_add(group.parameters);
            work.bytes += u128::from(training.step.get());
            work.flops += training.step_flops;
        }
        work
    }

    /// Returns the bytes that a step moves per parameter.
    pub(crate) fn bytes_per_parameter(&self) -> f64 {
        if self.parameters == 0 { ADAMW_STEP_BYTES } else { self.bytes as f64 / self.parameters as f64 }
    }

    /// Returns the floating-point operations of a step per parameter, beside those that hide behind the
    /// bytes.
    pub(crate) fn flops_per_parameter(&self) -> f64 {
        if self.parameters == 0 { 0.0 } else { self.flops / self.parameters as f64 }
    }

    /// Returns the bytes that a step on `parameters` moves.
    pub(crate) fn traffic(&self, parameters: u64) -> Bytes {
        if self.parameters == 0 {
            return Bytes::new((parameters as f64 * ADAMW_STEP_BYTES) as u64);
        }
        let bytes = u128::from(parameters) * self.bytes / u128::from(self.parameters);
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}
