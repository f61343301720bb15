//! A residual block with a time embedding, and the transformer over its pixels.

use super::{
    Matrix, Parameter, PassContext, Rest,
    attention::{self, TransformerBlock},
    convolution::{EPSILON, Images, convolution_parameters},
    linear, norm_parameters,
};
use burn::tensor::{Tensor, activation::silu};
use spipe_model::Denoising;

/// Both, as in diffusers' `ResnetBlock2D` and `Transformer2DModel`.
#[derive(Clone, Debug)]
pub(crate) struct DenoisingUnit(Denoising);

/// Added to the variance of the norm before the transformer.
const TRANSFORMER_EPSILON: f64 = 1e-6;

impl DenoisingUnit {
    pub const fn new(shape: &Denoising) -> Self {
        Self(*shape)
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let Denoising { inputs, outputs, depth, condition, .. } = self.0;
        let mut all = norm_parameters("norm.0", inputs).to_vec();
        all.extend(convolution_parameters("convolution.0", inputs, outputs));
        all.extend(Parameter::linear("time", condition.time, outputs));
        all.extend(norm_parameters("norm.1", outputs));
        all.extend(convolution_parameters("convolution.1", outputs, outputs));
        if self.0.projects() {
            all.extend(Parameter::linear("shortcut", inputs, outputs));
        }
        if depth > 0 {
            all.extend(norm_parameters("transformer.norm", outputs));
            all.extend(Parameter::linear("transformer.in", outputs, outputs));
            for index in 0..depth {
                all.extend(attention::parameters(&format!("transformer.{index}"), outputs, condition.text_width));
            }
            all.extend(Parameter::linear("transformer.out", outputs, outputs));
        }
        all
    }

    /// The first input is the conditioning, the last comes from the layer below; one between them
    /// is a skip connection.
    pub fn forward(&self, parameters: &[Matrix], inputs: &[Matrix], pass: &PassContext) -> Matrix {
        let [condition, skips @ .., before] = inputs else { panic!("a residual block reads the conditioning") };
        let input = Tensor::cat([before].into_iter().chain(skips).cloned().collect(), 1);
        let [time, text] = self.split(condition.clone());
        let mut rest = Rest(parameters);
        let output = self.residual((&mut rest, pass), Images::of(input, self.0.inputs, self.0.side), time);
        if self.0.depth == 0 {
            output.into_rows()
        } else {
            self.transformer((&mut rest, pass), output, text).into_rows()
        }
    }

    /// The time vector, and the text with a row for each token.
    fn split(&self, condition: Matrix) -> [Matrix; 2] {
        let images = condition.dims()[0];
        let [time, tokens, width] = [self.0.condition.time, self.0.condition.text_tokens, self.0.condition.text_width]
            .map(|size| size as usize);
        let text = condition.clone().narrow(1, time, tokens * width).reshape([images * tokens, width]);
        [condition.narrow(1, 0, time), text]
    }

    fn residual(&self, (rest, pass): (&mut Rest<'_>, &PassContext), input: Images, time: Matrix) -> Images {
        let Denoising { outputs, side, groups, .. } = self.0;
        let inner = input.clone().norm(groups, EPSILON, rest.pair()).map(silu).convolved(pass, rest.pair(), 1);
        let time = linear(pass, silu(time), rest.pair());
        let time: Tensor<4> = time.clone().reshape([time.dims()[0], outputs as usize, 1, 1]);
        let inner = inner.map(|inner| inner + time);
        let inner = inner.norm(groups, EPSILON, rest.pair()).map(silu).convolved(pass, rest.pair(), 1);
        let shortcut =
            if self.0.projects() { from_tokens(linear(pass, to_tokens(input), rest.pair()), side) } else { input };
        shortcut.map(|shortcut| shortcut + inner.0)
    }

    fn transformer(&self, (rest, pass): (&mut Rest<'_>, &PassContext), input: Images, text: Matrix) -> Images {
        let images = input.0.dims()[0];
        let normal = input.clone().norm(self.0.groups, TRANSFORMER_EPSILON, rest.pair());
        let mut tokens = linear(pass, to_tokens(normal), rest.pair());
        let block = TransformerBlock { pass, images, heads: self.0.heads as usize };
        for _ in 0..self.0.depth {
            tokens = block.forward(rest, tokens, &text);
        }
        let output = from_tokens(linear(pass, tokens, rest.pair()), self.0.side);
        input.map(|input| input + output.0)
    }
}

/// A row for each pixel, image by image.
fn to_tokens(images: Images) -> Matrix {
    let [count, channels, rows, columns] = images.0.dims();
    let pixels: Tensor<3> = images.0.reshape([count, channels, rows * columns]);
    pixels.swap_dims(1, 2).reshape([count * rows * columns, channels])
}

/// The images whose pixels are these rows.
fn from_tokens(tokens: Matrix, side: u64) -> Images {
    let side = side as usize;
    let [rows, channels] = tokens.dims();
    let pixels: Tensor<3> = tokens.reshape([rows / (side * side), side * side, channels]);
    Images(pixels.swap_dims(1, 2).reshape([rows / (side * side), channels, side, side]))
}
