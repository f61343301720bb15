//! A transformer block: attention and a feed-forward network, each with norms and a residual
//! connection around it.

mod memory;
mod modulation;
mod operation;
mod operation_costs;
mod parts;
mod rotary;
mod work;

pub use operation::{Operation, Operations};
pub use parts::Linear;
pub use rotary::{RotaryFrequencies, RotaryScaling, Yarn};

use crate::work::{product, sum};
use serde::{Deserialize, Serialize};

/// The shapes and options of a transformer block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; fewer than `heads` means grouped-query attention.
    pub kv_heads: u64,
    /// Width of a head's queries and keys; `heads` · `head_dim` may differ from `hidden`.
    pub head_dim: u64,
    /// The low-rank projections of queries, keys and values, if the attention is latent (DeepSeek).
    pub latent: Option<Latent>,
    /// Inner width of the feed-forward network, or of each expert.
    pub intermediate: u64,
    /// The kind of all norms.
    pub norm: Norm,
    /// The norms' epsilon.
    pub norm_epsilon: f64,
    /// The places of the norms on the residual stream.
    pub norms: NormPlaces,
    /// The kind of feed-forward network.
    pub mlp: Mlp,
    /// The encoding of positions.
    pub positions: Positions,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of the attention has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward network has biases.
    pub mlp_bias: bool,
    /// The norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Whether each head has a learned score that takes a share of its softmax (gpt-oss).
    pub sinks: bool,
    /// The bound of scores s, which become bound · tanh(s ÷ bound) (Gemma 2); none if absent.
    pub score_cap: Option<f64>,
    /// The number by whose square root scores are divided, where it is not `head_dim` (Gemma 2).
    pub score_scale: Option<f64>,
    /// Whether attention and feed-forward network both read the block's input (GPT-NeoX).
    pub parallel_residual: bool,
    /// Whether a token attends only to earlier tokens.
    pub causal: bool,
    /// The largest number of keys that a query attends to.
    pub sliding_window: Option<u64>,
    /// The experts, if each token uses only some of several feed-forward networks (Mixtral).
    pub experts: Option<Experts>,
    /// Whether a learned vector scales the output of each branch (DINOv2).
    pub layer_scale: bool,
    /// Whether a time step and a class shift, scale and gate both branches (DiT).
    pub modulation: Option<Modulation>,
    /// Whether training applies dropout to attention scores and to the output of both branches,
    /// which keeps masks.
    pub dropout: bool,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// Divides by the root mean square: a weight per channel.
    #[default]
    RmsNorm,
    /// The same with one plus a weight per channel (Gemma).
    RmsNormPlusOne,
    /// Normalises by mean and variance: a weight and a bias per channel.
    LayerNorm,
    /// The same without biases (Command-R).
    LayerNormNoBias,
    /// The same without weights and biases (OLMo).
    LayerNormPlain,
}

/// The places of a block's norms on the residual stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NormPlaces {
    /// One norm before each of attention and feed-forward network.
    #[default]
    Before,
    /// One norm of the block's input, which both read (GPT-J, Phi-2, Command-R); only with
    /// `parallel-residual`.
    Shared,
    /// One norm after each of the two, before it is added (OLMo-2).
    After,
    /// One norm before and one after each of the two (Gemma 2).
    Around,
    /// One norm after each sum (the smallest OPT).
    AfterSum,
}

/// The norms of queries and keys before the attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    #[default]
    None,
    /// Each head is normalised, with the same weights for all (Qwen3).
    Head,
    /// Each head is normalised, with weights of its own (Command-R+).
    EachHead,
    /// All heads are normalised together (OLMo-2).
    All,
}

/// A kind of feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mlp {
    /// Three matrices: down(silu(gate(x)) · up(x)).
    #[default]
    Swiglu,
    /// Three matrices: down(gelu(gate(x)) · up(x)), with the tanh approximation of GELU (Gemma).
    GegluTanh,
    /// Two matrices: down(gelu(up(x))).
    Gelu,
    /// The same with the tanh approximation of GELU, as in GPT-2.
    GeluTanh,
    /// Two matrices: down(max(up(x), 0)) (OPT).
    Relu,
}

/// The encoding of token positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are rotated by position-dependent angles; no weights.
    Rotary {
        /// The base of the angles, `rope_theta`.
        base: f64,
        /// The fraction of each head's channels that is rotated.
        fraction: f64,
        /// The scaling of the angles, if there is one.
        scaling: Option<RotaryScaling>,
    },
    /// A learned vector per position is added to the embedding.
    Learned {
        /// The number of positions.
        places: u64,
    },
    /// A bias that grows with distance is added to the scores; no weights.
    Alibi,
    /// No encoding.
    None,
}

/// The projections of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values
/// are computed from one narrow vector per token, which is all that a cache holds, and a key of
/// `rotary` channels that all heads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector from which queries are computed; without it, from the residual stream.
    pub query_rank: Option<u64>,
    /// Width of the vector from which keys and values are computed.
    pub kv_rank: u64,
    /// The channels of each query and key that are rotated.
    pub rotary: u64,
    /// Width of a head's values.
    pub value_dim: u64,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// The number of experts.
    pub count: u64,
    /// The number of experts that each token uses.
    pub per_token: u64,
    /// Inner width of the network that every token passes through beside its experts; 0 without.
    pub shared: u64,
    /// Whether a learned gate scales the output of that network (Qwen2-MoE).
    pub shared_gate: bool,
    /// Whether the router has a bias (gpt-oss, DeepSeek-V3).
    pub router_bias: bool,
    /// The devices that divide the experts, each of which has as many: 1 or more.
    pub devices: u32,
}

/// The modulation of a block's branches by a time step and a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modulation {
    /// The number of classes, each with a vector in every block.
    pub classes: u64,
}

impl Norm {
    /// Returns the parameters of a norm over `width` channels.
    pub const fn parameters(self, width: u64) -> u64 {
        match self {
            Self::RmsNorm | Self::RmsNormPlusOne | Self::LayerNormNoBias => width,
            Self::LayerNorm => 2 * width,
            Self::LayerNormPlain => 0,
        }
    }

    /// Whether it subtracts the mean.
    pub const fn centres(self) -> bool {
        matches!(self, Self::LayerNorm | Self::LayerNormNoBias | Self::LayerNormPlain)
    }
}

impl NormPlaces {
    /// Returns the number of norms.
    pub const fn count(self) -> u64 {
        match self {
            Self::Shared => 1,
            Self::Before | Self::After | Self::AfterSum => 2,
            Self::Around => 4,
        }
    }

    /// Returns its word in signatures; none for the usual places.
    pub(crate) const fn word(self) -> Option<&'static str> {
        match self {
            Self::Before => None,
            Self::Shared => Some("shared-norm"),
            Self::After => Some("norms-after"),
            Self::Around => Some("norms-around"),
            Self::AfterSum => Some("norms-after-sum"),
        }
    }
}

impl Mlp {
    /// Returns the number of matrices that read the input.
    pub const fn inputs(self) -> u64 {
        match self {
            Self::Swiglu | Self::GegluTanh => 2,
            Self::Gelu | Self::GeluTanh | Self::Relu => 1,
        }
    }
}

impl Experts {
    /// Creates experts without a network that all tokens share.
    pub const fn new(count: u64, per_token: u64) -> Self {
        Self { count, per_token, shared: 0, shared_gate: false, router_bias: false, devices: 1 }
    }
}

impl Block {
    /// Creates a block of the Llama family: RMS norms before both branches, SwiGLU, no biases, causal,
    /// without encoding of positions.
    pub const fn new((hidden, heads, head_dim): (u64, u64, u64), intermediate: u64) -> Self {
        Self {
            hidden,
            heads,
            kv_heads: heads,
            head_dim,
            latent: None,
            intermediate,
            norm: Norm::RmsNorm,
            norm_epsilon: 1e-5,
            norms: NormPlaces::Before,
            mlp: Mlp::Swiglu,
            positions: Positions::None,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: QkNorm::None,
            sinks: false,
            score_cap: None,
            score_scale: None,
            parallel_residual: false,
            causal: true,
            sliding_window: None,
            experts: None,
            layer_scale: false,
            modulation: None,
            dropout: false,
        }
    }

    /// Returns the width of all queries together.
    pub const fn query_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Returns the width of all keys together.
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Returns the width of all values together.
    pub const fn value_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.kv_heads * latent.value_dim,
            None => self.kv_width(),
        }
    }

    /// Returns the width of the attention's output, before its projection.
    pub const fn attended_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * latent.value_dim,
            None => self.query_width(),
        }
    }

    /// Returns the width of queries, keys and values together.
    pub const fn qkv_width(&self) -> u64 {
        self.query_width() + self.kv_width() + self.value_width()
    }

    /// Returns the number of keys that each query attends to in sequences of `seq_len` tokens.
    pub fn keys(&self, seq_len: u64) -> u64 {
        self.sliding_window.map_or(seq_len, |window| window.min(seq_len))
    }

    /// Returns the rows of the feed-forward networks for `tokens`, besides those of a shared network: one for each
    /// network that a token passes through.
    pub fn rows(&self, tokens: u64) -> u64 {
        self.experts.map_or(tokens, |experts| experts.rows(tokens))
    }

    /// Returns the elements inside the feed-forward networks for `tokens`, a shared network included.
    pub fn inner_elements(&self, tokens: u64) -> u64 {
        let shared = self.experts.map_or(0, |experts| experts.shared);
        sum(&[product(&[self.rows(tokens), self.intermediate]), product(&[tokens, shared])])
    }

    /// Returns the elements of the inputs of experts, gathered for them, and of their outputs.
    pub(crate) fn gathered_elements(&self, tokens: u64) -> u64 {
        if self.experts.is_some() { product(&[2, self.rows(tokens), self.hidden]) } else { 0 }
    }
}
