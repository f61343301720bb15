//! Norms over the width of each token.

use super::{Matrix, Parameter, Start, cast, float, wide};
use crate::kernels::{self, LayerNorm, RmsNorm};
use spipe_model::Norm;

/// A norm of a certain width.
#[derive(Clone, Debug)]
pub(crate) struct NormUnit {
    norm: Norm,
    epsilon: f64,
    width: u64,
}

impl NormUnit {
    pub const fn new(norm: Norm, epsilon: f64, width: u64) -> Self {
        Self { norm, epsilon, width }
    }

    pub fn parameters(&self, names: [&'static str; 2]) -> Vec<Parameter> {
        let weight = Parameter { start: Start::Ones, ..Parameter::bias(names[0], self.width) };
        match self.norm {
            Norm::RmsNorm => vec![weight],
            Norm::LayerNorm => vec![weight, Parameter::bias(names[1], self.width)],
        }
    }

    /// How many parameters it takes.
    pub const fn count(&self) -> usize {
        match self.norm {
            Norm::RmsNorm => 1,
            Norm::LayerNorm => 2,
        }
    }

    /// RMSNorm is x ÷ √(mean x² + ε) · w (Zhang, Sennrich 2019); LayerNorm subtracts the mean first and adds a bias
    /// (Ba, Kiros, Hinton 2016).
    pub fn forward(&self, parameters: &[Matrix], input: Matrix) -> Matrix {
        let epsilon = self.epsilon as f32;
        let found = match self.norm {
            Norm::RmsNorm => kernels::apply(RmsNorm { epsilon }, [&input, &parameters[0]]),
            Norm::LayerNorm => kernels::apply(LayerNorm { epsilon }, [&input, &parameters[0], &parameters[1]]),
        };
        found.unwrap_or_else(|| self.composed(parameters, input))
    }

    /// The same by Burn's operations, in f32.
    fn composed(&self, parameters: &[Matrix], input: Matrix) -> Matrix {
        let width = float(input.dtype());
        let input = wide(input);
        let centred = match self.norm {
            Norm::RmsNorm => input,
            Norm::LayerNorm => input.clone() - input.mean_dim(1),
        };
        let spread = (centred.clone().square().mean_dim(1) + self.epsilon).sqrt();
        let scaled = centred / spread * wide(parameters[0].clone());
        let normed = match self.norm {
            Norm::RmsNorm => scaled,
            Norm::LayerNorm => scaled + wide(parameters[1].clone()),
        };
        cast(normed, width)
    }

    /// Numbers per channel and token that its graph keeps beside its input, in f32: the quotient; our kernel, next to nothing.
    pub const fn kept(&self, ours: bool) -> u64 {
        match self.norm {
            _ if ours => 0,
            Norm::RmsNorm => 1,
            Norm::LayerNorm => 2,
        }
    }
}
