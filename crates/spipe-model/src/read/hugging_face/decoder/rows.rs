//! The classes of `transformers` 5.24, with the defaults of their configs.

use super::{ExpertRow, Flag, Keys, PositionRow, Row, Window, details};
use crate::{Mlp, Norm, NormPlaces, QkNorm};

const LLAMA_KEYS: Keys = Keys {
    hidden: &["hidden_size", "n_embd", "n_embed"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    intermediate: &["intermediate_size"],
    places: &["max_position_embeddings"],
    epsilon: &["rms_norm_eps"],
    activation: &["hidden_act"],
};
const LAYER_NORM_KEYS: Keys = Keys { epsilon: &["layer_norm_eps"], ..LLAMA_KEYS };
const GPT_KEYS: Keys = Keys {
    hidden: &["n_embd", "hidden_size"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    intermediate: &["n_inner"],
    places: &["n_positions", "max_position_embeddings"],
    epsilon: &["layer_norm_epsilon"],
    activation: &["activation_function"],
};
const GEMMA_KEYS: Keys = Keys { activation: &["hidden_activation", "hidden_act"], ..LLAMA_KEYS };

const ROTARY: PositionRow = rotary(10_000.0, ("partial_rotary_factor", 1.0));
/// The biases of the attention, where a class lets its configs choose.
const ATTENTION_BIAS: Flag = Flag::Key("attention_bias", false);
const LOCAL_EXPERTS: &[&str] = &["num_local_experts", "num_experts"];

const fn rotary(base: f64, fraction: (&'static str, f64)) -> PositionRow {
    PositionRow::Rotary { base_keys: &["rope_theta"], base, fraction }
}

const fn experts(count_keys: &'static [&'static str], count: u64, per_token: u64) -> Option<ExpertRow> {
    Some(ExpertRow { count_keys, count, per_token, router_bias: false })
}

/// RMS norms, SwiGLU, rotary positions, no biases.
const LLAMA_LIKE: Row = Row {
    name: "",
    keys: LLAMA_KEYS,
    vocabulary: 32_000,
    layers: 32,
    hidden: 4096,
    heads: 32,
    intermediate: Some(11_008),
    kv_heads: None,
    head_dim: None,
    places: 2048,
    norm: Norm::RmsNorm,
    epsilon: 1e-6,
    norm_places: NormPlaces::Before,
    mlp: Mlp::Swiglu,
    positions: ROTARY,
    qkv_bias: Flag::Never,
    output_bias: Flag::Never,
    mlp_bias: Flag::Never,
    head_bias: false,
    qk_norm: QkNorm::None,
    parallel: Flag::Never,
    embedding_norm: false,
    tied: false,
    window: Window::No,
    experts: None,
    dropout: &[("attention_dropout", 0.0)],
    more: details::nothing,
};
const LLAMA: Row = Row {
    name: "llama",
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    mlp_bias: Flag::Key("mlp_bias", false),
    ..LLAMA_LIKE
};
const MISTRAL: Row = Row {
    name: "mistral",
    intermediate: Some(14_336),
    kv_heads: Some(8),
    places: 131_072,
    window: Window::All(Some(4096)),
    ..LLAMA_LIKE
};
const MIXTRAL: Row = Row {
    name: "mixtral",
    window: Window::All(None),
    epsilon: 1e-5,
    positions: rotary(1_000_000.0, ("partial_rotary_factor", 1.0)),
    experts: experts(LOCAL_EXPERTS, 8, 2),
    ..MISTRAL
};
const QWEN2: Row = Row {
    name: "qwen2",
    vocabulary: 151_936,
    intermediate: Some(22_016),
    kv_heads: Some(32),
    places: 32_768,
    qkv_bias: Flag::Always,
    window: Window::Qwen,
    ..LLAMA_LIKE
};
const QWEN3: Row = Row {
    name: "qwen3",
    head_dim: Some(128),
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    qk_norm: QkNorm::Head,
    ..QWEN2
};
const QWEN3_MOE: Row = Row {
    name: "qwen3_moe",
    layers: 24,
    hidden: 2048,
    intermediate: Some(6144),
    kv_heads: Some(4),
    head_dim: None,
    experts: experts(LOCAL_EXPERTS, 128, 8),
    more: details::qwen3_moe,
    ..QWEN3
};
const QWEN2_MOE: Row = Row {
    name: "qwen2_moe",
    layers: 24,
    hidden: 2048,
    heads: 16,
    intermediate: Some(5632),
    kv_heads: Some(16),
    qkv_bias: Flag::Key("qkv_bias", true),
    experts: experts(LOCAL_EXPERTS, 60, 4),
    more: details::qwen2_moe,
    ..QWEN2
};
const PHI3: Row = Row {
    name: "phi3",
    vocabulary: 32_064,
    hidden: 3072,
    intermediate: Some(8192),
    places: 4096,
    epsilon: 1e-5,
    window: Window::All(None),
    dropout: &[("attention_dropout", 0.0), ("resid_pdrop", 0.0), ("embd_pdrop", 0.0)],
    ..LLAMA_LIKE
};
const GEMMA: Row = Row {
    name: "gemma",
    keys: GEMMA_KEYS,
    vocabulary: 256_000,
    layers: 28,
    hidden: 3072,
    heads: 16,
    intermediate: Some(24_576),
    kv_heads: Some(16),
    head_dim: Some(256),
    places: 8192,
    norm: Norm::RmsNormPlusOne,
    mlp: Mlp::GegluTanh,
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    tied: true,
    more: details::gemma,
    ..LLAMA_LIKE
};
const GEMMA2: Row = Row {
    name: "gemma2",
    layers: 26,
    hidden: 2304,
    heads: 8,
    intermediate: Some(9216),
    kv_heads: Some(4),
    norm_places: NormPlaces::Around,
    window: Window::Every { size: 4096, key: "sliding_window_pattern", pattern: 2 },
    more: details::gemma2,
    ..GEMMA
};
const GEMMA3: Row = Row {
    name: "gemma3_text",
    vocabulary: 262_208,
    places: 131_072,
    positions: rotary(1_000_000.0, ("partial_rotary_factor", 1.0)),
    qk_norm: QkNorm::Head,
    window: Window::Every { size: 4096, key: "sliding_window_pattern", pattern: 6 },
    more: details::gemma3,
    ..GEMMA2
};
const OLMO2: Row = Row {
    name: "olmo2",
    vocabulary: 50_304,
    epsilon: 1e-5,
    norm_places: NormPlaces::After,
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    qk_norm: QkNorm::All,
    ..LLAMA_LIKE
};
const OLMO3: Row =
    Row { name: "olmo3", window: Window::Every { size: 4096, key: "sliding_window_pattern", pattern: 4 }, ..OLMO2 };
const OLMO: Row = Row {
    name: "olmo",
    vocabulary: 50_304,
    norm: Norm::LayerNormPlain,
    epsilon: 1e-5,
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    ..LLAMA_LIKE
};
const GRANITE: Row = Row { name: "granite", more: details::granite, ..LLAMA };
const GPT_OSS: Row = Row {
    name: "gpt_oss",
    vocabulary: 201_088,
    layers: 36,
    hidden: 2880,
    heads: 64,
    intermediate: Some(2880),
    kv_heads: Some(8),
    head_dim: Some(64),
    places: 131_072,
    epsilon: 1e-5,
    positions: rotary(150_000.0, ("partial_rotary_factor", 1.0)),
    qkv_bias: Flag::Key("attention_bias", true),
    output_bias: Flag::Key("attention_bias", true),
    mlp_bias: Flag::Always,
    window: Window::Every { size: 128, key: "sliding_window_pattern", pattern: 2 },
    experts: Some(ExpertRow { count_keys: LOCAL_EXPERTS, count: 128, per_token: 4, router_bias: true }),
    more: details::gpt_oss,
    ..LLAMA_LIKE
};
const DEEPSEEK_V2: Row = Row {
    name: "deepseek_v2",
    vocabulary: 102_400,
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    mlp_bias: Flag::Key("mlp_bias", false),
    experts: experts(&["n_routed_experts", "num_local_experts"], 64, 6),
    more: details::deepseek_v2,
    ..LLAMA_LIKE
};
const DEEPSEEK_V3: Row = Row {
    name: "deepseek_v3",
    vocabulary: 129_280,
    layers: 61,
    hidden: 7168,
    heads: 128,
    intermediate: Some(18_432),
    places: 4096,
    mlp_bias: Flag::Never,
    // The router's bias is adjusted without a gradient (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    experts: Some(ExpertRow {
        count_keys: &["n_routed_experts", "num_local_experts"],
        count: 256,
        per_token: 8,
        router_bias: true,
    }),
    more: details::deepseek_v3,
    ..DEEPSEEK_V2
};
/// Not a class of `transformers`: the model's own code (InternLM2, arXiv 2403.17297).
const INTERNLM2: Row = Row {
    name: "internlm2",
    vocabulary: 103_168,
    qkv_bias: Flag::Key("bias", true),
    output_bias: Flag::Key("bias", true),
    dropout: &[],
    ..LLAMA_LIKE
};
const COHERE: Row = Row {
    name: "cohere",
    keys: LAYER_NORM_KEYS,
    vocabulary: 256_000,
    layers: 40,
    hidden: 8192,
    heads: 64,
    intermediate: Some(22_528),
    places: 8192,
    norm: Norm::LayerNormNoBias,
    epsilon: 1e-5,
    norm_places: NormPlaces::Shared,
    qkv_bias: ATTENTION_BIAS,
    output_bias: ATTENTION_BIAS,
    parallel: Flag::Always,
    tied: true,
    more: details::cohere,
    ..LLAMA_LIKE
};
const COHERE2: Row =
    Row { name: "cohere2", window: Window::Every { size: 4096, key: "sliding_window_pattern", pattern: 4 }, ..COHERE };

/// Layer norms, two matrices, biases everywhere, one key head per query head.
const GPT2: Row = Row {
    name: "gpt2",
    keys: GPT_KEYS,
    vocabulary: 50_257,
    layers: 12,
    hidden: 768,
    heads: 12,
    intermediate: None,
    places: 1024,
    norm: Norm::LayerNorm,
    epsilon: 1e-5,
    mlp: Mlp::GeluTanh,
    positions: PositionRow::Learned(0),
    qkv_bias: Flag::Always,
    output_bias: Flag::Always,
    mlp_bias: Flag::Always,
    tied: true,
    dropout: &[("resid_pdrop", 0.1), ("embd_pdrop", 0.1), ("attn_pdrop", 0.1)],
    more: details::gpt2,
    ..LLAMA_LIKE
};
const GPTJ: Row = Row {
    name: "gptj",
    vocabulary: 50_400,
    layers: 28,
    hidden: 4096,
    heads: 16,
    places: 2048,
    norm_places: NormPlaces::Shared,
    positions: ROTARY,
    qkv_bias: Flag::Never,
    output_bias: Flag::Never,
    head_bias: true,
    parallel: Flag::Always,
    tied: false,
    dropout: &[("resid_pdrop", 0.0), ("embd_pdrop", 0.0), ("attn_pdrop", 0.0)],
    more: details::gptj,
    ..GPT2
};
const GPT_NEOX: Row = Row {
    name: "gpt_neox",
    keys: LAYER_NORM_KEYS,
    vocabulary: 50_432,
    layers: 44,
    hidden: 6144,
    heads: 64,
    intermediate: Some(24_576),
    places: 2048,
    mlp: Mlp::Gelu,
    positions: PositionRow::Rotary {
        base_keys: &["rotary_emb_base", "rope_theta"],
        base: 10_000.0,
        fraction: ("rotary_pct", 0.25),
    },
    qkv_bias: Flag::Key("attention_bias", true),
    output_bias: Flag::Key("attention_bias", true),
    parallel: Flag::Key("use_parallel_residual", true),
    tied: false,
    dropout: &[("attention_dropout", 0.0), ("hidden_dropout", 0.0)],
    more: details::nothing,
    ..GPT2
};
const BLOOM: Row = Row {
    name: "bloom",
    keys: Keys {
        hidden: &["hidden_size", "n_embed", "n_embd"],
        intermediate: &[],
        places: &["seq_length"],
        activation: &[],
        ..GPT_KEYS
    },
    vocabulary: 250_880,
    layers: 2,
    hidden: 64,
    heads: 8,
    places: 2048,
    positions: PositionRow::Alibi,
    embedding_norm: true,
    dropout: &[("attention_dropout", 0.0), ("hidden_dropout", 0.0)],
    more: details::nothing,
    ..GPT2
};
const FALCON: Row = Row {
    name: "falcon",
    keys: Keys {
        intermediate: &["ffn_hidden_size"],
        epsilon: &["layer_norm_epsilon"],
        activation: &["activation"],
        ..LLAMA_KEYS
    },
    vocabulary: 65_024,
    layers: 32,
    hidden: 4544,
    heads: 71,
    places: 2048,
    mlp: Mlp::Gelu,
    positions: ROTARY,
    qkv_bias: Flag::Key("bias", false),
    output_bias: Flag::Key("bias", false),
    mlp_bias: Flag::Key("bias", false),
    dropout: &[("attention_dropout", 0.0), ("hidden_dropout", 0.0)],
    more: details::falcon,
    ..GPT2
};
const OPT: Row = Row {
    name: "opt",
    keys: Keys { intermediate: &["ffn_dim"], epsilon: &[], activation: &["activation_function"], ..LLAMA_KEYS },
    vocabulary: 50_272,
    intermediate: Some(3072),
    places: 2048,
    mlp: Mlp::Relu,
    // `OPTLearnedPositionalEmbedding` has two rows more.
    positions: PositionRow::Learned(2),
    qkv_bias: Flag::Key("enable_bias", true),
    output_bias: Flag::Key("enable_bias", true),
    mlp_bias: Flag::Key("enable_bias", true),
    dropout: &[("dropout", 0.1), ("attention_dropout", 0.0)],
    more: details::opt,
    ..GPT2
};
const PHI: Row = Row {
    name: "phi",
    keys: LAYER_NORM_KEYS,
    vocabulary: 51_200,
    layers: 24,
    hidden: 2048,
    heads: 32,
    intermediate: Some(8192),
    places: 2048,
    norm_places: NormPlaces::Shared,
    positions: rotary(10_000.0, ("partial_rotary_factor", 0.5)),
    head_bias: true,
    parallel: Flag::Always,
    tied: false,
    dropout: &[("resid_pdrop", 0.0), ("embd_pdrop", 0.0), ("attention_dropout", 0.0)],
    more: details::phi,
    ..GPT2
};
const STARCODER2: Row = Row {
    name: "starcoder2",
    keys: Keys { epsilon: &["norm_epsilon"], ..LLAMA_KEYS },
    vocabulary: 49_152,
    layers: 30,
    hidden: 3072,
    heads: 24,
    intermediate: Some(12_288),
    kv_heads: Some(2),
    places: 4096,
    positions: ROTARY,
    qkv_bias: Flag::Key("use_bias", true),
    output_bias: Flag::Key("use_bias", true),
    mlp_bias: Flag::Key("use_bias", true),
    window: Window::All(None),
    dropout: &[("residual_dropout", 0.0), ("embedding_dropout", 0.0), ("attention_dropout", 0.0)],
    more: details::nothing,
    ..GPT2
};

/// Every class, by name.
pub(in crate::read::hugging_face) const ROWS: &[Row] = &[
    BLOOM,
    COHERE,
    COHERE2,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    FALCON,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GPT_NEOX,
    GPT_OSS,
    GPT2,
    GPTJ,
    GRANITE,
    INTERNLM2,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    OLMO,
    OLMO2,
    OLMO3,
    OPT,
    PHI,
    PHI3,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    STARCODER2,
];
