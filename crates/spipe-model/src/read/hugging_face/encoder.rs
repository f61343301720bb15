//! Encoders of text and images, and two towers. Defaults are those of the config classes of transformers 5.23.

use super::{config::Config, decoder::activation};
use crate::{
    Block, Encoder, EncoderEnd, Mlp, PatchEmbedding, Positions, TextTower, TwoTowers, Vision, VisionEnd,
    read::check::Check, read::toml::encoder_block,
};

const HEADS: &[&str] = &["num_attention_heads"];

/// The defaults of a class of `transformers`.
struct Defaults {
    hidden: u64,
    layers: u64,
    heads: u64,
    intermediate: u64,
    epsilon: f64,
}

const VIT: Defaults = Defaults { hidden: 768, layers: 12, heads: 12, intermediate: 3072, epsilon: 1e-12 };
const CLIP_VISION: Defaults = Defaults { epsilon: 1e-5, ..VIT };
const CLIP_TEXT: Defaults = Defaults { hidden: 512, layers: 12, heads: 8, intermediate: 2048, epsilon: 1e-5 };

/// Returns the shape and the number of an encoder's blocks. Later checks report faults of the head
/// width.
fn blocks(config: &mut Config<'_>, defaults: &Defaults) -> (Block, u64) {
    let hidden = config.stated_size(&["hidden_size"], defaults.hidden);
    let heads = config.stated_size(HEADS, defaults.heads);
    let intermediate = config.stated_size(&["intermediate_size"], defaults.intermediate);
    let epsilon = config.number(&["layer_norm_eps"], defaults.epsilon);
    let layers = config.stated_size(&["num_hidden_layers"], defaults.layers);
    let mut silent = Check::new(&|_| None);
    let rates = ["hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"];
    let dropout = rates.into_iter().any(|key| config.number(&[key], 0.0) > 0.0);
    (Block { dropout, ..encoder_block(&mut silent, (hidden, heads, intermediate), epsilon) }, layers)
}

pub(super) fn vit(config: &mut Config<'_>) -> Vision {
    let (block, layers) = blocks(config, &VIT);
    // `num_labels` is a property of the class, written to files as a table of names; its default is
    // two.
    let classes = config.entries("id2label").unwrap_or_else(|| config.size(&["num_labels"], 2));
    Vision {
        embedding: PatchEmbedding {
            image: config.side("image_size", 224),
            patch: config.side("patch_size", 16),
            channels: config.size(&["num_channels"], 3),
            hidden: block.hidden,
            bias: true,
            class_token: true,
            mask_token: false,
            norm: None,
        },
        layers,
        block: Block {
            mlp: activation(config, &["hidden_act"], block.mlp),
            qkv_bias: config.flag("qkv_bias", true),
            ..block
        },
        end: VisionEnd::Classes(classes),
    }
}

/// DINOv2: a ViT whose branches are scaled; the width of its feed-forward network is a multiple of
/// `hidden_size`, or two thirds of that, rounded up to a multiple of 8, if it is gated
/// (`Dinov2SwiGLUFFN`). The model without a head ends in its last norm.
pub(super) fn dinov2(config: &mut Config<'_>) -> Vision {
    let hidden = config.stated_size(&["hidden_size"], VIT.hidden);
    let heads = config.stated_size(HEADS, VIT.heads);
    let ratio = config.number(&["mlp_ratio"], 4.0);
    let gated = config.flag("use_swiglu_ffn", false);
    let inner = (hidden as f64 * ratio) as u64;
    let intermediate = if gated { (2 * inner / 3).div_ceil(8) * 8 } else { inner };
    let epsilon = config.number(&["layer_norm_eps"], 1e-6);
    let mut silent = Check::new(&|_| None);
    let block = encoder_block(&mut silent, (hidden, heads, intermediate), epsilon);
    let mlp = if gated { Mlp::Swiglu } else { activation(config, &["hidden_act"], block.mlp) };
    let classes = config.entries("id2label").unwrap_or_else(|| config.size(&["num_labels"], 2));
    let class = config.words("architectures").and_then(|classes| classes.first().copied()).unwrap_or_default();
    let bare = class.ends_with("Model");
    let dropout = ["hidden_dropout_prob", "attention_probs_dropout_prob"];
    let dropout = dropout.into_iter().any(|key| config.number(&[key], 0.0) > 0.0);
    Vision {
        embedding: PatchEmbedding {
            image: config.side("image_size", 224),
            patch: config.side("patch_size", 14),
            channels: config.size(&["num_channels"], 3),
            hidden,
            bias: true,
            class_token: true,
            mask_token: config.flag("use_mask_token", true),
            norm: None,
        },
        layers: config.stated_size(&["num_hidden_layers"], VIT.layers),
        block: Block { mlp, qkv_bias: config.flag("qkv_bias", true), layer_scale: true, dropout, ..block },
        end: if bare { VisionEnd::Features } else { VisionEnd::JoinedClasses(classes) },
    }
}

/// The defaults of a class of text encoders of `transformers`.
pub(super) struct TextEncoder {
    epsilon: f64,
    vocabulary: u64,
    places: u64,
}

pub(super) const BERT: TextEncoder = TextEncoder { epsilon: 1e-12, vocabulary: 30_522, places: 512 };
pub(super) const ROBERTA: TextEncoder = TextEncoder { epsilon: 1e-12, vocabulary: 50_265, places: 512 };

/// Reads a text encoder. The class in `architectures` says the task; without one, masked tokens are
/// predicted.
pub(super) fn text(config: &mut Config<'_>, defaults: &TextEncoder) -> Encoder {
    let (block, layers) = blocks(config, &Defaults { epsilon: defaults.epsilon, ..VIT });
    let places = config.size(&["max_position_embeddings"], defaults.places);
    let dropout = ["hidden_dropout_prob", "attention_probs_dropout_prob"];
    let dropout = dropout.into_iter().any(|key| config.number(&[key], 0.1) > 0.0);
    let labels = config.entries("id2label").unwrap_or_else(|| config.size(&["num_labels"], 2));
    let class = config.words("architectures").and_then(|classes| classes.first().copied()).unwrap_or_default();
    let end = match class {
        _ if class.ends_with("ForQuestionAnswering") => EncoderEnd::Tokens(2),
        _ if class.ends_with("ForTokenClassification") => EncoderEnd::Tokens(labels),
        _ if class.ends_with("ForSequenceClassification") => EncoderEnd::Classes(labels),
        _ => EncoderEnd::Vocabulary,
    };
    if !(class.is_empty() || class.ends_with("ForMaskedLM") || end != EncoderEnd::Vocabulary) {
        config.warn("architectures", format!("`{class}` is treated as a model that predicts masked tokens"));
    }
    let decoder = "is_decoder";
    if config.flag(decoder, false) {
        config.refuse(decoder, "a text encoder that is used as a decoder is not read".into());
    }
    Encoder {
        vocabulary: config.size(&["vocab_size"], defaults.vocabulary),
        token_types: config.size(&["type_vocab_size"], 2),
        layers,
        block: Block {
            mlp: activation(config, &["hidden_act"], block.mlp),
            positions: Positions::Learned { places },
            dropout,
            ..block
        },
        seq_len: places,
        end,
    }
}

/// The names of the two towers' tables; old files use the second one.
pub(super) const TEXT: &[&str] = &["text_config", "text_config_dict"];
pub(super) const VISION: &[&str] = &["vision_config", "vision_config_dict"];

pub(super) fn clip(config: &mut Config<'_>) -> TwoTowers {
    let projection = config.size(&["projection_dim"], 512);
    let empty = serde_json::Map::new();
    let mut text_config = config.child(TEXT).unwrap_or_else(|| Config::new("", "", &empty));
    let text = text_tower(&mut text_config, projection);
    let mut vision_config = config.child(VISION).unwrap_or_else(|| Config::new("", "", &empty));
    let vision = vision_tower(&mut vision_config, projection);
    for (keys, table) in [(TEXT, text_config), (VISION, vision_config)] {
        if config.child(keys).is_some() {
            config.faults.extend(table.faults);
        } else {
            config.warn(keys[0], format!("`{}` is absent; the defaults of its class are used", keys[0]));
        }
    }
    TwoTowers { text, vision }
}

fn text_tower(config: &mut Config<'_>, projection: u64) -> TextTower {
    let (block, layers) = blocks(config, &CLIP_TEXT);
    let places = config.size(&["max_position_embeddings"], 77);
    TextTower {
        vocabulary: config.size(&["vocab_size"], 49_408),
        layers,
        block: Block { causal: true, positions: Positions::Learned { places }, ..block },
        seq_len: places,
        projection,
    }
}

fn vision_tower(config: &mut Config<'_>, projection: u64) -> Vision {
    let (block, layers) = blocks(config, &CLIP_VISION);
    Vision {
        embedding: PatchEmbedding {
            image: config.side("image_size", 224),
            patch: config.side("patch_size", 32),
            channels: config.size(&["num_channels"], 3),
            hidden: block.hidden,
            bias: false,
            class_token: true,
            mask_token: false,
            norm: Some((block.norm, block.norm_epsilon)),
        },
        layers,
        block,
        end: VisionEnd::Projection(projection),
    }
}
