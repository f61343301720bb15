//! The time of an operation, computed from its size.

use spipe_base::{Bytes, Flops, FlopsPerSecond, Seconds};
use spipe_hardware::{AttentionKernel, AttentionShape, Constant, DataType, Device, NormKernel, ProductRates, Runtime};
use spipe_model::{Attention, Op};

/// The conditions under which operations run on one device.
pub(crate) struct Roofline<'a> {
    pub device: &'a Device,
    pub data_type: DataType,
    /// The data type of matrix products.
    pub products: DataType,
    /// Bytes of one element in memory.
    pub element: u64,
    pub attention: Attention,
    pub kernel: AttentionKernel,
    pub runtime: &'a Runtime,
    /// The factor on the bytes of memory-bound operations, for kernels that are not fused.
    pub passes: f64,
}

/// The bytes that unfused kernels move, relative to fused ones: estimate from the kernels of an eager
/// block, where casts, biases and dropout masks each read and write their tensor once more.
pub(crate) const UNFUSED: f64 = 1.5;

impl Roofline<'_> {
    /// Returns `launch floor × kernels + max(FLOPs ÷ rate, bytes ÷ bandwidth)`; `None` if the
    /// device has no peak for the data type. Where the host's launches are counted
    /// (`launches`), the floor is theirs.
    pub fn time(&self, op: &Op) -> Option<Seconds> {
        let bytes = self.moved(op);
        let rate = match op {
            Op::MatMul { .. } => self.device.matvec_rate(bytes),
            _ => self.device.elementwise_rate(bytes),
        };
        let moving = if bytes == Bytes::ZERO { Seconds::ZERO } else { bytes / rate };
        let floor = if self.launches() { Seconds::ZERO } else { self.device.launch_floor };
        let kernels = f64::from(op.kernels(self.attention));
        let flops = op.flops();
        let busy = match op {
            Op::Elementwise { .. } => moving * self.passes,
            _ if flops.get() == 0.0 => moving,
            Op::Attention { .. } if self.by_dimension() => self.attention_time(op, moving)?,
            _ => moving.max(flops / self.product_rate(op, flops)?) + self.casting(op),
        };
        Some(floor * kernels + busy)
    }

    /// The bytes that an operation moves: operands of narrow products are read in their own type.
    fn moved(&self, op: &Op) -> Bytes {
        let elements = op.elements_moved(self.attention);
        match *op {
            Op::MatMul { batch, m, n, .. } if self.is_narrow() => {
                let result = batch.saturating_mul(m).saturating_mul(n);
                Bytes::new((elements - result) * self.products.bytes() + result * self.element)
            }
            _ => Bytes::new(elements * self.element),
        }
    }

    /// Whether products have a narrower type than what is stored.
    fn is_narrow(&self) -> bool {
        self.products.bytes() < self.element
    }

    /// The time to cast the rows of a narrow product: they are read as they are stored, and written in its type. Weights
    /// are cast once for all microbatches, and scales are those of passes before (delayed scaling; Micikevicius et al.
    /// 2022, FP8 formats for deep learning, arXiv 2209.05433; NVIDIA's Transformer Engine). Estimate: one cast for
    /// each product.
    fn casting(&self, op: &Op) -> Seconds {
        let Op::MatMul { batch, m, k, .. } = *op else { return Seconds::ZERO };
        if !self.is_narrow() {
            return Seconds::ZERO;
        }
        let rows = batch.saturating_mul(m).saturating_mul(k);
        let bytes = Bytes::new(rows.saturating_mul(self.element + self.products.bytes()));
        bytes / self.device.elementwise_rate(bytes)
    }

    /// Whether the device waits for its host: a real GPU under a runtime that states launches.
    pub fn launches(&self) -> bool {
        self.device.is_gpu() && !self.device.emulated && self.runtime.launch() > Seconds::ZERO
    }

    /// Whether the rates of products follow their smallest dimension.
    fn by_dimension(&self) -> bool {
        let measured = self.device.efficiency.matmul_points.contains_key(&self.products);
        let real = self.device.is_gpu() && !self.device.emulated && !measured;
        real && self.runtime.products() == ProductRates::SmallestDimension
    }

    fn product_rate(&self, op: &Op, flops: Flops) -> Option<FlopsPerSecond> {
        let factor = self.runtime.constant(Constant::Products);
        let rate = match op {
            Op::MatMul { m, n, k, .. } if self.by_dimension() => {
                self.share_of_peak((*m).min(*n).min(*k), self.products)?
            }
            Op::MatMul { .. } => self.device.matmul_rate(self.products, flops)?,
            _ => self.device.matmul_rate(self.data_type, flops)?,
        };
        FlopsPerSecond::new(rate.get() * factor)
    }

    fn share_of_peak(&self, dimension: u64, data_type: DataType) -> Option<FlopsPerSecond> {
        let peak = self.device.peak.get(&self.device.arithmetic_type(data_type)?)?;
        FlopsPerSecond::new(peak.get() * self.device.efficiency.dimension_share(dimension))
    }

    /// Returns the time of an attention by the runtime's kernel. A fused kernel skips the masked half
    /// of causal scores, and recomputes the scores in its backward: five products instead of four.
    /// Materialised scores are moved by kernels of their own, between the products.
    fn attention_time(&self, op: &Op, moving: Seconds) -> Option<Seconds> {
        let Op::Attention { batch, heads, seq_q, seq_k, head_dim, causal, backward, .. } = *op else {
            return Some(moving);
        };
        let factor = self.runtime.constant(Constant::Attention);
        let kernel = self.kernel;
        let fused = matches!(kernel, AttentionKernel::Flash1 | AttentionKernel::Flash2 | AttentionKernel::Flash3);
        if self.attention == Attention::Materialised || !fused {
            let rate = self.share_of_peak(seq_q.min(seq_k).min(head_dim), self.data_type)?;
            let computing = Seconds::s(op.flops().get() / (rate.get() * factor));
            let unfused = self.runtime.norms() == NormKernel::Unfused;
            let moving = if unfused { moving * UNFUSED } else { moving };
            return Some(if self.attention == Attention::Materialised {
                computing + moving
            } else {
                moving.max(computing)
            });
        }
        let peak = self.device.peak.get(&self.device.arithmetic_type(self.data_type)?)?;
        let shape =
            AttentionShape { heads: batch.saturating_mul(heads), head_dim, queries: seq_q, keys: seq_k, backward };
        let efficiency = &self.device.efficiency;
        let share = efficiency.attention.share(kernel, shape, efficiency.largest_share()) * efficiency.sustained;
        let counted = if causal { 0.5 } else { 1.0 } * if backward { 1.25 } else { 1.0 };
        let computing = Seconds::s(op.flops().get() * counted / (peak.get() * share * factor));
        Some(moving.max(computing))
    }

    /// Returns the bytes that the operations move through memory.
    pub fn traffic(&self, ops: &[Op]) -> Bytes {
        ops.iter().map(|op| self.moved(op)).sum()
    }

    /// Returns the sum of the operations' times.
    pub fn total(&self, ops: &[Op]) -> Option<Seconds> {
        ops.iter().map(|op| self.time(op)).sum()
    }
}
