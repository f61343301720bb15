//! Networks that are counted and not planned. Each type is a list of its parts, with the shapes of
//! `transformers` 5.24 and `diffusers` 0.42.

use super::config::Config;
use crate::{Counted, CountedPart, read::check::LARGEST};

/// A type, and how its parts are listed.
type Row = (&'static str, fn(&mut Config<'_>) -> Vec<CountedPart>);

/// Every type. Those of `diffusers` are class names.
pub(super) const ROWS: [Row; 6] = [
    ("FluxTransformer2DModel", flux),
    ("SD3Transformer2DModel", sd3),
    ("clip_vision_model", clip_vision),
    ("siglip_vision_model", siglip_vision),
    ("t5", t5),
    ("whisper", whisper),
];

/// Channels of the sinusoidal encoding of a time step (`Timesteps`).
const SINUSOIDS: u64 = 256;

/// Returns the network of a known type.
pub(super) fn read(config: &mut Config<'_>, what: &str) -> Option<Counted> {
    let (_, parts) = ROWS.iter().find(|(name, _)| *name == what)?;
    Some(Counted { what: what.into(), parts: parts(config) })
}

/// Reads a size, and refuses one that is too large for products of a few.
fn size(config: &mut Config<'_>, key: &'static str, default: u64) -> u64 {
    let size = config.size(&[key], default);
    if size > LARGEST {
        config.refuse(key, format!("`{key}` is {size}, more than the {LARGEST} that are supported"));
    }
    size.min(LARGEST)
}

/// Reads a size that may be null or absent.
fn optional(config: &mut Config<'_>, key: &'static str) -> Option<u64> {
    config.has(key).then(|| size(config, key, 0))
}

fn part(name: &str, count: u64, parameters: u64) -> CountedPart {
    CountedPart { name: name.into(), count, parameters }
}

fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
}

fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |sum, term| sum.saturating_add(*term))
}

/// The parameters of a matrix without a bias.
fn bare(inputs: u64, outputs: u64) -> u64 {
    product(&[inputs, outputs])
}

/// The parameters of a matrix with a bias.
fn linear(inputs: u64, outputs: u64) -> u64 {
    sum(&[bare(inputs, outputs), outputs])
}

/// The parameters of two matrices with biases, one behind the other.
fn two(inputs: u64, inner: u64, outputs: u64) -> u64 {
    sum(&[linear(inputs, inner), linear(inner, outputs)])
}

/// Queries, keys, values and output of one width, with biases.
fn attention(width: u64) -> u64 {
    product(&[4, linear(width, width)])
}

/// An encoder and a decoder whose attention has biases that depend on distance, stored with the first
/// block of each (`T5Stack`).
fn t5(config: &mut Config<'_>) -> Vec<CountedPart> {
    let vocabulary = size(config, "vocab_size", 32_128);
    let width = size(config, "d_model", 512);
    let heads = size(config, "num_heads", 8);
    let inner = product(&[heads, size(config, "d_kv", 64)]);
    let wide = size(config, "d_ff", 2048);
    let encoders = size(config, "num_layers", 6);
    let decoders = optional(config, "num_decoder_layers").unwrap_or(encoders);
    let buckets = size(config, "relative_attention_num_buckets", 32);
    let gated = config.word("feed_forward_proj").is_some_and(|word| word.starts_with("gated"));
    let attend = product(&[4, width, inner]);
    let feed = product(&[if gated { 3 } else { 2 }, width, wide]);
    let tied = config.flag("tie_word_embeddings", true);
    let mut parts = vec![
        part("embedding", 1, bare(vocabulary, width)),
        part("encoder.positions", 1, bare(buckets, heads)),
        part("encoder.block", encoders, sum(&[attend, feed, 2 * width])),
        part("encoder.norm", 1, width),
        part("decoder.positions", 1, bare(buckets, heads)),
        part("decoder.block", decoders, sum(&[2 * attend, feed, 3 * width])),
        part("decoder.norm", 1, width),
    ];
    parts.extend((!tied).then(|| part("head", 1, bare(vocabulary, width))));
    parts
}

/// Two convolutions over a spectrum, an encoder, and a decoder with a tied head
/// (`WhisperForConditionalGeneration`). Keys have no biases.
fn whisper(config: &mut Config<'_>) -> Vec<CountedPart> {
    let width = size(config, "d_model", 384);
    let vocabulary = size(config, "vocab_size", 51_865);
    let bins = size(config, "num_mel_bins", 80);
    let (encoders, decoders) = (size(config, "encoder_layers", 4), size(config, "decoder_layers", 4));
    let wide = [size(config, "encoder_ffn_dim", 1536), size(config, "decoder_ffn_dim", 1536)];
    let places = [size(config, "max_source_positions", 1500), size(config, "max_target_positions", 448)];
    let attend = attention(width).saturating_sub(width);
    let norm = 2 * width;
    let tied = config.flag("tie_word_embeddings", true);
    let mut parts = vec![
        part("encoder.convolutions", 1, sum(&[linear(3 * bins, width), linear(3 * width, width)])),
        part("encoder.positions", 1, bare(places[0], width)),
        part("encoder.block", encoders, sum(&[attend, two(width, wide[0], width), 2 * norm])),
        part("encoder.norm", 1, norm),
        part("decoder.embedding", 1, bare(sum(&[vocabulary, places[1]]), width)),
        part("decoder.block", decoders, sum(&[2 * attend, two(width, wide[1], width), 3 * norm])),
        part("decoder.norm", 1, norm),
    ];
    parts.extend((!tied).then(|| part("head", 1, bare(vocabulary, width))));
    parts
}

/// The sizes of an image encoder.
struct Tower {
    width: u64,
    wide: u64,
    layers: u64,
    /// Values of a patch, and the number of patches.
    patch: (u64, u64),
}

fn tower(config: &mut Config<'_>, patch: u64) -> Tower {
    let width = size(config, "hidden_size", 768);
    let (image, patch) = (config.side("image_size", 224).min(LARGEST), config.side("patch_size", patch).min(LARGEST));
    let side = image.checked_div(patch).unwrap_or(0);
    let channels = size(config, "num_channels", 3);
    Tower {
        width,
        wide: size(config, "intermediate_size", 3072),
        layers: size(config, "num_hidden_layers", 12),
        patch: (product(&[channels, patch, patch]), product(&[side, side])),
    }
}

impl Tower {
    fn blocks(&self) -> CountedPart {
        let Self { width, wide, .. } = *self;
        part("block", self.layers, sum(&[attention(width), two(width, wide, width), 4 * width]))
    }
}

/// CLIP's image encoder: a class token, and norms before and after the blocks.
fn clip_vision(config: &mut Config<'_>) -> Vec<CountedPart> {
    let tower = tower(config, 32);
    let (values, patches) = tower.patch;
    let vectors = product(&[sum(&[patches, 2]), tower.width]);
    vec![
        part("embedding", 1, sum(&[bare(values, tower.width), vectors, 2 * tower.width])),
        tower.blocks(),
        part("norm", 1, 2 * tower.width),
    ]
}

/// SigLIP's image encoder, which pools its tokens by an attention (`SiglipVisionModel`).
fn siglip_vision(config: &mut Config<'_>) -> Vec<CountedPart> {
    let tower = tower(config, 16);
    let (values, patches) = tower.patch;
    let width = tower.width;
    let pools = config.flag("vision_use_head", true);
    let mut parts = vec![
        part("embedding", 1, sum(&[linear(values, width), bare(patches, width)])),
        tower.blocks(),
        part("norm", 1, 2 * width),
    ];
    // A query, the attention, a norm and a feed-forward network.
    let head = sum(&[width, attention(width), 2 * width, two(width, tower.wide, width)]);
    parts.extend(pools.then(|| part("head", 1, head)));
    parts
}

/// The vectors of time and pooled text (`CombinedTimestepTextProjEmbeddings`), and of guidance.
fn conditions(width: u64, pooled: u64, guided: bool) -> u64 {
    let time = two(SINUSOIDS, width, width);
    sum(&[time, two(pooled, width, width), if guided { time } else { 0 }])
}

/// FLUX: blocks over an image and a text stream, then blocks over both joined.
fn flux(config: &mut Config<'_>) -> Vec<CountedPart> {
    let head = size(config, "attention_head_dim", 128);
    let width = product(&[size(config, "num_attention_heads", 24), head]);
    let channels = size(config, "in_channels", 64);
    let outputs = optional(config, "out_channels").unwrap_or(channels);
    let patch = size(config, "patch_size", 1);
    let text = size(config, "joint_attention_dim", 4096);
    let pooled = size(config, "pooled_projection_dim", 768);
    let guided = config.flag("guidance_embeds", false);
    let (double, single) = (size(config, "num_layers", 19), size(config, "num_single_layers", 38));
    let stream = sum(&[linear(width, 6 * width), attention(width), 2 * head, two(width, 4 * width, width)]);
    let joined = sum(&[
        linear(width, 3 * width),
        product(&[3, linear(width, width)]),
        2 * head,
        linear(width, 4 * width),
        linear(5 * width, width),
    ]);
    let mut parts = vec![
        part("conditions", 1, conditions(width, pooled, guided)),
        part("embeddings", 1, sum(&[linear(text, width), linear(channels, width)])),
    ];
    parts.extend((double > 0).then(|| part("double-block", double, 2 * stream)));
    parts.extend((single > 0).then(|| part("single-block", single, joined)));
    let end = sum(&[linear(width, 2 * width), linear(width, product(&[patch, patch, outputs]))]);
    parts.push(part("end", 1, end));
    parts
}

/// Stable Diffusion 3: blocks over an image and a text stream. The last has no output for the text;
/// some attend to the image a second time (`JointTransformerBlock`).
fn sd3(config: &mut Config<'_>) -> Vec<CountedPart> {
    let head = size(config, "attention_head_dim", 64);
    let width = product(&[size(config, "num_attention_heads", 18), head]);
    let (channels, patch) = (size(config, "in_channels", 16), size(config, "patch_size", 2));
    let outputs =
        optional(config, "out_channels").unwrap_or(if config.value("out_channels").is_some() { channels } else { 16 });
    let text = size(config, "joint_attention_dim", 4096);
    let caption = size(config, "caption_projection_dim", 1152);
    let pooled = size(config, "pooled_projection_dim", 2048);
    let layers = size(config, "num_layers", 18);
    let twice = config.sizes("dual_attention_layers", 0).unwrap_or_default();
    let norms = if config.has("qk_norm") { 2 * head } else { 0 };
    let feed = two(width, 4 * width, width);
    let attend = sum(&[attention(width), norms]);
    let block = |index: u64| {
        let dual = twice.contains(&index);
        let image = sum(&[linear(width, if dual { 9 } else { 6 } * width), attend, feed]);
        let second = if dual { attend } else { 0 };
        let words = match index + 1 == layers {
            false => sum(&[linear(width, 6 * width), attend, feed]),
            true => sum(&[linear(width, 2 * width), product(&[3, linear(width, width)]), norms]),
        };
        sum(&[image, second, words])
    };
    let mut parts = vec![
        part("embedding", 1, linear(product(&[channels, patch, patch]), width)),
        part("conditions", 1, conditions(width, pooled, false)),
        part("text", 1, linear(text, caption)),
    ];
    let layers_counted = layers.min(crate::read::check::MOST_LAYERS);
    parts.extend((0..layers_counted).map(|index| part(&format!("block.{index}"), 1, block(index))));
    let end = sum(&[linear(width, 2 * width), linear(width, product(&[patch, patch, outputs]))]);
    parts.push(part("end", 1, end));
    parts
}
