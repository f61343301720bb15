//! Denoising networks over latent images (latent diffusion, Rombach et al. 2022, arXiv 2112.10752):
//! residual blocks and cross-attention on a downsampling and an upsampling path, joined by skip
//! connections.
//!
//! ```text
//! conditioning ┄┄ the time vector and the text, read by every residual block and transformer
//! in ─► down.0.0 ─► down.0.1 ─► down.0.end ─► down.1.0 ─► … ─► middle.0 ─► middle.1
//!  │       │           │            └──────────────────────────────────┐       │
//!  │       │           └─────────────────────────┐                     │       ▼
//! out ◄─ up.0.2 ◄─ up.0.1 ◄─ up.0.0 ◄─ up.1.end ◄─ up.1.2 ◄─ …          …
//! ```
//!
//! Every layer of the upsampling path, except the changes of size, also reads its mirror image on
//! the downsampling path: the outputs of `in`, of the blocks and of the ends of levels, in reverse
//! order.

mod layer;
mod memory;
mod work;

pub use layer::{Convolution, Denoising, UnetLayer};

use std::iter;

/// The shapes of a denoising network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unet {
    /// Height and width of a latent image.
    pub latent: u64,
    /// Channels of the input: those of a latent image, and of what it is conditioned on (inpainting).
    pub channels: u64,
    /// Channels of the output.
    pub outputs: u64,
    /// The levels, in descending order of image size.
    pub levels: Vec<Level>,
    /// Residual blocks per level of the downsampling path; the upsampling path has one more.
    pub blocks: u64,
    /// Transformer blocks in the middle, with the width and heads of the last level.
    pub middle_depth: u64,
    /// The conditioning of every block.
    pub condition: Condition,
    /// The number of groups of each group norm.
    pub groups: u64,
}

/// A level of a denoising network, with images of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Channels.
    pub width: u64,
    /// Transformer blocks after each residual block; 0 without attention.
    pub depth: u64,
    /// Heads of their attention.
    pub heads: u64,
}

/// The conditioning of every block of a denoising network: a time step and a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Width of the sinusoidal encoding of the time step.
    pub sinusoids: u64,
    /// Width of the time vector, which two matrices compute from the encoding.
    pub time: u64,
    /// Tokens of the text.
    pub text_tokens: u64,
    /// Width of each token's vector, which an external text encoder computes.
    pub text_width: u64,
    /// Width of a further vector, which two matrices add to the time vector (SDXL: the pooled text and
    /// the sizes of the image); 0 without.
    pub added: u64,
}

/// A layer of the network with its name and the indices of the layers that it reads.
pub(crate) struct Placed {
    pub name: String,
    pub layer: UnetLayer,
    pub inputs: Vec<usize>,
}

/// The layers under construction.
struct Builder<'a> {
    unet: &'a Unet,
    layers: Vec<Placed>,
    /// Outputs of the downsampling path that the upsampling path has yet to read, with their
    /// widths.
    skips: Vec<(usize, u64)>,
    width: u64,
    side: u64,
}

impl Unet {
    /// Returns the height and width of a level's images, which halve from level to level.
    pub fn side(&self, level: usize) -> u64 {
        (0..level).fold(self.latent, |side, _| side.div_ceil(2))
    }

    /// Returns the layers in the order of computation.
    pub(crate) fn layers(&self) -> Vec<Placed> {
        let width = self.levels.first().map_or(0, |level| level.width);
        let mut builder = Builder { unet: self, layers: Vec::new(), skips: Vec::new(), width, side: self.latent };
        builder.push("conditioning".into(), UnetLayer::Conditioning(self.condition), &[]);
        let first = Convolution { inputs: self.channels, outputs: width, ..builder.convolution() };
        builder.push("in".into(), UnetLayer::Convolution(first), &[]);
        builder.remember();
        self.down(&mut builder);
        self.middle(&mut builder);
        self.up(&mut builder);
        let last = Convolution { outputs: self.outputs, norm: true, ..builder.convolution() };
        let before = builder.layers.len() - 1;
        builder.push("out".into(), UnetLayer::Convolution(last), &[before]);
        builder.layers
    }

    fn down(&self, builder: &mut Builder<'_>) {
        for (index, level) in self.levels.iter().enumerate() {
            for block in 0..self.blocks {
                builder.denoise(format!("down.{index}.{block}"), *level, None);
                builder.remember();
            }
            if index + 1 < self.levels.len() {
                builder.resize(format!("down.{index}.end"), builder.side.div_ceil(2));
                builder.remember();
            }
        }
    }

    fn middle(&self, builder: &mut Builder<'_>) {
        if let Some(level) = self.levels.last() {
            builder.denoise("middle.0".into(), Level { depth: self.middle_depth, ..*level }, None);
            builder.denoise("middle.1".into(), Level { depth: 0, ..*level }, None);
        }
    }

    fn up(&self, builder: &mut Builder<'_>) {
        for (index, level) in self.levels.iter().enumerate().rev() {
            for block in 0..=self.blocks {
                let skip = builder.skips.pop();
                builder.denoise(format!("up.{index}.{block}"), *level, skip);
            }
            if index > 0 {
                builder.resize(format!("up.{index}.end"), self.side(index - 1));
            }
        }
    }
}

impl Builder<'_> {
    fn push(&mut self, name: String, layer: UnetLayer, inputs: &[usize]) {
        self.layers.push(Placed { name, layer, inputs: inputs.to_vec() });
    }

    /// Returns a convolution that preserves size and width.
    fn convolution(&self) -> Convolution {
        let (width, side) = (self.width, self.side);
        Convolution {
            inputs: width,
            outputs: width,
            side_in: side,
            side_out: side,
            norm: false,
            groups: self.unet.groups,
        }
    }

    /// Records the last output for the upsampling path.
    fn remember(&mut self) {
        self.skips.push((self.layers.len() - 1, self.width));
    }

    fn resize(&mut self, name: String, side: u64) {
        let resize = Convolution { side_out: side, ..self.convolution() };
        let before = self.layers.len() - 1;
        self.push(name, UnetLayer::Convolution(resize), &[before]);
        self.side = side;
    }

    fn denoise(&mut self, name: String, level: Level, skip: Option<(usize, u64)>) {
        let before = self.layers.len() - 1;
        let layer = Denoising {
            inputs: self.width + skip.map_or(0, |(_, width)| width),
            outputs: level.width,
            side: self.side,
            depth: level.depth,
            heads: level.heads,
            condition: self.unet.condition,
            groups: self.unet.groups,
        };
        let mut inputs: Vec<usize> = iter::once(0).chain(skip.map(|(place, _)| place)).chain([before]).collect();
        inputs.dedup();
        self.push(name, UnetLayer::Denoising(layer), &inputs);
        self.width = level.width;
    }
}
