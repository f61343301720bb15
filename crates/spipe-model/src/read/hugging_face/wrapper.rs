//! Configs that wrap a language model: `{"model_type": "llava", "text_config": {…}}`.

use super::{config::Config, counted};
use serde_json::Value;

/// The keys under which wrappers keep their language model.
const KEYS: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// Returns the key of the wrapped config, if the wrapper's own type is not among the `known` and the
/// inner one is. Embeddings are tied as the wrapper says, unless the inner config says it.
pub(super) fn inner(value: &mut Value, known: &[&str]) -> Option<&'static str> {
    let is_known = |table: &Value| table["model_type"].as_str().is_some_and(|word| known.contains(&word));
    if is_known(value) {
        return None;
    }
    let key = KEYS.into_iter().find(|key| is_known(&value[*key]))?;
    let tied = value.get("tie_word_embeddings").cloned();
    if let (Some(tied), Some(table)) = (tied, value[key].as_object_mut()) {
        table.entry("tie_word_embeddings").or_insert(tied);
    }
    Some(key)
}

/// The type and the parameters of a wrapper's vision tower, if its type is known.
pub(super) fn tower(outer: &Config<'_>) -> Option<(String, u64)> {
    let mut config = outer.child(&["vision_config"])?;
    let what = config.word("model_type")?.to_owned();
    let counted = counted::read(&mut config, &what)?;
    let parameters = counted.parts.iter().map(|part| part.count.saturating_mul(part.parameters));
    Some((what, parameters.fold(0, u64::saturating_add)))
}
