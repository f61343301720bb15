//! Model files of kinds `vit` and `clip`.

use super::transformer::{NORM_EPSILON, head_dim};
use crate::{
    Block, Mlp, Modulation, Norm, PatchEmbedding, Positions, TextTower, TwoTowers, Vision, VisionEnd,
    read::check::Check,
};
use serde::{Deserialize, Serialize};

/// An image encoder.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct VisionFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: VisionKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// Frozen layers: indices, names, or ranges of either including both ends (`"0..3"`); none if
    /// absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Height and width of an image in pixels.
    pub image: u64,
    /// Height and width of a patch in pixels.
    pub patch: u64,
    /// Channels of a pixel; 3 if absent.
    #[serde(default = "three")]
    pub channels: u64,
    /// Whether the projection of patches has a bias; `true` if absent.
    #[serde(default = "yes")]
    pub patch_bias: bool,
    /// Whether a norm follows the embedding; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embedding_norm: bool,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The number of blocks.
    pub layers: u64,
    /// Heads of the attention.
    pub heads: u64,
    /// Inner width of the feed-forward network.
    pub intermediate: u64,
    /// The norms' epsilon; 1e-5 if absent.
    pub norm_epsilon: Option<f64>,
    /// Whether query, key and value projections have biases; `true` if absent.
    #[serde(default = "yes")]
    pub qkv_bias: bool,
    /// The kind of feed-forward network; `gelu` if absent.
    pub mlp: Option<Mlp>,
    /// Whether a learned vector scales the output of each branch; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layer_scale: bool,
    /// Whether a class token comes before the patches, and positions are learned; otherwise they are
    /// fixed. `true` if absent.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub class_token: bool,
    /// The classes that shift, scale and gate both branches of every block together with a time step;
    /// none if absent.
    pub modulation_classes: Option<u64>,
    /// Width of a head; `hidden` / `heads` if absent.
    pub head_dim: Option<u64>,
    /// The kind of all norms; `layer-norm` if absent.
    pub norm: Option<Norm>,
    /// Whether a learned vector replaces hidden patches; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mask_token: bool,
    /// The values of a patch that the network predicts; this, `classes`, `projection` or `features`.
    pub values_per_patch: Option<u64>,
    /// The number of classes of the head; this, `projection` or `features`.
    pub classes: Option<u64>,
    /// Whether the head reads the mean of all patches beside the class token; only with `classes`,
    /// `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joined_mean: bool,
    /// Width of the vector that represents an image; this, `classes` or `features`.
    pub projection: Option<u64>,
    /// Whether the network ends in a norm of all tokens; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub features: bool,
    /// Whether training applies dropout, which keeps masks; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropout: bool,
}

/// The `kind` of image encoders.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VisionKind {
    /// A vision transformer (arXiv 2010.11929).
    Vit,
}

/// A text encoder and an image encoder joined by a contrastive loss.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct TowersFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: TowersKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// Frozen layers: indices, names, or ranges of either including both ends (`"0..3"`); none if
    /// absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Width of the vectors that are compared.
    pub projection: u64,
    /// The text encoder.
    pub text: TextTable,
    /// The image encoder.
    pub vision: VisionTable,
}

/// The `kind` of two encoders.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TowersKind {
    /// Contrastive language-image pretraining (arXiv 2103.00020).
    Clip,
}

/// The text encoder of two towers.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct TextTable {
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// The longest sequence, in tokens; equal to the number of learned positions.
    pub seq_len: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The number of blocks.
    pub layers: u64,
    /// Heads of the attention.
    pub heads: u64,
    /// Inner width of the feed-forward network.
    pub intermediate: u64,
    /// The norms' epsilon; 1e-5 if absent.
    pub norm_epsilon: Option<f64>,
    /// Whether training applies dropout, which keeps masks; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropout: bool,
}

/// The image encoder of two towers. Its patch embedding has a norm but no bias.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct VisionTable {
    /// Height and width of an image in pixels.
    pub image: u64,
    /// Height and width of a patch in pixels.
    pub patch: u64,
    /// Channels of a pixel; 3 if absent.
    #[serde(default = "three")]
    pub channels: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The number of blocks.
    pub layers: u64,
    /// Heads of the attention.
    pub heads: u64,
    /// Inner width of the feed-forward network.
    pub intermediate: u64,
    /// The norms' epsilon; 1e-5 if absent.
    pub norm_epsilon: Option<f64>,
    /// Whether training applies dropout, which keeps masks; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropout: bool,
}

const fn three() -> u64 {
    3
}

const fn yes() -> bool {
    true
}

const fn is_true(flag: &bool) -> bool {
    *flag
}

/// Returns a block of the GPT-2 family of encoders: two matrices, norms and projections with
/// biases.
pub(crate) fn encoder_block(
    check: &mut Check<'_>,
    (hidden, heads, intermediate): (u64, u64, u64),
    epsilon: f64,
) -> Block {
    let head_dim = head_dim(check, None, hidden, heads);
    Block {
        norm: Norm::LayerNorm,
        norm_epsilon: epsilon,
        mlp: Mlp::Gelu,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        causal: false,
        ..Block::new((hidden, heads, head_dim), intermediate)
    }
}

impl VisionFile {
    /// Returns the network, and reports options that contradict each other.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Vision {
        let end = match (self.classes, self.projection, self.features) {
            (None, None, false) if self.values_per_patch.is_some() => {
                VisionEnd::Patches(self.values_per_patch.unwrap_or(1))
            }
            (Some(classes), None, false) if self.joined_mean => VisionEnd::JoinedClasses(classes),
            (Some(classes), None, false) => VisionEnd::Classes(classes),
            (None, Some(outputs), false) => VisionEnd::Projection(outputs),
            (None, None, true) => VisionEnd::Features,
            (None, None, false) => {
                check.error("", "one of the keys `classes` and `projection` is missing".into());
                VisionEnd::Classes(1)
            }
            (Some(_), Some(outputs), false) => {
                check
                    .error("projection", "an image encoder ends in `classes` or in a `projection`, not in both".into());
                VisionEnd::Projection(outputs)
            }
            (_, _, true) => {
                check.error("features", "`features` stands without `classes` and `projection`".into());
                VisionEnd::Features
            }
        };
        if self.joined_mean && self.classes.is_none() {
            check.error("joined-mean", "`joined-mean` has no effect without `classes`".into());
        }
        let epsilon = self.norm_epsilon.unwrap_or(NORM_EPSILON);
        let block = match self.head_dim {
            None => encoder_block(check, (self.hidden, self.heads, self.intermediate), epsilon),
            Some(head_dim) => {
                let mut silent = Check::new(&|_| None);
                let block = encoder_block(&mut silent, (self.hidden, self.heads, self.intermediate), epsilon);
                Block { head_dim, ..block }
            }
        };
        let block = Block {
            qkv_bias: self.qkv_bias,
            mlp: self.mlp.unwrap_or(block.mlp),
            layer_scale: self.layer_scale,
            norm: self.norm.unwrap_or(block.norm),
            modulation: self.modulation_classes.map(|classes| Modulation { classes }),
            dropout: self.dropout,
            ..block
        };
        check.vision_end(end);
        Vision {
            embedding: PatchEmbedding {
                image: self.image,
                patch: self.patch,
                channels: self.channels,
                hidden: self.hidden,
                bias: self.patch_bias,
                class_token: self.class_token,
                mask_token: self.mask_token,
                norm: self.embedding_norm.then_some((block.norm, epsilon)),
            },
            layers: self.layers,
            block,
            end,
        }
    }

    /// Returns the file that describes a network.
    pub(crate) fn from_vision(name: &str, source: Option<&str>, vision: &Vision) -> Self {
        let (classes, projection) = match vision.end {
            VisionEnd::Classes(classes) | VisionEnd::JoinedClasses(classes) => (Some(classes), None),
            VisionEnd::Projection(outputs) => (None, Some(outputs)),
            VisionEnd::Features | VisionEnd::Patches(_) => (None, None),
        };
        Self {
            format_version: super::FORMAT_VERSION,
            kind: VisionKind::Vit,
            name: name.into(),
            source: source.map(str::to_owned),
            frozen: Vec::new(),
            image: vision.embedding.image,
            patch: vision.embedding.patch,
            channels: vision.embedding.channels,
            patch_bias: vision.embedding.bias,
            embedding_norm: vision.embedding.norm.is_some(),
            hidden: vision.block.hidden,
            layers: vision.layers,
            heads: vision.block.heads,
            intermediate: vision.block.intermediate,
            norm_epsilon: Some(vision.block.norm_epsilon),
            qkv_bias: vision.block.qkv_bias,
            mlp: Some(vision.block.mlp).filter(|mlp| *mlp != Mlp::Gelu),
            layer_scale: vision.block.layer_scale,
            class_token: vision.embedding.class_token,
            modulation_classes: vision.block.modulation.map(|modulation| modulation.classes),
            head_dim: Some(vision.block.head_dim)
                .filter(|head_dim| head_dim.saturating_mul(vision.block.heads) != vision.block.hidden),
            norm: Some(vision.block.norm).filter(|norm| *norm != Norm::LayerNorm),
            mask_token: vision.embedding.mask_token,
            values_per_patch: match vision.end {
                VisionEnd::Patches(values) => Some(values),
                _ => None,
            },
            classes,
            joined_mean: matches!(vision.end, VisionEnd::JoinedClasses(_)),
            projection,
            features: vision.end == VisionEnd::Features,
            dropout: vision.block.dropout,
        }
    }
}

impl TowersFile {
    /// Returns the network.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> TwoTowers {
        let (text, vision) = (&self.text, &self.vision);
        let text_block = check.within("text", |check| {
            let epsilon = text.norm_epsilon.unwrap_or(NORM_EPSILON);
            let block = encoder_block(check, (text.hidden, text.heads, text.intermediate), epsilon);
            Block { dropout: text.dropout, ..block }
        });
        let vision_block = check.within("vision", |check| {
            let epsilon = vision.norm_epsilon.unwrap_or(NORM_EPSILON);
            let block = encoder_block(check, (vision.hidden, vision.heads, vision.intermediate), epsilon);
            Block { dropout: vision.dropout, ..block }
        });
        TwoTowers {
            text: TextTower {
                vocabulary: text.vocabulary,
                layers: text.layers,
                block: Block { causal: true, positions: Positions::Learned { places: text.seq_len }, ..text_block },
                seq_len: text.seq_len,
                projection: self.projection,
            },
            vision: Vision {
                embedding: PatchEmbedding {
                    image: vision.image,
                    patch: vision.patch,
                    channels: vision.channels,
                    hidden: vision.hidden,
                    bias: false,
                    class_token: true,
                    mask_token: false,
                    norm: Some((vision_block.norm, vision_block.norm_epsilon)),
                },
                layers: vision.layers,
                block: vision_block,
                end: VisionEnd::Projection(self.projection),
            },
        }
    }

    /// Returns the file that describes a network.
    pub(crate) fn from_towers(name: &str, source: Option<&str>, towers: &TwoTowers) -> Self {
        let (text, vision) = (&towers.text, &towers.vision);
        Self {
            format_version: super::FORMAT_VERSION,
            kind: TowersKind::Clip,
            name: name.into(),
            source: source.map(str::to_owned),
            frozen: Vec::new(),
            projection: text.projection,
            text: TextTable {
                vocabulary: text.vocabulary,
                seq_len: text.seq_len,
                hidden: text.block.hidden,
                layers: text.layers,
                heads: text.block.heads,
                intermediate: text.block.intermediate,
                norm_epsilon: Some(text.block.norm_epsilon),
                dropout: text.block.dropout,
            },
            vision: VisionTable {
                image: vision.embedding.image,
                patch: vision.embedding.patch,
                channels: vision.embedding.channels,
                hidden: vision.block.hidden,
                layers: vision.layers,
                heads: vision.block.heads,
                intermediate: vision.block.intermediate,
                norm_epsilon: Some(vision.block.norm_epsilon),
                dropout: vision.block.dropout,
            },
        }
    }
}
