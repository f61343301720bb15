//! The memory of a denoising network's layers: activations saved for the backward, and workspace
//! within a pass.
//!
//! Elements saved by a residual block of P pixels from c to d channels, and by each transformer
//! block after it with T tokens of text. Elements marked ° are recomputed by a selective recompute
//! with fused attention:
//!
//! ```text
//! residual block      input P·c, its norm P·c °, its activation P·c °,
//!                     first convolution P·d, its norm P·d °, its activation P·d °
//! around the blocks   input P·d, its norm P·d °, last block's output P·d
//! self-attention      input P·d, its norm P·d °, queries, keys and values 3P·d, output P·d
//! cross-attention     input P·d, its norm P·d °, queries P·d, keys and values 2T·d, output P·d
//! feed-forward        input P·d, its norm P·d °, gate and inner 8P·d, their product 4P·d °
//! ```
//!
//! Fused attention keeps a row sum of 4 bytes per pixel and head. Materialised attention keeps the
//! softmax of P·P and P·T scores per head. The time vector and the text are counted at each layer
//! that reads them.

use super::{Denoising, UnetLayer, layer::EXPANSION};
use crate::{
    Attention, Precision, Recompute,
    work::{product, sum},
};
use spipe_base::Bytes;

impl UnetLayer {
    /// Returns the elements of the output for `images` images.
    pub(crate) fn output_elements(&self, images: u64) -> u64 {
        match self {
            Self::Conditioning(condition) => product(&[images, condition.elements()]),
            Self::Convolution(convolution) => product(&[images, self.pixels(), convolution.outputs]),
            Self::Denoising(denoising) => product(&[images, self.pixels(), denoising.outputs]),
        }
    }

    /// Returns the bytes saved between forward and backward, including the layer's inputs.
    pub(crate) fn saved(&self, images: u64, precision: Precision, recompute: Recompute, attention: Attention) -> Bytes {
        let elements = match self {
            Self::Conditioning(condition) => {
                let inner = if recompute == Recompute::Full { 0 } else { product(&[2, condition.time]) };
                let added = if condition.added > 0 { condition.added + inner } else { 0 };
                product(&[images, condition.sinusoids + inner + added])
            }
            Self::Convolution(convolution) => {
                let copies = if convolution.norm && recompute != Recompute::Full { 3 } else { 1 };
                product(&[copies, images, convolution.side_in, convolution.side_in, convolution.inputs])
            }
            Self::Denoising(denoising) => return denoising.saved(images, precision, recompute, attention),
        };
        Bytes::new(product(&[elements, precision.bytes()]))
    }

    /// Returns the bytes that live only within a pass: the gradients of input and output and, in a
    /// denoising layer, those of its widest inner tensors, which are the feed-forward network's or
    /// the materialised scores.
    pub(crate) fn workspace(&self, images: u64, precision: Precision, attention: Attention) -> Bytes {
        let inner = match self {
            Self::Conditioning(condition) => product(&[images, condition.time]),
            Self::Convolution(convolution) => {
                let larger = convolution.side_in.max(convolution.side_out);
                product(&[images, larger, larger, convolution.inputs])
            }
            Self::Denoising(denoising) => denoising.inner(images, attention),
        };
        Bytes::new(product(&[sum(&[inner, self.output_elements(images)]), precision.bytes()]))
    }
}

impl Denoising {
    fn saved(&self, images: u64, precision: Precision, recompute: Recompute, attention: Attention) -> Bytes {
        let pixels = product(&[images, self.pixels()]);
        let input = sum(&[product(&[pixels, self.inputs]), product(&[images, self.condition.elements()])]);
        let elements = |residual: u64, around: u64, each: u64| {
            let transformer = if self.depth == 0 { 0 } else { sum(&[around, product(&[self.depth, each])]) };
            product(&[pixels, sum(&[residual, product(&[transformer, self.outputs])])])
        };
        // Per pixel, in multiples of the width: elements that stay, and elements that norms and
        // activation functions recompute.
        let kept = elements(self.outputs, 2, 5 + 3 + 1 + 2 * EXPANSION);
        let cheap = elements(2 * self.inputs + 2 * self.outputs, 1, 3 + EXPANSION);
        let text = product(&[images, self.condition.text_tokens, 2, self.outputs, self.depth]);
        let kept = product(&[sum(&[input, kept, text]), precision.bytes()]);
        let cheap = product(&[cheap, precision.bytes()]);
        let scores = self.score_bytes(images, precision, attention);
        Bytes::new(match (recompute, attention) {
            (Recompute::Full, _) => product(&[input, precision.bytes()]),
            (Recompute::Selective, Attention::Fused) => sum(&[kept, scores]),
            (Recompute::Selective, Attention::Materialised) => sum(&[kept, cheap]),
            (Recompute::None, _) => sum(&[kept, cheap, scores]),
        })
    }

    fn score_bytes(&self, images: u64, precision: Precision, attention: Attention) -> u64 {
        let rows = product(&[images, self.pixels(), self.heads, self.depth]);
        match attention {
            Attention::Fused => product(&[rows, 2, 4]),
            Attention::Materialised => {
                product(&[rows, sum(&[self.pixels(), self.condition.text_tokens]), precision.bytes()])
            }
        }
    }

    fn inner(&self, images: u64, attention: Attention) -> u64 {
        let pixels = product(&[images, self.pixels()]);
        let residual = product(&[pixels, sum(&[self.inputs, self.outputs])]);
        if self.depth == 0 {
            return residual;
        }
        let network = product(&[pixels, 3 * EXPANSION, self.outputs]);
        let scores = match attention {
            Attention::Fused => 0,
            Attention::Materialised => product(&[2, pixels, self.heads, self.pixels()]),
        };
        let attend = sum(&[product(&[pixels, 4, self.outputs]), scores]);
        residual.max(network).max(attend)
    }
}
