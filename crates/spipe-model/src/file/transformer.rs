//! Model files of kind `transformer`.

use crate::{Block, Experts, Mlp, Norm, Positions, Transformer, check::Check};
use serde::{Deserialize, Serialize};
use spipe_base::Diagnostic;

/// A decoder-only language model. Every optional key states its default.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct TransformerFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: TransformerKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// Frozen layers: indices, names, or ranges of either including both ends (`"0..3"`); none if
    /// absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// The default sequence length, in tokens.
    pub seq_len: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The number of blocks.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; `heads` if absent.
    pub kv_heads: Option<u64>,
    /// Width of a head; `hidden` / `heads` if absent.
    pub head_dim: Option<u64>,
    /// Inner width of the feed-forward network.
    pub intermediate: u64,
    /// Whether the head's projection shares the embedding's table; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tied: bool,
    /// The kind of all norms; `rms-norm` if absent.
    #[serde(default)]
    pub norm: Norm,
    /// The norms' epsilon; 1e-5 if absent.
    pub norm_epsilon: Option<f64>,
    /// The kind of feed-forward network; `swiglu` if absent.
    #[serde(default)]
    pub mlp: Mlp,
    /// The encoding of positions; `rotary` if absent.
    #[serde(default)]
    pub positions: PositionsWord,
    /// The number of learned positions; only with `positions = "learned"`, `seq-len` if absent.
    pub places: Option<u64>,
    /// The base of the rotation angles; only with rotary positions, 10000 if absent.
    pub rotary_base: Option<f64>,
    /// The fraction of each head's channels that is rotated; only with rotary positions, 1 if
    /// absent.
    pub rotary_fraction: Option<f64>,
    /// Whether query, key and value projections have biases; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_bias: bool,
    /// Whether the feed-forward network has biases; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised per head; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qk_norm: bool,
    /// Whether attention and feed-forward network both read the block's input; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel_residual: bool,
    /// Whether a norm follows the embedding; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embedding_norm: bool,
    /// The largest number of keys that a query attends to; unlimited if absent.
    pub sliding_window: Option<u64>,
    /// The number of leading blocks without the sliding window; none if absent.
    pub full_attention_layers: Option<u64>,
    /// The number of experts per block; without it, a block has a single feed-forward network and
    /// no router.
    pub experts: Option<u64>,
    /// The number of experts that each token uses; required with `experts`.
    pub experts_per_token: Option<u64>,
    /// The blocks that have one feed-forward network in place of experts, counted from 0, in
    /// ascending order; none if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense_layers: Vec<u64>,
    /// Inner width of the feed-forward network of these blocks; required with `dense-layers`.
    pub dense_intermediate: Option<u64>,
    /// Whether training applies dropout, which keeps masks; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropout: bool,
}

/// The `kind` of these files.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransformerKind {
    /// A decoder-only language model.
    Transformer,
}

/// The encoding of token positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PositionsWord {
    /// Queries and keys are rotated by position-dependent angles.
    #[default]
    Rotary,
    /// A learned vector per position.
    Learned,
    /// A bias that grows with distance.
    Alibi,
    /// No encoding.
    None,
}

/// The default epsilon of norms.
pub(crate) const NORM_EPSILON: f64 = 1e-5;
/// The default base of rotary angles (Su et al. 2021, arXiv 2104.09864, section 3.2.2).
pub(crate) const ROTARY_BASE: f64 = 10_000.0;

/// Returns `head_dim` if stated, otherwise `hidden` / `heads`, with a fault if that is not a whole
/// number.
pub(crate) fn head_dim(check: &mut Check<'_>, head_dim: Option<u64>, hidden: u64, heads: u64) -> u64 {
    match head_dim {
        Some(head_dim) => head_dim,
        None if heads == 0 || hidden == 0 => 2,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let message = format!("`hidden` = {hidden} is not divisible by `heads` = {heads}");
            check.add(
                "hidden",
                Diagnostic::error(message).hint("state `head-dim` if heads are not `hidden` / `heads` wide"),
            );
            2
        }
    }
}

impl TransformerFile {
    /// Returns the network, and reports options that contradict each other.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Transformer {
        let block = Block {
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            head_dim: head_dim(check, self.head_dim, self.hidden, self.heads),
            intermediate: self.intermediate,
            norm: self.norm,
            norm_epsilon: self.norm_epsilon.unwrap_or(NORM_EPSILON),
            mlp: self.mlp,
            positions: self.resolve_positions(check),
            qkv_bias: self.qkv_bias,
            output_bias: self.output_bias,
            mlp_bias: self.mlp_bias,
            qk_norm: self.qk_norm,
            parallel_residual: self.parallel_residual,
            causal: true,
            sliding_window: self.sliding_window,
            experts: self.resolve_experts(check),
            dropout: self.dropout,
        };
        if self.full_attention_layers.is_some() && self.sliding_window.is_none() {
            let message = "`full-attention-layers` has no effect without `sliding-window`";
            check.error("full-attention-layers", message.into());
        }
        if self.dense_layers.is_empty() != self.dense_intermediate.is_none() {
            let key = if self.dense_layers.is_empty() { "dense-intermediate" } else { "dense-layers" };
            check.error(key, "`dense-layers` and `dense-intermediate` belong together".into());
        }
        Transformer {
            vocabulary: self.vocabulary,
            layers: self.layers,
            block,
            full_attention_layers: self.full_attention_layers.unwrap_or(0),
            dense_layers: self.dense_layers.clone(),
            dense_intermediate: self.dense_intermediate.unwrap_or(self.intermediate),
            seq_len: self.seq_len,
            embedding_norm: self.embedding_norm,
            tied: self.tied,
        }
    }

    fn resolve_positions(&self, check: &mut Check<'_>) -> Positions {
        let (rotary, learned) = (self.positions == PositionsWord::Rotary, self.positions == PositionsWord::Learned);
        let stray = [
            ("rotary-base", self.rotary_base.is_some() && !rotary),
            ("rotary-fraction", self.rotary_fraction.is_some() && !rotary),
            ("places", self.places.is_some() && !learned),
        ];
        for (key, _) in stray.into_iter().filter(|(_, stray)| *stray) {
            let wanted = if key == "places" { "learned" } else { "rotary" };
            check.error(key, format!("`{key}` has no effect unless `positions` is `{wanted}`"));
        }
        match self.positions {
            PositionsWord::Rotary => Positions::Rotary {
                base: self.rotary_base.unwrap_or(ROTARY_BASE),
                fraction: self.rotary_fraction.unwrap_or(1.0),
            },
            PositionsWord::Learned => Positions::Learned { places: self.places.unwrap_or(self.seq_len) },
            PositionsWord::Alibi => Positions::Alibi,
            PositionsWord::None => Positions::None,
        }
    }

    fn resolve_experts(&self, check: &mut Check<'_>) -> Option<Experts> {
        match (self.experts, self.experts_per_token) {
            (Some(count), Some(per_token)) => Some(Experts { count, per_token }),
            (None, None) => None,
            (Some(_), None) => {
                check.error("experts", "`experts` needs `experts-per-token`".into());
                None
            }
            (None, Some(_)) => {
                check.error("experts-per-token", "`experts-per-token` has no effect without `experts`".into());
                None
            }
        }
    }

    /// Returns the file that describes a network, without keys that have their default value.
    pub(crate) fn from_transformer(name: &str, source: Option<&str>, transformer: &Transformer) -> Self {
        let block = &transformer.block;
        let (positions, places, rotary_base, rotary_fraction) = match block.positions {
            Positions::Rotary { base, fraction } => (PositionsWord::Rotary, None, Some(base), Some(fraction)),
            Positions::Learned { places } => (PositionsWord::Learned, Some(places), None, None),
            Positions::Alibi => (PositionsWord::Alibi, None, None, None),
            Positions::None => (PositionsWord::None, None, None, None),
        };
        Self {
            format_version: super::FORMAT_VERSION,
            kind: TransformerKind::Transformer,
            name: name.into(),
            source: source.map(str::to_owned),
            frozen: Vec::new(),
            vocabulary: transformer.vocabulary,
            seq_len: transformer.seq_len,
            hidden: block.hidden,
            layers: transformer.layers,
            heads: block.heads,
            kv_heads: Some(block.kv_heads).filter(|kv_heads| *kv_heads != block.heads),
            head_dim: Some(block.head_dim).filter(|head_dim| head_dim * block.heads != block.hidden),
            intermediate: block.intermediate,
            tied: transformer.tied,
            norm: block.norm,
            norm_epsilon: Some(block.norm_epsilon),
            mlp: block.mlp,
            positions,
            places,
            rotary_base,
            rotary_fraction: rotary_fraction.filter(|fraction| *fraction < 1.0),
            qkv_bias: block.qkv_bias,
            output_bias: block.output_bias,
            mlp_bias: block.mlp_bias,
            qk_norm: block.qk_norm,
            parallel_residual: block.parallel_residual,
            embedding_norm: transformer.embedding_norm,
            sliding_window: block.sliding_window,
            full_attention_layers: Some(transformer.full_attention_layers)
                .filter(|layers| *layers > 0 && block.sliding_window.is_some()),
            experts: block.experts.map(|experts| experts.count),
            experts_per_token: block.experts.map(|experts| experts.per_token),
            dense_layers: transformer.dense_layers.clone(),
            dense_intermediate: Some(transformer.dense_intermediate).filter(|_| !transformer.dense_layers.is_empty()),
            dropout: block.dropout,
        }
    }
}
