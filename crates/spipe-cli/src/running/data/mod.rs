//! Data from files: a text, byte by byte or through a tokenizer, or a folder of images.

mod folder;

use super::tokenizer::{Encoding, position_after};
use crate::{Failure, input};
use spipe_base::{Diagnostic, Faults, Position};
use spipe_cost::Workload;
use spipe_exec::{Data, DataError, ImageShape, Images, RunError, Tokens};
use spipe_model::{Architecture, Model};
use std::path::{Path, PathBuf};

/// The word for synthetic images.
const SYNTHETIC: &str = "synthetic";

/// The data that `given` names for `model`: a text in `encoding` or a list of the tokens of each
/// step, or for a model that reads images a folder with a folder of images for each class, or
/// `synthetic`.
pub fn read(given: &str, encoding: &Encoding, model: &Model, workload: &Workload) -> Result<Data, Failure> {
    match ImageShape::of(model) {
        None => text(given, encoding, model, (workload.global_batch(), workload.seq_len)),
        Some(_) if matches!(encoding, Encoding::Tokenizer { .. }) => Err(Failure::argument(
            format!("`--tokenizer` is for models that read text, `{}` reads images", model.name()),
            "leave it out",
        )),
        Some(shape) if given == SYNTHETIC => Ok(Images::synthetic(shape).into()),
        Some(shape) => folder::images(given, shape).map(Data::from),
    }
}

/// The end of the name of a file that lists the tokens of each step.
const LISTED: &str = ".safetensors";

/// The tokens of a text file, all of which the model must know.
fn text(path: &str, encoding: &Encoding, model: &Model, (sequences, seq_len): (u64, u64)) -> Result<Data, Failure> {
    let text = input::bytes(path)?;
    let start = || Position { file: path.into(), line: 1, column: 1 };
    let refuse = |error: DataError, position: Position| placed(&position, RunError::from(error).into());
    let data: Data = if path.ends_with(LISTED) {
        let listed = Tokens::from_safetensors(&text, sequences, seq_len);
        listed.map_err(|error| refuse(error, start()))?.into()
    } else {
        encoding.read_text((path, &text), seq_len, &|error| refuse(error, start()))?.into()
    };
    if matches!(model.architecture(), Architecture::Profiled(_)) {
        let message = format!("`{}` cannot be executed: its layers are known by measurements only", model.name());
        let hint = "plan for a model whose architecture is known; `spipe simulate` predicts this one";
        return Err(Failure::input(Diagnostic::error(message).hint(hint)));
    }
    data.check(model, seq_len).map_err(|error| {
        let position = match &error {
            DataError::Vocabulary { offset, .. } if !path.ends_with(LISTED) => {
                position_after(path, &text[..encoding.begin(&text, *offset).min(text.len())])
            }
            _ => start(),
        };
        refuse(error, position)
    })?;
    Ok(data)
}

/// A failure of the input at `position`.
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

/// The folder of the repository's own sources.
const SOURCES: &str = "crates";

/// The text of a file as bytes; without a file this repository's own sources, or the files that the
/// binary carries.
pub fn training_text(given: Option<&str>) -> Result<Vec<u8>, Failure> {
    if let Some(path) = given {
        return input::bytes(path);
    }
    let mut paths = Vec::new();
    sources(Path::new(SOURCES), &mut paths);
    paths.sort();
    let mut text = Vec::new();
    for path in paths {
        text.extend(input::bytes(&path.display().to_string())?);
    }
    if text.is_empty() {
        let carried = spipe_model::shipped().iter().chain(spipe_hardware::shipped());
        text.extend(carried.flat_map(|(_, toml)| toml.bytes()));
    }
    Ok(text)
}

/// The bytes of a text as tokens.
pub fn byte_tokens(text: &[u8], seq_len: u64) -> Result<Data, Failure> {
    Ok(Tokens::bytes(text, seq_len).map_err(RunError::from)?.into())
}

/// Collects the Rust files of a folder; a folder that cannot be read has none.
fn sources(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, paths);
        } else if path.extension().is_some_and(|end| end == "rs") {
            paths.push(path);
        }
    }
}
