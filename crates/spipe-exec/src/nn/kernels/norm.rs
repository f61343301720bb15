//! Norms over the width of each token, in one pass each way.

use super::{Array, Kernel, KernelOutput, exponential::sum};
use crate::device::simd::for_each_width;
use rayon::prelude::*;
use std::sync::Arc;

/// Rows per task. Gradients of weights are summed per task first, so that they do not depend on the
/// number of threads.
const ROWS: usize = 16;

/// x ÷ √(mean x² + ε) · w (Zhang, Sennrich 2019). Inputs: x, w.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmsNorm {
    pub epsilon: f32,
}

/// (x − mean x) ÷ √(variance + ε) · w + b (Ba, Kiros, Hinton 2016). Inputs: x, w, b.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNorm {
    pub epsilon: f32,
}

/// Mean and standard deviation of each row.
type Rows = Arc<[[f32; 2]]>;

for_each_width! {
    fn rows_forward(how: (bool, f32), input: &[f32], parameters: [&[f32]; 2], to: &mut [f32], kept: &mut [[f32; 2]]) {
        let (centred, epsilon) = how;
        let [weight, bias] = parameters;
        let width = weight.len();
        for ((input, to), kept) in input.chunks_exact(width).zip(to.chunks_exact_mut(width)).zip(kept) {
            let mean = if centred { sum(width, |index| input[index]) / width as f32 } else { 0.0 };
            let square = sum(width, |index| (input[index] - mean) * (input[index] - mean)) / width as f32;
            let spread = (square + epsilon).sqrt();
            *kept = [mean, spread];
            for ((to, input), weight) in to.iter_mut().zip(input).zip(weight) {
                *to = (input - mean) / spread * weight;
            }
            for (to, bias) in to.iter_mut().zip(bias) {
                *to += bias;
            }
        }
    }

    /// With x̂ = (x − mean) ÷ spread and h = g w: (h − mean h − x̂ mean(h x̂)) ÷ spread; without
    /// mean h if not centred.
    fn rows_backward(centred: bool, inputs: [&[f32]; 3], kept: &[[f32; 2]], to: &mut [f32], sums: [&mut [f32]; 2]) {
        let [input, weight, gradients] = inputs;
        let [weight_sums, bias_sums] = sums;
        let width = weight.len();
        let rows = input.chunks_exact(width).zip(gradients.chunks_exact(width)).zip(kept);
        for (((input, gradient), [mean, spread]), to) in rows.zip(to.chunks_exact_mut(width)) {
            let inverse = 1.0 / spread;
            let along = sum(width, |index| gradient[index] * weight[index] * ((input[index] - mean) * inverse));
            let level = if centred { sum(width, |index| gradient[index] * weight[index]) / width as f32 } else { 0.0 };
            let along = along / width as f32;
            for ((((to, input), gradient), weight), weight_sum) in
                to.iter_mut().zip(input).zip(gradient).zip(weight).zip(weight_sums.iter_mut())
            {
                let scaled = (input - mean) * inverse;
                *to = (gradient * weight - level - scaled * along) * inverse;
                *weight_sum += gradient * scaled;
            }
            for (sum, gradient) in bias_sums.iter_mut().zip(gradient) {
                *sum += gradient;
            }
        }
    }
}

fn forward(centred: bool, epsilon: f32, input: Array<'_>, parameters: [&[f32]; 2]) -> (KernelOutput, Rows) {
    let width = parameters[0].len();
    let mut numbers = vec![0.0; input.numbers.len()];
    let mut kept = vec![[0.0; 2]; input.shape[0]];
    let places = numbers.par_chunks_mut(ROWS * width).zip(kept.par_chunks_mut(ROWS));
    places.zip(input.numbers.par_chunks(ROWS * width)).for_each(|((to, kept), input)| {
        rows_forward((centred, epsilon), input, parameters, to, kept);
    });
    (KernelOutput { numbers, shape: input.shape }, kept.into())
}

fn backward(centred: bool, inputs: [&[f32]; 2], kept: &Rows, gradient: &[f32]) -> [Vec<f32>; 3] {
    let [input, weight] = inputs;
    let width = weight.len();
    let mut numbers = vec![0.0; input.len()];
    let rows = input.par_chunks(ROWS * width).zip(gradient.par_chunks(ROWS * width)).zip(kept.par_chunks(ROWS));
    let parts: Vec<[Vec<f32>; 2]> = numbers
        .par_chunks_mut(ROWS * width)
        .zip(rows)
        .map(|(to, ((input, gradient), kept))| {
            let mut sums = [vec![0.0; width], vec![0.0; if centred { width } else { 0 }]];
            let [weights, biases] = &mut sums;
            rows_backward(centred, [input, weight, gradient], kept, to, [weights, biases]);
            sums
        })
        .collect();
    let mut sums = [vec![0.0; width], vec![0.0; width]];
    for part in parts {
        for (sum, part) in sums.iter_mut().zip(part) {
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
    }
    let [weights, biases] = sums;
    [numbers, weights, biases]
}

impl Kernel<2> for RmsNorm {
    type Saved = Rows;

    fn forward(&self, [input, weight]: [Array<'_>; 2]) -> (KernelOutput, Rows) {
        forward(false, self.epsilon, input, [weight.numbers, &[]])
    }

    fn backward(
        &self,
        [input, weight]: [Array<'_>; 2],
        kept: &Rows,
        gradient: &[f32],
        wanted: [bool; 2],
    ) -> [Option<Vec<f32>>; 2] {
        let [inputs, weights, _] = backward(false, [input.numbers, weight.numbers], kept, gradient);
        [wanted[0].then_some(inputs), wanted[1].then_some(weights)]
    }
}

impl Kernel<3> for LayerNorm {
    type Saved = Rows;

    fn forward(&self, [input, weight, bias]: [Array<'_>; 3]) -> (KernelOutput, Rows) {
        forward(true, self.epsilon, input, [weight.numbers, bias.numbers])
    }

    fn backward(
        &self,
        [input, weight, _]: [Array<'_>; 3],
        kept: &Rows,
        gradient: &[f32],
        wanted: [bool; 3],
    ) -> [Option<Vec<f32>>; 3] {
        let [inputs, weights, biases] = backward(true, [input.numbers, weight.numbers], kept, gradient);
        [wanted[0].then_some(inputs), wanted[1].then_some(weights), wanted[2].then_some(biases)]
    }
}
