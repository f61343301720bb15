//! The work of a transformer block.
//!
//! With t tokens, hidden h, query width q, key width c and intermediate f, the forward takes
//! 2t·h(q+2c) + 2t·q·h + attention + 2t·h·f for each matrix of the feed-forward network. The
//! backward of each matrix product has one product of the same size for the input gradient and one
//! for the weight gradient. For a GPT block (q = c = h, f = 4h) this is Zero Bubble's Table 1
//! (arXiv 2401.10241): F = sbh(24h + 4s), B = sbh(24h + 8s), W = 24sbh².

use crate::{
    Batch, Block, Experts, Latent, Linear, Mlp, NormPlaces, Positions, Precision, QkNorm,
    work::{LayerWork, Op, product},
};
use spipe_base::Bytes;

impl LayerWork {
    /// Adds a product of `m` rows of width `k` with a `k` × `n` weight, and its two gradients.
    pub(crate) fn linear(&mut self, batch: u64, m: u64, (n, k): (u64, u64)) {
        self.forward.push(Op::MatMul { batch, m, n, k });
        self.backward_input.push(Op::MatMul { batch, m, n: k, k: n });
        self.backward_weight.push(Op::MatMul { batch, m: k, n, k: m });
    }

    /// Adds the gradient of a bias: a sum over `m` rows of width `n`.
    pub(crate) fn bias(&mut self, m: u64, n: u64) {
        self.backward_weight.push(Op::elementwise(product(&[m, n])));
    }

    /// Adds a norm over `elements`. The forward reads and writes them. The backward reads input and
    /// gradient and writes a gradient. The weight gradient reads input and gradient.
    pub(crate) fn norm(&mut self, elements: u64) {
        self.forward.push(Op::elementwise(product(&[2, elements])));
        self.backward_input.push(Op::elementwise(product(&[3, elements])));
        self.backward_weight.push(Op::elementwise(product(&[2, elements])));
    }

    /// Adds a sum of `terms` tensors of `elements` each. The backward sums the same number of
    /// gradients.
    pub(crate) fn add(&mut self, terms: u64, elements: u64) {
        self.forward.push(Op::elementwise(product(&[terms + 1, elements])));
        self.backward_input.push(Op::elementwise(product(&[terms + 1, elements])));
    }

    /// Adds a read and a write of `elements` in both directions: a gather, a scatter, or dropout,
    /// whose mask of one byte per element is neglected.
    pub(crate) fn copy(&mut self, elements: u64) {
        self.forward.push(Op::elementwise(product(&[2, elements])));
        self.backward_input.push(Op::elementwise(product(&[2, elements])));
    }
}

impl LayerWork {
    /// Adds `networks` products of `rows` rows each with a matrix of a block, and its bias.
    fn matrix(&mut self, networks: u64, rows: u64, linear: &Linear) {
        self.linear(networks, rows, (linear.outputs, linear.inputs));
        if linear.bias {
            self.bias(networks.saturating_mul(rows), linear.outputs);
        }
    }
}

impl Experts {
    /// The rows of the busiest of several devices that divide experts, relative to an even distribution. Estimate: the
    /// smallest capacity with which routers that train a balance lose few tokens (Fedus et al. 2021, Switch Transformers,
    /// arXiv 2101.03961, section 2.2 and table 1: 1.25).
    pub const LOAD: f64 = 1.25;

    /// Returns the number of experts of a device.
    pub fn held(&self) -> u64 {
        self.count / u64::from(self.devices)
    }

    /// Returns the rows of the experts of a device, the busiest one, where each of those that divide them has `tokens`.
    pub fn rows(&self, tokens: u64) -> u64 {
        let even = tokens.saturating_mul(self.per_token);
        if self.devices > 1 { (even as f64 * Self::LOAD).ceil() as u64 } else { even }
    }

    /// Returns the number of experts of a device that the tokens of a microbatch reach if they are distributed
    /// evenly; at least one.
    pub fn busy(&self, tokens: u64) -> u64 {
        self.held().min(tokens.saturating_mul(self.per_token)).max(1)
    }

    /// Returns the expected number of experts that `tokens` reach if each of them draws its k different
    /// ones of E uniformly: E·(1 − (1 − k/E)^T). A token misses an expert with probability 1 − k/E, and
    /// expectations add (the occupancy problem; Johnson and Kotz, Urn Models, 1977, chapter 3).
    pub fn touched(&self, tokens: u64) -> f64 {
        let count = self.count as f64;
        let missed = (1.0 - self.per_token as f64 / count).max(0.0);
        count * (1.0 - missed.powf(tokens as f64))
    }
}

impl Block {
    /// Returns the work of one microbatch.
    pub fn work(&self, batch: Batch) -> LayerWork {
        self.work_within(batch, batch.seq_len)
    }

    /// Returns the forward of one new token per sequence, which attends to the keys of
    /// `batch.seq_len` tokens including its own; the others come from the cache.
    ///
    /// Latent attention multiplies queries and outputs by the matrix that expands keys and values, in
    /// place of expanding the cache: as many operations as for one token's keys and values (DeepSeek-V2,
    /// section 2.1.2).
    pub fn generate(&self, batch: Batch) -> Vec<Op> {
        self.work_within(Batch { seq_len: 1, ..batch }, batch.seq_len).forward
    }

    /// Returns the bytes of the keys and values of one microbatch, which are read to generate the
    /// next token: 2·t·c numbers, where t counts the tokens within the sliding window. Latent
    /// attention caches its narrow vector and the rotated channels.
    pub fn cache(&self, batch: Batch, precision: Precision) -> Bytes {
        let tokens = product(&[batch.microbatch, self.keys(batch.seq_len)]);
        let width = self.latent.map_or(2 * self.kv_width(), |latent| latent.kv_rank + latent.rotary);
        Bytes::new(product(&[tokens, width, precision.bytes()]))
    }

    /// Returns the work on `batch`, whose tokens are the last of sequences of length `context`, or those of a device that
    /// has an even share of them.
    pub(crate) fn work_within(&self, batch: Batch, context: u64) -> LayerWork {
        let mut work = LayerWork::default();
        let residual = product(&[batch.tokens(), self.hidden]);
        self.modulate(&mut work, batch.microbatch, residual);
        if matches!(self.norms, NormPlaces::Before | NormPlaces::Shared | NormPlaces::Around) {
            work.norm(residual);
        }
        self.attend(&mut work, batch, context);
        self.end_branch(&mut work, residual);
        if !self.parallel_residual {
            work.add(2, residual);
        }
        if self.norms != NormPlaces::Shared && self.norms != NormPlaces::After {
            work.norm(residual);
        }
        match self.experts {
            None => self.feed_forward(&mut work, 1, batch.tokens(), self.intermediate),
            Some(_) => self.feed_forward_by_experts(&mut work, batch.tokens()),
        }
        self.end_branch(&mut work, residual);
        work.add(if self.parallel_residual { 3 } else { 2 }, residual);
        if self.norms == NormPlaces::AfterSum {
            work.norm(residual);
        }
        // Autograd runs a backward from the last operation to the first.
        work.backward_input.reverse();
        work.backward_weight.reverse();
        work
    }

    /// Adds the norm, the learned scale and the dropout behind a branch.
    fn end_branch(&self, work: &mut LayerWork, residual: u64) {
        if matches!(self.norms, NormPlaces::After | NormPlaces::Around) {
            work.norm(residual);
        }
        if self.layer_scale {
            work.copy(residual);
            work.backward_weight.push(Op::elementwise(product(&[2, residual])));
        }
        if self.dropout {
            work.copy(residual);
        }
    }

    fn attend(&self, work: &mut LayerWork, batch: Batch, context: u64) {
        let tokens = batch.tokens();
        for linear in self.attention_inputs() {
            work.matrix(1, tokens, &linear);
        }
        for width in self.latent.iter().flat_map(|latent| latent.query_rank.into_iter().chain([latent.kv_rank])) {
            work.norm(product(&[tokens, width]));
        }
        let turned = product(&[tokens, self.query_width() + self.kv_width()]);
        if self.qk_norm != QkNorm::None {
            work.norm(turned);
        }
        work.forward.extend(self.turning(turned));
        work.backward_input.extend(self.turning(turned));
        work.forward.push(self.attention(batch, context, false));
        work.backward_input.push(self.attention(batch, context, true));
        work.matrix(1, tokens, &self.attention_output());
    }

    /// With latent attention, a head is as wide as the mean of its keys and values, and an expanded
    /// cache is the narrow vector itself.
    fn attention(&self, batch: Batch, context: u64, backward: bool) -> Op {
        let (kv_heads, head_dim) = match self.latent {
            None => (self.kv_heads, self.head_dim),
            Some(latent) if batch.seq_len < context => (1, (2 * latent.kv_rank + latent.rotary).div_ceil(2)),
            Some(latent) => (self.kv_heads, (self.head_dim + latent.value_dim).div_ceil(2)),
        };
        Op::Attention {
            batch: batch.microbatch,
            heads: self.heads,
            kv_heads,
            seq_q: batch.seq_len,
            seq_k: self.keys(context),
            head_dim,
            // A single token is the last one and attends to all.
            causal: self.causal && batch.seq_len > 1,
            backward,
        }
    }

    /// Adds `networks` feed-forward networks of `rows` tokens each.
    fn feed_forward(&self, work: &mut LayerWork, networks: u64, rows: u64, intermediate: u64) {
        let mut linears = self.network(intermediate);
        let down = linears.pop();
        for linear in linears {
            work.matrix(networks, rows, &linear);
        }
        let inner = product(&[networks, rows, intermediate]);
        // The forward reads each input and writes one product. The backward reads inputs and
        // gradient and writes a gradient per input.
        let inputs = self.mlp.inputs();
        work.forward.push(Op::elementwise(product(&[inputs + 1, inner])));
        work.backward_input.push(Op::elementwise(product(&[2 * inputs + 1, inner])));
        if let Some(linear) = down {
            work.matrix(networks, rows, &linear);
        }
    }

    /// Adds a router, a gather, the experts and a weighted sum, and the network that all tokens share.
    /// The router is assumed to distribute the tokens evenly, rounded up to whole tokens. If fewer rows
    /// (tokens times experts per token) than experts exist, only one expert per row works.
    pub(crate) fn feed_forward_by_experts(&self, work: &mut LayerWork, tokens: u64) {
        let Some(experts) = self.experts else { return };
        work.linear(1, tokens, (experts.count, self.hidden));
        let choices = product(&[tokens, experts.count]);
        if experts.router_bias {
            work.bias(tokens, experts.count);
        }
        work.forward.push(Op::Elementwise { elements: product(&[3, choices]), kernels: 2 });
        work.backward_input.push(Op::Elementwise { elements: product(&[3, choices]), kernels: 2 });
        let rows = experts.rows(tokens);
        let gathered = product(&[rows, self.hidden]);
        work.copy(gathered);
        let busy = experts.busy(tokens);
        self.feed_forward(work, busy, rows.div_ceil(busy), self.intermediate);
        work.copy(gathered);
        if experts.shared > 0 {
            self.feed_forward(work, 1, tokens, experts.shared);
            if experts.shared_gate {
                work.linear(1, tokens, (1, self.hidden));
                work.copy(product(&[tokens, self.hidden]));
            }
            work.add(2, product(&[tokens, self.hidden]));
        }
    }

    /// Returns the work of a selective recompute with fused attention: all norms before the branches,
    /// the rotation of normalised queries and keys, and the activation function.
    pub(crate) fn cheap_work(&self, batch: Batch) -> Vec<Op> {
        let mut work = self.norm_work(batch);
        work.push(self.activation_work(batch));
        work
    }

    /// Returns the forward of the activation function of all networks.
    pub(crate) fn activation_work(&self, batch: Batch) -> Op {
        Op::elementwise(product(&[self.mlp.inputs() + 1, self.inner_elements(batch.tokens())]))
    }

    /// Returns the forward of all norms before products, and the rotation of normalised queries and
    /// keys.
    pub(crate) fn norm_work(&self, batch: Batch) -> Vec<Op> {
        let residual = product(&[batch.tokens(), self.hidden]);
        let before = match self.norms {
            NormPlaces::Shared => 1,
            NormPlaces::After => 0,
            NormPlaces::Before | NormPlaces::Around | NormPlaces::AfterSum => 2,
        };
        let mut work = vec![Op::elementwise(product(&[2, residual])); before];
        if let Some(latent) = self.latent {
            let width = latent.query_rank.unwrap_or(0) + latent.kv_rank;
            work.push(Op::elementwise(product(&[2, batch.tokens(), width])));
        }
        if self.qk_norm != QkNorm::None {
            let turned = product(&[batch.tokens(), self.query_width() + self.kv_width()]);
            work.push(Op::elementwise(product(&[2, turned])));
            work.extend(self.turning(turned));
        }
        work
    }

    /// Returns the rotation of queries and keys, if there is one.
    pub(crate) fn turning(&self, turned: u64) -> Option<Op> {
        let Positions::Rotary { fraction, .. } = self.positions else { return None };
        let fraction = self.latent.map_or(fraction, |latent| latent.rotary as f64 / self.head_dim as f64);
        Some(Op::Elementwise { elements: (2.0 * turned as f64 * fraction) as u64, kernels: 2 })
    }

    /// Returns the forward of the attention alone, within sequences of length `context`.
    pub(crate) fn attention_work(&self, batch: Batch, context: u64) -> Vec<Op> {
        vec![self.attention(batch, context, false)]
    }

    /// Returns the block's part of a layer's signature.
    pub(crate) fn signature(&self) -> String {
        let mut words = vec![
            format!(
                "block h{} f{} a{} kv{} d{}",
                self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim
            ),
            if self.norm.centres() { "ln".into() } else { "rms".into() },
            // Activation functions cost the same.
            match self.mlp {
                Mlp::Swiglu | Mlp::GegluTanh => "swiglu".into(),
                Mlp::Gelu | Mlp::GeluTanh | Mlp::Relu => "gelu".into(),
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
            if experts.shared > 0 {
                words.push(format!("shared{}", experts.shared));
            }
            if experts.devices > 1 {
                words.push(format!("over{}", experts.devices));
            }
        }
        if let Some(Latent { query_rank, kv_rank, rotary, value_dim }) = self.latent {
            words.push(format!("latent q{} kv{kv_rank} r{rotary} v{value_dim}", query_rank.unwrap_or(0)));
        }
        if let Some(word) = self.norms.word() {
            words.push(word.into());
        }
        let flags = [
            (self.qkv_bias, "qkv-bias"),
            (self.output_bias, "output-bias"),
            (self.mlp_bias, "mlp-bias"),
            (self.qk_norm != QkNorm::None, "qk-norm"),
            (self.sinks, "sinks"),
            (self.score_cap.is_some(), "capped"),
            (self.layer_scale, "scaled"),
            (self.modulation.is_some(), "modulated"),
            (self.parallel_residual, "parallel"),
            (!self.causal, "full"),
            (self.dropout, "dropout"),
        ];
        words.extend(flags.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned()));
        words.join(" ")
    }
}
