//! Refusals of unknown architectures, with the nearest known ones.

use super::{config::Config, known, known_classes};
use spipe_base::{Diagnostic, similar_word};

/// The fewest leading letters that make two types relatives: `qwen2_vl` and `qwen2`.
const FAMILY: usize = 4;

/// The refusal of the model type `unknown`.
pub(super) fn unknown(config: &Config<'_>, unknown: &str) -> Diagnostic {
    let fault = Diagnostic::error(format!("unknown model type `{unknown}`"));
    fault.at(config.locate(&["model_type"])).hint(advice(&nearest(config, unknown)))
}

/// The refusal of a config without a model type.
pub(super) fn no_type(config: &Config<'_>) -> Diagnostic {
    match config.word("_class_name") {
        Some(class) => Diagnostic::error(format!("unknown class `{class}`"))
            .hint(format!("the known classes of `diffusers`: {}", known_classes().join(", "))),
        None => Diagnostic::error("the key `model_type` is missing").hint(format!("known: {}", known().join(", "))),
    }
}

fn advice(nearest: &[&str]) -> String {
    format!("the nearest known: {} (known: {})", nearest.join(", "), known().join(", "))
}

/// The known types that are nearest to `unknown`: by name, otherwise by the keys of the config.
fn nearest(config: &Config<'_>, unknown: &str) -> Vec<&'static str> {
    let word = unknown.to_ascii_lowercase();
    let shared = |known: &str| known.bytes().zip(word.bytes()).take_while(|(one, other)| one == other).count();
    // The longest type that `unknown` starts with is the class from which it descends.
    let whole = known().into_iter().filter(|known| word.starts_with(known) && known.len() >= FAMILY);
    if let Some(root) = whole.max_by_key(|known| known.len()) {
        return vec![root];
    }
    let most = known().iter().map(|known| shared(known)).max().unwrap_or(0);
    if most >= FAMILY {
        return known().into_iter().filter(|known| shared(known) == most).collect();
    }
    if let Some(similar) = similar_word(&word, known()) {
        return vec![similar];
    }
    if ["num_experts", "num_local_experts", "n_routed_experts"].into_iter().any(|key| config.has(key)) {
        return vec!["mixtral", "qwen3_moe"];
    }
    if ["image_size", "patch_size"].into_iter().any(|key| config.has(key)) {
        return vec!["vit", "clip"];
    }
    if config.has("rms_norm_eps") { vec!["llama", "mistral", "qwen2"] } else { vec!["gpt2", "gpt_neox", "llama"] }
}
