//! Layers of denoising networks. Images are matrices of one row each, channel by channel.

mod attention;
mod convolution;
mod denoising;

use super::{Answer, Initialisation, Matrix, Parameter, PassContext, Signal};
use burn::tensor::{Tensor, activation::silu};
use convolution::ConvolutionUnit;
use denoising::DenoisingUnit;
use spipe_model::{Condition, UnetLayer};

/// A layer of a denoising network.
#[derive(Clone, Debug)]
pub(crate) enum UnetUnit {
    Conditioning(Condition),
    Convolution(ConvolutionUnit),
    Denoising(Box<DenoisingUnit>),
}

impl UnetUnit {
    pub fn new(layer: &UnetLayer) -> Self {
        match layer {
            UnetLayer::Conditioning(condition) => Self::Conditioning(*condition),
            UnetLayer::Convolution(shape) => Self::Convolution(ConvolutionUnit::new(shape)),
            UnetLayer::Denoising(shape) => Self::Denoising(Box::new(DenoisingUnit::new(shape))),
        }
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Conditioning(Condition { sinusoids, time, .. }) => {
                let mut all = Parameter::linear("time.0", *sinusoids, *time).to_vec();
                all.extend(Parameter::linear("time.1", *time, *time));
                all
            }
            Self::Convolution(unit) => unit.parameters(),
            Self::Denoising(unit) => unit.parameters(),
        }
    }

    /// Whether a parameter is a weight of a product; those of norms are not.
    pub fn multiplies(parameter: &Parameter) -> bool {
        parameter.name.ends_with(".weight") && matches!(parameter.initialisation, Initialisation::Uniform(_))
    }

    /// The output; of the last layer the mean square of the difference between predicted and added
    /// noise (Ho et al. 2020, equation 14).
    pub fn forward(&self, parameters: &[Matrix], inputs: &[Matrix], pass: &PassContext, is_last: bool) -> Signal {
        let output = match (self, inputs) {
            (Self::Conditioning(_), _) => condition(parameters, pass),
            (Self::Convolution(unit), []) => unit.forward(parameters, pass.pixels(), pass),
            (Self::Convolution(unit), [before, ..]) => unit.forward(parameters, before.clone(), pass),
            (Self::Denoising(unit), inputs) => unit.forward(parameters, inputs, pass),
        };
        if !is_last {
            return Signal::Hidden(output);
        }
        let loss = (output.clone() - pass.noise()).square().mean();
        if pass.answers() { Signal::Answer(Answer::Rows(Box::new(output)), loss) } else { Signal::Loss(loss) }
    }
}

/// The time vector, W₁ silu(W₀ sinusoids), followed by the text.
fn condition(parameters: &[Matrix], pass: &PassContext) -> Matrix {
    let [sinusoids, text] = pass.condition();
    let inner = silu(linear(pass, sinusoids, &parameters[0..2]));
    Tensor::cat(vec![linear(pass, inner, &parameters[2..4]), text], 1)
}

/// A product with a weight, plus a bias.
fn linear(pass: &PassContext, input: Matrix, parameters: &[Matrix]) -> Matrix {
    pass.multiply(input, parameters[0].clone()) + parameters[1].clone()
}

/// Parameters, taken one after the other.
struct Rest<'a>(&'a [Matrix]);

impl<'a> Rest<'a> {
    /// The next `count` parameters.
    fn take(&mut self, count: usize) -> &'a [Matrix] {
        let (first, rest) = self.0.split_at(count);
        self.0 = rest;
        first
    }

    /// A weight and a bias, or those of a norm.
    fn pair(&mut self) -> &'a [Matrix] {
        self.take(2)
    }
}

/// The weight and the bias of a norm.
fn norm_parameters(name: &str, width: u64) -> [Parameter; 2] {
    [Parameter::ones(format!("{name}.weight"), width), Parameter::zeros(format!("{name}.bias"), width)]
}
