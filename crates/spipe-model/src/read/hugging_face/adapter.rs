//! `adapter_config.json`, which PEFT writes beside an adapter's weights.

use super::{config::Config, parse};
use crate::{Architecture, Lora, Model};
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
    /// The rest of the file.
    value: Value,
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
            value,
        })
    }

    /// Returns the adapters of the file.
    ///
    /// # Errors
    /// Everything that is not planned: other kinds, ranks or biases by layer, other modules in full.
    pub fn lora(&self) -> Result<Lora, Faults> {
        let mut faults = Faults::new();
        let value = &self.value;
        let mut refuse = |message: String| {
            faults.push(
                Diagnostic::error(message)
                    .hint("state what is trained with `option lora`, such as `rank=16,targets=q,v`"),
            );
        };
        if self.kind != "LORA" {
            refuse(format!("the adapter is of kind `{}`, and only LORA is planned", self.kind));
        }
        for key in ["rank_pattern", "layers_to_transform", "layer_replication"] {
            let set = match &value[key] {
                Value::Null => false,
                Value::Object(map) => !map.is_empty(),
                Value::Array(list) => !list.is_empty(),
                _ => true,
            };
            if set {
                refuse(format!("the adapter has `{key}`, which is not planned"));
            }
        }
        if let Some(bias) = value["bias"].as_str().filter(|bias| *bias != "none") {
            refuse(format!("the adapter trains biases (`bias` is `{bias}`), which is not planned"));
        }
        let saved: Vec<&str> =
            value["modules_to_save"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let ends = ["embed_tokens", "lm_head", "wte", "embed_in", "embed_out"];
        for module in saved.iter().filter(|module| !ends.contains(module)) {
            refuse(format!("the adapter trains `{module}` in full, which is not planned"));
        }
        let words = |text: &String| -> Vec<String> {
            // A single text is a pattern over names of modules.
            let separates = |letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '-');
            text.split(separates).filter(|word| crate::Matrix::is_name(word)).map(str::to_owned).collect()
        };
        let is_pattern = value["target_modules"].is_string();
        let targets = if is_pattern { self.targets.iter().flat_map(words).collect() } else { self.targets.clone() };
        if targets.is_empty() {
            refuse("the adapter names no matrices in `target_modules`".into());
        }
        faults.or(Lora {
            rank: self.rank.max(1),
            alpha: value["lora_alpha"].as_f64(),
            dropout: value["lora_dropout"].as_f64().filter(|share| (0.0..1.0).contains(share)).unwrap_or(0.0),
            targets: targets.into_iter().collect(),
            embeddings: !saved.is_empty(),
            dora: value["use_dora"].as_bool().unwrap_or(false),
            rslora: value["use_rslora"].as_bool().unwrap_or(false),
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
