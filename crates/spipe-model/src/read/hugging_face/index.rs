//! `model_index.json`, the parts of a pipeline of `diffusers`.

use super::{config::Config, parse};
use serde_json::Value;
use spipe_base::{Diagnostic, Faults, position_of};

/// Parts of class names that have no parameters.
const WITHOUT_PARAMETERS: [&str; 5] = ["Scheduler", "Tokenizer", "FeatureExtractor", "ImageProcessor", "Processor"];

/// A part of a pipeline; its config is `NAME/config.json` beside the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// The key in the index, which is also the folder's name.
    pub name: String,
    /// The library, such as `diffusers` or `transformers`.
    pub library: String,
    /// The class, such as `UNet2DConditionModel`.
    pub class: String,
}

impl Component {
    /// Whether it may have parameters: schedulers and tokenizers have none.
    pub fn has_parameters(&self) -> bool {
        !WITHOUT_PARAMETERS.iter().any(|part| self.class.contains(part))
    }
}

/// Reads `model_index.json`: every key that does not start with `_` and is a pair of library and
/// class. A pair of nulls is a part that the pipeline does without.
///
/// # Errors
/// If the text is no JSON object, or has no such key.
pub fn components(file: &str, text: &str) -> Result<Vec<Component>, Faults> {
    let value = parse(file, text)?;
    let table = value.as_object();
    let entry = |(name, value): (&String, &Value)| {
        let pair: &[Value] = value.as_array()?;
        let [Value::String(library), Value::String(class)] = pair else { return None };
        (!name.starts_with('_')).then(|| Component {
            name: name.clone(),
            library: library.clone(),
            class: class.clone(),
        })
    };
    let components: Vec<Component> = table.into_iter().flatten().filter_map(entry).collect();
    if components.is_empty() {
        let fault = Diagnostic::error("no key is a part of a pipeline").at(position_of(file, text, 0));
        return Err(fault.hint("a part is written like \"unet\": [\"diffusers\", \"UNet2DConditionModel\"]").into());
    }
    Ok(components)
}

/// The refusal of an index that is read as a config.
pub(super) fn refusal(config: &Config<'_>) -> Option<Diagnostic> {
    let class = config.word("_class_name").filter(|class| class.ends_with("Pipeline"))?;
    let fault = Diagnostic::error(format!("`{class}` is a pipeline of several models"));
    Some(fault.hint("name its folder, and one part with `option component`"))
}
