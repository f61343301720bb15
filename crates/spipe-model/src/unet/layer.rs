//! The layers of a denoising network: their shapes and parameters.

use super::Condition;

/// A layer of a denoising network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnetLayer {
    /// Makes the time vector, and hands it on with the text.
    Conditioning(Condition),
    /// The first and the last layer, and changes of size.
    Convolution(Convolution),
    /// A residual block and the transformer behind it.
    Denoising(Denoising),
}

/// A convolution of 3 × 3 pixels with a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Channels of the input.
    pub inputs: u64,
    /// Channels of the output.
    pub outputs: u64,
    /// Height and width of the input; repeated pixel by pixel where the output is larger.
    pub side_in: u64,
    /// Height and width of the output.
    pub side_out: u64,
    /// Whether a group norm and an activation function go before it.
    pub norm: bool,
    /// Groups of that norm.
    pub groups: u64,
}

/// A residual block of two convolutions with the time vector added in between, and a transformer over the pixels: blocks of
/// self-attention, cross-attention to the text, and a feed-forward network four times as wide with a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denoising {
    /// Channels of the input, a skip connection's included.
    pub inputs: u64,
    /// Channels of the output.
    pub outputs: u64,
    /// Height and width of the images.
    pub side: u64,
    /// Transformer blocks; 0 without attention.
    pub depth: u64,
    /// Heads of their attention.
    pub heads: u64,
    /// What it is told.
    pub condition: Condition,
    /// Groups of each group norm.
    pub groups: u64,
}

/// Height and width of a convolution.
pub(super) const KERNEL: u64 = 3;
/// How much wider the feed-forward network is than the residual stream.
pub(super) const EXPANSION: u64 = 4;

/// Weights and biases.
const fn linear(inputs: u64, outputs: u64) -> u64 {
    inputs * outputs + outputs
}

impl UnetLayer {
    /// The exact number of parameters.
    pub const fn parameters(&self) -> u64 {
        match self {
            Self::Conditioning(condition) => condition.parameters(),
            Self::Convolution(convolution) => convolution.parameters(),
            Self::Denoising(denoising) => denoising.parameters(),
        }
    }

    /// Pixels of the output of one image; of the conditioning, 1.
    pub const fn pixels(&self) -> u64 {
        match self {
            Self::Conditioning(_) => 1,
            Self::Convolution(convolution) => convolution.side_out * convolution.side_out,
            Self::Denoising(denoising) => denoising.pixels(),
        }
    }

    /// The layer's part of a signature.
    pub(crate) fn signature(&self) -> String {
        match self {
            Self::Conditioning(condition) => format!(
                "conditioning s{} h{} c{}x{}",
                condition.sinusoids, condition.time, condition.text_tokens, condition.text_width
            ),
            Self::Convolution(Convolution { inputs, outputs, side_in, side_out, norm, .. }) => {
                let norm = if *norm { " norm" } else { "" };
                format!("convolution i{inputs} o{outputs} p{side_in} q{side_out}{norm}")
            }
            Self::Denoising(Denoising { inputs, outputs, side, depth, heads, condition, .. }) => format!(
                "denoising i{inputs} o{outputs} p{side} l{depth} a{heads} t{} c{}x{}",
                condition.time, condition.text_tokens, condition.text_width
            ),
        }
    }
}

impl Condition {
    /// Two matrices with biases.
    pub const fn parameters(&self) -> u64 {
        linear(self.sinusoids, self.time) + linear(self.time, self.time)
    }

    /// Elements handed on for each image: the time vector and the text.
    pub const fn elements(&self) -> u64 {
        self.time + self.text_tokens * self.text_width
    }
}

impl Convolution {
    /// Weights, biases, and a weight and a bias per channel of the norm.
    pub const fn parameters(&self) -> u64 {
        let norm = if self.norm { 2 * self.inputs } else { 0 };
        norm + linear(KERNEL * KERNEL * self.inputs, self.outputs)
    }
}

impl Denoising {
    /// Pixels of an image.
    pub const fn pixels(&self) -> u64 {
        self.side * self.side
    }

    /// Whether the width changes, so that the residual needs a projection.
    pub const fn projects(&self) -> bool {
        self.inputs != self.outputs
    }

    /// The residual block and the transformer.
    pub const fn parameters(&self) -> u64 {
        let transformer = if self.depth == 0 {
            0
        } else {
            2 * self.outputs + 2 * linear(self.outputs, self.outputs) + self.depth * self.block_parameters()
        };
        self.residual_parameters() + transformer
    }

    /// Two norms, two convolutions, the projection of the time vector, and that of the residual where the width changes.
    pub const fn residual_parameters(&self) -> u64 {
        let taps = KERNEL * KERNEL;
        let shortcut = if self.projects() { linear(self.inputs, self.outputs) } else { 0 };
        2 * self.inputs
            + linear(taps * self.inputs, self.outputs)
            + linear(self.condition.time, self.outputs)
            + 2 * self.outputs
            + linear(taps * self.outputs, self.outputs)
            + shortcut
    }

    /// Of one transformer block: three norms; queries, keys and values without biases, of the text in the second attention;
    /// two output projections; the gated feed-forward network.
    pub const fn block_parameters(&self) -> u64 {
        let width = self.outputs;
        let to_self = 3 * width * width + linear(width, width);
        let to_text = width * width + 2 * self.condition.text_width * width + linear(width, width);
        let network = linear(width, 2 * EXPANSION * width) + linear(EXPANSION * width, width);
        3 * 2 * width + to_self + to_text + network
    }
}
