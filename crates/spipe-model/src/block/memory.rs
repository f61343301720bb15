//! The memory of a transformer block: activations saved for the backward, and workspace within a
//! pass.
//!
//! Elements saved for t tokens of b sequences of length s, with a heads that each attend to s keys,
//! and the widths of [`Block`]: hidden h, queries q, keys c, intermediate f.
//!
//! ```text
//! saved                           elements    bytes    recomputed by a selective recompute
//! input of the first norm         t·h         e        no: the layer's input
//! output of the first norm        t·h         e        when fused
//! queries, keys, values           t·(q+2c)    e        no
//! queries, keys before their norm t·(q+c)     e        when fused (the normalised ones)
//! softmax                         b·a·s·s     e        when materialised
//! row sums of the softmax         b·a·s       4        no (instead of the softmax when fused)
//! softmax mask, masked softmax    b·a·s·s     1 + e    when materialised (with dropout only)
//! attention output                t·o         e        no (o = q, or a·v if values are v wide)
//! mask of the attention branch    t·h         1        when fused (with dropout only)
//! input of the second norm        t·h         e        no (shared with the first norm if parallel)
//! output of the second norm       t·h         e        when fused
//! inputs of the activation        2·t·f | t·f e        no (gate and up | up)
//! output of the activation        t·f         e        when fused
//! mask of the second branch       t·h         1        when fused (with dropout only)
//! ```
//!
//! With 16-bit numbers (e = 2) and dropout, a GPT block (q = c = h = a·d, f = 4h) with materialised
//! scores keeps sbh(34 + 5as/h) bytes, and 34sbh after a selective recompute: Korthikanti et al.
//! 2022 (arXiv 2205.05198), equations 1 and 6. With fused attention, the selective recompute of
//! norms, activation and masks leaves 20sbh (PipeOffload, arXiv 2503.01328, section 3). As in these
//! papers, the means and deviations of norms are neglected.
//!
//! With experts, each token counts once per expert that it uses. The gathered inputs, the experts'
//! outputs and the router's probabilities (4 bytes each) are kept as well. A shared network adds to
//! the inner width.
//!
//! A norm behind a branch keeps that branch's output, and its own output is added without being kept.
//! Where one norm serves both branches, its output is kept once. Latent attention keeps its narrow
//! vectors too, and their norms as cheap ones.

use crate::{
    Attention, Batch, Block, NormPlaces, Precision, QkNorm, Recompute,
    work::{product, sum},
};
use spipe_base::Bytes;

impl Block {
    /// Returns the bytes saved between forward and backward, including the block's input.
    pub fn saved(&self, batch: Batch, precision: Precision, recompute: Recompute, attention: Attention) -> Bytes {
        let bytes = match recompute {
            Recompute::Full => product(&[batch.tokens(), self.hidden, precision.bytes()]),
            Recompute::None => sum(&[
                product(&[self.kept_elements(batch), precision.bytes()]),
                product(&[self.cheap_elements(batch), precision.bytes()]),
                self.mask_bytes(batch),
                self.router_bytes(batch),
                self.score_bytes(batch, precision, attention),
            ]),
            Recompute::Selective => {
                let kept = sum(&[product(&[self.kept_elements(batch), precision.bytes()]), self.router_bytes(batch)]);
                match attention {
                    Attention::Fused => sum(&[kept, self.score_bytes(batch, precision, attention)]),
                    Attention::Materialised => {
                        sum(&[kept, product(&[self.cheap_elements(batch), precision.bytes()]), self.mask_bytes(batch)])
                    }
                }
            }
        };
        Bytes::new(bytes)
    }

    /// Elements that only a full recompute discards.
    fn kept_elements(&self, batch: Batch) -> u64 {
        let streams = if self.parallel_residual { 1 } else { 2 };
        // The inputs of norms behind the branches.
        let behind = if matches!(self.norms, NormPlaces::After | NormPlaces::Around) { 2 } else { 0 };
        let residual = (streams + behind) * self.hidden;
        let attend = self.qkv_width() + self.attended_width() + self.latent_width();
        let inner = product(&[self.mlp.inputs(), self.inner_elements(batch.tokens())]);
        sum(&[product(&[batch.tokens(), residual + attend]), self.gathered_elements(batch.tokens()), inner])
    }

    /// Elements that norms and the activation function recompute from the kept ones.
    fn cheap_elements(&self, batch: Batch) -> u64 {
        sum(&[product(&[batch.tokens(), self.normalised_width()]), self.inner_elements(batch.tokens())])
    }

    /// Width of the outputs of norms that are kept for the products behind them.
    pub(crate) fn normalised_width(&self) -> u64 {
        let before = match self.norms {
            NormPlaces::Shared => 1,
            NormPlaces::After => 0,
            NormPlaces::Before | NormPlaces::Around | NormPlaces::AfterSum => 2,
        };
        let turned = if self.qk_norm == QkNorm::None { 0 } else { self.query_width() + self.kv_width() };
        let latent = self.latent.map_or(0, |latent| latent.query_rank.unwrap_or(0) + latent.kv_rank);
        before * self.hidden + turned + latent
    }

    /// Width of the vectors from which latent attention computes queries, keys and values.
    pub(crate) fn latent_width(&self) -> u64 {
        self.latent.map_or(0, |latent| latent.query_rank.unwrap_or(0) + latent.kv_rank + latent.rotary)
    }

    /// The dropout masks of both branches, one byte per element.
    fn mask_bytes(&self, batch: Batch) -> u64 {
        if self.dropout { product(&[2, batch.tokens(), self.hidden]) } else { 0 }
    }

    fn router_bytes(&self, batch: Batch) -> u64 {
        self.experts.map_or(0, |experts| product(&[4, batch.tokens(), experts.count]))
    }

    /// Bytes saved by the attention itself.
    pub(crate) fn score_bytes(&self, batch: Batch, precision: Precision, attention: Attention) -> u64 {
        match attention {
            Attention::Fused => product(&[4, batch.tokens(), self.heads]),
            Attention::Materialised => {
                let dropped = if self.dropout { 1 + precision.bytes() } else { 0 };
                product(&[self.scores(batch), precision.bytes() + dropped])
            }
        }
    }

    /// The number of scores of materialised attention. Those outside a window are masked but still
    /// stored.
    fn scores(&self, batch: Batch) -> u64 {
        product(&[batch.tokens(), self.heads, batch.seq_len])
    }

    /// Returns the peak of buffers that live only within the backward: the gradients of the output
    /// and of the residual stream, plus the larger of
    ///
    /// - the gradients of the feed-forward network's inner tensors;
    /// - those of queries, keys, values and the attention output and, when materialised, of the
    ///   softmax and the scores.
    ///
    /// The forward needs less: its inner tensors are saved or become saved. Recomputed activations
    /// ([`Layer::recomputed`](crate::Layer::recomputed)) come on top.
    pub fn workspace(&self, batch: Batch, precision: Precision, attention: Attention) -> Bytes {
        self.largest_gradients((batch, precision, attention), self.mlp.inputs() + 1)
    }

    /// Returns the same for kernels whose gradients overwrite the inputs of the activation function:
    /// the feed-forward network then holds the gradient of the function's output alone.
    pub fn workspace_in_place(&self, batch: Batch, precision: Precision, attention: Attention) -> Bytes {
        self.largest_gradients((batch, precision, attention), 1)
    }

    /// The peak of gradients, with `inner` gradients of the intermediate width.
    fn largest_gradients(&self, (batch, precision, attention): (Batch, Precision, Attention), inner: u64) -> Bytes {
        let tokens = batch.tokens();
        let mlp = sum(&[product(&[inner, self.inner_elements(tokens)]), self.gathered_elements(tokens)]);
        let scores = match attention {
            Attention::Fused => 0,
            Attention::Materialised => product(&[2, self.scores(batch)]),
        };
        let attend = sum(&[product(&[tokens, self.qkv_width() + self.attended_width()]), scores]);
        Bytes::new(product(&[sum(&[product(&[2, tokens, self.hidden]), mlp.max(attend)]), precision.bytes()]))
    }
}
