//! A transformer block: attention and a feed-forward network, each with a norm before it and a
//! residual connection around it.

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
    /// Width of a head; `heads` · `head_dim` may differ from `hidden`.
    pub head_dim: u64,
    /// Inner width of the feed-forward network, or of each expert.
    pub intermediate: u64,
    /// The kind of both norms.
    pub norm: Norm,
    /// The norms' epsilon.
    pub norm_epsilon: f64,
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
    /// Whether queries and keys are normalised per head (Qwen3).
    pub qk_norm: bool,
    /// Whether attention and feed-forward network both read the block's input (GPT-NeoX).
    pub parallel_residual: bool,
    /// Whether a token attends only to earlier tokens.
    pub causal: bool,
    /// The largest number of keys that a query attends to.
    pub sliding_window: Option<u64>,
    /// The experts, if each token uses only some of several feed-forward networks (Mixtral).
    pub experts: Option<Experts>,
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
    /// Normalises by mean and variance: a weight and a bias per channel.
    LayerNorm,
}

/// A kind of feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mlp {
    /// Three matrices: down(silu(gate(x)) · up(x)).
    #[default]
    Swiglu,
    /// Two matrices: down(gelu(up(x))).
    Gelu,
    /// The same with the tanh approximation of GELU, as in GPT-2.
    GeluTanh,
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

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// The number of experts.
    pub count: u64,
    /// The number of experts that each token uses.
    pub per_token: u64,
}

impl Norm {
    /// Returns the parameters of a norm over `width` channels.
    pub const fn parameters(self, width: u64) -> u64 {
        match self {
            Self::RmsNorm => width,
            Self::LayerNorm => 2 * width,
        }
    }
}

impl Mlp {
    /// Returns the number of matrices that read the input.
    pub const fn inputs(self) -> u64 {
        match self {
            Self::Swiglu => 2,
            Self::Gelu | Self::GeluTanh => 1,
        }
    }
}

impl Block {
    /// Returns the width of all queries together.
    pub const fn query_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Returns the width of all keys together, which is also that of all values.
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Returns the width of queries, keys and values together.
    pub const fn qkv_width(&self) -> u64 {
        self.query_width() + 2 * self.kv_width()
    }

    /// Returns the number of keys that each query attends to in sequences of `seq_len` tokens.
    pub fn keys(&self, seq_len: u64) -> u64 {
        self.sliding_window.map_or(seq_len, |window| window.min(seq_len))
    }

    /// Returns the number of feed-forward networks that each token passes through.
    pub fn networks_per_token(&self) -> u64 {
        self.experts.map_or(1, |experts| experts.per_token)
    }

    /// Returns the exact number of parameters.
    pub fn parameters(&self) -> u64 {
        self.attention_parameters() + self.mlp_parameters() + 2 * self.norm.parameters(self.hidden)
    }

    /// Returns the parameters of the attention, without its norm.
    pub fn attention_parameters(&self) -> u64 {
        let weights = self.hidden * self.qkv_width() + self.query_width() * self.hidden;
        let biases = u64::from(self.qkv_bias) * self.qkv_width() + u64::from(self.output_bias) * self.hidden;
        weights + biases + u64::from(self.qk_norm) * 2 * self.head_dim
    }

    /// Returns the parameters of the feed-forward network, with all experts and their router but
    /// without the norm.
    pub fn mlp_parameters(&self) -> u64 {
        let inputs = self.mlp.inputs();
        let weights = (inputs + 1) * self.hidden * self.intermediate;
        let biases = u64::from(self.mlp_bias) * (inputs * self.intermediate + self.hidden);
        let router = self.experts.map_or(0, |experts| experts.count * self.hidden);
        self.experts.map_or(1, |experts| experts.count) * (weights + biases) + router
    }
}
