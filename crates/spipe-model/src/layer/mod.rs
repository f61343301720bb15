//! One layer of a model and its costs.

mod encoder_head;
mod ends;
mod profiled;
mod shard;
mod trained;

pub use encoder_head::{EncoderEnd, EncoderHead};
pub use ends::{Contrast, Embedding, Head, PatchEmbedding, Projection};
pub use profiled::{ProfiledLayer, ProfiledTime};

use crate::{
    Adaptation, Attention, Batch, Block, LayerWork, Op, Operation, Operations, Precision, Recompute, UnetLayer,
    layer::ends::loss_bytes, work::product,
};
use spipe_base::{Bytes, LayerId};

/// A layer: the unit of placement on devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name, unique in the model: `embedding`, `block.0`, `head`.
    pub name: String,
    /// Its kind, with its shapes.
    pub kind: LayerKind,
    /// The number of parameters that it owns; those of [`tied_to`](Self::tied_to) are counted
    /// there.
    pub parameters: u64,
    /// The layers whose output it reads, in ascending order and all before it; none for a source.
    pub inputs: Vec<LayerId>,
    /// The layer whose parameters it also uses.
    pub tied_to: Option<LayerId>,
    /// The number of parameters of [`tied_to`](Self::tied_to) that it uses. If the two layers are
    /// on different devices, both devices need a copy.
    pub tied_parameters: u64,
    /// Tokens per sequence if the model fixes them (patches of an image); otherwise the batch's.
    pub tokens: Option<u64>,
    /// The devices that divide each sequence, of which each has as many tokens (context parallelism); usually 1.
    pub sequence_parts: u64,
    /// Whether its parameters are trained. A frozen layer has neither gradients nor optimizer
    /// state.
    pub trains: bool,
    /// Its adapters, in a model that has some: its own parameters are frozen then.
    pub adaptation: Option<Adaptation>,
    /// Whether a backward runs through it: something in it is trained, or it reads, directly or
    /// indirectly, a layer in which something is.
    pub needs_backward: bool,
    /// Whether its backward yields the gradient of its input: a layer that it reads needs a
    /// backward.
    pub passes_gradient: bool,
}

/// The kind of a layer, with its shapes.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerKind {
    /// A table of token vectors.
    Embedding(Embedding),
    /// The projection of each patch of an image to a vector.
    PatchEmbedding(PatchEmbedding),
    /// Attention and a feed-forward network.
    Block(Block),
    /// The last norm, the projection to classes, and the loss.
    Head(Head),
    /// The head of a text encoder, with its loss.
    EncoderHead(EncoderHead),
    /// The end of a tower.
    Projection(Projection),
    /// The loss over two towers.
    Contrast(Contrast),
    /// A layer of a denoising network.
    Unet(UnetLayer),
    /// A layer described by measurements only.
    Profiled(ProfiledLayer),
    /// A part of which only the parameters are known.
    Counted,
}

impl Layer {
    /// Returns the batch with the number of tokens that this layer processes.
    pub fn batch(&self, batch: Batch) -> Batch {
        Batch { seq_len: self.context(batch).div_ceil(self.sequence_parts), ..batch }
    }

    /// Returns the tokens per sequence, those of other devices included.
    fn context(&self, batch: Batch) -> u64 {
        self.tokens.unwrap_or(batch.seq_len)
    }

    /// Returns the layer's work, which is the same in every precision. It is empty for a profiled
    /// layer, whose times are known instead.
    pub fn work(&self, batch: Batch) -> LayerWork {
        let work = self.own_work(batch);
        match &self.adaptation {
            Some(adaptation) => adaptation.adapt(work, self.experts(), self.batch(batch)),
            None => work,
        }
    }

    /// Returns the work of the layer without adapters, all of it trained.
    pub fn work_without_adapters(&self, batch: Batch) -> LayerWork {
        self.own_work(batch)
    }

    fn own_work(&self, batch: Batch) -> LayerWork {
        let (batch, context) = (self.batch(batch), self.context(batch));
        match &self.kind {
            LayerKind::Embedding(embedding) => embedding.work(batch),
            LayerKind::PatchEmbedding(embedding) => embedding.work(batch),
            LayerKind::Block(block) => block.work_within(batch, context),
            LayerKind::Head(head) => head.work(batch),
            LayerKind::EncoderHead(head) => head.work(batch),
            LayerKind::Projection(projection) => projection.work(batch),
            LayerKind::Contrast(contrast) => contrast.work(batch),
            LayerKind::Unet(layer) => {
                let mut work = layer.work(batch.microbatch);
                if self.inputs.is_empty() && matches!(layer, UnetLayer::Convolution(_)) {
                    // Latent images need no gradient.
                    work.backward_input.clear();
                }
                work
            }
            LayerKind::Profiled(_) | LayerKind::Counted => LayerWork::default(),
        }
    }

    /// Returns the batch that generates the next token of each sequence: one token, or the same
    /// batch for layers with a fixed number of tokens.
    pub fn generated(&self, batch: Batch) -> Batch {
        Batch { seq_len: if self.tokens.is_some() { batch.seq_len } else { 1 }, ..batch }
    }

    /// Returns the forward of the next token of each sequence, with the keys and values of the
    /// `batch.seq_len` − 1 tokens before it in the [`cache`](Self::cache). For layers with a fixed
    /// number of tokens, such as those of image encoders, it is their whole forward.
    pub fn generate_work(&self, batch: Batch) -> Vec<Op> {
        match &self.kind {
            LayerKind::Block(block) if self.tokens.is_none() => block.generate(batch),
            _ => self.work(self.generated(batch)).forward,
        }
    }

    /// Returns the bytes that a layer caches for `batch.seq_len` tokens of each sequence to
    /// generate the next one: the keys and values of a block, zero for layers with a fixed number
    /// of tokens.
    pub fn cache(&self, batch: Batch, precision: Precision) -> Bytes {
        match &self.kind {
            LayerKind::Block(block) if self.tokens.is_none() => block.cache(batch, precision),
            _ => Bytes::ZERO,
        }
    }

    /// Returns the work repeated before the backward; a full recompute repeats the whole forward.
    pub fn recompute_work(&self, batch: Batch, recompute: Recompute, attention: Attention) -> Vec<Op> {
        match (&self.kind, recompute) {
            (_, Recompute::None) => Vec::new(),
            (_, Recompute::Full) => self.work(batch).forward,
            (LayerKind::Block(block), Recompute::Selective) => match attention {
                Attention::Fused => block.cheap_work(self.batch(batch)),
                Attention::Materialised => block.attention_work(self.batch(batch), self.context(batch)),
            },
            (LayerKind::Unet(UnetLayer::Denoising(layer)), Recompute::Selective) => {
                layer.cheap_work(batch.microbatch, attention == Attention::Fused)
            }
            (_, Recompute::Selective) => Vec::new(),
        }
    }

    /// Returns the bytes saved between forward and backward, including the layer's input and a
    /// head's logits.
    pub fn saved(&self, batch: Batch, precision: Precision, recompute: Recompute, attention: Attention) -> Bytes {
        let own = self.own_saved(batch, precision, recompute, attention);
        let Some(adaptation) = &self.adaptation else { return own };
        if recompute == Recompute::Full {
            return own;
        }
        let batch = self.batch(batch);
        let unsaved = match (&self.kind, recompute, attention) {
            (LayerKind::Block(_), Recompute::Selective, Attention::Fused) => 0,
            (LayerKind::Block(block), _, _) => adaptation.unsaved(block, batch, precision),
            _ => 0,
        };
        own.saturating_sub(Bytes::new(unsaved)) + Bytes::new(adaptation.saved(self.experts(), batch, precision))
    }

    fn own_saved(&self, batch: Batch, precision: Precision, recompute: Recompute, attention: Attention) -> Bytes {
        let scaled = batch;
        let batch = self.batch(batch);
        let keep_all = recompute != Recompute::Full;
        match &self.kind {
            LayerKind::Embedding(embedding) => embedding.saved(batch, precision, keep_all),
            LayerKind::PatchEmbedding(embedding) => embedding.saved(batch, precision, keep_all),
            LayerKind::Block(block) => block.saved(batch, precision, recompute, attention),
            LayerKind::Head(head) => head.saved(batch, precision, keep_all),
            LayerKind::EncoderHead(head) => head.saved(batch, precision, keep_all),
            LayerKind::Projection(projection) => projection.saved(batch, precision, keep_all),
            LayerKind::Contrast(contrast) => contrast.saved(batch, precision, keep_all),
            LayerKind::Unet(layer) => layer.saved(batch.microbatch, precision, recompute, attention),
            LayerKind::Counted => Bytes::ZERO,
            LayerKind::Profiled(layer) => {
                let bytes = match recompute {
                    Recompute::None => layer.saved,
                    Recompute::Selective => layer.selective,
                    Recompute::Full => layer.recompute,
                };
                layer.scaled(bytes, scaled)
            }
        }
    }

    /// Returns the bytes that a block does not save if the outputs of `operations` are recomputed; inputs
    /// that frozen matrices do not save anyway are left out.
    pub fn unsaved_by(
        &self,
        operations: Operations,
        (batch, precision, attention): (Batch, Precision, Attention),
    ) -> Bytes {
        let LayerKind::Block(block) = &self.kind else { return Bytes::ZERO };
        if operations.has(Operation::Block) {
            return self.recomputed(batch, precision, Recompute::Full, attention);
        }
        let batch = self.batch(batch);
        let bytes = block.unsaved_by(operations, (batch, precision, attention));
        let frozen = self.adaptation.as_ref().map_or(0, |adaptation| adaptation.unsaved(block, batch, precision));
        bytes.saturating_sub(Bytes::new(frozen))
    }

    /// Returns the forward of `operations`, which the backward repeats where their outputs are not saved.
    pub fn repeated_work(&self, operations: Operations, batch: Batch) -> Vec<Op> {
        match &self.kind {
            LayerKind::Block(_) if operations.has(Operation::Block) => self.work_without_adapters(batch).forward,
            LayerKind::Block(block) => block.repeated_work(operations, (self.batch(batch), self.context(batch))),
            _ => Vec::new(),
        }
    }

    /// Returns the bytes that a recompute restores for the duration of the backward.
    pub fn recomputed(&self, batch: Batch, precision: Precision, recompute: Recompute, attention: Attention) -> Bytes {
        let everything = self.saved(batch, precision, Recompute::None, attention);
        everything.saturating_sub(self.saved(batch, precision, recompute, attention))
    }

    /// Returns the bytes of the output that the next layer reads; for a loss, one number per
    /// sequence.
    pub fn boundary(&self, batch: Batch, precision: Precision) -> Bytes {
        let scaled = batch;
        let batch = self.batch(batch);
        let activation = |width| Bytes::new(product(&[batch.tokens(), width, precision.bytes()]));
        match &self.kind {
            LayerKind::Embedding(embedding) => activation(embedding.hidden),
            LayerKind::PatchEmbedding(embedding) => activation(embedding.hidden),
            LayerKind::Block(block) => activation(block.hidden),
            LayerKind::Head(_) | LayerKind::EncoderHead(_) | LayerKind::Contrast(_) => loss_bytes(batch),
            LayerKind::Projection(projection) => {
                Bytes::new(product(&[projection.output_elements(batch), precision.bytes()]))
            }
            LayerKind::Unet(layer) => {
                Bytes::new(product(&[layer.output_elements(batch.microbatch), precision.bytes()]))
            }
            LayerKind::Profiled(layer) => layer.scaled(layer.boundary, scaled),
            LayerKind::Counted => Bytes::ZERO,
        }
    }

    /// Returns the peak bytes of buffers that live only within a forward or a backward, without the
    /// saved ones.
    pub fn workspace(&self, batch: Batch, precision: Precision, attention: Attention) -> Bytes {
        self.own_workspace(batch, precision, attention) + self.adapters_workspace(precision)
    }

    fn adapters_workspace(&self, precision: Precision) -> Bytes {
        Bytes::new(self.adaptation.as_ref().map_or(0, |adaptation| adaptation.workspace(precision)))
    }

    fn own_workspace(&self, batch: Batch, precision: Precision, attention: Attention) -> Bytes {
        let scaled = batch;
        let batch = self.batch(batch);
        match &self.kind {
            LayerKind::Embedding(_) | LayerKind::PatchEmbedding(_) | LayerKind::Projection(_) => {
                self.boundary(scaled, precision)
            }
            LayerKind::Block(block) => block.workspace(batch, precision, attention),
            LayerKind::Head(head) => head.workspace(batch, precision),
            LayerKind::EncoderHead(head) => head.workspace(batch, precision),
            LayerKind::Contrast(contrast) => contrast.workspace(batch),
            LayerKind::Unet(layer) => layer.workspace(batch.microbatch, precision, attention),
            LayerKind::Profiled(layer) => layer.scaled(layer.workspace, scaled),
            LayerKind::Counted => Bytes::ZERO,
        }
    }

    /// Returns [`workspace`](Self::workspace) for kernels whose gradients overwrite the inputs of the
    /// activation function.
    pub fn workspace_in_place(&self, batch: Batch, precision: Precision, attention: Attention) -> Bytes {
        match &self.kind {
            LayerKind::Block(block) => {
                let own = block.workspace_in_place(self.batch(batch), precision, attention);
                own + self.adapters_workspace(precision)
            }
            _ => self.workspace(batch, precision, attention),
        }
    }

    /// Returns a text that is equal for layers of equal cost: the kind with its shapes, the
    /// microbatch, the tokens and the adapters.
    pub fn signature(&self, batch: Batch) -> String {
        let adapters = self.adaptation.as_ref().map(Adaptation::signature).unwrap_or_default();
        self.own_signature(batch) + &adapters
    }

    /// Returns the same without adapters, as measurements of layers are named.
    pub fn own_signature(&self, batch: Batch) -> String {
        let seen = self.batch(batch);
        let kind = match &self.kind {
            LayerKind::Embedding(embedding) => embedding.signature(),
            LayerKind::PatchEmbedding(embedding) => embedding.signature(),
            LayerKind::Block(block) => block.signature(),
            LayerKind::Head(head) => head.signature(),
            LayerKind::EncoderHead(head) => head.signature(),
            LayerKind::Projection(projection) => projection.signature(),
            LayerKind::Contrast(contrast) => contrast.signature(),
            LayerKind::Unet(layer) => layer.signature(),
            LayerKind::Profiled(layer) => format!("profiled {}", layer.group),
            LayerKind::Counted => format!("counted {}", self.parameters),
        };
        let parts = if self.sequence_parts > 1 { format!(" of {}", self.context(batch)) } else { String::new() };
        format!("{kind} b{} s{}{parts}", seen.microbatch, seen.seq_len)
    }

    /// Returns the same for generating the next token after `batch.seq_len` − 1 others
    /// ([`Self::generate_work`]).
    pub fn generate_signature(&self, batch: Batch) -> String {
        let whole = self.own_signature(batch);
        if self.tokens.is_some() { whole } else { whole + " token" }
    }

    /// Returns the measured times of a profiled layer on a device, scaled to `batch`. `None` for
    /// other layers, and if neither the device nor its kind was measured.
    pub fn profile(&self, device_name: &str, is_gpu: bool, batch: Batch) -> Option<ProfiledTime> {
        match &self.kind {
            LayerKind::Profiled(layer) => layer.time(device_name, is_gpu, batch),
            _ => None,
        }
    }

    /// Whether the layer is described by measurements only.
    pub const fn is_profiled(&self) -> bool {
        matches!(self.kind, LayerKind::Profiled(_))
    }

    /// Returns the block, if the layer is one.
    pub const fn as_block(&self) -> Option<&Block> {
        match &self.kind {
            LayerKind::Block(block) => Some(block),
            _ => None,
        }
    }
}
