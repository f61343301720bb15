//! Norms over the width of each token.

use super::{
    Initialisation, Matrix, Parameter, cast, float,
    replay::{Replayed, replayed},
    wide,
};
#[cfg(feature = "cube")]
use crate::nn::fused;
use crate::nn::kernels::{self, LayerNorm, RmsNorm};
use spipe_model::Norm;

/// A norm of vectors of length `width`.
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

    /// Length of the vectors.
    pub const fn width(&self) -> usize {
        self.width as usize
    }

    /// Its weight and its bias, as far as it has them. A weight that is added to one starts as zero.
    pub fn parameters(&self, names: [&'static str; 2]) -> Vec<Parameter> {
        let ones = Parameter { initialisation: Initialisation::Ones, ..Parameter::bias(names[0], self.width) };
        match self.norm {
            Norm::RmsNorm | Norm::LayerNormNoBias => vec![ones],
            Norm::RmsNormPlusOne => vec![Parameter::bias(names[0], self.width)],
            Norm::LayerNorm => vec![ones, Parameter::bias(names[1], self.width)],
            Norm::LayerNormPlain => Vec::new(),
        }
    }

    /// Number of its parameters.
    pub const fn count(&self) -> usize {
        match self.norm {
            Norm::RmsNorm | Norm::RmsNormPlusOne | Norm::LayerNormNoBias => 1,
            Norm::LayerNorm => 2,
            Norm::LayerNormPlain => 0,
        }
    }

    /// RMSNorm is x ÷ √(mean x² + ε) · w (Zhang, Sennrich 2019); LayerNorm subtracts the mean first
    /// and adds a bias (Ba, Kiros, Hinton 2016).
    pub fn forward(&self, parameters: &[Matrix], input: Matrix) -> Matrix {
        let epsilon = self.epsilon as f32;
        let constant = |value: f64| {
            let shape = [1, self.width as usize];
            Matrix::full(shape, value, (&input.device().without_autodiff(), input.dtype()))
        };
        let weight = match (self.norm, parameters) {
            (Norm::RmsNormPlusOne, [weight, ..]) => weight.clone() + 1.0,
            (_, [weight, ..]) => weight.clone(),
            (_, []) => constant(1.0),
        };
        let function = Normed { norm: self.norm, epsilon: self.epsilon };
        if !self.norm.centres() {
            let found = kernels::apply(RmsNorm { epsilon }, [&input, &weight]);
            return found.unwrap_or_else(|| replayed(&function, [input, weight]));
        }
        let bias = parameters.get(1).cloned().unwrap_or_else(|| constant(0.0));
        let found = kernels::apply(LayerNorm { epsilon }, [&input, &weight, &bias]);
        found.unwrap_or_else(|| replayed(&function, [input, weight, bias]))
    }
}

/// A norm by Burn's operations, in f32, of an input with a weight and possibly a bias.
#[derive(Clone, Debug)]
pub(crate) struct Normed {
    pub norm: Norm,
    pub epsilon: f64,
}

impl Normed {
    /// The norm as a GPU's kernel.
    #[cfg(feature = "cube")]
    const fn fused(&self) -> fused::Norm {
        fused::Norm { centres: self.norm.centres(), epsilon: self.epsilon as f32 }
    }

    /// The normalised input, and its divisor.
    fn scaled(&self, input: Matrix) -> [Matrix; 2] {
        let input = wide(input);
        let centred = if self.norm.centres() { input.clone() - input.mean_dim(1) } else { input };
        let spread = (centred.clone().square().mean_dim(1) + self.epsilon).sqrt();
        [centred / spread.clone(), spread]
    }

    /// With n the normalised input and r its divisor: dn = dy w, dx = (dn − n mean(dn n)) ÷ r, less
    /// the mean of dn if the input is centred, and dw = Σ dy n.
    fn derived(&self, [input, weight]: [&Matrix; 2], gradient: Matrix) -> [Matrix; 2] {
        let [scaled, spread] = self.scaled(input.clone());
        let inner = gradient.clone() * wide(weight.clone());
        let across = (inner.clone() * scaled.clone()).mean_dim(1);
        let centred = if self.norm.centres() { inner.clone() - inner.mean_dim(1) } else { inner };
        let of_input = (centred - scaled.clone() * across) / spread;
        [cast(of_input, float(input.dtype())), cast((gradient * scaled).sum_dim(0), float(weight.dtype()))]
    }
}

impl Replayed<2> for Normed {
    fn value(&self, [input, weight]: [Matrix; 2]) -> Matrix {
        #[cfg(feature = "cube")]
        if let Some(found) = fused::normed(self.fused(), [&input, &weight], None) {
            return found;
        }
        let width = float(input.dtype());
        let [scaled, _] = self.scaled(input);
        cast(scaled * wide(weight), width)
    }

    fn gradients(&self, [input, weight]: [Matrix; 2], gradient: Matrix) -> [Matrix; 2] {
        #[cfg(feature = "cube")]
        if let Some((input, weight, _)) = fused::norm_gradients(self.fused(), [&input, &weight, &gradient], None) {
            return [input, weight];
        }
        self.derived([&input, &weight], wide(gradient))
    }
}

impl Replayed<3> for Normed {
    fn value(&self, [input, weight, bias]: [Matrix; 3]) -> Matrix {
        #[cfg(feature = "cube")]
        if let Some(found) = fused::normed(self.fused(), [&input, &weight], Some(&bias)) {
            return found;
        }
        let width = float(input.dtype());
        let [scaled, _] = self.scaled(input);
        cast(scaled * wide(weight) + wide(bias), width)
    }

    fn gradients(&self, [input, weight, bias]: [Matrix; 3], gradient: Matrix) -> [Matrix; 3] {
        #[cfg(feature = "cube")]
        if let Some((input, weight, Some(bias))) =
            fused::norm_gradients(self.fused(), [&input, &weight, &gradient], Some(bias.dtype()))
        {
            return [input, weight, bias];
        }
        let gradient = wide(gradient);
        let of_bias = cast(gradient.clone().sum_dim(0), float(bias.dtype()));
        let [of_input, of_weight] = self.derived([&input, &weight], gradient);
        [of_input, of_weight, of_bias]
    }
}
