//! The times of a stage, for orders that depend on them.

use super::Pass;
use spipe_base::{Bytes, SimTime};

/// The times of one stage on one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    /// The forward.
    pub forward: SimTime,
    /// The backward-input.
    pub backward_input: SimTime,
    /// The backward-weight. A fused backward takes the sum of both.
    pub backward_weight: SimTime,
    /// The latency of a copy to another device.
    pub latency: SimTime,
    /// The share of an activation that is held until the backward-weight, in millionths.
    pub weight_gradient_memory: u64,
}

impl StageTimes {
    /// The bytes that stand for one activation, of one microbatch of one stage.
    pub const UNIT: Bytes = Bytes::new(1_000_000);

    pub(crate) fn of(&self, pass: Pass) -> SimTime {
        match pass {
            Pass::Forward => self.forward,
            Pass::Backward => self.backward_input + self.backward_weight,
            Pass::BackwardInput => self.backward_input,
            Pass::BackwardWeight => self.backward_weight,
        }
    }
}
