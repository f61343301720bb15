//! Models by path: a model file, a config of Hugging Face, or a folder with one.
//!
//! ```text
//! model.toml                      a model file
//! config.json                     any config in JSON, under any name
//! FOLDER/config.json              a model of transformers, perhaps with adapter_config.json beside it
//! FOLDER/model_index.json         a pipeline of diffusers; `--component` picks one of its parts
//! ```

use crate::{Failure, output, text_files};
use serde::Serialize;
use spipe_base::{Diagnostic, readable::grouped};
use spipe_model::{Adapter, Component, Imported, Model, components};
use std::path::Path;

/// A part of a pipeline, as `spipe model show` lists it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Part {
    /// The name that `--component` takes.
    pub component: String,
    /// The library of its class.
    pub library: String,
    /// Its class.
    pub class: String,
    /// Its parameters: zero for schedulers and tokenizers, none where the class is unknown.
    pub parameters: Option<u64>,
}

impl Part {
    /// The part in words.
    fn words(&self) -> String {
        let size = match self.parameters {
            Some(0) => "no parameters".into(),
            Some(parameters) => format!("{} parameters", grouped(parameters)),
            None => "unknown".into(),
        };
        format!("{} ({}, {size})", self.component, self.class)
    }
}

/// The parts of a pipeline if `given` is the folder of one, or its index.
pub fn parts(given: &str) -> Option<Result<Vec<Part>, Failure>> {
    let folder = pipeline(given)?;
    Some(read_parts(&folder).map(|parts| parts.iter().map(|part| listed(&folder, part)).collect()))
}

/// The folder of a pipeline if `given` is one, or its index.
fn pipeline(given: &str) -> Option<String> {
    let folder = match given.strip_suffix("model_index.json") {
        Some("") => ".",
        Some(folder) => folder.trim_end_matches(['/', '\\']),
        None => given,
    };
    Path::new(folder).join("model_index.json").is_file().then(|| folder.to_owned())
}

fn read_parts(folder: &str) -> Result<Vec<Component>, Failure> {
    let index = inside(folder, "model_index.json");
    Ok(components(&index, &text_files::text(&index)?)?)
}

fn listed(folder: &str, part: &Component) -> Part {
    let config = inside(folder, &format!("{}/config.json", part.name));
    let read = || Model::from_hugging_face(&config, &text_files::text(&config).ok()?).ok();
    let parameters = if part.has_parameters() { read().map(|read| read.model.parameters()) } else { Some(0) };
    Part { component: part.name.clone(), library: part.library.clone(), class: part.class.clone(), parameters }
}

fn inside(folder: &str, file: &str) -> String {
    Path::new(folder).join(file).display().to_string()
}

/// Whether a text is JSON, not TOML: a model file starts with a key or a comment.
pub fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The model of a config with the remarks on it.
pub fn config(file: &str, text: &str) -> Result<Imported, Failure> {
    Ok(Model::from_hugging_face(file, text)?)
}

/// Whether `given` names a folder with a model. A folder without one that happens to have the name of a
/// shipped model, such as the results of a demo, does not hide that model.
pub fn is_folder(given: &str) -> bool {
    let shipped = spipe_model::shipped().iter().any(|(name, _)| *name == given);
    let has = |file: &str| Path::new(&inside(given, file)).is_file();
    Path::new(given).is_dir() && (!shipped || has("config.json") || has("model_index.json"))
}

/// The model of a folder; `part` is the name of a part of a pipeline.
pub fn folder(given: &str, part: Option<&str>) -> Result<Imported, Failure> {
    if let Some(folder) = pipeline(given) {
        return component(&folder, part);
    }
    if let Some(part) = part {
        return Err(no_parts(given, part));
    }
    let [path, adapter] = ["config.json", "adapter_config.json"].map(|file| inside(given, file));
    if !Path::new(&path).is_file() {
        if Path::new(&adapter).is_file() {
            return config(&adapter, &text_files::text(&adapter)?);
        }
        let fault = Diagnostic::error(format!("the folder `{given}` has no config.json and no model_index.json"));
        return Err(Failure::input(fault.hint("name a folder of Hugging Face, or a model file")));
    }
    let mut imported = config(&path, &text_files::text(&path)?)?;
    if Path::new(&adapter).is_file() {
        let remark = Adapter::from_json(&adapter, &text_files::text(&adapter)?)?.remark(&imported.model);
        imported.warnings.push(remark);
    }
    Ok(imported)
}

/// The refusal of `--component` for a model without parts.
pub fn no_parts(given: &str, part: &str) -> Failure {
    let message = format!("`{given}` has no part `{part}`: it is one model");
    Failure::argument(message, "leave `--component` out; it picks a part of a folder with a model_index.json")
}

fn component(folder: &str, part: Option<&str>) -> Result<Imported, Failure> {
    let parts = read_parts(folder)?;
    let list = || parts.iter().map(|part| listed(folder, part)).collect::<Vec<_>>();
    let Some(name) = part else {
        let list = list();
        let words: Vec<String> = list.iter().map(Part::words).collect();
        let read = list.iter().find(|part| part.parameters.is_some_and(|parameters| parameters > 0));
        let pick = read.or(list.first()).map_or("NAME", |part| part.component.as_str());
        let message = format!("`{folder}` has several parts: {}", words.join(", "));
        return Err(Failure::argument(message, format!("pick one with `--component {pick}`")));
    };
    let Some(found) = parts.iter().find(|part| part.name == name) else {
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        let message = format!("`{folder}` has no part `{name}`");
        return Err(Failure::argument(message, format!("its parts are {}", names.join(", "))));
    };
    if !found.has_parameters() {
        let message = format!("`{name}` is a {}, which has no parameters", found.class);
        return Err(Failure::argument(message, "pick a part with parameters"));
    }
    let path = inside(folder, &format!("{name}/config.json"));
    config(&path, &text_files::text(&path)?)
}

/// Prints the remarks on a model, and returns the model.
pub fn with_remarks(imported: Imported) -> Model {
    output::warn(imported.warnings.iter());
    imported.model
}
