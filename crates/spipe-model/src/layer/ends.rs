//! The first and last layers of a network: embeddings, heads, and the loss that joins two towers.

use crate::{
    Batch, Norm, Precision,
    work::{LayerWork, Op, product, sum},
};
use spipe_base::Bytes;

/// A table of token vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// Width of the output.
    pub hidden: u64,
    /// Width of a token's vector, which a matrix without a bias projects to `hidden` if they differ.
    pub table_width: u64,
    /// The number of learned positions, whose vectors are added to the tokens'; 0 without.
    pub places: u64,
    /// The kinds of segments, whose vectors are added to the tokens'; 0 without (BERT: 2).
    pub token_types: u64,
    /// A norm with its epsilon after the table (BLOOM, BERT).
    pub norm: Option<(Norm, f64)>,
    /// The factor of the tokens' vectors.
    pub scale: f64,
    /// Whether training applies dropout to the output.
    pub dropout: bool,
}

/// The projection of each patch of an image to a vector, and a class token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchEmbedding {
    /// Height and width of an image in pixels.
    pub image: u64,
    /// Height and width of a patch in pixels.
    pub patch: u64,
    /// Channels of a pixel.
    pub channels: u64,
    /// Width of a vector.
    pub hidden: u64,
    /// Whether the projection has a bias.
    pub bias: bool,
    /// Whether a class token comes before the patches, and positions are learned; otherwise they are
    /// fixed (DiT).
    pub class_token: bool,
    /// Whether a learned vector replaces hidden patches (DINOv2).
    pub mask_token: bool,
    /// A norm with its epsilon after the embedding (CLIP).
    pub norm: Option<(Norm, f64)>,
}

/// The last norm, the projection to classes, and the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Width of the input.
    pub hidden: u64,
    /// The number of classes: for a language model, the vocabulary.
    pub classes: u64,
    /// Width of the vectors that are multiplied with those of the classes. If it is not `hidden`, a
    /// matrix without a bias comes before.
    pub table_width: u64,
    /// The norm before the projection, if there is one.
    pub norm: Option<Norm>,
    /// The norm's epsilon.
    pub norm_epsilon: f64,
    /// Whether the projection has a bias.
    pub bias: bool,
    /// The bound of logits, if there is one ([`Block::score_cap`](crate::Block::score_cap)).
    pub cap: Option<f64>,
    /// Whether every token is classified, or only one per sequence.
    pub every_token: bool,
    /// Whether the mean of the other tokens is put beside the classified one (DINOv2).
    pub joined_mean: bool,
    /// Whether a vector of each sequence shifts and scales the norm's output (DiT).
    pub modulated: bool,
    /// Whether the projection shares the embedding's table, so that the head itself owns only the
    /// norm.
    pub tied: bool,
}

/// The end of a tower: a norm and a projection of one token per sequence to the vector that is
/// compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    /// Width of the input.
    pub hidden: u64,
    /// Width of the output; 0 for the norm of all tokens alone.
    pub outputs: u64,
    /// The norm before the projection.
    pub norm: Norm,
    /// The norm's epsilon.
    pub norm_epsilon: f64,
}

/// The contrastive loss of two towers: it compares each vector of one tower with each of the other
/// within a microbatch (CLIP, arXiv 2103.00020, figure 3). Its only parameter is the scale of the
/// scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    /// Width of the vectors.
    pub width: u64,
}

/// Bytes of a token id.
const TOKEN_ID: u64 = 4;
/// Bytes of a logit and of a loss: cross-entropy is computed in 32 bits.
pub(crate) const LOGIT: u64 = 4;

fn norm_parameters(norm: Option<(Norm, f64)>, width: u64) -> u64 {
    norm.map_or(0, |(norm, _)| norm.parameters(width))
}

impl Embedding {
    pub(crate) fn parameters(&self) -> u64 {
        let table = self.vocabulary * self.table_width + (self.places + self.token_types) * self.hidden;
        table + self.widening() + norm_parameters(self.norm, self.hidden)
    }

    /// Returns the parameters of the matrix after the table.
    const fn widening(&self) -> u64 {
        if self.table_width == self.hidden { 0 } else { self.table_width * self.hidden }
    }

    /// The forward gathers rows. The weight gradient reads the output's gradient and adds it to
    /// rows.
    pub(crate) fn work(&self, batch: Batch) -> LayerWork {
        let elements = product(&[batch.tokens(), self.hidden]);
        let mut work = LayerWork::default();
        let tables = 1 + u64::from(self.places > 0) + u64::from(self.token_types > 0);
        work.forward.push(Op::Elementwise { elements: product(&[3 * tables - 1, elements]), kernels: tables as u32 });
        if self.widening() > 0 {
            work.linear(1, batch.tokens(), (self.hidden, self.table_width));
        }
        if self.norm.is_some() {
            work.norm(elements);
        }
        if self.dropout {
            work.copy(elements);
        }
        work.backward_weight
            .push(Op::Elementwise { elements: product(&[3 * tables, elements]), kernels: tables as u32 });
        work
    }

    pub(crate) fn saved(&self, batch: Batch, precision: Precision, keep_all: bool) -> Bytes {
        let elements = product(&[batch.tokens(), self.hidden]);
        let normalised = if self.norm.is_some() && keep_all { product(&[elements, precision.bytes()]) } else { 0 };
        let narrow = if self.widening() > 0 && keep_all {
            product(&[batch.tokens(), self.table_width, precision.bytes()])
        } else {
            0
        };
        let mask = if self.dropout && keep_all { elements } else { 0 };
        Bytes::new(sum(&[product(&[batch.tokens(), TOKEN_ID]), normalised, narrow, mask]))
    }

    pub(crate) fn signature(&self) -> String {
        let norm = if self.norm.is_some() { " norm" } else { "" };
        let dropout = if self.dropout { " dropout" } else { "" };
        let types = if self.token_types > 0 { format!(" t{}", self.token_types) } else { String::new() };
        let narrow = if self.widening() > 0 { format!(" w{}", self.table_width) } else { String::new() };
        format!("embedding v{} h{} p{}{types}{narrow}{norm}{dropout}", self.vocabulary, self.hidden, self.places)
    }
}

impl PatchEmbedding {
    /// Returns the number of patches of an image plus one for the class token, if there is one.
    pub const fn tokens(&self) -> u64 {
        let side = self.image / self.patch;
        side * side + if self.class_token { 1 } else { 0 }
    }

    /// Returns the number of patches of an image.
    const fn patches(&self) -> u64 {
        let side = self.image / self.patch;
        side * side
    }

    /// Returns the number of values in a patch.
    pub const fn patch_width(&self) -> u64 {
        self.channels * self.patch * self.patch
    }

    pub(crate) fn parameters(&self) -> u64 {
        // The class token has a vector of its own, and every position, including the class token's,
        // a learned one.
        let projection = self.hidden * self.patch_width() + u64::from(self.bias) * self.hidden;
        let learned = if self.class_token { 1 + self.tokens() } else { 0 };
        let vectors = learned + u64::from(self.mask_token);
        projection + vectors * self.hidden + norm_parameters(self.norm, self.hidden)
    }

    /// The projection is a matrix product over patches; images need no gradient.
    pub(crate) fn work(&self, batch: Batch) -> LayerWork {
        let patches = product(&[batch.microbatch, self.patches()]);
        let elements = product(&[batch.microbatch, self.tokens(), self.hidden]);
        let mut work = LayerWork::default();
        work.forward.push(Op::matmul(patches, self.hidden, self.patch_width()));
        work.forward.push(Op::elementwise(product(&[3, elements])));
        if self.norm.is_some() {
            work.norm(elements);
        }
        work.backward_weight.push(Op::matmul(self.patch_width(), self.hidden, patches));
        work.backward_weight.push(Op::elementwise(product(&[2, elements])));
        work
    }

    pub(crate) fn saved(&self, batch: Batch, precision: Precision, keep_all: bool) -> Bytes {
        let pixels = product(&[batch.microbatch, self.patches(), self.patch_width()]);
        let normalised =
            if self.norm.is_some() && keep_all { product(&[batch.microbatch, self.tokens(), self.hidden]) } else { 0 };
        Bytes::new(product(&[sum(&[pixels, normalised]), precision.bytes()]))
    }

    pub(crate) fn signature(&self) -> String {
        let norm = if self.norm.is_some() { " norm" } else { "" };
        let bias = if self.bias { " bias" } else { "" };
        format!("patch-embedding i{} p{} c{} h{}{bias}{norm}", self.image, self.patch, self.channels, self.hidden)
    }
}

impl Head {
    /// Returns the parameters of the projection, which a tied head shares with the embedding.
    pub(crate) const fn projection_parameters(&self) -> u64 {
        self.read_width() * self.classes
    }

    /// Returns the width of the vectors that are projected.
    const fn read_width(&self) -> u64 {
        if self.joined_mean { 2 * self.table_width } else { self.table_width }
    }

    pub(crate) fn parameters(&self) -> u64 {
        let projection = if self.tied { 0 } else { self.projection_parameters() };
        let norm = self.norm.map_or(0, |norm| norm.parameters(self.hidden));
        let modulation = if self.modulated { 2 * self.hidden * (self.hidden + 1) } else { 0 };
        projection + self.narrowing() + u64::from(self.bias) * self.classes + norm + modulation
    }

    /// Returns the parameters of the matrix before the projection.
    const fn narrowing(&self) -> u64 {
        if self.table_width == self.hidden { 0 } else { self.table_width * self.hidden }
    }

    /// Returns the number of classified tokens.
    fn rows(&self, batch: Batch) -> u64 {
        if self.every_token { batch.tokens() } else { batch.microbatch }
    }

    /// The loss reads the logits twice, for the normaliser and for the sum. Its backward reads them
    /// and writes their gradient.
    pub(crate) fn work(&self, batch: Batch) -> LayerWork {
        let rows = self.rows(batch);
        let logits = product(&[rows, self.classes]);
        let mut work = LayerWork::default();
        if self.norm.is_some() {
            work.norm(product(&[batch.tokens(), self.hidden]));
        }
        if self.narrowing() > 0 {
            work.linear(1, rows, (self.table_width, self.hidden));
        }
        if self.modulated {
            work.linear(1, batch.microbatch, (2 * self.hidden, self.hidden));
            work.copy(product(&[batch.tokens(), self.hidden]));
        }
        work.linear(1, rows, (self.classes, self.read_width()));
        if self.bias {
            work.bias(rows, self.classes);
        }
        work.forward.push(Op::Elementwise { elements: product(&[2, logits]), kernels: 2 });
        work.backward_input.push(Op::elementwise(product(&[2, logits])));
        work.backward_input.reverse();
        work.backward_weight.reverse();
        work
    }

    /// The input, the norm's output, the narrower rows, and the logits in 32 bits.
    pub(crate) fn saved(&self, batch: Batch, precision: Precision, keep_all: bool) -> Bytes {
        let input = product(&[batch.tokens(), self.hidden, precision.bytes()]);
        let rest = if keep_all { sum(&[self.normalised(batch, precision), self.logits(batch)]) } else { 0 };
        Bytes::new(sum(&[input, rest]))
    }

    /// The gradient of the logits in 32 bits (or the logits themselves where nothing is saved), and
    /// the gradient of the norm's output.
    pub(crate) fn workspace(&self, batch: Batch, precision: Precision) -> Bytes {
        Bytes::new(sum(&[self.logits(batch), self.normalised(batch, precision)]))
    }

    fn logits(&self, batch: Batch) -> u64 {
        product(&[LOGIT, self.rows(batch), self.classes])
    }

    fn normalised(&self, batch: Batch, precision: Precision) -> u64 {
        let norm = if self.norm.is_some() { self.hidden } else { 0 };
        let narrow = if self.narrowing() > 0 { self.table_width } else { 0 };
        product(&[self.rows(batch), norm + narrow, precision.bytes()])
    }

    pub(crate) fn signature(&self) -> String {
        let rows = if self.every_token { "" } else { " pooled" };
        let bias = if self.bias { " bias" } else { "" };
        let tied = if self.tied { " tied" } else { "" };
        let norm = match self.norm {
            Some(norm) if norm.centres() => "ln",
            Some(_) => "rms",
            None => "plain",
        };
        let narrow = if self.narrowing() > 0 { format!(" w{}", self.table_width) } else { String::new() };
        let mean = match (self.joined_mean, self.modulated) {
            (true, _) => " mean",
            (false, true) => " modulated",
            (false, false) => "",
        };
        format!("head h{} v{} {norm}{rows}{mean}{bias}{tied}{narrow}", self.hidden, self.classes)
    }
}

impl Projection {
    pub(crate) fn parameters(&self) -> u64 {
        self.hidden * self.outputs + self.norm.parameters(self.hidden)
    }

    pub(crate) fn work(&self, batch: Batch) -> LayerWork {
        let mut work = LayerWork::default();
        work.norm(product(&[batch.tokens(), self.hidden]));
        if self.outputs > 0 {
            work.linear(1, batch.microbatch, (self.outputs, self.hidden));
        }
        work.backward_input.reverse();
        work.backward_weight.reverse();
        work
    }

    pub(crate) fn saved(&self, batch: Batch, precision: Precision, keep_all: bool) -> Bytes {
        let pooled = if keep_all && self.outputs > 0 { product(&[batch.microbatch, self.hidden]) } else { 0 };
        let elements = sum(&[product(&[batch.tokens(), self.hidden]), pooled]);
        Bytes::new(product(&[elements, precision.bytes()]))
    }

    /// Elements of the output.
    pub(crate) fn output_elements(&self, batch: Batch) -> u64 {
        match self.outputs {
            0 => product(&[batch.tokens(), self.hidden]),
            outputs => product(&[batch.microbatch, outputs]),
        }
    }

    pub(crate) fn signature(&self) -> String {
        format!("projection h{} o{}", self.hidden, self.outputs)
    }
}

impl Contrast {
    /// Each vector is scaled to unit length, then all pairs are multiplied. The loss is taken over
    /// rows and over columns.
    pub(crate) fn work(&self, batch: Batch) -> LayerWork {
        let count = batch.microbatch;
        let vectors = product(&[2, count, self.width]);
        let scores = product(&[count, count]);
        let mut work = LayerWork::default();
        work.forward.push(Op::Elementwise { elements: product(&[2, vectors]), kernels: 2 });
        work.forward.push(Op::matmul(count, count, self.width));
        work.forward.push(Op::Elementwise { elements: product(&[4, scores]), kernels: 4 });
        work.backward_input.push(Op::Elementwise { elements: product(&[4, scores]), kernels: 2 });
        work.backward_input.push(Op::MatMul { batch: 2, m: count, n: self.width, k: count });
        work.backward_input.push(Op::Elementwise { elements: product(&[3, vectors]), kernels: 2 });
        work.backward_weight.push(Op::elementwise(product(&[2, scores])));
        work
    }

    /// The vectors before and after scaling to unit length, and the scores.
    pub(crate) fn saved(&self, batch: Batch, precision: Precision, keep_all: bool) -> Bytes {
        let vectors = product(&[2, batch.microbatch, self.width, precision.bytes()]);
        let rest = if keep_all { sum(&[vectors, self.scores(batch)]) } else { 0 };
        Bytes::new(sum(&[vectors, rest]))
    }

    /// The gradient of the scores, or the scores themselves where nothing is saved.
    pub(crate) fn workspace(&self, batch: Batch) -> Bytes {
        Bytes::new(self.scores(batch))
    }

    fn scores(&self, batch: Batch) -> u64 {
        product(&[LOGIT, batch.microbatch, batch.microbatch])
    }

    pub(crate) fn signature(&self) -> String {
        format!("contrast o{}", self.width)
    }
}

/// Returns the output bytes of a loss: one number per sequence.
pub(crate) fn loss_bytes(batch: Batch) -> Bytes {
    Bytes::new(batch.microbatch.saturating_mul(LOGIT))
}
