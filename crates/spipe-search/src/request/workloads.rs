//! The workloads of the sizes of microbatches, and the lengths and modes that a model has.

use super::spelling::Spelling;
use crate::error::SearchError;
use spipe_cost::{MOST_TOKENS, Mode, Workload};
use spipe_model::{Architecture, Model};

/// The workloads that split `global_batch` sequences into equal microbatches: of the given size, or
/// for `auto` of every size that divides the batch.
///
/// # Errors
/// There is no such size, or no workload that can be counted.
pub fn workloads(template: Workload, global_batch: u64, microbatch: &str) -> Result<Vec<Workload>, SearchError> {
    if global_batch == 0 {
        return Err(SearchError::request("the global batch is zero", "use at least one sequence"));
    }
    if template.seq_len == 0 {
        return Err(SearchError::request("the sequence length is zero", "use at least one token"));
    }
    let split = |size: u64| Workload { microbatch: size, microbatches: global_batch / size, ..template };
    if microbatch == "auto" {
        let sizes = (1..=global_batch.min(MOST_TOKENS)).filter(|size| global_batch.is_multiple_of(*size));
        let possible: Vec<Workload> = sizes.map(split).filter(|workload| workload.check().is_ok()).collect();
        return if possible.is_empty() { Err(too_large(&split(1))) } else { Ok(possible) };
    }
    let size: u64 = microbatch.parse().map_err(|_| {
        SearchError::request(format!("`{microbatch}` is not a microbatch size"), "give a number of sequences, or auto")
    })?;
    if size == 0 {
        return Err(SearchError::request("the microbatch is zero", "use at least one sequence"));
    }
    if !global_batch.is_multiple_of(size) {
        return Err(SearchError::request(
            format!("the global batch {global_batch} is not a multiple of the microbatch {size}"),
            format!("use a microbatch that divides {global_batch}"),
        ));
    }
    let workload = split(size);
    if workload.check().is_err() {
        return Err(too_large(&workload));
    }
    Ok(vec![workload])
}

/// The refusal of a workload that is too large to be counted.
fn too_large(workload: &Workload) -> SearchError {
    let message = workload.check().err().map_or_else(String::new, |error| error.to_string());
    SearchError::request(
        message,
        "plan for a smaller batch or shorter sequences; several iterations take as long as one after the other",
    )
}

/// The given sequence length, or the model's own.
///
/// # Errors
/// The model has no sequences of this length.
pub fn seq_len(model: &Model, given: Option<u64>, spelling: Spelling) -> Result<u64, SearchError> {
    match given {
        Some(given) if reads_images(model) && given != model.seq_len() => {
            let message = format!("`{}` reads images of a fixed size", model.name());
            let hint = format!("leave {} out; the model file has the size", spelling.setting("seq-len"));
            Err(SearchError::request(message, hint))
        }
        Some(given) if model.places().is_some_and(|places| given > places) => {
            let places = model.places().unwrap_or_default();
            let message = format!("`{}` has learned positions for {places} tokens, not for {given}", model.name());
            Err(SearchError::request(message, format!("use sequences of at most {places}")))
        }
        given => Ok(given.unwrap_or_else(|| model.seq_len())),
    }
}

/// The given mode.
///
/// # Errors
/// The model does not have it.
pub fn mode(model: &Model, mode: Mode, spelling: Spelling) -> Result<Mode, SearchError> {
    let infer = spelling.value("mode", "infer");
    match model.architecture() {
        _ if mode != Mode::Generate => Ok(mode),
        Architecture::Transformer(_) => Ok(mode),
        Architecture::Profiled(_) => {
            let message = format!("`{}` has times of whole sequences, not of single tokens", model.name());
            Err(SearchError::request(message, format!("use {infer}, or describe the model by its shapes")))
        }
        _ => {
            let message = format!("`{}` generates no tokens", model.name());
            Err(SearchError::request(message, format!("use {infer}")))
        }
    }
}

/// Whether a model reads images alone.
pub fn reads_images(model: &Model) -> bool {
    matches!(model.architecture(), Architecture::Vision(_) | Architecture::Unet(_))
}

/// Whether the attention of a model is known, as that of measured layers is not.
pub fn attends(model: &Model) -> bool {
    !matches!(model.architecture(), Architecture::Profiled(_))
}
