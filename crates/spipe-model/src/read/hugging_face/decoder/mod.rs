//! Decoder-only language models. Each class of `transformers` is a row of data ([`rows`]), which one
//! reader turns into a network; details of one class alone are functions beside ([`details`]).

mod details;
pub(super) mod rotary;
mod rows;
mod windows;

use super::config::Config;
use crate::{Block, Experts, Mlp, Norm, NormPlaces, Positions, QkNorm, Transformer, read::check::MOST_LAYERS};
pub(super) use rows::ROWS;

/// The activation functions that each [`Mlp`] stands for; the first is its name in messages.
const SILU: [&str; 2] = ["silu", "swish"];
const RELU: [&str; 1] = ["relu"];
const GELU: [&str; 2] = ["gelu", "gelu_python"];
const GELU_TANH: [&str; 3] = ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"];
/// The consequence of a setting that the model ignores.
const OTHERWISE: &str = "weights trained with it give slightly different results";

/// A class of `transformers`: the keys that its configs use, its defaults, and its structure.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The model type.
    pub name: &'static str,
    keys: Keys,
    vocabulary: u64,
    layers: u64,
    hidden: u64,
    heads: u64,
    /// The inner width of the feed-forward network; without it, four times `hidden`.
    intermediate: Option<u64>,
    /// If absent, equal to the number of heads.
    kv_heads: Option<u64>,
    /// If absent, hidden / heads.
    head_dim: Option<u64>,
    places: u64,
    norm: Norm,
    epsilon: f64,
    norm_places: NormPlaces,
    mlp: Mlp,
    positions: PositionRow,
    qkv_bias: Flag,
    output_bias: Flag,
    mlp_bias: Flag,
    head_bias: bool,
    qk_norm: QkNorm,
    parallel: Flag,
    embedding_norm: bool,
    tied: bool,
    window: Window,
    experts: Option<ExpertRow>,
    /// Keys of dropout rates with their defaults.
    dropout: &'static [(&'static str, f64)],
    /// Reads the rest.
    more: fn(&mut Config<'_>, &mut Transformer),
}

/// The keys of a class's sizes. If several are present, the first counts.
#[derive(Clone, Copy)]
struct Keys {
    hidden: &'static [&'static str],
    layers: &'static [&'static str],
    heads: &'static [&'static str],
    intermediate: &'static [&'static str],
    places: &'static [&'static str],
    epsilon: &'static [&'static str],
    activation: &'static [&'static str],
}

/// A property of a class.
#[derive(Clone, Copy)]
enum Flag {
    Always,
    Never,
    /// A key with its default.
    Key(&'static str, bool),
}

/// The positions of a class.
#[derive(Clone, Copy)]
enum PositionRow {
    /// Rotation, with the keys and defaults of its base and of the rotated fraction.
    Rotary {
        base_keys: &'static [&'static str],
        base: f64,
        fraction: (&'static str, f64),
    },
    /// A table with this number of rows more than there are places.
    Learned(u64),
    Alibi,
}

/// The sliding window of a class.
#[derive(Clone, Copy)]
enum Window {
    /// None.
    No,
    /// In all blocks, with its default.
    All(Option<u64>),
    /// As Qwen: if `use_sliding_window` is set, from block `max_window_layers` on.
    Qwen,
    /// In all blocks but each n-th; the key may give another n.
    Every { size: u64, key: &'static str, pattern: u64 },
}

/// The experts of a class, with defaults.
#[derive(Clone, Copy)]
struct ExpertRow {
    count_keys: &'static [&'static str],
    count: u64,
    per_token: u64,
    router_bias: bool,
}

impl Flag {
    fn read(self, config: &mut Config<'_>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Key(key, default) => config.flag(key, default),
        }
    }
}

impl Row {
    /// Reads a config of this class.
    pub fn read(&self, config: &mut Config<'_>) -> Transformer {
        let keys = &self.keys;
        let hidden = config.stated_size(keys.hidden, self.hidden);
        let heads = config.stated_size(keys.heads, self.heads);
        let places = config.size(keys.places, self.places);
        let mlp = activation(config, keys.activation, self.mlp);
        let experts = self.experts.map(|row| Experts {
            router_bias: row.router_bias,
            ..Experts::new(config.size(row.count_keys, row.count), config.size(&["num_experts_per_tok"], row.per_token))
        });
        let kv_heads = config.nullable_size(&["num_key_value_heads"], self.kv_heads).unwrap_or(heads);
        let head_dim = config.nullable_size(&["head_dim"], self.head_dim).unwrap_or_else(|| heads_share(hidden, heads));
        let intermediate = match self.intermediate {
            Some(default) => config.stated_size(keys.intermediate, default),
            None => config.nullable_size(keys.intermediate, None).unwrap_or_else(|| hidden.saturating_mul(4)),
        };
        let block = Block {
            kv_heads,
            norm: self.norm,
            norm_epsilon: config.number(keys.epsilon, self.epsilon),
            norms: self.norm_places,
            mlp,
            positions: self.positions(config, places),
            qkv_bias: self.qkv_bias.read(config),
            output_bias: self.output_bias.read(config),
            mlp_bias: self.mlp_bias.read(config),
            qk_norm: self.qk_norm,
            parallel_residual: self.parallel.read(config),
            experts,
            dropout: dropout(config, self.dropout),
            ..Block::new((hidden, heads, head_dim), intermediate)
        };
        let vocabulary = config.stated_size(&["vocab_size"], self.vocabulary);
        let layers = config.stated_size(keys.layers, self.layers);
        let mut transformer = Transformer {
            embedding_norm: self.embedding_norm,
            head_bias: self.head_bias,
            tied: config.flag("tie_word_embeddings", self.tied),
            ..Transformer::new(vocabulary, layers, block, places)
        };
        windows::read(config, &mut transformer, self.window);
        (self.more)(config, &mut transformer);
        transformer
    }

    fn positions(&self, config: &mut Config<'_>, places: u64) -> Positions {
        match self.positions {
            PositionRow::Rotary { base_keys, base, fraction } => {
                rotary::read(config, base_keys, base, fraction, places)
            }
            PositionRow::Learned(more) => Positions::Learned { places: places.saturating_add(more) },
            PositionRow::Alibi => Positions::Alibi,
        }
    }
}

/// Returns the head width. Later checks report a width that is not divisible.
fn heads_share(hidden: u64, heads: u64) -> u64 {
    hidden.checked_div(heads).unwrap_or(0)
}

/// Whether training applies dropout anywhere.
fn dropout(config: &mut Config<'_>, rates: &[(&'static str, f64)]) -> bool {
    rates.iter().any(|(key, default)| config.number(&[key], *default) > 0.0)
}

/// Returns the feed-forward network with the activation function that the first present of `keys`
/// names, or `usual` if none does.
pub(super) fn activation(config: &mut Config<'_>, keys: &[&'static str], usual: Mlp) -> Mlp {
    let Some((key, word)) = keys.iter().find_map(|key| Some((*key, config.word(key)?))) else { return usual };
    let gated = usual.inputs() == 2;
    let named = match word {
        _ if SILU.contains(&word) => gated.then_some(Mlp::Swiglu),
        _ if GELU_TANH.contains(&word) => Some(if gated { Mlp::GegluTanh } else { Mlp::GeluTanh }),
        _ if GELU.contains(&word) && !gated => Some(Mlp::Gelu),
        _ if RELU.contains(&word) && !gated => Some(Mlp::Relu),
        _ => None,
    };
    named.unwrap_or_else(|| {
        let name = match usual {
            Mlp::Swiglu => SILU[0],
            Mlp::Relu => RELU[0],
            Mlp::Gelu => GELU[0],
            Mlp::GegluTanh | Mlp::GeluTanh => GELU_TANH[0],
        };
        let message =
            format!("the activation function `{word}` is treated as `{name}`, which costs the same; {OTHERWISE}");
        config.warn(key, message);
        usual
    })
}

/// Returns the blocks of a network for which `dense` holds, counted from 0.
fn blocks(layers: u64, dense: impl Fn(u64) -> bool) -> Vec<u64> {
    (0..layers.min(MOST_LAYERS)).filter(|index| dense(*index)).collect()
}
