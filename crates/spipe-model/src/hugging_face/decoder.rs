//! Decoder-only language models. Defaults are those of the config classes of transformers 5.23.

use super::config::Config;
use crate::{Block, Experts, Mlp, Norm, Positions, Transformer, check::MOST_LAYERS};

const HIDDEN: &[&str] = &["hidden_size", "n_embd", "n_embed"];
const LAYERS: &[&str] = &["num_hidden_layers", "n_layer"];
const HEADS: &[&str] = &["num_attention_heads", "n_head"];
const GELU: [&str; 2] = ["gelu", "gelu_python"];
const GELU_TANH: [&str; 3] = ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"];
/// The consequence of a setting that the model ignores.
const OTHERWISE: &str = "weights trained with it give slightly different results";
const SILU: [&str; 2] = ["silu", "swish"];

/// The defaults of a class of the Llama family.
struct Llama {
    vocabulary: u64,
    layers: u64,
    hidden: u64,
    heads: u64,
    intermediate: u64,
    /// If absent, equal to the number of heads.
    kv_heads: Option<u64>,
    /// If absent, hidden / heads.
    head_dim: Option<u64>,
    places: u64,
    sliding_window: Option<u64>,
    epsilon: f64,
    rotary_base: f64,
    experts: Option<Experts>,
}

const LLAMA: Llama = Llama {
    vocabulary: 32_000,
    layers: 32,
    hidden: 4096,
    heads: 32,
    intermediate: 11_008,
    kv_heads: None,
    head_dim: None,
    places: 2048,
    sliding_window: None,
    epsilon: 1e-6,
    rotary_base: 10_000.0,
    experts: None,
};

const MISTRAL: Llama =
    Llama { intermediate: 14_336, kv_heads: Some(8), places: 131_072, sliding_window: Some(4096), ..LLAMA };

const MIXTRAL: Llama = Llama {
    sliding_window: None,
    epsilon: 1e-5,
    rotary_base: 1_000_000.0,
    experts: Some(Experts { count: 8, per_token: 2 }),
    ..MISTRAL
};

const QWEN2: Llama = Llama { vocabulary: 151_936, intermediate: 22_016, kv_heads: Some(32), places: 32_768, ..LLAMA };

const QWEN3: Llama = Llama { head_dim: Some(128), ..QWEN2 };

/// The width of the experts is `moe_intermediate_size`; `intermediate_size` is that of blocks without
/// experts.
const QWEN3_MOE: Llama = Llama {
    layers: 24,
    hidden: 2048,
    intermediate: 6144,
    kv_heads: Some(4),
    experts: Some(Experts { count: 128, per_token: 8 }),
    ..QWEN2
};

/// The default of `moe_intermediate_size`.
const QWEN3_EXPERT: u64 = 768;

const PHI3: Llama =
    Llama { vocabulary: 32_064, hidden: 3072, intermediate: 8192, places: 4096, epsilon: 1e-5, ..LLAMA };

pub(super) fn llama(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &LLAMA);
    let bias = config.flag("attention_bias", false);
    let block = &mut transformer.block;
    (block.qkv_bias, block.output_bias) = (bias, bias);
    block.mlp_bias = config.flag("mlp_bias", false);
    transformer
}

pub(super) fn mistral(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &MISTRAL);
    transformer.block.sliding_window = config.nullable_size(&["sliding_window"], MISTRAL.sliding_window);
    transformer
}

pub(super) fn mixtral(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &MIXTRAL);
    transformer.block.sliding_window = config.nullable_size(&["sliding_window"], MIXTRAL.sliding_window);
    transformer
}

pub(super) fn qwen2(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &QWEN2);
    transformer.block.qkv_bias = true;
    qwen_window(config, &mut transformer);
    transformer
}

pub(super) fn qwen3(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &QWEN3);
    let bias = config.flag("attention_bias", false);
    let block = &mut transformer.block;
    (block.qkv_bias, block.output_bias, block.qk_norm) = (bias, bias, true);
    qwen_window(config, &mut transformer);
    transformer
}

pub(super) fn qwen3_moe(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &QWEN3_MOE);
    let bias = config.flag("attention_bias", false);
    let block = &mut transformer.block;
    (block.qkv_bias, block.output_bias, block.qk_norm) = (bias, bias, true);
    block.intermediate = config.size(&["moe_intermediate_size"], QWEN3_EXPERT);
    transformer.dense_layers = dense_layers(config, transformer.layers);
    if transformer.dense_layers.len() as u64 == transformer.layers {
        // A network of dense blocks alone.
        transformer.block.experts = None;
        transformer.block.intermediate = transformer.dense_intermediate;
        transformer.dense_layers.clear();
    }
    if transformer.dense_layers.is_empty() {
        transformer.dense_intermediate = transformer.block.intermediate;
    }
    qwen_window(config, &mut transformer);
    transformer
}

/// Returns the blocks without experts: those in `mlp_only_layers`, and all whose number, counted
/// from 1, is not a multiple of `decoder_sparse_step` (`Qwen3MoeDecoderLayer` of transformers 5.23).
fn dense_layers(config: &mut Config<'_>, layers: u64) -> Vec<u64> {
    let named = config.sizes("mlp_only_layers", 0).unwrap_or_default();
    let step = config.size(&["decoder_sparse_step"], 1);
    if step == 0 {
        config.refuse("decoder_sparse_step", "`decoder_sparse_step` is zero, not a step from block to block".into());
        return Vec::new();
    }
    let dense = |index: &u64| named.contains(index) || !(index + 1).is_multiple_of(step);
    (0..layers.min(MOST_LAYERS)).filter(dense).collect()
}

pub(super) fn phi3(config: &mut Config<'_>) -> Transformer {
    let mut transformer = llama_like(config, &PHI3);
    transformer.block.sliding_window = config.nullable_size(&["sliding_window"], None);
    transformer.block.dropout |= dropout(config, &[("resid_pdrop", 0.0), ("embd_pdrop", 0.0)]);
    transformer
}

/// Applies Qwen's sliding window, which starts at block `max_window_layers`, if windows are used at
/// all.
fn qwen_window(config: &mut Config<'_>, transformer: &mut Transformer) {
    // The default of `transformers`.
    let window = config.nullable_size(&["sliding_window"], Some(4096));
    if !config.flag("use_sliding_window", false) || window.is_none() {
        return;
    }
    let full = match config.words("layer_types") {
        Some(types) => {
            let full = types.iter().take_while(|kind| **kind == "full_attention").count();
            if types[full..].contains(&"full_attention") {
                config
                    .warn("layer_types", "`layer_types` mixes kinds of attention; all blocks are given full attention");
                return;
            }
            full as u64
        }
        None => config.size(&["max_window_layers"], 28),
    };
    let full = full.min(transformer.layers);
    if full < transformer.layers {
        transformer.block.sliding_window = window;
        transformer.full_attention_layers = full;
    }
}

/// Reads Llama and its descendants: RMS norms, SwiGLU, rotary positions, grouped queries.
fn llama_like(config: &mut Config<'_>, defaults: &Llama) -> Transformer {
    let hidden = config.stated_size(HIDDEN, defaults.hidden);
    let heads = config.stated_size(HEADS, defaults.heads);
    let places = config.size(&["max_position_embeddings"], defaults.places);
    expect_activation(config, "hidden_act", &SILU);
    let experts = defaults.experts.map(|experts| Experts {
        count: config.size(&["num_local_experts", "num_experts"], experts.count),
        per_token: config.size(&["num_experts_per_tok"], experts.per_token),
    });
    let block = Block {
        hidden,
        heads,
        kv_heads: config.nullable_size(&["num_key_value_heads"], defaults.kv_heads).unwrap_or(heads),
        head_dim: config.nullable_size(&["head_dim"], defaults.head_dim).unwrap_or_else(|| share(hidden, heads)),
        intermediate: config.stated_size(&["intermediate_size"], defaults.intermediate),
        norm: Norm::RmsNorm,
        norm_epsilon: config.number(&["rms_norm_eps"], defaults.epsilon),
        mlp: Mlp::Swiglu,
        positions: rotary(config, &["rope_theta"], defaults.rotary_base, ("partial_rotary_factor", 1.0)),
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norm: false,
        parallel_residual: false,
        causal: true,
        sliding_window: None,
        experts,
        dropout: dropout(config, &[("attention_dropout", 0.0)]),
    };
    Transformer {
        vocabulary: config.stated_size(&["vocab_size"], defaults.vocabulary),
        layers: config.stated_size(LAYERS, defaults.layers),
        block,
        full_attention_layers: 0,
        dense_layers: Vec::new(),
        dense_intermediate: block.intermediate,
        seq_len: places,
        embedding_norm: false,
        tied: config.flag("tie_word_embeddings", false),
    }
}

/// Returns the head width. Later checks report a width that is not divisible.
fn share(hidden: u64, heads: u64) -> u64 {
    hidden.checked_div(heads).unwrap_or(0)
}

/// Reads rotary positions in the new spelling (`rope_parameters`) or the old (top-level keys).
fn rotary(
    config: &mut Config<'_>,
    base_keys: &[&'static str],
    base: f64,
    (fraction_key, fraction): (&'static str, f64),
) -> Positions {
    let old_base = config.number(base_keys, base);
    let old_fraction = config.number(&[fraction_key], fraction);
    for table in ["rope_parameters", "rope_scaling"] {
        let kind = config.child(&[table]).and_then(|nested| nested.word("rope_type").or_else(|| nested.word("type")));
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            config.warn(
                table,
                format!("the scaling `{kind}` of rotary positions is ignored; it costs nothing, but {OTHERWISE}"),
            );
        }
    }
    let Some(mut nested) = config.child(&["rope_parameters"]) else {
        return Positions::Rotary { base: old_base, fraction: old_fraction };
    };
    let positions = Positions::Rotary {
        base: nested.number(&["rope_theta"], old_base),
        fraction: nested.number(&["partial_rotary_factor"], old_fraction),
    };
    config.faults.extend(nested.faults);
    positions
}

/// Whether training applies dropout anywhere.
fn dropout(config: &mut Config<'_>, rates: &[(&'static str, f64)]) -> bool {
    rates.iter().any(|(key, default)| config.number(&[key], *default) > 0.0)
}

/// Warns of an activation function other than the `known` ones, which cost the same.
fn expect_activation(config: &mut Config<'_>, key: &'static str, known: &[&str]) {
    if let Some(word) = config.word(key).filter(|word| !known.contains(word)) {
        let message =
            format!("the activation function `{word}` is treated as `{}`, which costs the same; {OTHERWISE}", known[0]);
        config.warn(key, message);
    }
}

/// Returns the feed-forward network with the GELU that the config names, or `otherwise` if it names
/// none.
pub(super) fn gelu(config: &mut Config<'_>, key: &'static str, otherwise: Mlp) -> Mlp {
    match config.word(key) {
        None => otherwise,
        Some(word) if GELU_TANH.contains(&word) => Mlp::GeluTanh,
        Some(_) => {
            expect_activation(config, key, &GELU);
            Mlp::Gelu
        }
    }
}

/// Returns a block of the GPT-2 family: layer norms, two matrices, biases everywhere, one key head
/// per query head.
fn gpt_block((hidden, heads, intermediate): (u64, u64, u64), norm_epsilon: f64, positions: Positions) -> Block {
    Block {
        hidden,
        heads,
        kv_heads: heads,
        head_dim: share(hidden, heads),
        intermediate,
        norm: Norm::LayerNorm,
        norm_epsilon,
        mlp: Mlp::Gelu,
        positions,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        qk_norm: false,
        parallel_residual: false,
        causal: true,
        sliding_window: None,
        experts: None,
        dropout: false,
    }
}

pub(super) fn gpt2(config: &mut Config<'_>) -> Transformer {
    let hidden = config.stated_size(&["n_embd", "hidden_size"], 768);
    let heads = config.stated_size(&["n_head", "num_attention_heads"], 12);
    let places = config.size(&["n_positions", "max_position_embeddings"], 1024);
    let intermediate = config.nullable_size(&["n_inner"], None).unwrap_or(hidden.saturating_mul(4));
    let mlp = gelu(config, "activation_function", Mlp::GeluTanh);
    if config.flag("add_cross_attention", false) {
        config.warn("add_cross_attention", "cross-attention is ignored");
    }
    let plain = ["scale_attn_weights", "scale_attn_by_inverse_layer_idx"];
    for (key, usual) in plain.into_iter().zip([true, false]) {
        if config.flag(key, usual) != usual {
            let message = "scores are divided by the square root of the head width only, which costs the same";
            config.warn(key, format!("{message}; {OTHERWISE}"));
        }
    }
    let epsilon = config.number(&["layer_norm_epsilon"], 1e-5);
    let block = gpt_block((hidden, heads, intermediate), epsilon, Positions::Learned { places });
    let rates = [("resid_pdrop", 0.1), ("embd_pdrop", 0.1), ("attn_pdrop", 0.1)];
    Transformer {
        vocabulary: config.stated_size(&["vocab_size"], 50_257),
        layers: config.stated_size(&["n_layer", "num_hidden_layers"], 12),
        block: Block { mlp, dropout: dropout(config, &rates), ..block },
        full_attention_layers: 0,
        dense_layers: Vec::new(),
        dense_intermediate: intermediate,
        seq_len: places,
        embedding_norm: false,
        tied: config.flag("tie_word_embeddings", true),
    }
}

pub(super) fn gpt_neox(config: &mut Config<'_>) -> Transformer {
    let hidden = config.stated_size(HIDDEN, 6144);
    let heads = config.stated_size(HEADS, 64);
    let intermediate = config.stated_size(&["intermediate_size"], 24_576);
    let mlp = gelu(config, "hidden_act", Mlp::Gelu);
    let positions = rotary(config, &["rotary_emb_base", "rope_theta"], 10_000.0, ("rotary_pct", 0.25));
    let block = gpt_block((hidden, heads, intermediate), config.number(&["layer_norm_eps"], 1e-5), positions);
    let bias = config.flag("attention_bias", true);
    let parallel_residual = config.flag("use_parallel_residual", true);
    let dropout = dropout(config, &[("attention_dropout", 0.0), ("hidden_dropout", 0.0)]);
    Transformer {
        vocabulary: config.stated_size(&["vocab_size"], 50_432),
        layers: config.stated_size(LAYERS, 44),
        block: Block { mlp, qkv_bias: bias, output_bias: bias, parallel_residual, dropout, ..block },
        full_attention_layers: 0,
        dense_layers: Vec::new(),
        dense_intermediate: intermediate,
        seq_len: config.size(&["max_position_embeddings"], 2048),
        embedding_norm: false,
        tied: config.flag("tie_word_embeddings", false),
    }
}

pub(super) fn bloom(config: &mut Config<'_>) -> Transformer {
    let hidden = config.stated_size(&["hidden_size", "n_embed", "n_embd"], 64);
    let heads = config.stated_size(&["n_head", "num_attention_heads"], 8);
    let epsilon = config.number(&["layer_norm_epsilon"], 1e-5);
    let block = gpt_block((hidden, heads, hidden.saturating_mul(4)), epsilon, Positions::Alibi);
    let intermediate = block.intermediate;
    let dropout = dropout(config, &[("attention_dropout", 0.0), ("hidden_dropout", 0.0)]);
    Transformer {
        vocabulary: config.stated_size(&["vocab_size"], 250_880),
        layers: config.stated_size(&["n_layer", "num_hidden_layers"], 2),
        block: Block { mlp: Mlp::GeluTanh, dropout, ..block },
        full_attention_layers: 0,
        dense_layers: Vec::new(),
        dense_intermediate: intermediate,
        seq_len: config.size(&["seq_length"], 2048),
        embedding_norm: true,
        tied: config.flag("tie_word_embeddings", true),
    }
}
