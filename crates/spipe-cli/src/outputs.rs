//! What an inference has found, in words.

use crate::data::Words;
use spipe_exec::{Outputs, Report};
use std::fmt::Write;

/// Sequences and numbers that are shown.
const SHOWN: usize = 3;

/// The median time from one token to the next.
pub fn ms_per_token(report: &Report) -> Option<f64> {
    match report.outputs {
        Some(Outputs::Tokens { per_token, .. }) => per_token.map(|time| time.as_secs_f64() * 1e3),
        _ => None,
    }
}

/// What a tokenizer makes of the tokens that were found, sequence by sequence; none without one.
pub fn texts(report: &Report, words: &Words) -> Option<Vec<String>> {
    match &report.outputs {
        Some(Outputs::Tokens { tokens, .. }) => tokens.iter().map(|tokens| words.decoded(tokens)).collect(),
        _ => None,
    }
}

/// How the first sequences go on, and how long a token takes; or how many images there are.
pub fn human(report: &Report, words: &Words) -> String {
    let mut text = String::new();
    match &report.outputs {
        Some(Outputs::Tokens { prompts, tokens, .. }) => {
            for (prompt, tokens) in prompts.iter().zip(tokens).take(SHOWN) {
                let _ = writeln!(text, "{} goes on {}", words.quoted(prompt), words.quoted(tokens));
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
