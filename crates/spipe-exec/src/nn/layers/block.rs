//! A transformer block: attention and feed-forward network around residuals.

use super::{
    Matrix, Parameter, PassContext, SavedNumbers,
    activation::{Gated, Sum, activated},
    adapters::Adapters,
    attention::AttentionUnit,
    norm::NormUnit,
    replay::replayed,
};
use crate::nn::kernels::{self, Gelu, Swiglu};
use burn::tensor::activation::relu;
use spipe_model::{Block, Matrix as MatrixPlace, Mlp, NormPlaces};

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct BlockUnit {
    block: Block,
    attention: AttentionUnit,
    /// The norms before the attention, behind it, before the feed-forward network, and behind that, as
    /// far as they exist ([`NormPlaces`]).
    norms: [Option<NormUnit>; 4],
}

/// The names of these norms' parameters.
const NORM_NAMES: [[&str; 2]; 4] = [
    ["attention-norm.weight", "attention-norm.bias"],
    ["attention-end-norm.weight", "attention-end-norm.bias"],
    ["mlp-norm.weight", "mlp-norm.bias"],
    ["mlp-end-norm.weight", "mlp-end-norm.bias"],
];

impl BlockUnit {
    pub fn new(block: &Block) -> Result<Self, &'static str> {
        if block.experts.is_some() {
            return Err("experts are not computed");
        }
        if block.dropout {
            return Err("dropout is not computed: set `dropout = false` in the model file");
        }
        if block.modulation.is_some() {
            return Err("modulation by a time step is not computed");
        }
        if block.layer_scale {
            return Err("scales of branches are not computed");
        }
        let norm = NormUnit::new(block.norm, block.norm_epsilon, block.hidden);
        let present = match block.norms {
            NormPlaces::Before => [true, false, true, false],
            NormPlaces::Shared => [true, false, false, false],
            NormPlaces::After | NormPlaces::AfterSum => [false, true, false, true],
            NormPlaces::Around => [true; 4],
        };
        let norms = present.map(|present| present.then(|| norm.clone()));
        Ok(Self { block: *block, attention: AttentionUnit::new(block)?, norms })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let [before, behind, second, last] = [0, 1, 2, 3].map(|place| {
            let unit: Option<&NormUnit> = self.norms[place].as_ref();
            unit.map(|norm| norm.parameters(NORM_NAMES[place])).unwrap_or_default()
        });
        let attention = self.attention.parameters();
        [before, attention, behind, second, self.mlp_parameters(), last].concat()
    }

    fn mlp_parameters(&self) -> Vec<Parameter> {
        let Block { hidden, intermediate, mlp, mlp_bias, .. } = self.block;
        let inner: &[[&str; 2]] = match mlp {
            Mlp::Swiglu | Mlp::GegluTanh => &[["mlp.gate.weight", "mlp.gate.bias"], ["mlp.up.weight", "mlp.up.bias"]],
            Mlp::Gelu | Mlp::GeluTanh | Mlp::Relu => &[["mlp.up.weight", "mlp.up.bias"]],
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
        let mut rest = parameters;
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken
        };
        let counts = self.norms.each_ref().map(|norm| norm.as_ref().map_or(0, NormUnit::count));
        let before = take(counts[0]);
        let attention = take(self.attention.parameters().len());
        let (behind, second) = (take(counts[1]), take(counts[2]));
        let (mlp, last) = (take(self.mlp_parameters().len()), take(counts[3]));
        let after_sum = self.block.norms == NormPlaces::AfterSum;
        let behind_branch = |place, parameters, branch: Matrix| {
            if after_sum { branch } else { self.normed(place, parameters, branch) }
        };
        let first = self.normed(0, before, input.clone());
        let attended = behind_branch(1, behind, self.attention.forward(attention, first.clone(), pass));
        if self.block.parallel_residual {
            let read = if self.norms[2].is_some() { self.normed(2, second, input.clone()) } else { first };
            return input + attended + behind_branch(3, last, self.mlp(mlp, read, pass));
        }
        let mut middle = input + attended;
        if after_sum {
            middle = self.normed(1, behind, middle);
        }
        let fed = self.mlp(mlp, self.normed(2, second, middle.clone()), pass);
        let output = middle + behind_branch(3, last, fed);
        if after_sum { self.normed(3, last, output) } else { output }
    }

    /// The input, normalised if there is a norm at this place.
    fn normed(&self, place: usize, parameters: &[Matrix], input: Matrix) -> Matrix {
        match &self.norms[place] {
            Some(norm) => norm.forward(parameters, input),
            None => input,
        }
    }

    fn mlp(&self, parameters: &[Matrix], input: Matrix, pass: &PassContext) -> Matrix {
        let mut rest = parameters.iter().cloned();
        let gates = ([MatrixPlace::Gate, MatrixPlace::Up], Some(MatrixPlace::GateUp));
        let linear = |rest: &mut std::iter::Cloned<std::slice::Iter<'_, Matrix>>, input: Matrix, place: MatrixPlace| {
            let [output] = self.linear(rest, &input, ([place], None), pass);
            output
        };
        let up = MatrixPlace::Up;
        let inner = match self.block.mlp {
            Mlp::Swiglu => {
                let [gate, up] = self.linear(&mut rest, &input, gates, pass).map(Sum::added);
                kernels::apply(Swiglu, [&gate, &up]).unwrap_or_else(|| replayed(&Gated, [gate, up]))
            }
            Mlp::GegluTanh => {
                let [gate, up] = self.linear(&mut rest, &input, gates, pass);
                activated(Gelu::Tanh, gate) * up.added()
            }
            Mlp::Relu => relu(linear(&mut rest, input, up).added()),
            Mlp::Gelu => activated(Gelu::Exact, linear(&mut rest, input, up)),
            Mlp::GeluTanh => activated(Gelu::Tanh, linear(&mut rest, input, up)),
        };
        linear(&mut rest, inner, MatrixPlace::Down).added()
    }

    /// The outputs of the matrices `places`, which all read `input`, with adapters, and their biases.
    fn linear<const N: usize>(
        &self,
        rest: &mut impl Iterator<Item = Matrix>,
        input: &Matrix,
        places: ([MatrixPlace; N], Option<MatrixPlace>),
        pass: &PassContext,
    ) -> [Sum; N] {
        let mut next = || rest.next().expect("as many parameters as `mlp_parameters` lists");
        let products = [(); N].map(|()| (pass.multiply(input.clone(), next()), self.block.mlp_bias.then(&mut next)));
        let mut biases = products.each_ref().map(|(_, bias)| bias.clone()).into_iter();
        let outputs = pass.adapted(input, places, products.map(|(output, _)| output));
        outputs.map(|output| Sum { output, bias: biases.next().flatten() })
    }

    /// Count of numbers that its graph keeps: inputs of products, of this crate's kernels (`ours`),
    /// and of recomputed functions. The product with a frozen matrix keeps no input.
    pub fn saved(
        &self,
        (sequences, seq_len): (u64, u64),
        ours: bool,
        (trains, adapters): (bool, Option<&Adapters>),
    ) -> SavedNumbers {
        let Block { hidden, intermediate, mlp, .. } = self.block;
        let inner = match mlp {
            Mlp::Swiglu => 3 * intermediate,
            // The gate's activation is kept too, for the product.
            Mlp::GegluTanh => 4 * intermediate,
            Mlp::Gelu | Mlp::GeluTanh | Mlp::Relu => 2 * intermediate,
        };
        // The residual stream twice, each time with its norm, and the branches that have norms behind them.
        let behind = if self.block.norms == NormPlaces::Around { 2 } else { 0 };
        let own =
            sequences * seq_len * ((2 * 2 + behind) * hidden + inner) + self.attention.saved(sequences, seq_len, ours);
        let reads = |places: &[MatrixPlace]| trains || adapters.is_some_and(|adapters| adapters.reads(places));
        let read = [
            (hidden, reads(&[MatrixPlace::Query, MatrixPlace::Key, MatrixPlace::Value, MatrixPlace::QueryKeyValue])),
            (self.block.query_width(), reads(&[MatrixPlace::Output])),
            (hidden, reads(&[MatrixPlace::Gate, MatrixPlace::Up, MatrixPlace::GateUp])),
            (intermediate, reads(&[MatrixPlace::Down])),
        ];
        let unread: u64 = read.iter().filter(|(_, reads)| !reads).map(|(width, _)| width).sum();
        let added = adapters.map_or(0, Adapters::inner);
        let own = (own + sequences * seq_len * added).saturating_sub(sequences * seq_len * unread);
        SavedNumbers { own, wide: 0 }
    }
}
