//! Activations of feed-forward networks.

use super::{
    Array, Kernel, KernelOutput,
    exponential::{erf, sigmoid},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// Numbers per task.
const CHUNK: usize = 1 << 14;

/// silu(gate) · up, where silu(x) = x ÷ (1 + e⁻ˣ) (Shazeer 2020).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swiglu;

/// x Φ(x) (Hendrycks, Gimpel 2016).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gelu {
    /// x (1 + erf(x ÷ √2)) ÷ 2.
    Exact,
    /// x (1 + tanh u) ÷ 2 = x σ(2 u) with u = √(2 ÷ π) (x + 0.044715 x³).
    Tanh,
}

/// The coefficient of the cube in the approximation.
pub(crate) const GELU_CUBE: f32 = 0.044_715;
/// 2 √(2 ÷ π).
pub(crate) const GELU_TWICE: f32 = FRAC_2_SQRT_PI * SQRT_2;

for_each_width! {
    fn swiglu(gates: &[f32], ups: &[f32], to: &mut [f32]) {
        for ((gate, up), to) in gates.iter().zip(ups).zip(to) {
            *to = gate * sigmoid(*gate) * up;
        }
    }

    fn swiglu_backward(inputs: [&[f32]; 2], gradients: &[f32], to: [&mut [f32]; 2]) {
        let [gates, ups] = inputs;
        let [to_gates, to_ups] = to;
        let to = to_gates.iter_mut().zip(to_ups);
        for (((gate, up), gradient), (to_gate, to_up)) in gates.iter().zip(ups).zip(gradients).zip(to) {
            let share = sigmoid(*gate);
            *to_up = gradient * gate * share;
            *to_gate = gradient * up * share * (1.0 + gate * (1.0 - share));
        }
    }

    fn gelu(inputs: &[f32], to: &mut [f32]) {
        for (input, to) in inputs.iter().zip(to) {
            *to = 0.5 * input * (1.0 + erf(input * FRAC_1_SQRT_2).0);
        }
    }

    fn gelu_tanh(inputs: &[f32], to: &mut [f32]) {
        for (input, to) in inputs.iter().zip(to) {
            *to = input * sigmoid(GELU_TWICE * input * (1.0 + GELU_CUBE * input * input));
        }
    }

    fn gelu_tanh_backward(inputs: &[f32], gradients: &[f32], to: &mut [f32]) {
        for ((input, gradient), to) in inputs.iter().zip(gradients).zip(to) {
            let square = GELU_CUBE * input * input;
            let share = sigmoid(GELU_TWICE * input * (1.0 + square));
            *to = gradient * share * (1.0 + input * (1.0 - share) * GELU_TWICE * (1.0 + 3.0 * square));
        }
    }

    fn gelu_backward(inputs: &[f32], gradients: &[f32], to: &mut [f32]) {
        for ((input, gradient), to) in inputs.iter().zip(gradients).zip(to) {
            let (erf, bell) = erf(input * FRAC_1_SQRT_2);
            // The derivative is Φ(x) + x φ(x); φ is the bell over √(2π).
            *to = gradient * (0.5 * (1.0 + erf) + input * bell * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2));
        }
    }
}

impl Kernel<2> for Swiglu {
    type Saved = ();

    fn forward(&self, [gates, ups]: [Array<'_>; 2]) -> (KernelOutput, ()) {
        let mut numbers = vec![0.0; gates.numbers.len()];
        let inputs = gates.numbers.par_chunks(CHUNK).zip(ups.numbers.par_chunks(CHUNK));
        numbers.par_chunks_mut(CHUNK).zip(inputs).for_each(|(to, (gates, ups))| swiglu(gates, ups, to));
        (KernelOutput { numbers, shape: gates.shape }, ())
    }

    fn backward(
        &self,
        [gates, ups]: [Array<'_>; 2],
        (): &(),
        gradient: &[f32],
        wanted: [bool; 2],
    ) -> [Option<Vec<f32>>; 2] {
        let mut to = [vec![0.0; gradient.len()], vec![0.0; gradient.len()]];
        let [to_gates, to_ups] = &mut to;
        let inputs = gates.numbers.par_chunks(CHUNK).zip(ups.numbers.par_chunks(CHUNK));
        let places = to_gates.par_chunks_mut(CHUNK).zip(to_ups.par_chunks_mut(CHUNK));
        inputs.zip(gradient.par_chunks(CHUNK)).zip(places).for_each(|(((gates, ups), gradient), (gate, up))| {
            swiglu_backward([gates, ups], gradient, [gate, up]);
        });
        let [gates, ups] = to;
        [wanted[0].then_some(gates), wanted[1].then_some(ups)]
    }
}

impl Kernel<1> for Gelu {
    type Saved = ();

    fn forward(&self, [input]: [Array<'_>; 1]) -> (KernelOutput, ()) {
        let mut numbers = vec![0.0; input.numbers.len()];
        let function = match self {
            Self::Exact => gelu,
            Self::Tanh => gelu_tanh,
        };
        numbers.par_chunks_mut(CHUNK).zip(input.numbers.par_chunks(CHUNK)).for_each(|(to, input)| function(input, to));
        (KernelOutput { numbers, shape: input.shape }, ())
    }

    fn backward(&self, [input]: [Array<'_>; 1], (): &(), gradient: &[f32], _: [bool; 1]) -> [Option<Vec<f32>>; 1] {
        let mut numbers = vec![0.0; gradient.len()];
        let inputs = input.numbers.par_chunks(CHUNK).zip(gradient.par_chunks(CHUNK));
        let function = match self {
            Self::Exact => gelu_backward,
            Self::Tanh => gelu_tanh_backward,
        };
        let chunks = numbers.par_chunks_mut(CHUNK).zip(inputs);
        chunks.for_each(|(to, (input, gradient))| function(input, gradient, to));
        [Some(numbers)]
    }
}
