//! A transformer block: attention and feed-forward network around residuals.

use super::{
    Matrix, Parameter, PassContext, SavedNumbers,
    attention::AttentionUnit,
    norm::NormUnit,
    replay::{Replayed, replayed},
};
use crate::nn::kernels::{self, GELU_CUBE, GELU_TWICE, Gelu, Swiglu};
use burn::tensor::activation::{gelu, sigmoid, silu};
use spipe_model::{Block, Mlp};

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct BlockUnit {
    block: Block,
    attention: AttentionUnit,
    attention_norm: NormUnit,
    mlp_norm: NormUnit,
}

impl BlockUnit {
    pub fn new(block: &Block) -> Result<Self, &'static str> {
        if block.experts.is_some() {
            return Err("experts are not computed");
        }
        if block.dropout {
            return Err("dropout is not computed: set `dropout = false` in the model file");
        }
        let norm = NormUnit::new(block.norm, block.norm_epsilon, block.hidden);
        Ok(Self { block: *block, attention: AttentionUnit::new(block)?, attention_norm: norm.clone(), mlp_norm: norm })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = self.attention_norm.parameters(["attention-norm.weight", "attention-norm.bias"]);
        all.extend(self.attention.parameters());
        all.extend(self.mlp_norm.parameters(["mlp-norm.weight", "mlp-norm.bias"]));
        all.extend(self.mlp_parameters());
        all
    }

    fn mlp_parameters(&self) -> Vec<Parameter> {
        let Block { hidden, intermediate, mlp, mlp_bias, .. } = self.block;
        let inner: &[[&str; 2]] = match mlp {
            Mlp::Swiglu => &[["mlp.gate.weight", "mlp.gate.bias"], ["mlp.up.weight", "mlp.up.bias"]],
            Mlp::Gelu | Mlp::GeluTanh => &[["mlp.up.weight", "mlp.up.bias"]],
        };
        let matrices = inner.iter().map(|names| (*names, hidden, intermediate));
        let matrices = matrices.chain([(["mlp.down.weight", "mlp.down.bias"], intermediate, hidden)]);
        matrices
            .flat_map(|([weight, bias], rows, columns)| {
                let bias = mlp_bias.then(|| Parameter::bias(bias, columns));
                std::iter::once(Parameter::weight(weight, rows, columns)).chain(bias)
            })
            .collect()
    }

    pub fn forward(&self, parameters: &[Matrix], input: Matrix, pass: &PassContext) -> Matrix {
        let (attention_norm, rest) = parameters.split_at(self.attention_norm.count());
        let (attention, rest) = rest.split_at(self.attention.parameters().len());
        let (mlp_norm, mlp) = rest.split_at(self.mlp_norm.count());
        let attended =
            self.attention.forward(attention, self.attention_norm.forward(attention_norm, input.clone()), pass);
        if self.block.parallel_residual {
            let fed = self.mlp(mlp, self.mlp_norm.forward(mlp_norm, input.clone()), pass);
            return input + attended + fed;
        }
        let middle = input + attended;
        let fed = self.mlp(mlp, self.mlp_norm.forward(mlp_norm, middle.clone()), pass);
        middle + fed
    }

    fn mlp(&self, parameters: &[Matrix], input: Matrix, pass: &PassContext) -> Matrix {
        let mut rest = parameters.iter().cloned();
        let mut linear = |input: Matrix| {
            let weight = rest.next().expect("as many parameters as `mlp_parameters` lists");
            let output = pass.multiply(input, weight);
            if self.block.mlp_bias { output + rest.next().expect("a bias for each weight") } else { output }
        };
        let inner = match self.block.mlp {
            Mlp::Swiglu => {
                let (gate, up) = (linear(input.clone()), linear(input));
                kernels::apply(Swiglu, [&gate, &up]).unwrap_or_else(|| replayed(&Gated, [gate, up]))
            }
            Mlp::Gelu => {
                let inner = linear(input);
                kernels::apply(Gelu::Exact, [&inner]).unwrap_or_else(|| gelu(inner))
            }
            Mlp::GeluTanh => {
                let inner = linear(input);
                kernels::apply(Gelu::Tanh, [&inner]).unwrap_or_else(|| replayed(&Approximate, [inner]))
            }
        };
        linear(inner)
    }

    /// Count of numbers that its graph keeps: inputs of products, of this crate's kernels (`ours`),
    /// and of recomputed functions.
    pub fn saved(&self, sequences: u64, seq_len: u64, ours: bool) -> SavedNumbers {
        let Block { hidden, intermediate, mlp, .. } = self.block;
        let inner = match mlp {
            Mlp::Swiglu => 3 * intermediate,
            Mlp::Gelu | Mlp::GeluTanh => 2 * intermediate,
        };
        // The residual stream twice, each time with its norm.
        let own = sequences * seq_len * (2 * hidden * 2 + inner) + self.attention.saved(sequences, seq_len, ours);
        SavedNumbers { own, wide: 0 }
    }
}

/// SiLU of the first input, times the second.
#[derive(Clone, Debug)]
pub(crate) struct Gated;

impl Replayed<2> for Gated {
    fn value(&self, [gate, up]: [Matrix; 2]) -> Matrix {
        silu(gate) * up
    }

    /// With s = σ(g): y = g s u, so dg = dy u s (1 + g (1 − s)) and du = dy g s.
    fn gradients(&self, [gate, up]: [Matrix; 2], gradient: Matrix) -> [Matrix; 2] {
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
