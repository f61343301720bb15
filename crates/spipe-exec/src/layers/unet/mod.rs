//! Layers of denoising networks: images are matrices of one row each, channel by channel.

mod attention;
mod convolution;
mod denoising;

use super::{Answer, Feed, Matrix, Parameter, Signal, Start};
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

    /// Whether a parameter is a weight that is multiplied with; those of norms are not.
    pub fn multiplies(parameter: &Parameter) -> bool {
        parameter.name.ends_with(".weight") && matches!(parameter.start, Start::Uniform(_))
    }

    /// The output; behind the last layer the mean square of what is left between the noise that was found and the noise that
    /// was added (Ho et al. 2020, equation 14).
    pub fn forward(&self, parameters: &[Matrix], inputs: &[Matrix], feed: &Feed, is_last: bool) -> Signal {
        let output = match (self, inputs) {
            (Self::Conditioning(_), _) => condition(parameters, feed),
            (Self::Convolution(unit), []) => unit.forward(parameters, feed.pixels(), feed),
            (Self::Convolution(unit), [before, ..]) => unit.forward(parameters, before.clone(), feed),
            (Self::Denoising(unit), inputs) => unit.forward(parameters, inputs, feed),
        };
        if !is_last {
            return Signal::Hidden(output);
        }
        let loss = (output.clone() - feed.noise()).square().mean();
        if feed.answers() { Signal::Answer(Answer::Rows(Box::new(output)), loss) } else { Signal::Loss(loss) }
    }
}

/// The time vector, W₁ silu(W₀ sinusoids), and the text behind it.
fn condition(parameters: &[Matrix], feed: &Feed) -> Matrix {
    let [sinusoids, text] = feed.condition();
    let inner = silu(linear(feed, sinusoids, &parameters[0..2]));
    Tensor::cat(vec![linear(feed, inner, &parameters[2..4]), text], 1)
}

/// A product with a weight, and a bias.
fn linear(feed: &Feed, input: Matrix, parameters: &[Matrix]) -> Matrix {
    feed.multiply(input, parameters[0].clone()) + parameters[1].clone()
}

/// Parameters one after the other.
struct Rest<'a>(&'a [Matrix]);

impl<'a> Rest<'a> {
    /// The next so many.
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
