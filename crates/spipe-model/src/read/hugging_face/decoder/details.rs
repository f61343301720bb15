//! Details that single classes have beside their row. References are to `transformers` 5.24.

use super::{OTHERWISE, blocks, heads_share};
use crate::{Experts, Latent, Norm, NormPlaces, Positions, QkNorm, Transformer, read::hugging_face::config::Config};

pub(super) const fn nothing(_: &mut Config<'_>, _: &mut Transformer) {}

pub(super) fn gpt2(config: &mut Config<'_>, _: &mut Transformer) {
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
}

/// The rotated channels are stated by number, not as a fraction.
pub(super) fn gptj(config: &mut Config<'_>, transformer: &mut Transformer) {
    let width = transformer.block.head_dim;
    let turned = config.nullable_size(&["rotary_dim"], Some(64)).unwrap_or(width).min(width);
    if let Positions::Rotary { fraction, .. } = &mut transformer.block.positions {
        *fraction = turned as f64 / width.max(1) as f64;
    }
}

/// The embedding is multiplied by √hidden (`GemmaModel`).
pub(super) fn gemma(_: &mut Config<'_>, transformer: &mut Transformer) {
    transformer.embedding_scale = (transformer.block.hidden as f64).sqrt();
}

pub(super) fn gemma2(config: &mut Config<'_>, transformer: &mut Transformer) {
    capped(config, transformer, (Some(50.0), Some(30.0)));
}

pub(super) fn gemma3(config: &mut Config<'_>, transformer: &mut Transformer) {
    capped(config, transformer, (None, None));
    if config.flag("use_bidirectional_attention", false) {
        config.warn("use_bidirectional_attention", format!("attention is treated as causal; {OTHERWISE}"));
    }
}

fn capped(config: &mut Config<'_>, transformer: &mut Transformer, (scores, logits): (Option<f64>, Option<f64>)) {
    gemma(config, transformer);
    let scale = config.number(&["query_pre_attn_scalar"], 256.0);
    let usual = transformer.block.head_dim as f64;
    transformer.block.score_scale = Some(scale).filter(|scale| (scale - usual).abs() > 0.0);
    transformer.block.score_cap = config.nullable_number("attn_logit_softcapping", scores);
    transformer.logit_cap = config.nullable_number("final_logit_softcapping", logits);
}

/// Queries and keys may be normalised by head, with weights and biases (`PhiAttention`).
pub(super) fn phi(config: &mut Config<'_>, transformer: &mut Transformer) {
    if config.flag("qk_layernorm", false) {
        transformer.block.qk_norm = QkNorm::Head;
    }
}

pub(super) fn cohere(config: &mut Config<'_>, transformer: &mut Transformer) {
    if config.flag("use_qk_norm", false) {
        transformer.block.qk_norm = QkNorm::EachHead;
    }
    ignored_factor(config, "logit_scale");
}

pub(super) fn granite(config: &mut Config<'_>, _: &mut Transformer) {
    for key in ["embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"] {
        ignored_factor(config, key);
    }
}

/// Warns of a factor other than 1 that is not applied.
fn ignored_factor(config: &mut Config<'_>, key: &'static str) {
    if (config.number(&[key], 1.0) - 1.0).abs() > 0.0 {
        config.warn(key, format!("the factor `{key}` is ignored; it costs nothing, but {OTHERWISE}"));
    }
}

/// The sizes of OPT: a narrow embedding, norms after the sums, and no last norm in its smallest
/// (`OPTDecoder`).
pub(super) fn opt(config: &mut Config<'_>, transformer: &mut Transformer) {
    let hidden = transformer.block.hidden;
    transformer.embedding_width = config.nullable_size(&["word_embed_proj_dim"], None).unwrap_or(hidden);
    if !config.flag("layer_norm_elementwise_affine", true) {
        transformer.block.norm = Norm::LayerNormPlain;
    }
    if !config.flag("do_layer_norm_before", true) {
        transformer.block.norms = NormPlaces::AfterSum;
        transformer.final_norm = false;
    }
    transformer.final_norm &= !config.flag("_remove_final_layer_norm", false);
}

/// Falcon's two architectures: the first has one key head, or one per query head; the second has
/// groups, and two norms for its two branches (`FalconDecoderLayer`).
pub(super) fn falcon(config: &mut Config<'_>, transformer: &mut Transformer) {
    let grouped = config.flag("new_decoder_architecture", false);
    let block = &mut transformer.block;
    block.kv_heads = match (grouped, config.flag("multi_query", true)) {
        (true, _) => config.nullable_size(&["num_kv_heads", "n_head_kv"], None).unwrap_or(block.heads),
        (false, true) => 1,
        (false, false) => block.heads,
    };
    block.head_dim = heads_share(block.hidden, block.heads);
    let parallel = grouped || config.flag("parallel_attn", true);
    let norms = config.nullable_size(&["num_ln_in_parallel_attn"], None).unwrap_or(if grouped { 2 } else { 1 });
    block.parallel_residual = parallel;
    block.norms = if parallel && !(grouped && norms == 2) { NormPlaces::Shared } else { NormPlaces::Before };
    if config.flag("alibi", false) {
        block.positions = Positions::Alibi;
    }
}

pub(super) fn gpt_oss(_: &mut Config<'_>, transformer: &mut Transformer) {
    transformer.block.sinks = true;
}

/// The width of the experts; `intermediate_size` is that of blocks without experts.
pub(super) fn qwen3_moe(config: &mut Config<'_>, transformer: &mut Transformer) {
    transformer.block.intermediate = config.size(&["moe_intermediate_size"], 768);
    let dense = sparse_step(config, transformer.layers);
    set_dense(transformer, dense);
}

pub(super) fn qwen2_moe(config: &mut Config<'_>, transformer: &mut Transformer) {
    transformer.block.intermediate = config.size(&["moe_intermediate_size"], 1408);
    let shared = config.size(&["shared_expert_intermediate_size"], 5632);
    transformer.block.experts =
        transformer.block.experts.map(|experts| Experts { shared, shared_gate: true, ..experts });
    let dense = sparse_step(config, transformer.layers);
    set_dense(transformer, dense);
}

/// Returns the blocks without experts: those in `mlp_only_layers`, and all whose number, counted
/// from 1, is not a multiple of `decoder_sparse_step` (`Qwen3MoeDecoderLayer`).
fn sparse_step(config: &mut Config<'_>, layers: u64) -> Vec<u64> {
    let named = config.sizes("mlp_only_layers", 0).unwrap_or_default();
    let step = config.size(&["decoder_sparse_step"], 1);
    if step == 0 {
        config.refuse("decoder_sparse_step", "`decoder_sparse_step` is zero, not a step from block to block".into());
        return Vec::new();
    }
    blocks(layers, |index| named.contains(&index) || !(index + 1).is_multiple_of(step))
}

/// Sets the blocks without experts. A network of these alone has no experts at all.
fn set_dense(transformer: &mut Transformer, dense: Vec<u64>) {
    transformer.dense_layers = dense;
    if transformer.dense_layers.len() as u64 == transformer.layers {
        transformer.block.experts = None;
        transformer.block.intermediate = transformer.dense_intermediate;
        transformer.dense_layers.clear();
    }
    if transformer.dense_layers.is_empty() {
        transformer.dense_intermediate = transformer.block.intermediate;
    }
}

pub(super) fn deepseek_v2(config: &mut Config<'_>, transformer: &mut Transformer) {
    deepseek(config, transformer, (0, 1407, 2));
}

pub(super) fn deepseek_v3(config: &mut Config<'_>, transformer: &mut Transformer) {
    deepseek(config, transformer, (3, 2048, 1));
    transformer.mtp_layers = config.size(&["num_nextn_predict_layers", "num_mtp_layers"], 0);
}

/// Latent attention, and experts with shared ones after some dense blocks (`DeepseekV3Attention`,
/// `DeepseekV3MoE`). The defaults are the number of dense blocks, the width of an expert, and the
/// number of shared ones, which are one network of their widths together.
fn deepseek(config: &mut Config<'_>, transformer: &mut Transformer, (dense, expert, shared): (u64, u64, u64)) {
    let rotary = config.size(&["qk_rope_head_dim"], 64);
    let block = &mut transformer.block;
    block.latent = Some(Latent {
        query_rank: config.nullable_size(&["q_lora_rank"], Some(1536)),
        kv_rank: config.size(&["kv_lora_rank"], 512),
        rotary,
        value_dim: config.size(&["v_head_dim"], 128),
    });
    block.head_dim = rotary.saturating_add(config.size(&["qk_nope_head_dim"], 128));
    block.kv_heads = block.heads;
    block.intermediate = config.size(&["moe_intermediate_size"], expert);
    let shared = config.nullable_size(&["n_shared_experts"], Some(shared)).unwrap_or(0);
    let shared = shared.saturating_mul(block.intermediate);
    block.experts = block.experts.map(|experts| Experts { shared, ..experts });
    if let (Some(experts), groups) = (block.experts, config.nullable_size(&["n_group"], None).unwrap_or(1))
        && (groups == 0 || !experts.count.is_multiple_of(groups))
    {
        let message = format!("`n_routed_experts` = {} is not divisible by `n_group` = {groups}", experts.count);
        config.refuse("n_group", message);
    }
    let first = config.size(&["first_k_dense_replace"], dense);
    set_dense(transformer, blocks(transformer.layers, |index| index < first));
}
