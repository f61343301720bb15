//! Transformer blocks over pixels: self-attention, attention to the text, a gated feed-forward
//! network.

use super::{Matrix, Parameter, PassContext, Rest, linear, norm_parameters};
use burn::tensor::{
    Tensor,
    activation::{gelu, softmax},
};

/// A transformer block of some images with some heads.
pub(super) struct TransformerBlock<'a> {
    pub pass: &'a PassContext,
    pub images: usize,
    pub heads: usize,
}

/// Added to the variance of norms over the width.
const EPSILON: f64 = 1e-5;
/// Ratio of the feed-forward network's width to the block's.
const EXPANSION: u64 = 4;

/// The parameters of a block of `width` that reads text of width `text`.
pub(super) fn parameters(name: &str, width: u64, text: u64) -> Vec<Parameter> {
    let mut all = Vec::new();
    for (attention, source) in [("self", width), ("text", text)] {
        all.extend(norm_parameters(&format!("{name}.{attention}.norm"), width));
        let projections = [("query", width), ("key", source), ("value", source)];
        all.extend(projections.map(|(projection, inputs)| {
            Parameter::uniform(format!("{name}.{attention}.{projection}.weight"), [inputs, width], inputs)
        }));
        all.extend(Parameter::linear(&format!("{name}.{attention}.output"), width, width));
    }
    all.extend(norm_parameters(&format!("{name}.mlp.norm"), width));
    all.extend(Parameter::linear(&format!("{name}.mlp.up"), width, 2 * EXPANSION * width));
    all.extend(Parameter::linear(&format!("{name}.mlp.down"), EXPANSION * width, width));
    all
}

impl TransformerBlock<'_> {
    pub fn forward(&self, rest: &mut Rest<'_>, input: Matrix, text: &Matrix) -> Matrix {
        let normal = layer_norm(input.clone(), rest.pair());
        let input = input + self.attend(rest, normal.clone(), &normal);
        let normal = layer_norm(input.clone(), rest.pair());
        let input = input + self.attend(rest, normal, text);
        let normal = layer_norm(input.clone(), rest.pair());
        let inner = linear(self.pass, normal, rest.pair());
        let half = inner.dims()[1] / 2;
        let gated = inner.clone().narrow(1, 0, half) * gelu(inner.narrow(1, half, half));
        input + linear(self.pass, gated, rest.pair())
    }

    /// Attention of each row to the rows of `source` of the same image.
    fn attend(&self, rest: &mut Rest<'_>, input: Matrix, source: &Matrix) -> Matrix {
        let [rows, width] = input.dims();
        let projections = rest.take(3);
        let by_head = |matrix: &Matrix, weight: &Matrix| -> Tensor<4> {
            let tokens = matrix.dims()[0] / self.images;
            let heads = [self.images, tokens, self.heads, width / self.heads];
            self.pass.multiply(matrix.clone(), weight.clone()).reshape(heads).swap_dims(1, 2)
        };
        let queries = by_head(&input, &projections[0]) * (self.heads as f64 / width as f64).sqrt();
        let (keys, values) = (by_head(source, &projections[1]), by_head(source, &projections[2]));
        let found = softmax(queries.matmul(keys.swap_dims(2, 3)), 3).matmul(values);
        linear(self.pass, found.swap_dims(1, 2).reshape([rows, width]), rest.pair())
    }
}

fn layer_norm(input: Matrix, parameters: &[Matrix]) -> Matrix {
    let centred = input.clone() - input.mean_dim(1);
    let spread = (centred.clone().square().mean_dim(1) + EPSILON).sqrt();
    centred / spread * parameters[0].clone() + parameters[1].clone()
}
