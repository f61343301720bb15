//! The modulation of a block by a time step and a class (DiT, arXiv 2212.09748, section 3.2).

use crate::{
    Block, Modulation,
    work::{LayerWork, product},
};

/// Channels of the sinusoidal encoding of a time step.
const SINUSOIDS: u64 = 256;
/// A shift, a scale and a gate for each of both branches.
const VECTORS: u64 = 6;

const fn linear(inputs: u64, outputs: u64) -> u64 {
    inputs * outputs + outputs
}

impl Modulation {
    /// Returns the parameters: a table of classes and one for none, two matrices that make a vector of
    /// the time step, and one that makes the six vectors of the block.
    pub(crate) const fn parameters(self, hidden: u64) -> u64 {
        let time = linear(SINUSOIDS, hidden) + linear(hidden, hidden);
        (self.classes + 1) * hidden + time + linear(hidden, VECTORS * hidden)
    }
}

impl Block {
    /// Adds the vectors of `images` images, and their application to all tokens.
    pub(crate) fn modulate(&self, work: &mut LayerWork, images: u64, residual: u64) {
        if self.modulation.is_none() {
            return;
        }
        work.linear(1, images, (self.hidden, SINUSOIDS));
        work.linear(1, images, (self.hidden, self.hidden));
        work.linear(1, images, (product(&[VECTORS, self.hidden]), self.hidden));
        // Scale and shift before each branch, a gate behind it.
        for _ in 0..4 {
            work.copy(residual);
        }
    }
}
