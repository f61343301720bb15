//! Scores of queries and keys, softmax, and the weighted sum of values.

use super::{Matrix, cast, float, replay::Replayed, wide};
#[cfg(feature = "cube")]
use crate::nn::fused::{self, Heads, Softmax};
use burn::tensor::{Tensor, activation::softmax};
use std::ops::Range;

/// The tokens of each sequence, by position: those that are queries, and those that are keys.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub sequences: usize,
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Span {
    /// All tokens of sequences of that length.
    pub const fn whole((sequences, seq_len): (usize, usize)) -> Self {
        Self { sequences, queries: 0..seq_len, keys: 0..seq_len }
    }
}

/// The keys that a query sees.
#[derive(Clone, Copy, Debug)]
#[cfg(feature = "cube")]
pub(super) struct Seen {
    /// Whether it sees no later ones.
    pub causal: bool,
    /// Number of keys up to its own.
    pub window: usize,
}

/// Scores of queries and keys, softmax, and the weighted sum of values.
#[derive(Clone, Debug)]
pub(super) struct ScaledDotProduct {
    pub span: Span,
    pub heads: usize,
    /// Heads of keys and values; each is shared by `heads / key_heads` query heads.
    pub key_heads: usize,
    /// Channels of a head.
    pub width: usize,
    /// The bound of scores.
    pub cap: Option<f64>,
    #[cfg(feature = "cube")]
    pub seen: Seen,
    /// Added to the scores of every head.
    pub mask: Option<Tensor<4>>,
}

impl ScaledDotProduct {
    fn by_head(&self, matrix: Matrix, heads: usize, tokens: &Range<usize>) -> Tensor<4> {
        matrix.reshape([self.span.sequences, tokens.len(), heads, self.width]).swap_dims(1, 2)
    }

    fn by_token(&self, heads: Tensor<4>) -> Matrix {
        let [sequences, count, tokens, width] = heads.dims();
        heads.swap_dims(1, 2).reshape([sequences * tokens, count * width])
    }

    fn scale(&self) -> f64 {
        1.0 / (self.width as f64).sqrt()
    }

    /// Scaled queries, and keys and values repeated for every query head.
    fn heads(&self, [queries, keys, values]: [Matrix; 3]) -> [Tensor<4>; 3] {
        let queries = self.by_head(queries * self.scale(), self.heads, &self.span.queries);
        let each = |matrix| self.for_each_query_head(self.by_head(matrix, self.key_heads, &self.span.keys));
        [queries, each(keys), each(values)]
    }

    /// The scores in f32, bounded if there is a bound, and their slopes by the unbounded ones.
    fn scores(&self, queries: &Tensor<4>, keys: &Tensor<4>) -> (Tensor<4>, Option<Tensor<4>>) {
        let scores = wide(queries.clone().matmul(keys.clone().swap_dims(2, 3)));
        let Some(cap) = self.cap else { return (scores, None) };
        let share = (scores / cap).tanh();
        (share.clone() * cap, Some(share.square().neg() + 1.0))
    }

    /// The probabilities in f32.
    fn shares(&self, scores: Tensor<4>) -> Tensor<4> {
        softmax(
            match &self.mask {
                Some(mask) => scores + mask.clone(),
                None => scores,
            },
            3,
        )
    }

    /// Key or value heads, each repeated for the query heads that share it.
    fn for_each_query_head(&self, heads: Tensor<4>) -> Tensor<4> {
        let share = self.heads / self.key_heads;
        if share == 1 {
            return heads;
        }
        let [sequences, count, tokens, width] = heads.dims();
        heads.reshape([sequences, count, 1, tokens, width]).expand([sequences, count, share, tokens, width]).reshape([
            sequences,
            count * share,
            tokens,
            width,
        ])
    }

    /// Gradients of key or value heads, summed over the query heads that share each.
    fn for_each_key_head(&self, gradients: Tensor<4>) -> Tensor<4> {
        let share = self.heads / self.key_heads;
        if share == 1 {
            return gradients;
        }
        let [sequences, count, tokens, width] = gradients.dims();
        let shared: Tensor<5> = gradients.reshape([sequences, count / share, share, tokens, width]);
        shared.sum_dim(2).reshape([sequences, count / share, tokens, width])
    }
}

impl Replayed<3> for ScaledDotProduct {
    fn value(&self, inputs: [Matrix; 3]) -> Matrix {
        #[cfg(feature = "cube")]
        if fused::is_on_gpu(&inputs[0]) {
            return self.value_on_gpu(inputs);
        }
        let [queries, keys, values] = self.heads(inputs);
        let (scores, _) = self.scores(&queries, &keys);
        let shares = cast(self.shares(scores), float(values.dtype()));
        self.by_token(shares.matmul(values))
    }

    /// With P = softmax of the scores S and Y = P V: dV = Pᵀ dY, dP = dY Vᵀ, dS = P (dP − Σ dP P),
    /// dQ = dS K, dK = dSᵀ Q. A bound of scores multiplies dS by 1 − tanh².
    fn gradients(&self, inputs: [Matrix; 3], gradient: Matrix) -> [Matrix; 3] {
        #[cfg(feature = "cube")]
        if fused::is_on_gpu(&inputs[0]) {
            return self.gradients_on_gpu(inputs, gradient);
        }
        let shapes = inputs.each_ref().map(Tensor::dims);
        let [queries, keys, values] = self.heads(inputs);
        let gradient = self.by_head(gradient, self.heads, &self.span.queries);
        let width = float(values.dtype());
        let (scores, slopes) = self.scores(&queries, &keys);
        let shares = self.shares(scores);
        let of_shares = wide(gradient.clone().matmul(values.swap_dims(2, 3)));
        let across = (of_shares.clone() * shares.clone()).sum_dim(3);
        let of_scores = (of_shares - across) * shares.clone();
        let of_scores = match slopes {
            Some(slopes) => of_scores * slopes,
            None => of_scores,
        };
        let of_scores = cast(of_scores, width);
        let of_values = cast(shares, width).swap_dims(2, 3).matmul(gradient);
        let of_keys = of_scores.clone().swap_dims(2, 3).matmul(queries);
        let of_queries = self.by_token(of_scores.matmul(keys)) * self.scale();
        let by_token = |heads| self.by_token(self.for_each_key_head(heads));
        let (of_keys, of_values) = (by_token(of_keys), by_token(of_values));
        // Rows may be those of heads instead of tokens.
        [of_queries.reshape(shapes[0]), of_keys.reshape(shapes[1]), of_values.reshape(shapes[2])]
    }
}

/// Heads, softmax and its gradient by kernels of a GPU, between products.
#[cfg(feature = "cube")]
impl ScaledDotProduct {
    fn softmax(&self) -> Softmax {
        let Span { queries, keys, .. } = &self.span;
        Softmax {
            cap: self.cap.map(|cap| cap as f32),
            queries: queries.len(),
            first_query: queries.start - keys.start,
            window: self.seen.window,
            causal: self.seen.causal,
        }
    }

    /// The heads of queries, which are scaled before the product in case fp16 is narrow, of their
    /// gradient, and of keys or values.
    fn shapes(&self) -> [Heads; 3] {
        let Self { span, heads, key_heads, width, .. } = self;
        let own = Heads {
            sequences: span.sequences,
            count: *heads,
            share: 1,
            tokens: span.queries.len(),
            width: *width,
            scale: self.scale(),
        };
        [
            own,
            Heads { scale: 1.0, ..own },
            Heads { tokens: span.keys.len(), share: heads / key_heads, scale: 1.0, ..own },
        ]
    }

    fn value_on_gpu(&self, [queries, keys, values]: [Matrix; 3]) -> Matrix {
        let [of_queries, of_output, of_keys] = self.shapes();
        let [keys, values] = [keys, values].map(|rows| on_gpu(fused::split(of_keys, &rows)));
        let queries = on_gpu(fused::split(of_queries, &queries));
        let shares = on_gpu(fused::shares(self.softmax(), &queries.matmul(keys.swap_dims(2, 3))));
        on_gpu(fused::joined(of_output, &shares.matmul(values)))
    }

    fn gradients_on_gpu(&self, inputs: [Matrix; 3], gradient: Matrix) -> [Matrix; 3] {
        let shapes = inputs.each_ref().map(Tensor::dims);
        let [queries, keys, values] = inputs;
        let [of_queries, of_output, of_keys] = self.shapes();
        let [keys, values] = [keys, values].map(|rows| on_gpu(fused::split(of_keys, &rows)));
        let queries = on_gpu(fused::split(of_queries, &queries));
        let gradient = on_gpu(fused::split(of_output, &gradient));
        let scores = queries.clone().matmul(keys.clone().swap_dims(2, 3));
        let of_shares = gradient.clone().matmul(values.swap_dims(2, 3));
        let [shares, of_scores] = on_gpu(fused::score_gradients(self.softmax(), [&scores, &of_shares]));
        let value_heads = shares.swap_dims(2, 3).matmul(gradient);
        let key_heads = of_scores.clone().swap_dims(2, 3).matmul(queries);
        let found = [(of_queries, of_scores.matmul(keys)), (of_keys, key_heads), (of_keys, value_heads)];
        let [queries, keys, values] = found.map(|(shape, heads)| on_gpu(fused::joined(shape, &heads)));
        // Rows may be those of heads instead of tokens.
        [queries.reshape(shapes[0]), keys.reshape(shapes[1]), values.reshape(shapes[2])]
    }
}

/// The result of a kernel on tensors of which one is known to be on a GPU.
#[cfg(feature = "cube")]
fn on_gpu<T>(found: Option<T>) -> T {
    found.expect("all are on the device of the queries")
}

#[cfg(test)]
mod tests {
    use super::{super::replay::tests::derives, *};
    use crate::device::cores;
    use burn::tensor::TensorData;

    #[test]
    fn the_mix_derives_as_its_operations_do() {
        for (key_heads, masked, cap) in [(4, false, None), (2, true, None), (1, true, None), (2, true, Some(0.7))] {
            let span = Span { sequences: 2, queries: 1..6, keys: 0..6 };
            let row = |query: usize| (0..6).map(move |key| if key > query + 1 { f32::NEG_INFINITY } else { 0.0 });
            let numbers: Vec<f32> = (0..5).flat_map(row).collect();
            let mask = masked.then(|| Tensor::from_data(TensorData::new(numbers, [1, 1, 5, 6]), &cores()));
            let mix = ScaledDotProduct {
                span,
                heads: 4,
                key_heads,
                width: 8,
                cap,
                #[cfg(feature = "cube")]
                seen: Seen { causal: true, window: 6 },
                mask,
            };
            derives(&mix, [[10, 32], [12, 8 * key_heads], [12, 8 * key_heads]]);
        }
    }
}
