//! What a transformer block computes.
//!
//! With t tokens, hidden h, query width q, key width c, intermediate f: forward 2t·h(q+2c) + 2t·q·h + attention + 2t·h·f for
//! each matrix of the feed-forward network. Each matrix product has one product of the same size for the input gradient and
//! one for the weight gradient. For a GPT block (q = c = h, f = 4h) that is Zero Bubble's Table 1 (arXiv 2401.10241):
//! F = sbh(24h + 4s), B = sbh(24h + 8s), W = 24sbh².

use crate::{
    Batch, Block, Mlp, Norm, Positions, Precision,
    op::{LayerWork, Op, product},
};
use spipe_base::Bytes;

impl LayerWork {
    /// A product of `m` rows of width `k` with a weight of `k` × `n`, and its two gradients.
    pub(crate) fn linear(&mut self, batch: u64, m: u64, (n, k): (u64, u64)) {
        self.forward.push(Op::MatMul { batch, m, n, k });
        self.backward_input.push(Op::MatMul { batch, m, n: k, k: n });
        self.backward_weight.push(Op::MatMul { batch, m: k, n, k: m });
    }

    /// Sums the gradient of a bias over `m` rows of width `n`.
    pub(crate) fn bias(&mut self, m: u64, n: u64) {
        self.backward_weight.push(Op::elementwise(product(&[m, n])));
    }

    /// A norm over `elements`: forward reads and writes them, backward reads input and gradient and writes a gradient; the
    /// weight gradient reads input and gradient.
    pub(crate) fn norm(&mut self, elements: u64) {
        self.forward.push(Op::elementwise(product(&[2, elements])));
        self.backward_input.push(Op::elementwise(product(&[3, elements])));
        self.backward_weight.push(Op::elementwise(product(&[2, elements])));
    }

    /// A sum of `terms` tensors of `elements`; backward adds up as many gradients.
    pub(crate) fn add(&mut self, terms: u64, elements: u64) {
        self.forward.push(Op::elementwise(product(&[terms + 1, elements])));
        self.backward_input.push(Op::elementwise(product(&[terms + 1, elements])));
    }

    /// Reads and writes `elements`, both ways: a gather, a scatter, or dropout, whose mask of a byte each is neglected.
    pub(crate) fn copy(&mut self, elements: u64) {
        self.forward.push(Op::elementwise(product(&[2, elements])));
        self.backward_input.push(Op::elementwise(product(&[2, elements])));
    }
}

impl Block {
    /// The work of one microbatch.
    pub fn work(&self, batch: Batch) -> LayerWork {
        self.work_within(batch, batch.seq_len)
    }

    /// The forward of one token of each sequence, which meets the keys of `batch.seq_len` tokens, its own among them; the others'
    /// are in the cache.
    pub fn generate(&self, batch: Batch) -> Vec<Op> {
        self.work_within(Batch { seq_len: 1, ..batch }, batch.seq_len).forward
    }

    /// Bytes of the keys and values of one microbatch, which generating the next token reads: 2·t·c numbers, as many tokens of
    /// each sequence as a window lets be seen.
    pub fn cache(&self, batch: Batch, precision: Precision) -> Bytes {
        let tokens = product(&[batch.microbatch, self.keys(batch.seq_len)]);
        Bytes::new(product(&[2, tokens, self.kv_width(), precision.bytes()]))
    }

    /// The work on `batch`, whose tokens are the last of sequences of length `context`.
    fn work_within(&self, batch: Batch, context: u64) -> LayerWork {
        let mut work = LayerWork::default();
        let residual = product(&[batch.tokens(), self.hidden]);
        work.norm(residual);
        self.attend(&mut work, batch, context);
        if self.dropout {
            work.copy(residual);
        }
        if !self.parallel_residual {
            work.add(2, residual);
        }
        work.norm(residual);
        match self.experts {
            None => self.feed_forward(&mut work, 1, batch.tokens()),
            Some(_) => self.feed_forward_by_experts(&mut work, batch.tokens()),
        }
        if self.dropout {
            work.copy(residual);
        }
        work.add(if self.parallel_residual { 3 } else { 2 }, residual);
        // Autograd runs a backward from the last operation to the first.
        work.backward_input.reverse();
        work.backward_weight.reverse();
        work
    }

    fn attend(&self, work: &mut LayerWork, batch: Batch, context: u64) {
        let tokens = batch.tokens();
        work.linear(1, tokens, (self.qkv_width(), self.hidden));
        if self.qkv_bias {
            work.bias(tokens, self.qkv_width());
        }
        let turned = product(&[tokens, self.query_width() + self.kv_width()]);
        if self.qk_norm {
            work.norm(turned);
        }
        work.forward.extend(self.turning(turned));
        work.backward_input.extend(self.turning(turned));
        work.forward.push(self.attention(batch, context, false));
        work.backward_input.push(self.attention(batch, context, true));
        work.linear(1, tokens, (self.hidden, self.query_width()));
        if self.output_bias {
            work.bias(tokens, self.hidden);
        }
    }

    fn attention(&self, batch: Batch, context: u64, backward: bool) -> Op {
        Op::Attention {
            batch: batch.microbatch,
            heads: self.heads,
            kv_heads: self.kv_heads,
            seq_q: batch.seq_len,
            seq_k: self.keys(context),
            head_dim: self.head_dim,
            // A single token comes last and sees all.
            causal: self.causal && batch.seq_len > 1,
            backward,
        }
    }

    /// `networks` feed-forward networks of `rows` tokens each.
    fn feed_forward(&self, work: &mut LayerWork, networks: u64, rows: u64) {
        for _ in 0..self.mlp.inputs() {
            work.linear(networks, rows, (self.intermediate, self.hidden));
            if self.mlp_bias {
                work.bias(networks.saturating_mul(rows), self.intermediate);
            }
        }
        let inner = product(&[networks, rows, self.intermediate]);
        // Forward reads each input and writes one product; backward reads inputs and gradient, writes a gradient of each input.
        let inputs = self.mlp.inputs();
        work.forward.push(Op::elementwise(product(&[inputs + 1, inner])));
        work.backward_input.push(Op::elementwise(product(&[2 * inputs + 1, inner])));
        work.linear(networks, rows, (self.hidden, self.intermediate));
        if self.mlp_bias {
            work.bias(networks.saturating_mul(rows), self.hidden);
        }
    }

    /// A router, a gather, the experts and a weighted sum. The router is taken to share the tokens out evenly, rounded up
    /// to whole tokens; with fewer tokens than experts, as many experts work as there are tokens.
    fn feed_forward_by_experts(&self, work: &mut LayerWork, tokens: u64) {
        let Some(experts) = self.experts else { return };
        work.linear(1, tokens, (experts.count, self.hidden));
        let choices = product(&[tokens, experts.count]);
        work.forward.push(Op::Elementwise { elements: product(&[3, choices]), kernels: 2 });
        work.backward_input.push(Op::Elementwise { elements: product(&[3, choices]), kernels: 2 });
        let rows = tokens.saturating_mul(experts.per_token);
        let gathered = product(&[rows, self.hidden]);
        work.copy(gathered);
        let busy = experts.count.min(rows).max(1);
        self.feed_forward(work, busy, rows.div_ceil(busy));
        work.copy(gathered);
    }

    /// What a selective recompute of fused attention computes again: all norms, what turns normalised queries and keys, and the
    /// activation function.
    pub(crate) fn cheap_work(&self, batch: Batch) -> Vec<Op> {
        let residual = product(&[batch.tokens(), self.hidden]);
        let inner = product(&[batch.tokens(), self.networks_per_token(), self.intermediate]);
        let mut work = vec![
            Op::elementwise(product(&[2, residual])),
            Op::elementwise(product(&[2, residual])),
            Op::elementwise(product(&[self.mlp.inputs() + 1, inner])),
        ];
        if self.qk_norm {
            let turned = product(&[batch.tokens(), self.query_width() + self.kv_width()]);
            work.push(Op::elementwise(product(&[2, turned])));
            work.extend(self.turning(turned));
        }
        work
    }

    /// What gives queries and keys their places.
    fn turning(&self, turned: u64) -> Option<Op> {
        let Positions::Rotary { fraction, .. } = self.positions else { return None };
        Some(Op::Elementwise { elements: (2.0 * turned as f64 * fraction) as u64, kernels: 2 })
    }

    /// What a selective recompute of materialised attention computes again.
    pub(crate) fn attention_work(&self, batch: Batch) -> Vec<Op> {
        vec![self.attention(batch, batch.seq_len, false)]
    }

    /// The block's part of a layer's signature.
    pub(crate) fn signature(&self) -> String {
        let mut words = vec![
            format!(
                "block h{} f{} a{} kv{} d{}",
                self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim
            ),
            match self.norm {
                Norm::RmsNorm => "rms".into(),
                Norm::LayerNorm => "ln".into(),
            },
            match self.mlp {
                Mlp::Swiglu => "swiglu".into(),
                // They cost the same.
                Mlp::Gelu | Mlp::GeluTanh => "gelu".into(),
            },
        ];
        match self.positions {
            Positions::Rotary { fraction, .. } if fraction < 1.0 => words.push(format!("rotary{fraction}")),
            Positions::Rotary { .. } => words.push("rotary".into()),
            Positions::Alibi => words.push("alibi".into()),
            Positions::Learned { .. } | Positions::None => {}
        }
        if let Some(window) = self.sliding_window {
            words.push(format!("w{window}"));
        }
        if let Some(experts) = self.experts {
            words.push(format!("e{}/{}", experts.per_token, experts.count));
        }
        let flags = [
            (self.qkv_bias, "qkv-bias"),
            (self.output_bias, "output-bias"),
            (self.mlp_bias, "mlp-bias"),
            (self.qk_norm, "qk-norm"),
            (self.parallel_residual, "parallel"),
            (!self.causal, "full"),
            (self.dropout, "dropout"),
        ];
        words.extend(flags.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned()));
        words.join(" ")
    }
}
