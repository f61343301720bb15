//! The networks that the exported scripts can build.

use crate::{Modules, training::matrices};
use serde::Serialize;
use serde_json::{Value, json};
use spipe_base::Diagnostic;
use spipe_cost::{Base, BaseFormat};
use spipe_model::{
    Adaptation, Architecture, Block, Layer, Lora, Matrix, Mlp, Model, Norm, Positions, QkNorm, RotaryScaling,
    Transformer,
};
use spipe_plan::Context;

/// The sizes of a decoder, as `model.py` reads them.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Network {
    family: &'static str,
    name: String,
    vocabulary: u64,
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    intermediate: u64,
    norm_epsilon: f64,
    rotary_base: Option<f64>,
    rotary_scaling: Option<Value>,
    places: Option<u64>,
    mlp: Mlp,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
    sliding_window: Option<u64>,
    full_attention_layers: u64,
    tied: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapters: Option<Adapters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<NarrowBase>,
}

/// Frozen matrices in fewer bits, as bitsandbytes stores them.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct NarrowBase {
    format: &'static str,
    bits: u32,
    /// The numbers of a block with a constant of its own; zero if a row has one.
    block: u64,
    /// Whether constants of blocks are stored in 8 bits.
    double: bool,
    /// The numbers of all matrices.
    parameters: u64,
}

/// The adapters of a model, as PEFT makes them.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Adapters {
    rank: u64,
    alpha: f64,
    rslora: bool,
    /// The names that modules of adapted matrices may have.
    modules: Vec<&'static str>,
    /// The numbers of all adapters.
    parameters: u64,
}

impl Network {
    /// The network of `model`.
    ///
    /// # Errors
    /// Models that are no decoders; with own modules also those of other families than Llama, Mistral,
    /// Qwen2, Qwen3 and GPT-2, with the first property that the scripts do not have.
    pub fn of(model: &Model, modules: Modules) -> Result<Self, Diagnostic> {
        let refuse = |what: &str| {
            Diagnostic::error(format!("`{}` cannot be exported: {what}", model.name())).hint(match modules {
                Modules::Own => {
                    "`option modules transformers` builds the layers of any decoder; the folder's own are Llama \
                                     and its kin, Mistral, Qwen2, Qwen3 and GPT-2"
                }
                Modules::Transformers => "decoders can; `command simulate` predicts this one",
            })
        };
        let Architecture::Transformer(transformer) = model.architecture() else {
            return Err(refuse(match model.architecture() {
                Architecture::Profiled(_) => "its layers are known by measurements only",
                Architecture::Unet(_) => "it is a denoising network with skip connections",
                Architecture::TwoTowers(_) => "it has two towers",
                Architecture::Counted(_) => "it is counted only",
                _ => "it reads images",
            }));
        };
        let block = &transformer.block;
        let family = match modules {
            Modules::Own => family(transformer).map_err(refuse)?,
            Modules::Transformers => "transformers",
        };
        let (rotary_base, rotary_scaling, places) = match block.positions {
            Positions::Rotary { base, scaling, .. } => (Some(base), scaling.map(scaling_table), None),
            Positions::Learned { places } => (None, None, Some(places)),
            Positions::Alibi | Positions::None => (None, None, None),
        };
        Ok(Self {
            family,
            name: model.name().into(),
            vocabulary: transformer.vocabulary,
            layers: transformer.layers,
            hidden: block.hidden,
            heads: block.heads,
            kv_heads: block.kv_heads,
            head_dim: block.head_dim,
            intermediate: block.intermediate,
            norm_epsilon: block.norm_epsilon,
            rotary_base,
            rotary_scaling,
            places,
            mlp: block.mlp,
            qkv_bias: block.qkv_bias,
            output_bias: block.output_bias,
            mlp_bias: block.mlp_bias,
            qk_norm: block.qk_norm != QkNorm::None,
            sliding_window: block.sliding_window,
            full_attention_layers: transformer.full_attention_layers,
            tied: transformer.tied,
            adapters: model.lora().map(|lora| adapters(model, lora)),
            base: None,
        })
    }

    /// The network with the base that the plan of `context` stores in fewer bits.
    pub fn on_base(self, context: &Context<'_>) -> Self {
        let matrices = || context.model.layers().iter().flat_map(Layer::quantised);
        let base = context.workload().formats.base.filter(Base::is_quantised).map(|base| NarrowBase {
            format: base.format.name(),
            bits: if base.format == BaseFormat::Int8 { 8 } else { 4 },
            block: base.block,
            double: base.double,
            parameters: matrices().map(|tensor| tensor.elements()).sum(),
        });
        Self { base, ..self }
    }
}

fn adapters(model: &Model, lora: &Lora) -> Adapters {
    let adapted = model.layers().iter().filter_map(|layer| layer.adaptation.as_ref());
    Adapters {
        rank: lora.rank,
        alpha: lora.alpha.unwrap_or(2.0 * lora.rank as f64),
        rslora: lora.rslora,
        modules: Matrix::modules(&matrices(model)),
        parameters: adapted.map(Adaptation::parameters).sum(),
    }
}

/// The scaling of rotary positions, as `model.py` reads it.
fn scaling_table(scaling: RotaryScaling) -> Value {
    let name = scaling.name();
    match scaling {
        RotaryScaling::Linear { factor } => json!({ "type": name, "factor": factor }),
        RotaryScaling::Dynamic { factor, original } => {
            json!({ "type": name, "factor": factor, "original-places": original })
        }
        RotaryScaling::Yarn(yarn) => json!({
            "type": name,
            "factor": yarn.factor,
            "original-places": yarn.original,
            "beta-fast": yarn.beta_fast,
            "beta-slow": yarn.beta_slow,
            "attention-factor": yarn.attention_factor(),
            "truncate": yarn.truncate,
        }),
        RotaryScaling::Llama3 { factor, original, low, high } => json!({
            "type": name,
            "factor": factor,
            "original-places": original,
            "low-frequency-factor": low,
            "high-frequency-factor": high,
        }),
        RotaryScaling::Longrope => json!({ "type": name }),
    }
}

/// The family of scripts that builds the model, or the property that none of them has.
fn family(transformer: &Transformer) -> Result<&'static str, &'static str> {
    let block: &Block = &transformer.block;
    if let Some(peculiarity) = transformer.peculiarity() {
        return Err(peculiarity);
    }
    if let Positions::Rotary { scaling, .. } = block.positions
        && let Some(refusal) = scaling.and_then(RotaryScaling::refusal)
    {
        return Err(refusal);
    }
    match (block.norm, block.mlp, block.positions) {
        (Norm::RmsNorm, Mlp::Swiglu, Positions::Rotary { fraction, .. }) if fraction < 1.0 => {
            Err("only a part of each head is rotated")
        }
        (Norm::RmsNorm, Mlp::Swiglu, Positions::Rotary { .. }) => Ok("llama"),
        (Norm::LayerNorm, Mlp::Gelu | Mlp::GeluTanh, Positions::Learned { .. })
            if block.qkv_bias && block.output_bias && block.mlp_bias && block.kv_heads == block.heads =>
        {
            Ok("gpt2")
        }
        (_, _, Positions::Alibi) => Err("its positions are biases of the scores (BLOOM)"),
        _ => Err("its norms, feed-forward network and positions are those of no known family"),
    }
}
