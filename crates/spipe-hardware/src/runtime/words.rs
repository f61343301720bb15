//! The enumerations of runtime files.

use crate::words::{Word, words};
use serde::{Deserialize, Serialize};
use std::fmt;

words! {
    /// The rate of matrix products.
    ProductRates, "rate of products" {
        /// A function of the operations of a product ([`Efficiency`](crate::Efficiency)).
        Work = "work",
        /// A function of its smallest dimension ([`Efficiency::dimension_share`](crate::Efficiency)).
        SmallestDimension = "smallest-dimension",
    }
}

words! {
    /// The kernel of fused attention.
    AttentionKernel, "attention kernel" {
        /// At the rate of products; all scores count.
        Products = "products",
        /// Scores are written to memory; all of them count.
        Materialised = "materialised",
        /// FlashAttention (2022); causal halves count.
        Flash1 = "flash-1",
        /// FlashAttention 2 (2023) and its kin.
        Flash2 = "flash-2",
        /// The fastest kernel of 2025: FlashAttention 3 on Hopper, cuDNN on Blackwell.
        Flash3 = "flash-3",
    }
}

words! {
    /// When the backward gathers the parameters of the next stage, where they are sharded (PyTorch,
    /// `torch.distributed.fsdp.BackwardPrefetch`).
    BackwardPrefetch, "prefetch in the backward" {
        /// Before the gradients of the stage at hand are computed, so that it runs beside them.
        Pre = "pre",
        /// After they are computed.
        Post = "post",
    }
}

words! {
    /// The kernels of norms, activation functions and sums.
    NormKernel, "kind of elementwise kernels" {
        /// One kernel for each, which reads and writes once.
        Fused = "fused",
        /// Casts, biases and masks are kernels of their own.
        Unfused = "unfused",
        /// Fused, and gradients of an activation function overwrite its inputs, as Liger's do.
        InPlace = "in-place",
    }
}

words! {
    /// The kernels of the loss.
    LossKernel, "kind of loss" {
        /// Logits in 32 bits, read twice.
        Fused = "fused",
        /// Casts, normaliser and gradient are kernels of their own.
        Unfused = "unfused",
        /// Unfused, and the gradient in 32 bits overwrites the probabilities, as Megatron's does.
        InPlace = "in-place",
        /// Fused, with logits in 16 bits whose gradient overwrites them, as FlashAttention's does.
        FusedInPlace = "fused-in-place",
        /// Logits of one chunk of tokens at a time.
        Chunked = "chunked",
    }
}

words! {
    /// A kind of collective.
    CollectiveKind, "collective" {
        /// Every participant receives the sum of all.
        AllReduce = "all-reduce",
        /// Every participant receives the parts of all.
        AllGather = "all-gather",
        /// Every participant receives its part of the sum.
        ReduceScatter = "reduce-scatter",
    }
}

words! {
    /// The rate of collectives.
    CollectiveRates, "rate of collectives" {
        /// Rings over the links of the machine.
        Rings = "rings",
        /// Bus bandwidth and latency as the machine states them; rings where it does not.
        Measured = "measured",
    }
}
