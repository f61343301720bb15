//! Training data from files: a text, byte by byte or through a tokenizer, or a folder of images.

mod folder;
mod words;

pub use words::Words;

use crate::{Failure, input, training};
use spipe_base::{Diagnostic, Faults, Position, position_of};
use spipe_exec::{Data, DataError, ImageShape, Images};
use spipe_model::{Architecture, Model};

/// The word for images that are made instead of read.
const SYNTHETIC: &str = "synthetic";

/// What `given` names for `model`: a text that is read as `words`, `synthetic`, or a folder with a folder of images for each
/// class.
pub fn read(given: &str, words: &Words, model: &Model, seq_len: u64) -> Result<Data, Failure> {
    match ImageShape::of(model) {
        None => text(given, words, model, seq_len),
        Some(_) if matches!(words, Words::Tokens { .. }) => Err(Failure::argument(
            format!("`--tokenizer` is for models that read text, `{}` reads images", model.name()),
            "leave it out",
        )),
        Some(shape) if given == SYNTHETIC => Ok(Images::synthetic(shape).into()),
        Some(shape) => folder::images(given, shape).map(Data::from),
    }
}

/// The tokens of a text file, all of which the model must have.
fn text(path: &str, words: &Words, model: &Model, seq_len: u64) -> Result<Data, Failure> {
    let text = input::bytes(path)?;
    let start = || Position { file: path.into(), line: 1, column: 1 };
    let refuse = |error: DataError, position: Position| placed(&position, training::refuse(error.into()));
    let data: Data = words.read_text((path, &text), seq_len, &|error| refuse(error, start()))?.into();
    if matches!(model.architecture(), Architecture::Profiled(_)) {
        let message = format!("`{}` cannot be executed: its layers are known by measurements only", model.name());
        let hint = "plan for a model whose architecture is known; `spipe simulate` predicts this one";
        return Err(Failure::Input(Diagnostic::error(message).hint(hint).into()));
    }
    data.check(model, seq_len).map_err(|error| {
        let position = match &error {
            DataError::Vocabulary { offset, .. } => place(path, &text[..words.begin(&text, *offset).min(text.len())]),
            _ => start(),
        };
        refuse(error, position)
    })?;
    Ok(data)
}

/// The position behind `before`, whatever its bytes mean.
fn place(path: &str, before: &[u8]) -> Position {
    let before = String::from_utf8_lossy(before);
    position_of(path, &before, before.len())
}

/// A failure of the input with its place.
fn placed(position: &Position, failure: Failure) -> Failure {
    match failure {
        Failure::Input(faults) => {
            let mut all = Faults::new();
            faults.iter().for_each(|fault| all.push(fault.clone().at(position.clone())));
            Failure::Input(all)
        }
        other => other,
    }
}
