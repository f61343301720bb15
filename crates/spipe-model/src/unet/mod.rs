//! Denoising networks over latent images (latent diffusion, Rombach et al. 2022, arXiv 2112.10752): convolutions with residual
//! blocks and cross-attention on a way down and a way up, joined by skip connections.
//!
//! ```text
//! conditioning ┄┄ the time vector and the text, read by every residual block and transformer
//! in ─► down.0.0 ─► down.0.1 ─► down.0.end ─► down.1.0 ─► … ─► middle.0 ─► middle.1
//!  │       │           │            └──────────────────────────────────┐       │
//!  │       │           └─────────────────────────┐                     │       ▼
//! out ◄─ up.0.2 ◄─ up.0.1 ◄─ up.0.0 ◄─ up.1.end ◄─ up.1.2 ◄─ …          …
//! ```
//!
//! Every layer of the way up but the changes of size also reads the layer of the way down that mirrors it: what `in`, the
//! blocks and the ends of levels put out is taken in reverse.

mod check;
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
    /// Channels of a latent image, which are also those of the output.
    pub channels: u64,
    /// The levels, the largest images first.
    pub levels: Vec<Level>,
    /// Residual blocks of a level on the way down; the way up has one more.
    pub blocks: u64,
    /// Transformer blocks in the middle, whose width and heads are those of the last level.
    pub middle_depth: u64,
    /// What every block is told.
    pub condition: Condition,
    /// Groups of each group norm.
    pub groups: u64,
}

/// A level of a denoising network: images of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Channels.
    pub width: u64,
    /// Transformer blocks behind each residual block; 0 without attention.
    pub depth: u64,
    /// Heads of their attention.
    pub heads: u64,
}

/// What every block of a denoising network is told beside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Width of the sinusoids of the time step.
    pub sinusoids: u64,
    /// Width of the time vector that two matrices make of them.
    pub time: u64,
    /// Tokens of the text.
    pub text_tokens: u64,
    /// Width of each token's vector, which a text encoder outside of the network puts out.
    pub text_width: u64,
}

/// A layer of the network with its name and the layers that it reads, by their place in the list.
pub(crate) struct Placed {
    pub name: String,
    pub layer: UnetLayer,
    pub inputs: Vec<usize>,
}

/// The list as it grows.
struct Builder<'a> {
    unet: &'a Unet,
    layers: Vec<Placed>,
    /// Outputs of the way down that the way up has yet to read, with their widths.
    skips: Vec<(usize, u64)>,
    width: u64,
    side: u64,
}

impl Unet {
    /// Height and width of the images of a level, halved from level to level.
    pub fn side(&self, level: usize) -> u64 {
        (0..level).fold(self.latent, |side, _| side.div_ceil(2))
    }

    /// Every layer in the order of computation.
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
        let last = Convolution { outputs: self.channels, norm: true, ..builder.convolution() };
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

    /// A convolution that keeps size and width.
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

    /// The last output is read again on the way up.
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
