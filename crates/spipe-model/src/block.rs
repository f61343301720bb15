//! A transformer block: attention, then a feed-forward network, each behind a norm and around a residual.

use serde::{Deserialize, Serialize};

/// The shapes and options of a transformer block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; fewer than `heads` is grouped-query attention.
    pub kv_heads: u64,
    /// Width of a head; `heads` × `head_dim` need not be `hidden`.
    pub head_dim: u64,
    /// Inner width of the feed-forward network, of each expert where there are several.
    pub intermediate: u64,
    /// Both norms.
    pub norm: Norm,
    /// The norms' epsilon.
    pub norm_epsilon: f64,
    /// The feed-forward network.
    pub mlp: Mlp,
    /// How queries and keys know their place.
    pub positions: Positions,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of the attention has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward network has biases.
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised by head (Qwen3).
    pub qk_norm: bool,
    /// Whether attention and feed-forward network both read the block's input (GPT-NeoX).
    pub parallel_residual: bool,
    /// Whether a token sees only what is before it.
    pub causal: bool,
    /// How many keys a query sees at most.
    pub sliding_window: Option<u64>,
    /// Several feed-forward networks of which each token uses some (Mixtral).
    pub experts: Option<Experts>,
    /// Whether training drops out attention scores and both branches' outputs, which keeps masks.
    pub dropout: bool,
}

/// How activations are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// By the root of the mean square: a weight per channel.
    #[default]
    RmsNorm,
    /// By mean and variance: a weight and a bias per channel.
    LayerNorm,
}

/// The shape of a feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mlp {
    /// Three matrices: down(silu(gate(x)) · up(x)).
    #[default]
    Swiglu,
    /// Two matrices: down(gelu(up(x))).
    Gelu,
    /// The same with the approximation of GELU by a hyperbolic tangent, as in GPT-2.
    GeluTanh,
}

/// How a transformer knows the order of its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned by angles; no weights.
    Rotary {
        /// The base of the angles, `rope_theta`.
        base: f64,
        /// The part of each head that is turned.
        fraction: f64,
    },
    /// A learned vector for each of so many places is added to the embedding.
    Learned {
        /// How many places.
        places: u64,
    },
    /// A bias that grows with distance is added to the scores; no weights.
    Alibi,
    /// Not at all.
    None,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: u64,
    /// How many each token uses.
    pub per_token: u64,
}

impl Norm {
    /// The parameters of a norm over `width` channels.
    pub const fn parameters(self, width: u64) -> u64 {
        match self {
            Self::RmsNorm => width,
            Self::LayerNorm => 2 * width,
        }
    }
}

impl Mlp {
    /// How many matrices read the input.
    pub const fn inputs(self) -> u64 {
        match self {
            Self::Swiglu => 2,
            Self::Gelu | Self::GeluTanh => 1,
        }
    }
}

impl Block {
    /// Width of all queries together.
    pub const fn query_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of all keys together, and of all values.
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Width of queries, keys and values together.
    pub const fn qkv_width(&self) -> u64 {
        self.query_width() + 2 * self.kv_width()
    }

    /// How many keys each query meets in sequences of `seq_len`.
    pub fn keys(&self, seq_len: u64) -> u64 {
        self.sliding_window.map_or(seq_len, |window| window.min(seq_len))
    }

    /// How many feed-forward networks each token goes through.
    pub fn networks_per_token(&self) -> u64 {
        self.experts.map_or(1, |experts| experts.per_token)
    }

    /// The exact number of parameters.
    pub fn parameters(&self) -> u64 {
        self.attention_parameters() + self.mlp_parameters() + 2 * self.norm.parameters(self.hidden)
    }

    /// The parameters of the attention, without its norm.
    pub fn attention_parameters(&self) -> u64 {
        let weights = self.hidden * self.qkv_width() + self.query_width() * self.hidden;
        let biases = u64::from(self.qkv_bias) * self.qkv_width() + u64::from(self.output_bias) * self.hidden;
        weights + biases + u64::from(self.qk_norm) * 2 * self.head_dim
    }

    /// The parameters of the feed-forward network with all experts and their router, without the norm.
    pub fn mlp_parameters(&self) -> u64 {
        let inputs = self.mlp.inputs();
        let weights = (inputs + 1) * self.hidden * self.intermediate;
        let biases = u64::from(self.mlp_bias) * (inputs * self.intermediate + self.hidden);
        let router = self.experts.map_or(0, |experts| experts.count * self.hidden);
        self.experts.map_or(1, |experts| experts.count) * (weights + biases) + router
    }

    /// The parameters that one token uses.
    pub fn active_parameters(&self) -> u64 {
        match self.experts {
            None => self.parameters(),
            Some(Experts { count, per_token }) => {
                let router = count * self.hidden;
                self.parameters() - (self.mlp_parameters() - router) / count * (count - per_token)
            }
        }
    }
}
