//! `adapter_config.json`, which PEFT writes beside an adapter's weights.

use super::{config::Config, parse};
use crate::{Architecture, Model};
use serde_json::Value;
use spipe_base::{Diagnostic, Faults, readable::grouped};

/// An adapter's file: what it adds to its base model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The kind (`LORA`).
    pub kind: String,
    /// The model that it adapts, as the file names it.
    pub base: Option<String>,
    /// The rank of a low-rank adapter.
    pub rank: u64,
    /// The names of the adapted matrices.
    pub targets: Vec<String>,
}

impl Adapter {
    /// Reads an adapter's file; `file` is its name in messages.
    ///
    /// # Errors
    /// If the text is no JSON object.
    pub fn from_json(file: &str, text: &str) -> Result<Self, Faults> {
        let value = parse(file, text)?;
        let targets = match &value["target_modules"] {
            Value::Array(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Value::String(name) => vec![name.clone()],
            _ => Vec::new(),
        };
        Ok(Self {
            kind: value["peft_type"].as_str().unwrap_or("unknown").into(),
            base: value["base_model_name_or_path"].as_str().map(str::to_owned),
            rank: value["r"].as_u64().unwrap_or(8),
            targets,
        })
    }

    /// The parameters that a low-rank adapter adds to `model`: rank × (inputs + outputs) for each
    /// target (Hu et al., arXiv 2106.09685). `None` for other kinds, and for targets that are not
    /// matrices of a decoder's blocks.
    pub fn parameters(&self, model: &Model) -> Option<u64> {
        let Architecture::Transformer(transformer) = model.architecture() else { return None };
        if self.kind != "LORA" || self.targets.is_empty() {
            return None;
        }
        let mut total = 0_u64;
        for index in 0..transformer.layers {
            let block = transformer.block(index);
            let (hidden, query, kv, inner) = (block.hidden, block.query_width(), block.kv_width(), block.intermediate);
            let networks = block.experts.map_or(1, |experts| experts.count);
            for target in &self.targets {
                let sides = match target.rsplit('.').next().unwrap_or(target) {
                    "q_proj" => hidden + query,
                    "k_proj" | "v_proj" => hidden + kv,
                    "o_proj" => query + hidden,
                    "qkv_proj" | "c_attn" | "query_key_value" => hidden + block.qkv_width(),
                    "gate_proj" | "up_proj" | "down_proj" | "w1" | "w2" | "w3" => networks * (hidden + inner),
                    "gate_up_proj" => networks * (hidden + 2 * inner),
                    _ => return None,
                };
                total = total.saturating_add(self.rank.saturating_mul(sides));
            }
        }
        Some(total)
    }

    /// The remark on an adapter that lies beside the config of `model`.
    pub fn remark(&self, model: &Model) -> Diagnostic {
        let added = match self.parameters(model) {
            Some(parameters) => format!("which adds {} trained parameters", grouped(parameters)),
            None => "whose parameters are not known".into(),
        };
        Diagnostic::warning(format!("{} lies beside the config, {added}; the model is read without it", self.title()))
    }

    fn title(&self) -> String {
        match self.kind.as_str() {
            "LORA" => format!("an adapter (LoRA of rank {} on {})", self.rank, self.targets.join(", ")),
            kind => format!("an adapter of kind {kind}"),
        }
    }
}

/// The refusal of an adapter's file that is read as a config.
pub(super) fn refusal(config: &Config<'_>) -> Option<Diagnostic> {
    let kind = config.word("peft_type")?;
    let base = config.word("base_model_name_or_path").unwrap_or("the model that it was trained on");
    let fault = Diagnostic::error(format!(
        "this is an adapter of kind {kind}, which changes `{base}` and has no layers itself"
    ));
    Some(fault.hint(format!("name the config or the folder of `{base}`")))
}
