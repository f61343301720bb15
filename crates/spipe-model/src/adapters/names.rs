//! The matrices of a block, and the names that files give them.

use super::Tensor;
use crate::{Block, Mlp, Positions};

/// A matrix of a layer that can have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matrix {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Queries, keys and values in one matrix.
    QueryKeyValue,
    /// The attention's output.
    Output,
    /// The gate of a gated feed-forward network.
    Gate,
    /// The feed-forward network's first matrix.
    Up,
    /// Gate and first matrix in one.
    GateUp,
    /// The feed-forward network's last matrix.
    Down,
    /// The table of token vectors.
    Table,
    /// The projection to the vocabulary.
    Head,
}

use Matrix::{Down, Gate, GateUp, Head, Key, Output, Query, QueryKeyValue, Table, Up, Value};

/// Names of matrices with their matrices: ours first, then those of `transformers`, by architecture.
const NAMES: [(&str, &[Matrix]); 55] = [
    ("q", &[Query]),
    ("k", &[Key]),
    ("v", &[Value]),
    ("o", &[Output]),
    ("gate", &[Gate]),
    ("up", &[Up]),
    ("down", &[Down]),
    // Llama, Mistral, Qwen2, Gemma, OLMo, OPT.
    ("q_proj", &[Query]),
    ("k_proj", &[Key]),
    ("v_proj", &[Value]),
    ("o_proj", &[Output]),
    ("out_proj", &[Output]),
    ("gate_proj", &[Gate]),
    ("up_proj", &[Up]),
    ("down_proj", &[Down]),
    // Phi-3, GLM.
    ("qkv_proj", &[QueryKeyValue]),
    ("gate_up_proj", &[GateUp]),
    // GPT-2, Qwen: `c_proj` is in the attention and in the feed-forward network.
    ("c_attn", &[QueryKeyValue]),
    ("attn.c_attn", &[QueryKeyValue]),
    ("c_fc", &[Up]),
    ("c_proj", &[Output, Down]),
    ("attn.c_proj", &[Output]),
    ("mlp.c_proj", &[Down]),
    // GPT-NeoX, Falcon, BLOOM, MPT.
    ("query_key_value", &[QueryKeyValue]),
    ("Wqkv", &[QueryKeyValue]),
    ("dense", &[Output]),
    ("attention.dense", &[Output]),
    ("dense_h_to_4h", &[Up]),
    ("dense_4h_to_h", &[Down]),
    // Phi-2, GPT-J, OPT, CLIP.
    ("fc1", &[Up]),
    ("fc2", &[Down]),
    ("fc_in", &[Up]),
    ("fc_out", &[Down]),
    // InternLM2.
    ("wqkv", &[QueryKeyValue]),
    ("wo", &[Output]),
    ("wq", &[Query]),
    ("wk", &[Key]),
    ("wv", &[Value]),
    // BERT and ViT, whose `dense` matrices are told apart by their module.
    ("query", &[Query]),
    ("key", &[Key]),
    ("value", &[Value]),
    ("attention.output.dense", &[Output]),
    ("intermediate.dense", &[Up]),
    ("output.dense", &[Down]),
    // DistilBERT.
    ("q_lin", &[Query]),
    ("k_lin", &[Key]),
    ("v_lin", &[Value]),
    ("out_lin", &[Output]),
    ("lin1", &[Up]),
    ("lin2", &[Down]),
    ("lm_head", &[Head]),
    ("embed_out", &[Head]),
    ("embed_tokens", &[Table]),
    ("embed_in", &[Table]),
    ("wte", &[Table]),
];

/// The word for all matrices of all blocks, as in PEFT.
pub(crate) const ALL_LINEAR: &str = "all-linear";

impl Matrix {
    /// Every matrix of a block.
    pub(crate) const OF_BLOCK: [Self; 7] = [Query, Key, Value, Output, Gate, Up, Down];

    /// Returns our name of the matrix.
    pub const fn name(self) -> &'static str {
        match self {
            Query => "q",
            Key => "k",
            Value => "v",
            QueryKeyValue => "q, k and v in one",
            Output => "o",
            Gate => "gate",
            Up => "up",
            GateUp => "gate and up in one",
            Down => "down",
            Table => "embed_tokens",
            Head => "lm_head",
        }
    }

    /// Returns the name of the matrix in files of the family that `block` belongs to.
    pub(crate) const fn short(self) -> &'static str {
        match self {
            QueryKeyValue => "qkv_proj",
            GateUp => "gate_up_proj",
            one => one.name(),
        }
    }

    /// Returns the matrices that `target` names in a model with this block; none if no file of any
    /// known model has the name. `w1` and `w2` are the two that read the input in Qwen's first models,
    /// and first and last matrix in models with experts and where `w3` is there as well.
    pub(crate) fn named(target: &str, block: &Block, targets: &[&str]) -> Option<Vec<Self>> {
        let three = block.experts.is_some() || targets.iter().any(|target| last_part(target) == "w3");
        let by_number = match (last_part(target), three) {
            ("w1", true) | ("w2", false) => Some(Gate),
            ("w3", true) | ("w1", false) => Some(Up),
            ("w2", true) => Some(Down),
            _ => None,
        };
        if let Some(one) = by_number {
            return Some(vec![one]);
        }
        if target == ALL_LINEAR {
            return Some(Self::OF_BLOCK.to_vec());
        }
        // The longest known end of the path: modules tell equal names apart.
        let mut rest = target;
        loop {
            if let Some((_, matrices)) = NAMES.iter().find(|(name, _)| *name == rest) {
                return Some(matrices.to_vec());
            }
            rest = rest.split_once('.')?.1;
        }
    }

    /// Returns the names that modules of `transformers` have for these matrices, and none that also means
    /// another one.
    pub fn modules(matrices: &[Self]) -> Vec<&'static str> {
        let theirs = NAMES.iter().skip(Self::OF_BLOCK.len());
        let meant = |(_, meant): &&(&str, &[Self])| meant.iter().all(|matrix| matrices.contains(matrix));
        theirs.filter(meant).map(|(name, _)| *name).collect()
    }

    /// Whether files name a matrix so.
    pub(crate) fn is_name(word: &str) -> bool {
        Self::known().any(|known| known == word)
    }

    /// Returns all names, for hints.
    pub(crate) fn known() -> impl Iterator<Item = &'static str> + Clone {
        NAMES.iter().map(|(name, _)| *name).chain(["w1", "w2", "w3", ALL_LINEAR])
    }
}

/// Returns the part of a path after its last dot.
pub(crate) fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

impl Block {
    /// Whether files of models with this block hold queries, keys and values in one matrix: GPT-2,
    /// GPT-NeoX, BLOOM, MPT. Families are told apart by their positions, norms and biases.
    pub(crate) fn packs_attention(&self) -> bool {
        let biased = self.qkv_bias && self.output_bias && self.mlp_bias;
        match self.positions {
            Positions::Learned { .. } => biased && self.causal && self.mlp == Mlp::GeluTanh,
            Positions::Rotary { .. } => biased && self.parallel_residual && self.mlp == Mlp::Gelu,
            Positions::Alibi => true,
            Positions::None => false,
        }
    }

    /// Whether the block has `matrix`. Latent attention (DeepSeek) has other matrices, which are left as
    /// they are.
    pub(crate) const fn has(&self, matrix: Matrix) -> bool {
        match matrix {
            Gate | GateUp => self.mlp.inputs() == 2,
            Query | Key | Value | QueryKeyValue | Output => self.latent.is_none(),
            Table | Head => false,
            _ => true,
        }
    }

    /// Returns outputs, inputs and number of a matrix of the block: one for each expert.
    pub(crate) fn shape(&self, matrix: Matrix) -> [u64; 3] {
        let networks = self.experts.map_or(1, |experts| experts.held());
        match matrix {
            Query => [self.query_width(), self.hidden, 1],
            Key | Value => [self.kv_width(), self.hidden, 1],
            QueryKeyValue => [self.qkv_width(), self.hidden, 1],
            Output => [self.hidden, self.query_width(), 1],
            Gate | Up => [self.intermediate, self.hidden, networks],
            GateUp => [2 * self.intermediate, self.hidden, networks],
            Down => [self.hidden, self.intermediate, networks],
            Table | Head => [0, 0, 0],
        }
    }
}

impl Block {
    /// Returns the matrices of the block, each expert's of its own, without the router.
    pub fn matrices(&self) -> Vec<Tensor> {
        let attention: &[Matrix] =
            if self.packs_attention() { &[QueryKeyValue, Output] } else { &[Query, Key, Value, Output] };
        let network = [Gate, Up, Down];
        let all = attention.iter().chain(&network).copied().filter(|matrix| self.has(*matrix));
        let tensor = |matrix| {
            let [rows, columns, count] = self.shape(matrix);
            Tensor { rows, columns, count }
        };
        all.map(tensor).collect()
    }
}
