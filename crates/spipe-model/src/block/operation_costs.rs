//! The bytes and the work of a block's single operations, if their outputs are recomputed in the
//! backward instead of saved.
//!
//! ```text
//! operation    elements not saved, per token           work repeated
//! attention    o, and its row sums or scores           the attention
//! norms        outputs of the norms before products    these norms, rotated queries and keys
//! activation   f                                       the activation function
//! gate, up     f each                                  one product each
//! mlp          3·f | 2·f; with experts 2·k·h more      products and activation; all experts
//! qkv          q + 2c, and latent vectors              projections, and the rotation
//! output       h (none if branches are parallel)       the projection and the sum
//! block        all but its input                       the whole forward (in the layer)
//! ```
//!
//! The letters are those of the module `block_memory`. Megatron-LM's `--recompute-modules` and selective
//! checkpoints of PyTorch choose among such operations.

use crate::{
    Attention, Batch, Block, NormPlaces, Operation, Operations, Precision,
    work::{LayerWork, Op, product, sum},
};
use spipe_base::Bytes;

impl Block {
    /// Returns the bytes that are not saved if the outputs of `operations` are recomputed.
    pub(crate) fn unsaved_by(
        &self,
        operations: Operations,
        (batch, precision, attention): (Batch, Precision, Attention),
    ) -> Bytes {
        let when = |operation, elements: u64| if operations.has(operation) { elements } else { 0 };
        let inner = self.inner_elements(batch.tokens());
        let gates = self.mlp.inputs().saturating_sub(1);
        let behind = u64::from(matches!(self.norms, NormPlaces::After | NormPlaces::Around));
        let stream = u64::from(!self.parallel_residual);
        let width = sum(&[
            when(Operation::Attention, self.attended_width()),
            when(Operation::Norms, self.normalised_width()),
            when(Operation::Qkv, self.qkv_width() + self.latent_width()),
            when(Operation::Output, (stream + behind) * self.hidden),
        ]);
        let elements = sum(&[
            product(&[batch.tokens(), width]),
            when(Operation::Activation, inner),
            when(Operation::Gate, product(&[gates, inner])),
            when(Operation::Up, inner),
            when(Operation::Mlp, self.gathered_elements(batch.tokens())),
        ]);
        let scores = when(Operation::Attention, self.score_bytes(batch, precision, attention));
        Bytes::new(sum(&[product(&[elements, precision.bytes()]), scores]))
    }

    /// Returns the forward of `operations`, which the backward repeats, on tokens of sequences of length `context`.
    pub(crate) fn repeated_work(&self, operations: Operations, (batch, context): (Batch, u64)) -> Vec<Op> {
        let has = |operation| operations.has(operation);
        let tokens = batch.tokens();
        let (turned, residual) =
            (product(&[tokens, self.query_width() + self.kv_width()]), product(&[tokens, self.hidden]));
        let mut work = Vec::new();
        if has(Operation::Norms) {
            work.extend(self.norm_work(batch));
        }
        if has(Operation::Qkv) {
            work.extend(self.attention_inputs().iter().map(|linear| Op::matmul(tokens, linear.outputs, linear.inputs)));
            work.extend(self.turning(turned));
        }
        if has(Operation::Attention) {
            work.extend(self.attention_work(batch, context));
        }
        if has(Operation::Output) && !self.parallel_residual {
            let linear = self.attention_output();
            work.push(Op::matmul(tokens, linear.outputs, linear.inputs));
            work.push(Op::elementwise(product(&[3, residual])));
        }
        if has(Operation::Mlp) && self.experts.is_some() {
            let mut all = LayerWork::default();
            self.feed_forward_by_experts(&mut all, tokens);
            work.extend(all.forward);
            return work;
        }
        work.extend(self.inner_products(operations, tokens));
        if has(Operation::Activation) {
            work.push(self.activation_work(batch));
        }
        work
    }

    /// Returns the products before the activation function that `operations` has.
    fn inner_products(&self, operations: Operations, tokens: u64) -> Vec<Op> {
        let mut networks = Vec::new();
        match self.experts {
            None => networks.push((1, tokens, self.intermediate)),
            Some(experts) => {
                let (busy, rows) = (experts.busy(tokens), experts.rows(tokens));
                networks.push((busy, rows.div_ceil(busy), self.intermediate));
                networks.extend((experts.shared > 0).then_some((1, tokens, experts.shared)));
            }
        }
        let chosen = |name: &str| match name {
            "gate" => operations.has(Operation::Gate),
            "up" => operations.has(Operation::Up),
            _ => false,
        };
        let products = networks.into_iter().flat_map(|(batch, m, width)| {
            let linears = self.network(width).into_iter().filter(|linear| chosen(linear.name));
            linears.map(move |linear| Op::MatMul { batch, m, n: linear.outputs, k: linear.inputs })
        });
        products.collect()
    }
}
