//! What an inference has found, in words.

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

/// Tokens as the bytes of a text, in quotes; other tokens by their numbers.
pub fn text(tokens: &[i32]) -> String {
    let bytes: Option<Vec<u8>> = tokens.iter().map(|token| u8::try_from(*token).ok()).collect();
    match bytes.map(String::from_utf8) {
        Some(Ok(text)) => format!("{text:?}"),
        Some(Err(bytes)) => format!("\"{}\"", bytes.as_bytes().escape_ascii()),
        None => tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// How the first sequences go on, and how long a token takes; or how many images there are.
pub fn human(report: &Report) -> String {
    let mut words = String::new();
    match &report.outputs {
        Some(Outputs::Tokens { prompts, tokens, .. }) => {
            for (prompt, tokens) in prompts.iter().zip(tokens).take(SHOWN) {
                let _ = writeln!(words, "{} goes on {}", text(prompt), text(tokens));
            }
            if tokens.len() > SHOWN {
                let _ = writeln!(words, "and {} more sequences", tokens.len() - SHOWN);
            }
            if let Some(time) = ms_per_token(report) {
                let rate = tokens.len() as f64 / time * 1e3;
                let _ = writeln!(words, "{time:.3} ms per token, {rate:.1} tokens/s over all sequences");
            }
            words.push('\n');
        }
        Some(Outputs::Images { width, rows }) => {
            let count = rows.len() / (*width).max(1);
            let first: Vec<String> = rows.iter().take(SHOWN).map(|number| format!("{number:.4}")).collect();
            let _ = writeln!(words, "{count} images, {width} numbers each; the first begins {}\n", first.join(" "));
        }
        None => {}
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_bytes_where_they_can_be() {
        assert_eq!(text(&[104, 105]), "\"hi\"");
        assert_eq!(text(&[104, 255]), "\"h\\xff\"");
        assert_eq!(text(&[104, 300]), "104 300");
    }
}
