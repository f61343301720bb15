//! The work of a denoising network's layers.
//!
//! A convolution of 3 × 3 pixels from c to d channels with P output pixels takes 2·9·c·d·P
//! operations, and each of its two gradients the same. A transformer block over P pixels of width
//! c, with T tokens of text of width x, takes
//!
//! ```text
//! queries, keys, values, output of the self-attention        2P·4c²
//! scores and values of the self-attention                    4P²·c
//! queries and output of the cross-attention                  2P·2c²
//! keys and values of the text                                2T·2xc
//! scores and values of the cross-attention                   4P·T·c
//! gate, inner and outer matrix of the feed-forward network   2P·12c²
//! ```

use super::{
    Condition, Convolution, Denoising, UnetLayer,
    layer::{EXPANSION, KERNEL},
};
use crate::work::{LayerWork, Op, product, sum};

impl UnetLayer {
    /// Returns the work for `images` images.
    pub fn work(&self, images: u64) -> LayerWork {
        let mut work = LayerWork::default();
        match self {
            Self::Conditioning(condition) => condition.work(&mut work, images),
            Self::Convolution(convolution) => convolution.work(&mut work, images),
            Self::Denoising(denoising) => denoising.work(&mut work, images),
        }
        work.backward_input.reverse();
        work.backward_weight.reverse();
        work
    }
}

impl LayerWork {
    /// Adds an elementwise function: the forward reads and writes, the backward also reads the
    /// gradient.
    fn activation(&mut self, elements: u64) {
        self.forward.push(Op::elementwise(product(&[2, elements])));
        self.backward_input.push(Op::elementwise(product(&[3, elements])));
    }

    /// Adds a matrix with a bias, applied to `rows` rows.
    fn projection(&mut self, rows: u64, (outputs, inputs): (u64, u64)) {
        self.linear(1, rows, (outputs, inputs));
        self.bias(rows, outputs);
    }

    /// Adds a convolution with a bias.
    fn convolution(&mut self, images: u64, convolution: &Convolution) {
        let Convolution { inputs, outputs, side_in, side_out, .. } = *convolution;
        // To enlarge an image, its pixels are repeated first.
        let grown = side_in.max(side_out);
        if side_out > side_in {
            let pixels = sum(&[product(&[side_in, side_in]), product(&[grown, grown])]);
            let repeated = Op::elementwise(product(&[images, inputs, pixels]));
            self.forward.push(repeated);
            self.backward_input.push(repeated);
        }
        let op = Op::Convolution {
            images,
            pixels_in: product(&[grown, grown]),
            pixels_out: product(&[side_out, side_out]),
            inputs,
            outputs,
            taps: KERNEL * KERNEL,
        };
        self.forward.push(op);
        self.backward_input.push(op);
        self.backward_weight.push(op);
        self.bias(product(&[images, side_out, side_out]), outputs);
    }
}

impl Condition {
    fn work(&self, work: &mut LayerWork, images: u64) {
        work.linear(1, images, (self.time, self.sinusoids));
        work.activation(product(&[images, self.time]));
        work.projection(images, (self.time, self.time));
        if self.added > 0 {
            work.projection(images, (self.time, self.added));
            work.activation(product(&[images, self.time]));
            work.projection(images, (self.time, self.time));
            work.add(2, product(&[images, self.time]));
        }
    }
}

impl Convolution {
    fn work(&self, work: &mut LayerWork, images: u64) {
        if self.norm {
            let elements = product(&[images, self.side_in, self.side_in, self.inputs]);
            work.norm(elements);
            work.activation(elements);
        }
        work.convolution(images, self);
    }
}

impl Denoising {
    fn work(&self, work: &mut LayerWork, images: u64) {
        self.residual(work, images);
        if self.depth > 0 {
            self.transformer(work, images);
        }
    }

    fn residual(&self, work: &mut LayerWork, images: u64) {
        let pixels = product(&[images, self.pixels()]);
        let (before, behind) = (product(&[pixels, self.inputs]), product(&[pixels, self.outputs]));
        let first = Convolution {
            inputs: self.inputs,
            outputs: self.outputs,
            side_in: self.side,
            side_out: self.side,
            norm: false,
            groups: self.groups,
        };
        work.norm(before);
        work.activation(before);
        work.convolution(images, &first);
        work.activation(product(&[images, self.condition.time]));
        work.projection(images, (self.outputs, self.condition.time));
        work.add(1, behind);
        work.norm(behind);
        work.activation(behind);
        work.convolution(images, &Convolution { inputs: self.outputs, ..first });
        if self.projects() {
            work.projection(pixels, (self.outputs, self.inputs));
        }
        work.add(2, behind);
    }

    fn transformer(&self, work: &mut LayerWork, images: u64) {
        let pixels = product(&[images, self.pixels()]);
        let elements = product(&[pixels, self.outputs]);
        work.norm(elements);
        work.projection(pixels, (self.outputs, self.outputs));
        for _ in 0..self.depth {
            self.block(work, images);
        }
        work.projection(pixels, (self.outputs, self.outputs));
        work.add(2, elements);
    }

    fn block(&self, work: &mut LayerWork, images: u64) {
        let Condition { text_tokens, text_width, .. } = self.condition;
        let (width, pixels) = (self.outputs, product(&[images, self.pixels()]));
        let elements = product(&[pixels, width]);
        work.norm(elements);
        work.linear(1, pixels, (3 * width, width));
        self.attend(work, images, self.pixels());
        work.projection(pixels, (width, width));
        work.add(2, elements);
        work.norm(elements);
        work.linear(1, pixels, (width, width));
        work.linear(1, product(&[images, text_tokens]), (2 * width, text_width));
        self.attend(work, images, text_tokens);
        work.projection(pixels, (width, width));
        work.add(2, elements);
        work.norm(elements);
        let inner = product(&[pixels, EXPANSION, width]);
        work.projection(pixels, (2 * EXPANSION * width, width));
        // The forward reads the gate and the tensor that it multiplies, and writes their product.
        // The backward reads both and a gradient, and writes two gradients.
        work.forward.push(Op::elementwise(product(&[3, inner])));
        work.backward_input.push(Op::elementwise(product(&[5, inner])));
        work.projection(pixels, (width, EXPANSION * width));
        work.add(2, elements);
    }

    fn attend(&self, work: &mut LayerWork, images: u64, keys: u64) {
        let attention = |backward| Op::Attention {
            batch: images,
            heads: self.heads,
            kv_heads: self.heads,
            seq_q: self.pixels(),
            seq_k: keys,
            head_dim: self.outputs / self.heads.max(1),
            causal: false,
            backward,
        };
        work.forward.push(attention(false));
        work.backward_input.push(attention(true));
    }

    /// Returns the work of a selective recompute: norms and activation functions, or materialised
    /// attention.
    pub(crate) fn cheap_work(&self, images: u64, fused: bool) -> Vec<Op> {
        let whole = UnetLayer::Denoising(*self).work(images).forward;
        whole
            .into_iter()
            .filter(|op| match op {
                Op::Elementwise { .. } => fused,
                Op::Attention { .. } => !fused,
                Op::MatMul { .. } | Op::Convolution { .. } => false,
            })
            .collect()
    }
}
