//! The kinds of network, each described by a few numbers, and the layers built from them.

mod counted;
mod encoder;
mod profiled;

pub use counted::{Counted, CountedPart};
pub use encoder::Encoder;
pub use profiled::{Profiled, ProfiledGroup};

use crate::{
    Block, Contrast, Embedding, Head, Layer, LayerKind, Norm, NormPlaces, PatchEmbedding, Positions, Projection,
    QkNorm, Unet,
};
use spipe_base::{IdVec, LayerId};

/// A kind of network with its sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// A language model: embedding, blocks, head.
    Transformer(Transformer),
    /// A text encoder: embedding, blocks, the head of a task.
    Encoder(Encoder),
    /// An image encoder: patch embedding, blocks, then a classifier or a projection.
    Vision(Vision),
    /// A text encoder and an image encoder joined by a contrastive loss.
    TwoTowers(Box<TwoTowers>),
    /// A denoising network over latent images.
    Unet(Unet),
    /// Layers described by measurements.
    Profiled(Profiled),
    /// Parts that are counted and not planned.
    Counted(Counted),
}

/// A decoder-only language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// The number of blocks.
    pub layers: u64,
    /// The shape of each block, with its sliding window if any block has one.
    pub block: Block,
    /// The number of leading blocks without the sliding window (Qwen2's `max_window_layers`).
    pub full_attention_layers: u64,
    /// Other blocks without the sliding window, in ascending order (every second one of Gemma 2).
    pub full_attention: Vec<u64>,
    /// The blocks that have one feed-forward network in place of experts, in ascending order.
    pub dense_layers: Vec<u64>,
    /// Inner width of the feed-forward network of these blocks.
    pub dense_intermediate: u64,
    /// The default sequence length, in tokens.
    pub seq_len: u64,
    /// Whether a norm follows the embedding.
    pub embedding_norm: bool,
    /// The factor of the embedding's output (√hidden in Gemma); 1 without.
    pub embedding_scale: f64,
    /// Width of the embedding's vectors, where a matrix projects them to `hidden`, and one before the
    /// head back (the smallest OPT); `hidden` without.
    pub embedding_width: u64,
    /// Whether a norm precedes the head.
    pub final_norm: bool,
    /// Whether the head's projection has a bias (Phi-2).
    pub head_bias: bool,
    /// The bound of logits, as that of scores ([`Block::score_cap`]); none if absent.
    pub logit_cap: Option<f64>,
    /// Whether the head's projection shares the embedding's table.
    pub tied: bool,
    /// The number of modules that predict further tokens (DeepSeek-V3). They are counted apart, and
    /// neither planned nor run.
    pub mtp_layers: u64,
}

/// An image encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vision {
    /// The first layer.
    pub embedding: PatchEmbedding,
    /// The number of blocks.
    pub layers: u64,
    /// The shape of each block.
    pub block: Block,
    /// The part after the blocks.
    pub end: VisionEnd,
}

/// The last part of an image encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionEnd {
    /// A classifier with this many classes and a bias, on the class token, and its loss.
    Classes(u64),
    /// The same on the class token and the mean of the others, side by side (DINOv2).
    JoinedClasses(u64),
    /// A norm of all tokens.
    Features,
    /// A modulated norm and a projection of every token to this many values: the noise in a patch
    /// (DiT).
    Patches(u64),
    /// A projection of the class token to a vector of this width, without a bias.
    Projection(u64),
}

/// A text encoder and an image encoder trained together (CLIP, arXiv 2103.00020).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoTowers {
    /// The text encoder.
    pub text: TextTower,
    /// The image encoder, which ends in a projection.
    pub vision: Vision,
}

/// A text encoder whose last token is projected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextTower {
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// The number of blocks.
    pub layers: u64,
    /// The shape of each block.
    pub block: Block,
    /// The default sequence length, in tokens.
    pub seq_len: u64,
    /// Width of the projection.
    pub projection: u64,
}

impl Architecture {
    /// Returns the default sequence length: for an image encoder, the tokens of an image; for a
    /// denoising network, the pixels of a latent image.
    pub fn seq_len(&self) -> u64 {
        match self {
            Self::Transformer(transformer) => transformer.seq_len,
            Self::Encoder(encoder) => encoder.seq_len,
            Self::Vision(vision) => vision.embedding.tokens(),
            Self::TwoTowers(towers) => towers.text.seq_len,
            Self::Unet(unet) => unet.latent * unet.latent,
            Self::Profiled(profiled) => profiled.measured_at.seq_len,
            Self::Counted(_) => 1,
        }
    }

    pub(crate) fn layers(&self) -> IdVec<LayerId, Layer> {
        let mut layers = Layers::default();
        match self {
            Self::Transformer(transformer) => transformer.build(&mut layers),
            Self::Encoder(encoder) => encoder.build(&mut layers),
            Self::Vision(vision) => vision.build(&mut layers, ""),
            Self::TwoTowers(towers) => towers.build(&mut layers),
            Self::Unet(unet) => unet.build(&mut layers),
            Self::Profiled(profiled) => profiled.build(&mut layers),
            Self::Counted(counted) => counted.build(&mut layers),
        }
        layers.layers
    }
}

/// A list of layers under construction. Each layer reads its predecessor unless stated otherwise.
#[derive(Default)]
struct Layers {
    layers: IdVec<LayerId, Layer>,
    tokens: Option<u64>,
    previous: Option<LayerId>,
}

impl Layers {
    fn add(&mut self, name: String, kind: LayerKind, parameters: u64) -> LayerId {
        let layer = Layer {
            name,
            kind,
            parameters,
            inputs: self.previous.into_iter().collect(),
            tied_to: None,
            tied_parameters: 0,
            tokens: self.tokens,
            sequence_parts: 1,
            trains: true,
            adaptation: None,
            needs_backward: true,
            passes_gradient: true,
        };
        let id = self.layers.push(layer);
        self.previous = Some(id);
        id
    }

    fn add_block(&mut self, name: String, block: Block) {
        self.add(name, LayerKind::Block(block), block.parameters());
    }
}

impl Transformer {
    /// Returns the network of these blocks with a plain embedding and head: no norm after the one, a
    /// norm and no bias in the other, tables of their own.
    pub fn new(vocabulary: u64, layers: u64, block: Block, seq_len: u64) -> Self {
        Self {
            vocabulary,
            layers,
            block,
            full_attention_layers: 0,
            full_attention: Vec::new(),
            dense_layers: Vec::new(),
            dense_intermediate: block.intermediate,
            seq_len,
            embedding_norm: false,
            embedding_scale: 1.0,
            embedding_width: block.hidden,
            final_norm: true,
            head_bias: false,
            logit_cap: None,
            tied: false,
            mtp_layers: 0,
        }
    }

    /// Returns the block with this index.
    pub fn block(&self, index: u64) -> Block {
        let full = index < self.full_attention_layers || self.full_attention.binary_search(&index).is_ok();
        let sliding_window = self.block.sliding_window.filter(|_| !full);
        if self.dense_layers.binary_search(&index).is_ok() {
            return Block { sliding_window, experts: None, intermediate: self.dense_intermediate, ..self.block };
        }
        Block { sliding_window, ..self.block }
    }

    /// Returns the first layer.
    pub fn embedding(&self) -> Embedding {
        Embedding {
            vocabulary: self.vocabulary,
            hidden: self.block.hidden,
            table_width: self.embedding_width,
            places: places(&self.block),
            token_types: 0,
            norm: self.embedding_norm.then_some((self.block.norm, self.block.norm_epsilon)),
            scale: self.embedding_scale,
            dropout: self.block.dropout,
        }
    }

    /// Returns the last layer.
    pub fn head(&self) -> Head {
        Head {
            hidden: self.block.hidden,
            table_width: self.embedding_width,
            classes: self.vocabulary,
            norm: self.final_norm.then_some(self.block.norm),
            norm_epsilon: self.block.norm_epsilon,
            bias: self.head_bias,
            cap: self.logit_cap,
            every_token: true,
            joined_mean: false,
            modulated: false,
            tied: self.tied,
        }
    }

    /// Returns the first property, in words, that neither Llama nor GPT-2 has; `None` if there is none.
    pub fn peculiarity(&self) -> Option<&'static str> {
        let block = &self.block;
        let words = [
            (block.experts.is_some(), "it has experts"),
            (block.latent.is_some(), "its keys and values are computed from narrow vectors (DeepSeek)"),
            (block.sinks, "its attention has sinks (gpt-oss)"),
            (block.score_cap.is_some() || self.logit_cap.is_some(), "its scores or logits are bounded (Gemma 2)"),
            (block.score_scale.is_some(), "its scores are scaled by another number than the width of heads (Gemma 2)"),
            (
                block.norms == NormPlaces::Shared,
                "one norm serves attention and feed-forward network (GPT-J, Phi-2, Command-R)",
            ),
            (block.parallel_residual, "its attention and feed-forward network read one input (GPT-NeoX)"),
            (block.norms != NormPlaces::Before, "its norms are not before the branches (Gemma 2, OLMo-2)"),
            (
                matches!(block.qk_norm, QkNorm::All | QkNorm::EachHead),
                "the norms of its queries and keys have weights for each head (OLMo-2)",
            ),
            (block.norm == Norm::RmsNormPlusOne, "one is added to the weights of its norms (Gemma)"),
            (
                matches!(block.norm, Norm::LayerNormNoBias | Norm::LayerNormPlain),
                "its layer norms have no biases (Command-R)",
            ),
            (block.layer_scale, "its branches are scaled (DINOv2)"),
            (self.embedding_norm, "a norm follows its embedding (BLOOM)"),
            ((self.embedding_scale - 1.0).abs() > 0.0, "its embedding is scaled (Gemma)"),
            (self.embedding_width != block.hidden, "its embedding is narrower than its blocks (OPT)"),
            (!self.final_norm, "no norm precedes its head (OPT)"),
            (self.head_bias, "its head has a bias (Phi-2)"),
            (!self.full_attention.is_empty(), "some of its blocks have a sliding window in turns (Gemma 2)"),
            (!block.causal, "its attention is not causal"),
        ];
        words.into_iter().find(|(holds, _)| *holds).map(|(_, word)| word)
    }

    /// Returns the parameters of the modules that predict further tokens, which use the model's
    /// embedding and head: a block, a matrix that joins its two inputs, and three norms, of these inputs
    /// and of the output (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    pub fn mtp_parameters(&self) -> u64 {
        let hidden = self.block.hidden;
        let last = self.block(self.layers.saturating_sub(1));
        self.mtp_layers * (last.parameters() + 2 * hidden * hidden + 3 * self.block.norm.parameters(hidden))
    }

    fn build(&self, layers: &mut Layers) {
        let (embedding, head) = (self.embedding(), self.head());
        let first = layers.add("embedding".into(), LayerKind::Embedding(embedding), embedding.parameters());
        for index in 0..self.layers {
            layers.add_block(format!("block.{index}"), self.block(index));
        }
        let last = layers.add("head".into(), LayerKind::Head(head), head.parameters());
        if self.tied {
            layers.layers[last].tied_to = Some(first);
            layers.layers[last].tied_parameters = head.projection_parameters();
        }
    }
}

impl Encoder {
    fn build(&self, layers: &mut Layers) {
        let embedding = Embedding {
            vocabulary: self.vocabulary,
            hidden: self.block.hidden,
            places: places(&self.block),
            table_width: self.block.hidden,
            token_types: self.token_types,
            norm: Some((self.block.norm, self.block.norm_epsilon)),
            scale: 1.0,
            dropout: self.block.dropout,
        };
        let first = layers.add("embedding".into(), LayerKind::Embedding(embedding), embedding.parameters());
        for index in 0..self.layers {
            layers.add_block(format!("block.{index}"), self.block);
        }
        let head = self.head();
        let last = layers.add("head".into(), LayerKind::EncoderHead(head), head.parameters());
        if head.is_tied() {
            layers.layers[last].tied_to = Some(first);
            layers.layers[last].tied_parameters = head.tied_parameters();
        }
    }
}

/// Returns the number of learned positions.
fn places(block: &Block) -> u64 {
    match block.positions {
        Positions::Learned { places } => places,
        _ => 0,
    }
}

fn projection(block: &Block, outputs: u64) -> Projection {
    Projection { hidden: block.hidden, outputs, norm: block.norm, norm_epsilon: block.norm_epsilon }
}

impl Vision {
    /// Returns the last layer, if it has a loss.
    pub fn head(&self) -> Option<Head> {
        let (VisionEnd::Classes(classes) | VisionEnd::JoinedClasses(classes) | VisionEnd::Patches(classes)) = self.end
        else {
            return None;
        };
        let patches = matches!(self.end, VisionEnd::Patches(_));
        Some(Head {
            hidden: self.block.hidden,
            table_width: self.block.hidden,
            classes,
            norm: Some(self.block.norm),
            norm_epsilon: self.block.norm_epsilon,
            bias: true,
            cap: None,
            every_token: patches,
            joined_mean: matches!(self.end, VisionEnd::JoinedClasses(_)),
            modulated: patches,
            tied: false,
        })
    }

    fn build(&self, layers: &mut Layers, prefix: &str) {
        layers.tokens = Some(self.embedding.tokens());
        layers.add(
            format!("{prefix}embedding"),
            LayerKind::PatchEmbedding(self.embedding),
            self.embedding.parameters(),
        );
        for index in 0..self.layers {
            layers.add_block(format!("{prefix}block.{index}"), self.block);
        }
        match (self.head(), self.end) {
            (Some(head), _) => {
                layers.add(format!("{prefix}head"), LayerKind::Head(head), head.parameters());
            }
            (None, VisionEnd::Projection(outputs)) => {
                let end = projection(&self.block, outputs);
                layers.add(format!("{prefix}projection"), LayerKind::Projection(end), end.parameters());
            }
            (None, _) => {
                let end = projection(&self.block, 0);
                layers.add(format!("{prefix}norm"), LayerKind::Projection(end), end.parameters());
            }
        }
        layers.tokens = None;
    }
}

impl TwoTowers {
    fn build(&self, layers: &mut Layers) {
        let text = &self.text;
        let embedding = Embedding {
            vocabulary: text.vocabulary,
            hidden: text.block.hidden,
            places: places(&text.block),
            table_width: text.block.hidden,
            token_types: 0,
            norm: None,
            scale: 1.0,
            dropout: text.block.dropout,
        };
        layers.add("text.embedding".into(), LayerKind::Embedding(embedding), embedding.parameters());
        for index in 0..text.layers {
            layers.add_block(format!("text.block.{index}"), text.block);
        }
        let end = projection(&text.block, text.projection);
        let text_end = layers.add("text.projection".into(), LayerKind::Projection(end), end.parameters());
        layers.previous = None;
        self.vision.build(layers, "vision.");
        let contrast = Contrast { width: text.projection };
        let last = layers.add("contrast".into(), LayerKind::Contrast(contrast), 1);
        layers.layers[last].inputs.insert(0, text_end);
    }
}

impl Unet {
    fn build(&self, layers: &mut Layers) {
        for placed in self.layers() {
            layers.tokens = Some(placed.layer.pixels());
            let parameters = placed.layer.parameters();
            let id = layers.add(placed.name, LayerKind::Unet(placed.layer), parameters);
            layers.layers[id].inputs = placed.inputs.into_iter().map(LayerId::from).collect();
        }
    }
}

impl Counted {
    fn build(&self, layers: &mut Layers) {
        for part in &self.parts {
            for name in part.names() {
                layers.add(name, LayerKind::Counted, part.parameters);
            }
        }
    }
}
