//! `quantization_config`: how the weights of a file are stored.

use super::config::Config;
use spipe_base::Diagnostic;

/// The warning of a config with quantized weights: how they are stored, and that sizes here are those
/// of the run's precision.
pub(super) fn warning(config: &Config<'_>) -> Option<Diagnostic> {
    let table = config.child(&["quantization_config"])?;
    let number = |key: &str| table.value(key).and_then(serde_json::Value::as_f64).filter(|number| *number > 0.0);
    let flag = |key: &str| table.value(key).and_then(serde_json::Value::as_bool).unwrap_or(false);
    let method = table.word("quant_method").unwrap_or("an unnamed method");
    let (how, bits) = match method {
        // One 16-bit scale and one zero point per group of inputs.
        "gptq" | "awq" => {
            let bits = number("bits").unwrap_or(4.0);
            let group = number("group_size").or_else(|| number("q_group_size"));
            let overhead = group.map_or(0.0, |group| (16.0 + bits) / group);
            let groups = group.map(|group| format!(", groups of {group}")).unwrap_or_default();
            (format!("{bits} bits{groups}"), Some(bits + overhead))
        }
        // A 32-bit constant per 64 weights; doubly quantized, 8 bits of it and a 32-bit constant per 256
        // (QLoRA, arXiv 2305.14314).
        _ if flag("load_in_4bit") || flag("_load_in_4bit") => {
            let double = flag("bnb_4bit_use_double_quant");
            let kind = table.word("bnb_4bit_quant_type").unwrap_or("fp4");
            let constants = if double { 8.0 / 64.0 + 32.0 / (64.0 * 256.0) } else { 32.0 / 64.0 };
            (format!("{kind}{}", if double { ", doubly quantized" } else { "" }), Some(4.0 + constants))
        }
        _ if flag("load_in_8bit") || flag("_load_in_8bit") => ("int8".into(), Some(8.0)),
        "fp8" => ("8 bits".into(), Some(8.0)),
        _ => ("unknown bits".into(), number("bits")),
    };
    let bits =
        bits.map(|bits| format!(", about {bits:.3} bits per weight of the layers' matrices")).unwrap_or_default();
    let message = format!(
        "the file's weights are quantized ({method}: {how}{bits}); sizes are computed for the precision of the run instead"
    );
    Some(Diagnostic::warning(message).at(config.locate(&["quantization_config"])))
}
