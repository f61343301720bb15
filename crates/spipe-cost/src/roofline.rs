//! The time of an operation, computed from its size.

use spipe_base::{Bytes, Seconds};
use spipe_hardware::{DataType, Device};
use spipe_model::{Attention, Op};

/// The conditions under which operations run on one device.
pub(crate) struct Roofline<'a> {
    pub device: &'a Device,
    pub data_type: DataType,
    /// Bytes of one element in memory.
    pub element: u64,
    pub attention: Attention,
}

impl Roofline<'_> {
    /// Returns `launch floor × kernels + max(FLOPs ÷ rate, bytes ÷ bandwidth)`; `None` if the
    /// device has no peak for the data type.
    pub fn time(&self, op: &Op) -> Option<Seconds> {
        let bytes = Bytes::new(op.elements_moved(self.attention) * self.element);
        let rate = match op {
            Op::MatMul { .. } => self.device.matvec_rate(bytes),
            _ => self.device.elementwise_rate(bytes),
        };
        let moving = if bytes == Bytes::ZERO { Seconds::ZERO } else { bytes / rate };
        let flops = op.flops();
        let computing = match op {
            Op::Elementwise { .. } => Seconds::ZERO,
            _ if flops.get() == 0.0 => Seconds::ZERO,
            _ => flops / self.device.matmul_rate(self.data_type, flops)?,
        };
        Some(self.device.launch_floor * f64::from(op.kernels(self.attention)) + moving.max(computing))
    }

    /// Returns the bytes that the operations move through memory.
    pub fn traffic(&self, ops: &[Op]) -> Bytes {
        ops.iter().map(|op| Bytes::new(op.elements_moved(self.attention) * self.element)).sum()
    }

    /// Returns the sum of the operations' times.
    pub fn total(&self, ops: &[Op]) -> Option<Seconds> {
        ops.iter().map(|op| self.time(op)).sum()
    }
}
