//! Activations of feed-forward networks, and the biases before them.
//!
//! On a GPU, a bias and what follows it are one kernel.

#[cfg(feature = "cube")]
use super::replay::{LinearFunction, linear_on_gpu, replayed_on_gpu};
use super::{
    Matrix,
    replay::{Replayed, replayed},
};
#[cfg(feature = "cube")]
use crate::nn::fused::{self, Activated, Activation};
use crate::nn::kernels::{self, GELU_CUBE, GELU_TWICE, Gelu};
use burn::tensor::activation::{gelu, sigmoid, silu};

/// The output of a product, and the bias that is to be added.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub output: Matrix,
    pub bias: Option<Matrix>,
}

impl Sum {
    /// The output with its bias.
    pub fn added(self) -> Matrix {
        match self.bias {
            Some(bias) => biased(self.output, bias),
            None => self.output,
        }
    }
}

/// Rows with a bias added to each.
pub(super) fn biased(rows: Matrix, bias: Matrix) -> Matrix {
    #[cfg(feature = "cube")]
    if let Some(found) = linear_on_gpu(&Biased, [&rows, &bias]) {
        return found;
    }
    rows + bias
}

/// GELU of a sum.
pub(super) fn activated(function: Gelu, sum: Sum) -> Matrix {
    #[cfg(feature = "cube")]
    if let Some(found) = activated_on_gpu(function, &sum) {
        return found;
    }
    let inner = sum.added();
    kernels::apply(function, [&inner]).unwrap_or_else(|| match function {
        Gelu::Exact => gelu(inner),
        Gelu::Tanh => replayed(&Approximate, [inner]),
    })
}

#[cfg(feature = "cube")]
fn activated_on_gpu(function: Gelu, sum: &Sum) -> Option<Matrix> {
    let function = match function {
        Gelu::Exact => Activation::Gelu,
        Gelu::Tanh => Activation::GeluTanh,
    };
    match &sum.bias {
        Some(bias) => replayed_on_gpu(&OnGpu(function), [&sum.output, bias]),
        None => replayed_on_gpu(&OnGpu(function), [&sum.output]),
    }
}

/// A bias added to each row, on a GPU.
#[cfg(feature = "cube")]
#[derive(Clone, Debug)]
struct Biased;

#[cfg(feature = "cube")]
impl LinearFunction<2> for Biased {
    fn value(&self, [input, bias]: [Matrix; 2]) -> Matrix {
        let sum = Activated { function: Activation::Identity, input: &input, bias: Some(&bias) };
        fused::activated(sum).expect("rows are on a GPU")
    }

    fn gradients(&self, gradient: Matrix) -> [Matrix; 2] {
        let of_bias = fused::column_sums(&gradient).expect("a gradient is on the device of its value");
        [gradient, of_bias]
    }
}

/// An activation on a GPU, possibly after a bias.
#[cfg(feature = "cube")]
#[derive(Clone, Debug)]
struct OnGpu(Activation);

#[cfg(feature = "cube")]
impl Replayed<1> for OnGpu {
    fn value(&self, [input]: [Matrix; 1]) -> Matrix {
        let activated = fused::activated(Activated { function: self.0, input: &input, bias: None });
        activated.expect("the input is on a GPU")
    }

    fn gradients(&self, [input]: [Matrix; 1], gradient: Matrix) -> [Matrix; 1] {
        let found = fused::activated_gradients(Activated { function: self.0, input: &input, bias: None }, &gradient);
        [found.expect("the input is on a GPU").0]
    }
}

#[cfg(feature = "cube")]
impl Replayed<2> for OnGpu {
    fn value(&self, [input, bias]: [Matrix; 2]) -> Matrix {
        let activated = fused::activated(Activated { function: self.0, input: &input, bias: Some(&bias) });
        activated.expect("the input is on a GPU")
    }

    fn gradients(&self, [input, bias]: [Matrix; 2], gradient: Matrix) -> [Matrix; 2] {
        let sum = Activated { function: self.0, input: &input, bias: Some(&bias) };
        match fused::activated_gradients(sum, &gradient) {
            Some((of_input, Some(of_bias))) => [of_input, of_bias],
            _ => panic!("the input is on a GPU and has a bias"),
        }
    }
}

/// SiLU of the first input, times the second.
#[derive(Clone, Debug)]
pub(crate) struct Gated;

impl Replayed<2> for Gated {
    fn value(&self, [gate, up]: [Matrix; 2]) -> Matrix {
        #[cfg(feature = "cube")]
        if let Some(found) = fused::gated(Activation::Silu, [&gate, &up]) {
            return found;
        }
        silu(gate) * up
    }

    /// With s = σ(g): y = g s u, so dg = dy u s (1 + g (1 − s)) and du = dy g s.
    fn gradients(&self, [gate, up]: [Matrix; 2], gradient: Matrix) -> [Matrix; 2] {
        #[cfg(feature = "cube")]
        if let Some(found) = fused::gated_gradients(Activation::Silu, [&gate, &up, &gradient]) {
            return found;
        }
        let share = sigmoid(gate.clone());
        let passed = gradient * share.clone();
        let slope = gate.clone() * (share.neg() + 1.0) + 1.0;
        [passed.clone() * up * slope, passed * gate]
    }
}

/// GELU by a hyperbolic tangent: x σ(2 u) with u = √(2 ÷ π) (x + 0.044715 x³).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Approximate;

impl Replayed<1> for Approximate {
    fn value(&self, [input]: [Matrix; 1]) -> Matrix {
        let cube = input.clone().powi_scalar(3) * GELU_CUBE;
        input.clone() * sigmoid((input + cube) * GELU_TWICE)
    }

    /// With s = σ(2 u): dx = dy s (1 + x (1 − s) 2 u′).
    fn gradients(&self, [input]: [Matrix; 1], gradient: Matrix) -> [Matrix; 1] {
        let square = input.clone() * input.clone();
        let share = sigmoid(input.clone() * (square.clone() * GELU_CUBE + 1.0) * GELU_TWICE);
        let slope = (square * (3.0 * GELU_CUBE) + 1.0) * GELU_TWICE;
        [gradient * share.clone() * (input * (share.neg() + 1.0) * slope + 1.0)]
    }
}
