//! The encoding of texts as tokens: bytes, or the tokens of a tokenizer.

use crate::{Failure, input};
use spipe_base::{Diagnostic, Position, position_of};
use spipe_exec::{DataError, Tokens};
use std::path::Path;
use tokenizers::{ModelWrapper, Tokenizer};

/// The name of a tokenizer's file in a folder.
const FILE: &str = "tokenizer.json";

/// An encoding of texts as tokens.
pub enum Encoding {
    /// Every byte is a token.
    Bytes,
    /// The tokens of a tokenizer.
    Tokenizer {
        /// Its file.
        path: String,
        tokenizer: Box<Tokenizer>,
    },
}

impl Encoding {
    /// The tokenizer that `given` names, a file or a folder with one; bytes if nothing is given.
    pub fn new(given: Option<&str>) -> Result<Self, Failure> {
        let Some(given) = given else { return Ok(Self::Bytes) };
        let folder = Path::new(given);
        let path = if folder.is_dir() { folder.join(FILE).display().to_string() } else { given.to_owned() };
        let json = input::bytes(&path)?;
        let tokenizer = Tokenizer::from_bytes(&json).map_err(|error| broken(&path, error.as_ref()))?;
        Ok(Self::Tokenizer { tokenizer: Box::new(whole(tokenizer)), path })
    }

    /// The tokens of a text, with the name of its file; `refuse` turns the error of a short text
    /// into a failure.
    pub fn read_text(
        &self,
        (file, text): (&str, &[u8]),
        seq_len: u64,
        refuse: &dyn Fn(DataError) -> Failure,
    ) -> Result<Tokens, Failure> {
        let Self::Tokenizer { path, tokenizer } = self else { return Tokens::bytes(text, seq_len).map_err(refuse) };
        let text = std::str::from_utf8(text).map_err(|error| {
            let offset = error.valid_up_to();
            let message = format!("the text is not UTF-8: byte {offset} begins no character");
            let hint = "tokenizers read UTF-8; without `--tokenizer` any bytes will do";
            Failure::input(Diagnostic::error(message).at(position_after(file, &text[..offset])).hint(hint))
        })?;
        // Offsets are left out: only a fault needs them.
        let encoding = tokenizer
            .encode_fast(text, false)
            .map_err(|error| Failure::input(Diagnostic::error(format!("`{path}` cannot read `{file}`: {error}"))))?;
        // Ids may have gaps: a model needs the largest one plus 1.
        let known = tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| u64::from(largest) + 1);
        Tokens::ids(encoding.get_ids().to_vec(), known, seq_len).map_err(refuse)
    }

    /// The offset in bytes at which a token of a text begins.
    pub fn begin(&self, text: &[u8], token: usize) -> usize {
        let Self::Tokenizer { tokenizer, .. } = self else { return token };
        let encoding = tokenizer.encode(String::from_utf8_lossy(text), false).ok();
        encoding.and_then(|encoding| encoding.get_offsets().get(token).copied()).map_or(0, |(begin, _)| begin)
    }

    /// The text of tokens; none without a tokenizer.
    pub fn decoded(&self, tokens: &[i32]) -> Option<String> {
        let Self::Tokenizer { tokenizer, .. } = self else { return None };
        let ids: Vec<u32> = tokens.iter().map(|token| token.cast_unsigned()).collect();
        tokenizer.decode(&ids, false).ok()
    }

    /// Tokens as a quoted text, or as numbers if they are no bytes.
    pub fn quoted(&self, tokens: &[i32]) -> String {
        if let Some(text) = self.decoded(tokens) {
            return format!("{text:?}");
        }
        let bytes: Option<Vec<u8>> = tokens.iter().map(|token| u8::try_from(*token).ok()).collect();
        match bytes.map(String::from_utf8) {
            Some(Ok(text)) => format!("{text:?}"),
            Some(Err(bytes)) => format!("\"{}\"", bytes.as_bytes().escape_ascii()),
            None => tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        }
    }
}

/// The tokenizer without truncation, padding and dropout: it reads all of a text, the same way each
/// time.
fn whole(mut tokenizer: Tokenizer) -> Tokenizer {
    // Removing truncation cannot fail.
    let _ = tokenizer.with_truncation(None);
    tokenizer.with_padding(None);
    let steady = match tokenizer.get_model() {
        ModelWrapper::BPE(merges) if merges.dropout.is_some() => {
            let mut merges = merges.clone();
            merges.dropout = None;
            Some(merges)
        }
        _ => None,
    };
    if let Some(steady) = steady {
        tokenizer.with_model(steady);
    }
    tokenizer
}

/// The position after `before`, whose bytes need not be UTF-8.
pub fn position_after(path: &str, before: &[u8]) -> Position {
    let before = String::from_utf8_lossy(before);
    position_of(path, &before, before.len())
}

fn broken(path: &str, error: &(dyn std::error::Error + Send + Sync + 'static)) -> Failure {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    let (line, column) = error.downcast_ref().map_or((1, 1), |json: &serde_json::Error| (json.line(), json.column()));
    let position = Position { file: path.into(), line: line.max(1), column: column.max(1) };
    let hint = "it is the file that Hugging Face's libraries save as `tokenizer.json`";
    Failure::input(Diagnostic::error(format!("not a tokenizer: {message}")).at(position).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The character that stands for a byte in GPT-2's vocabulary: itself where it can be seen,
    /// otherwise the next from 256 on.
    fn shown(byte: u8) -> char {
        let seen = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let hidden = (0..byte).filter(|before| !seen(*before)).count() as u32;
        if seen(byte) { char::from(byte) } else { char::from_u32(256 + hidden).unwrap() }
    }

    /// Every byte has its own number; three merges make `th`, `the` and ` the` of them, which are
    /// 256, 257 and 258.
    fn merging(more: &Value) -> Value {
        let mut vocabulary: serde_json::Map<String, Value> =
            (0..=255u8).map(|byte| (shown(byte).to_string(), byte.into())).collect();
        for (word, id) in [("th", 256), ("the", 257), ("Ġthe", 258)] {
            vocabulary.insert(word.into(), id.into());
        }
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let mut model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"]],
        });
        let mut whole = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        });
        if let Some(dropout) = more.get("dropout") {
            model["dropout"] = dropout.clone();
        }
        if let Some(truncation) = more.get("truncation") {
            whole["truncation"] = truncation.clone();
        }
        whole["model"] = model;
        whole
    }

    fn encoding(json: &Value) -> Encoding {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), json.to_string()).unwrap();
        Encoding::new(folder.path().to_str()).unwrap()
    }

    fn ids(encoding: &Encoding, text: &str) -> Vec<u32> {
        let Encoding::Tokenizer { tokenizer, .. } = encoding else { panic!("a tokenizer") };
        tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    #[test]
    fn bytes_are_merged_into_words() {
        let encoding = encoding(&merging(&Value::Null));
        assert_eq!(ids(&encoding, "the the cat"), [257, 258, 32, 99, 97, 116]);
        assert_eq!(ids(&encoding, "then a th"), [257, 110, 32, 97, 32, 256]);
        assert_eq!(ids(&encoding, "é\n"), [0xc3, 0xa9, 10]);
        let text = "the cat, the naïve one,\n\tthen 3 × 𝄞: these";
        let found: Vec<i32> = ids(&encoding, text).into_iter().map(u32::cast_signed).collect();
        assert!(found.len() < text.len() && found.contains(&258), "{found:?}");
        assert_eq!(encoding.decoded(&found).as_deref(), Some(text));
        assert_eq!(encoding.quoted(&[257, 258]), "\"the the\"");
        assert_eq!(encoding.begin(text.as_bytes(), 1), 3);
        assert_eq!(encoding.begin("é the".as_bytes(), 2), 2);
    }

    #[test]
    fn texts_are_read_whole_and_the_same_way_each_time() {
        let short = json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
        let encoding = encoding(&merging(&json!({ "dropout": 1.0, "truncation": short })));
        assert_eq!(ids(&encoding, "the the the the"), [257, 258, 258, 258]);
    }

    #[test]
    fn without_a_tokenizer_tokens_are_bytes_where_they_can_be() {
        assert_eq!(Encoding::Bytes.quoted(&[104, 105]), "\"hi\"");
        assert_eq!(Encoding::Bytes.quoted(&[104, 255]), "\"h\\xff\"");
        assert_eq!(Encoding::Bytes.quoted(&[104, 300]), "104 300");
        assert_eq!((Encoding::Bytes.decoded(&[104]), Encoding::Bytes.begin(b"abc", 2)), (None, 2));
    }
}
