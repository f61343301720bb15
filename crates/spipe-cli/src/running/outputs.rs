//! The outputs of an inference.

use super::tokenizer::Encoding;
use spipe_exec::{Outputs, Report};
use std::fmt::Write;

/// The number of sequences, or of numbers, that are shown.
const SHOWN: usize = 3;

/// The median time from one token to the next.
pub fn ms_per_token(report: &Report) -> Option<f64> {
    match report.outputs {
        Some(Outputs::Tokens { per_token, .. }) => per_token.map(|time| time.as_secs_f64() * 1e3),
        _ => None,
    }
}

/// The generated texts, sequence by sequence; none without a tokenizer.
pub fn texts(report: &Report, encoding: &Encoding) -> Option<Vec<String>> {
    match &report.outputs {
        Some(Outputs::Tokens { tokens, .. }) => tokens.iter().map(|tokens| encoding.decoded(tokens)).collect(),
        _ => None,
    }
}

/// The continuations of the first sequences and the time per token, or the number of images.
pub fn human(report: &Report, encoding: &Encoding) -> String {
    let mut text = String::new();
    match &report.outputs {
        Some(Outputs::Tokens { prompts, tokens, .. }) => {
            for (prompt, tokens) in prompts.iter().zip(tokens).take(SHOWN) {
                let _ = writeln!(text, "{} goes on {}", encoding.quoted(prompt), encoding.quoted(tokens));
            }
            if tokens.len() > SHOWN {
                let _ = writeln!(text, "and {} more sequences", tokens.len() - SHOWN);
            }
            if let Some(time) = ms_per_token(report) {
                let rate = tokens.len() as f64 / time * 1e3;
                let _ = writeln!(text, "{time:.3} ms per token, {rate:.1} tokens/s over all sequences");
            }
            text.push('\n');
        }
        Some(Outputs::Images { width, rows }) => {
            let count = rows.len() / (*width).max(1);
            let first: Vec<String> = rows.iter().take(SHOWN).map(|number| format!("{number:.4}")).collect();
            let _ = writeln!(text, "{count} images, {width} numbers each; the first begins {}\n", first.join(" "));
        }
        None => {}
    }
    text
}
