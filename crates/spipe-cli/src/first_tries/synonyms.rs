//! Options of other tools, and the options of `spipe plan` that they mean.

use spipe_cost::{Base, Optimizer};

/// Options with a value, and the option that each means.
const OPTIONS: [(&[&str], &str); 8] = [
    (&["b", "bs", "batch", "batch-size", "global-batch-size", "train-batch-size", "total-batch-size"], "global-batch"),
    (&["mbs", "micro-batch", "micro-batch-size", "per-device-batch-size", "per-device-train-batch-size"], "microbatch"),
    (
        &[
            "seq",
            "seq-length",
            "sequence-length",
            "sequence-len",
            "context",
            "context-length",
            "ctx",
            "max-length",
            "max-len",
            "max-seq-length",
            "max-seq-len",
            "model-max-length",
            "cutoff-len",
            "block-size",
        ],
        "seq-len",
    ),
    (&["dtype", "torch-dtype", "data-type"], "precision"),
    (&["optim"], "optimizer"),
    (&["lora-r", "lora-rank", "rank", "r"], "lora"),
    (&["quantization", "quantize", "quant", "load-in", "bits"], "base"),
    (&["max-grad-norm", "clip", "grad-clip", "gradient-clipping"], "clip-norm"),
];

/// Options with their values.
type Options = &'static [(&'static str, &'static str)];

/// Flags, and the options that each means.
const FLAGS: [(&[&str], Options); 7] = [
    (&["lora"], &[("lora", "rank=16")]),
    (&["qlora", "load-in-4bit", "4bit", "nf4"], &[("lora", "rank=16"), ("base", "nf4")]),
    (&["load-in-8bit", "8bit", "int8"], &[("lora", "rank=16"), ("base", "int8")]),
    (&["bf16", "bfloat16"], &[("precision", "bf16")]),
    (&["fp16", "half", "float16"], &[("precision", "fp16")]),
    (&["fp32", "float32"], &[("precision", "fp32")]),
    (&["infer", "inference"], &[("mode", "infer")]),
];

/// The options that a flag means.
pub fn flag(name: &str) -> Option<Options> {
    FLAGS.iter().find(|(names, _)| names.contains(&name)).map(|(_, options)| *options)
}

/// The option that an option of another tool means; options of `spipe plan` mean themselves.
pub fn option(name: &str) -> &str {
    OPTIONS.iter().find(|(names, _)| names.contains(&name)).map_or(name, |(_, option)| option)
}

/// The value of an option as `spipe plan` takes it; none if it cannot mean anything.
pub fn value(option: &str, given: &str) -> Option<String> {
    let lower = given.to_ascii_lowercase().replace('_', "-");
    match option {
        "microbatch" if lower == "auto" => Some(lower),
        "global-batch" | "microbatch" | "seq-len" => count(&lower).map(|count| count.to_string()),
        "precision" => Some(
            match lower.as_str() {
                "fp16" | "float16" | "half" | "f16" | "16" => "fp16",
                "fp32" | "float32" | "float" | "f32" | "32" => "fp32",
                _ => "bf16",
            }
            .into(),
        ),
        "optimizer" => optimizer(&lower),
        "lora" => Some(match given.strip_prefix("r=") {
            Some(rank) => format!("rank={rank}"),
            None if given.parse::<u64>().is_ok() => format!("rank={given}"),
            None => given.into(),
        }),
        "base" => match lower.parse::<Base>() {
            Ok(_) => Some(lower),
            Err(_) if lower.contains('4') => Some("nf4".into()),
            Err(_) if lower.contains('8') => Some("int8".into()),
            Err(_) => None,
        },
        _ => Some(given.into()),
    }
}

/// An optimizer by the names of other tools: `adamw_bnb_8bit`, `paged_adamw_32bit`, `adamw_torch`.
fn optimizer(lower: &str) -> Option<String> {
    if lower.parse::<Optimizer>().is_ok() {
        return Some(lower.into());
    }
    let paged = if lower.contains("paged") { "paged-" } else { "" };
    let small = if lower.contains('8') { "-8bit" } else { "" };
    lower.contains("adam").then(|| format!("{paged}adamw{small}"))
}

/// A positive number, with a unit of 1024 as lengths have it: `4k`.
fn count(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|count| *count > 0)
}
