//! Model files of kind `transformer`.

use super::rotary::RotaryScalingTable;
use crate::{Block, Experts, Latent, Mlp, Norm, NormPlaces, Positions, QkNorm, Transformer, read::check::Check};
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
    /// The scaling of the rotation angles; only with rotary positions, none if absent.
    pub rotary_scaling: Option<RotaryScalingTable>,
    /// Whether query, key and value projections have biases; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_bias: bool,
    /// Whether the feed-forward network has biases; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qk_norm: bool,
    /// The extent of each of these norms; only with `qk-norm`, `head` if absent.
    pub qk_norm_over: Option<QkNormWord>,
    /// Whether attention and feed-forward network both read the block's input; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel_residual: bool,
    /// The places of the norms on the residual stream; `before` if absent.
    #[serde(default, skip_serializing_if = "is_before")]
    pub norm_places: NormPlaces,
    /// Whether each head has a learned score that takes a share of its softmax; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sinks: bool,
    /// The bound of scores s, which become bound · tanh(s ÷ bound); none if absent.
    pub score_cap: Option<f64>,
    /// The number by whose square root scores are divided; `head-dim` if absent.
    pub score_scale: Option<f64>,
    /// Width of the vector from which keys and values are computed, in latent attention; without it,
    /// they are computed from the residual stream.
    pub kv_rank: Option<u64>,
    /// Width of the vector from which queries are computed; only with `kv-rank`, from the residual
    /// stream if absent.
    pub query_rank: Option<u64>,
    /// The channels of each query and key that are rotated, those of keys being shared by all heads;
    /// required with `kv-rank`.
    pub rotary_channels: Option<u64>,
    /// Width of a head's values; required with `kv-rank`.
    pub value_dim: Option<u64>,
    /// Whether a norm follows the embedding; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embedding_norm: bool,
    /// The factor of the embedding's output; 1 if absent.
    pub embedding_scale: Option<f64>,
    /// Width of the embedding's vectors, where a matrix projects them to `hidden`, and one before the
    /// head back; `hidden` if absent.
    pub embedding_width: Option<u64>,
    /// Whether a norm precedes the head; `true` if absent.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub final_norm: bool,
    /// Whether the head's projection has a bias; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub head_bias: bool,
    /// The bound of logits, as that of scores; none if absent.
    pub logit_cap: Option<f64>,
    /// The largest number of keys that a query attends to; unlimited if absent.
    pub sliding_window: Option<u64>,
    /// The number of leading blocks without the sliding window; none if absent.
    pub full_attention_layers: Option<u64>,
    /// Other blocks without the sliding window, counted from 0, in ascending order; none if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full_attention: Vec<u64>,
    /// The number of experts per block; without it, a block has a single feed-forward network and
    /// no router.
    pub experts: Option<u64>,
    /// The number of experts that each token uses; required with `experts`.
    pub experts_per_token: Option<u64>,
    /// Inner width of the network that every token passes through beside its experts; none if absent.
    pub shared_experts_intermediate: Option<u64>,
    /// Whether a learned gate scales the output of that network; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_expert_gate: bool,
    /// Whether the router has a bias; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub router_bias: bool,
    /// The blocks that have one feed-forward network in place of experts, counted from 0, in
    /// ascending order; none if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense_layers: Vec<u64>,
    /// Inner width of the feed-forward network of these blocks; required with `dense-layers`.
    pub dense_intermediate: Option<u64>,
    /// The number of modules that predict further tokens, which are counted apart and not planned; none
    /// if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtp_layers: u64,
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

/// The extent of the norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum QkNormWord {
    /// Each head, with the same weights for all.
    Head,
    /// Each head, with weights of its own.
    EachHead,
    /// All heads together.
    All,
}

fn is_before(places: &NormPlaces) -> bool {
    *places == NormPlaces::Before
}

const fn yes() -> bool {
    true
}

const fn is_true(flag: &bool) -> bool {
    *flag
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
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
        let head_dim = head_dim(check, self.head_dim, self.hidden, self.heads);
        let block = Block {
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            latent: self.resolve_latent(check),
            norm: self.norm,
            norm_epsilon: self.norm_epsilon.unwrap_or(NORM_EPSILON),
            norms: self.norm_places,
            mlp: self.mlp,
            positions: self.resolve_positions(check),
            qkv_bias: self.qkv_bias,
            output_bias: self.output_bias,
            mlp_bias: self.mlp_bias,
            qk_norm: self.resolve_qk_norm(check),
            sinks: self.sinks,
            score_cap: self.score_cap,
            score_scale: self.score_scale,
            parallel_residual: self.parallel_residual,
            sliding_window: self.sliding_window,
            experts: self.resolve_experts(check),
            dropout: self.dropout,
            ..Block::new((self.hidden, self.heads, head_dim), self.intermediate)
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
            full_attention_layers: self.full_attention_layers.unwrap_or(0),
            full_attention: self.full_attention.clone(),
            dense_layers: self.dense_layers.clone(),
            dense_intermediate: self.dense_intermediate.unwrap_or(self.intermediate),
            embedding_norm: self.embedding_norm,
            embedding_scale: self.embedding_scale.unwrap_or(1.0),
            embedding_width: self.embedding_width.unwrap_or(self.hidden),
            final_norm: self.final_norm,
            head_bias: self.head_bias,
            logit_cap: self.logit_cap,
            tied: self.tied,
            mtp_layers: self.mtp_layers,
            ..Transformer::new(self.vocabulary, self.layers, block, self.seq_len)
        }
    }

    fn resolve_qk_norm(&self, check: &mut Check<'_>) -> QkNorm {
        if !self.qk_norm && self.qk_norm_over.is_some() {
            check.error("qk-norm-over", "`qk-norm-over` has no effect without `qk-norm = true`".into());
        }
        match self.qk_norm_over.unwrap_or(QkNormWord::Head) {
            _ if !self.qk_norm => QkNorm::None,
            QkNormWord::Head => QkNorm::Head,
            QkNormWord::EachHead => QkNorm::EachHead,
            QkNormWord::All => QkNorm::All,
        }
    }

    fn resolve_latent(&self, check: &mut Check<'_>) -> Option<Latent> {
        let others =
            [("query-rank", self.query_rank), ("rotary-channels", self.rotary_channels), ("value-dim", self.value_dim)];
        let Some(kv_rank) = self.kv_rank else {
            for (key, _) in others.iter().filter(|(_, size)| size.is_some()) {
                check.error(key, format!("`{key}` has no effect without `kv-rank`"));
            }
            return None;
        };
        let missing = others[1..].iter().find(|(_, size)| size.is_none());
        if let Some((key, _)) = missing {
            check.error("kv-rank", format!("`kv-rank` needs `{key}`"));
        }
        Some(Latent { query_rank: self.query_rank, kv_rank, rotary: self.rotary_channels?, value_dim: self.value_dim? })
    }

    fn resolve_positions(&self, check: &mut Check<'_>) -> Positions {
        let (rotary, learned) = (self.positions == PositionsWord::Rotary, self.positions == PositionsWord::Learned);
        let stray = [
            ("rotary-base", self.rotary_base.is_some() && !rotary),
            ("rotary-fraction", self.rotary_fraction.is_some() && !rotary),
            ("rotary-scaling", self.rotary_scaling.is_some() && !rotary),
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
                scaling: self
                    .rotary_scaling
                    .and_then(|table| check.within("rotary-scaling", |check| table.resolve(check))),
            },
            PositionsWord::Learned => Positions::Learned { places: self.places.unwrap_or(self.seq_len) },
            PositionsWord::Alibi => Positions::Alibi,
            PositionsWord::None => Positions::None,
        }
    }

    fn resolve_experts(&self, check: &mut Check<'_>) -> Option<Experts> {
        let stray = [
            ("shared-experts-intermediate", self.shared_experts_intermediate.is_some() && self.experts.is_none()),
            ("router-bias", self.router_bias && self.experts.is_none()),
        ];
        for (key, _) in stray.into_iter().filter(|(_, stray)| *stray) {
            check.error(key, format!("`{key}` has no effect without `experts`"));
        }
        if self.shared_expert_gate && self.shared_experts_intermediate.is_none() {
            let message = "`shared-expert-gate` has no effect without `shared-experts-intermediate`";
            check.error("shared-expert-gate", message.into());
        }
        match (self.experts, self.experts_per_token) {
            (Some(count), Some(per_token)) => Some(Experts {
                shared: self.shared_experts_intermediate.unwrap_or(0),
                shared_gate: self.shared_expert_gate,
                router_bias: self.router_bias,
                ..Experts::new(count, per_token)
            }),
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
        let (positions, places) = match block.positions {
            Positions::Rotary { .. } => (PositionsWord::Rotary, None),
            Positions::Learned { places } => (PositionsWord::Learned, Some(places)),
            Positions::Alibi => (PositionsWord::Alibi, None),
            Positions::None => (PositionsWord::None, None),
        };
        let (rotary_base, rotary_fraction, rotary_scaling) = match block.positions {
            Positions::Rotary { base, fraction, scaling } => (Some(base), Some(fraction), scaling),
            _ => (None, None, None),
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
            rotary_scaling: rotary_scaling.map(RotaryScalingTable::from_scaling),
            qkv_bias: block.qkv_bias,
            output_bias: block.output_bias,
            mlp_bias: block.mlp_bias,
            qk_norm: block.qk_norm != QkNorm::None,
            qk_norm_over: match block.qk_norm {
                QkNorm::None | QkNorm::Head => None,
                QkNorm::EachHead => Some(QkNormWord::EachHead),
                QkNorm::All => Some(QkNormWord::All),
            },
            parallel_residual: block.parallel_residual,
            norm_places: block.norms,
            sinks: block.sinks,
            score_cap: block.score_cap,
            score_scale: block.score_scale,
            kv_rank: block.latent.map(|latent| latent.kv_rank),
            query_rank: block.latent.and_then(|latent| latent.query_rank),
            rotary_channels: block.latent.map(|latent| latent.rotary),
            value_dim: block.latent.map(|latent| latent.value_dim),
            embedding_norm: transformer.embedding_norm,
            embedding_scale: Some(transformer.embedding_scale).filter(|scale| (scale - 1.0).abs() > 0.0),
            embedding_width: Some(transformer.embedding_width).filter(|width| *width != block.hidden),
            final_norm: transformer.final_norm,
            head_bias: transformer.head_bias,
            logit_cap: transformer.logit_cap,
            sliding_window: block.sliding_window,
            full_attention_layers: Some(transformer.full_attention_layers)
                .filter(|layers| *layers > 0 && block.sliding_window.is_some()),
            full_attention: transformer.full_attention.clone(),
            experts: block.experts.map(|experts| experts.count),
            experts_per_token: block.experts.map(|experts| experts.per_token),
            shared_experts_intermediate: block.experts.map(|experts| experts.shared).filter(|width| *width > 0),
            shared_expert_gate: block.experts.is_some_and(|experts| experts.shared_gate),
            router_bias: block.experts.is_some_and(|experts| experts.router_bias),
            dense_layers: transformer.dense_layers.clone(),
            dense_intermediate: Some(transformer.dense_intermediate).filter(|_| !transformer.dense_layers.is_empty()),
            mtp_layers: transformer.mtp_layers,
            dropout: block.dropout,
        }
    }
}
