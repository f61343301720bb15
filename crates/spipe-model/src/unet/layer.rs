//! The layers of a denoising network: their shapes and parameters.

use super::Condition;

/// A layer of a denoising network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnetLayer {
    /// Computes the time vector, and passes it on with the text.
    Conditioning(Condition),
    /// The first and the last layer, and the changes of size.
    Convolution(Convolution),
    /// A residual block and the transformer after it.
    Denoising(Denoising),
}

/// A convolution of 3 × 3 pixels with a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Channels of the input.
    pub inputs: u64,
    /// Channels of the output.
    pub outputs: u64,
    /// Height and width of the input, whose pixels are repeated if the output is larger.
    pub side_in: u64,
    /// Height and width of the output.
    pub side_out: u64,
    /// Whether a group norm and an activation function precede it.
    pub norm: bool,
    /// The number of groups of that norm.
    pub groups: u64,
}

/// A residual block of two convolutions, between which the time vector is added, and a transformer
/// over the pixels: blocks of self-attention, cross-attention to the text, and a gated feed-forward
/// network four times as wide.
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
    /// The conditioning.
    pub condition: Condition,
    /// The number of groups of each group norm.
    pub groups: u64,
}

/// Height and width of a convolution kernel.
pub(super) const KERNEL: u64 = 3;
/// The width of the feed-forward network relative to the residual stream.
pub(super) const EXPANSION: u64 = 4;

/// Returns the weights and biases of a matrix.
const fn linear(inputs: u64, outputs: u64) -> u64 {
    inputs * outputs + outputs
}

impl UnetLayer {
    /// Returns the exact number of parameters.
    pub const fn parameters(&self) -> u64 {
        match self {
            Self::Conditioning(condition) => condition.parameters(),
            Self::Convolution(convolution) => convolution.parameters(),
            Self::Denoising(denoising) => denoising.parameters(),
        }
    }

    /// Returns the pixels of the output for one image; 1 for the conditioning.
    pub const fn pixels(&self) -> u64 {
        match self {
            Self::Conditioning(_) => 1,
            Self::Convolution(convolution) => convolution.side_out * convolution.side_out,
            Self::Denoising(denoising) => denoising.pixels(),
        }
    }

    /// Returns the layer's part of a signature.
    pub(crate) fn signature(&self) -> String {
        match self {
            Self::Conditioning(condition) => {
                let added = if condition.added > 0 { format!(" a{}", condition.added) } else { String::new() };
                format!(
                    "conditioning s{} h{} c{}x{}{added}",
                    condition.sinusoids, condition.time, condition.text_tokens, condition.text_width
                )
            }
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
    /// Returns the parameters: two matrices with biases, and two for the added vector.
    pub const fn parameters(&self) -> u64 {
        let added = if self.added > 0 { linear(self.added, self.time) + linear(self.time, self.time) } else { 0 };
        linear(self.sinusoids, self.time) + linear(self.time, self.time) + added
    }

    /// Returns the elements of the output for one image: the time vector and the text.
    pub const fn elements(&self) -> u64 {
        self.time + self.text_tokens * self.text_width
    }
}

impl Convolution {
    /// Returns the parameters: weights, biases, and a weight and a bias per channel of the norm.
    pub const fn parameters(&self) -> u64 {
        let norm = if self.norm { 2 * self.inputs } else { 0 };
        norm + linear(KERNEL * KERNEL * self.inputs, self.outputs)
    }
}

impl Denoising {
    /// Returns the pixels of an image.
    pub const fn pixels(&self) -> u64 {
        self.side * self.side
    }

    /// Whether the residual needs a projection because the width changes.
    pub const fn projects(&self) -> bool {
        self.inputs != self.outputs
    }

    /// Returns the parameters of the residual block and the transformer.
    pub const fn parameters(&self) -> u64 {
        let transformer = if self.depth == 0 {
            0
        } else {
            2 * self.outputs + 2 * linear(self.outputs, self.outputs) + self.depth * self.block_parameters()
        };
        self.residual_parameters() + transformer
    }

    /// Returns the parameters of the residual block: two norms, two convolutions, the projection of
    /// the time vector, and that of the residual if the width changes.
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

    /// Returns the parameters of one transformer block: three norms; queries, keys and values
    /// without biases, in the second attention with keys and values of the text; two output
    /// projections; the gated feed-forward network.
    pub const fn block_parameters(&self) -> u64 {
        let width = self.outputs;
        let to_self = 3 * width * width + linear(width, width);
        let to_text = width * width + 2 * self.condition.text_width * width + linear(width, width);
        let network = linear(width, 2 * EXPANSION * width) + linear(EXPANSION * width, width);
        3 * 2 * width + to_self + to_text + network
    }
}
