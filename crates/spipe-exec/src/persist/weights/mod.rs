//! Weights in the layout of Hugging Face's transformers.
//!
//! ```text
//! FILE.safetensors ─┐
//! DIR/model.safetensors ─┼─► tensor by tensor, each by its range ─► parameters of a layer, inputs × outputs
//! DIR/model.safetensors.index.json ─► model-00001-of-0000N.safetensors …
//! ```
//!
//! A layer's tensors are read when its device receives them.

mod adapters;
mod error;
mod file_names;
mod layout;
mod merge;
mod save;

pub(crate) use adapters::{AdapterFile, prepare as prepare_adapters, save as save_adapters};
pub use error::WeightsError;
pub use merge::merge_adapter;
pub(crate) use save::{prepare, save};

use crate::{
    nn::layers::Parameter,
    persist::tensor_file::TensorFile,
    task_error::{NotFinite, TaskError},
};
use file_names::{FILE, INDEX};
use layout::Family;
use serde::{Deserialize, Serialize};
use spipe_base::LayerId;
use spipe_model::{Layer, Model};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

/// The projection to tokens, which a tied head does not have.
const PROJECTION: &str = "lm_head.weight";
/// Differences listed in a message.
const LISTED: usize = 4;
/// Suffixes of block tensors that old versions of transformers wrote although they follow from the
/// configuration.
const NOT_TRAINED: [&str; 5] =
    ["rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias"];

/// Open weights that match a model.
#[derive(Debug)]
pub(crate) struct Weights {
    family: Family,
    layers: Vec<Layer>,
    files: Vec<TensorFile>,
    /// The file of each tensor.
    homes: BTreeMap<String, usize>,
}

/// The file of each tensor, as transformers writes it.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    /// Only written: not all writers include it.
    #[serde(skip_deserializing)]
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Debug, Default, Serialize)]
struct IndexMetadata {
    total_size: u64,
}

impl Weights {
    /// Opens the weights at `path`, a file or a folder, and checks every tensor of `model`, whose
    /// layers have `parameters`.
    pub fn open<'a>(
        path: &Path,
        model: &Model,
        parameters: impl Iterator<Item = &'a [Parameter]>,
    ) -> Result<Self, WeightsError> {
        let family = Family::of(model).ok_or_else(|| WeightsError::NoLayout { model: model.name().into() })?;
        let (mut files, mut homes) = (Vec::new(), BTreeMap::new());
        for file in files_of(path)? {
            let tensors = TensorFile::open(&file).map_err(|error| WeightsError::file("read", &file, &error))?;
            homes.extend(tensors.names().into_iter().map(|name| (name, files.len())));
            files.push(tensors);
        }
        let weights = Self { family, layers: model.layers().iter().cloned().collect(), files, homes };
        let mut differences = weights.differences(parameters);
        if differences.is_empty() {
            return Ok(weights);
        }
        let rest = differences.len().saturating_sub(LISTED);
        if rest > 0 {
            differences.truncate(LISTED);
            differences.push(format!("and {rest} more"));
        }
        Err(WeightsError::Differs { path: path.into(), model: model.name().into(), differences })
    }

    /// Tensors that are missing, have another shape, or would be ignored although the network
    /// depends on them.
    fn differences<'a>(&self, parameters: impl Iterator<Item = &'a [Parameter]>) -> Vec<String> {
        let (mut differences, mut used) = (BTreeSet::new(), BTreeSet::new());
        for (layer, parameters) in self.layers.iter().zip(parameters) {
            for parameter in parameters {
                let Some(place) = self.family.place(layer, parameter) else {
                    differences.insert(format!("`{}` of layer `{}` has no place in it", parameter.name, layer.name));
                    continue;
                };
                let found = self.find(&place.tensor);
                let shape = found.as_ref().and_then(|(file, name)| file.shape(name).map(<[usize]>::to_vec));
                used.extend(found.map(|(_, name)| name));
                match shape {
                    None if place.tensor == PROJECTION => differences
                        .insert(format!("it has no `{PROJECTION}`, which only a model that is `tied` does without")),
                    None => differences.insert(format!("it has no `{}`", place.tensor)),
                    Some(shape) if shape != place.shape => differences.insert(format!(
                        "its `{}` is {}, the model's is {}",
                        place.tensor,
                        by(&shape),
                        by(&place.shape)
                    )),
                    Some(_) => false,
                };
            }
        }
        differences.extend(self.left_out(&used));
        differences.into_iter().collect()
    }

    /// Tensors of blocks that the model does not have, and a projection other than the table of a
    /// tied model.
    fn left_out(&self, used: &BTreeSet<String>) -> Vec<String> {
        let stem = |name: &str| {
            let name = name.strip_prefix(self.family.prefix()).unwrap_or(name);
            let number = name.split('.').position(|word| word.parse::<u64>().is_ok())?;
            Some(name.split('.').take(number).collect::<Vec<_>>().join("."))
        };
        let stems: BTreeSet<String> = used.iter().filter_map(|name| stem(name)).collect();
        let of_blocks = |name: &&String| stem(name).is_some_and(|stem| stems.contains(&stem));
        let trained = |name: &&String| !NOT_TRAINED.iter().any(|end| name.ends_with(end));
        let unused = self.homes.keys().filter(|name| !used.contains(*name));
        let blocks = unused.filter(of_blocks).filter(trained);
        let mut found: Vec<String> = blocks.map(|name| format!("the model has no place for its `{name}`")).collect();
        if self.homes.contains_key(PROJECTION) && !used.contains(PROJECTION) && !self.projects_with_table() {
            found.push(format!(
                "its `{PROJECTION}` is another than the table, with which a model that is `tied` projects"
            ));
        }
        found
    }

    /// Whether the projection is a copy of the embedding's table.
    fn projects_with_table(&self) -> bool {
        let numbers = |tensor| self.find(tensor).and_then(|(file, name)| file.read(&name).ok());
        numbers(PROJECTION) == numbers(self.family.table())
    }

    /// The file of a tensor, and its name in the file.
    fn find(&self, tensor: &str) -> Option<(&TensorFile, String)> {
        let mut names = [tensor, tensor.strip_prefix(self.family.prefix()).unwrap_or(tensor)].into_iter();
        names.find_map(|name| Some((&self.files[*self.homes.get(name)?], name.to_owned())))
    }

    /// The numbers of a parameter of `layer`.
    pub fn parameter(&self, layer: LayerId, parameter: &Parameter) -> Result<Vec<f32>, TaskError> {
        let place = self.family.place(&self.layers[layer.index()], parameter);
        let place = place
            .ok_or_else(|| TaskError::inconsistent(format!("`{}` has no place in the weights", parameter.name)))?;
        let (file, name) = self
            .find(&place.tensor)
            .ok_or_else(|| TaskError::inconsistent(format!("the weights have no `{}`", place.tensor)))?;
        let numbers = file.read(&name).map_err(|error| TaskError::io(&name, &error))?;
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(NotFinite::Weights { tensor: name }.into());
        }
        Ok(place.take(&numbers))
    }
}

/// The files at `path`.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let index = path.join(INDEX);
    if !index.exists() {
        return Ok(vec![path.join(FILE)]);
    }
    let text = std::fs::read(&index).map_err(|error| WeightsError::file("read", &index, &error))?;
    let parsed: Index = serde_json::from_slice(&text)
        .map_err(|error| WeightsError::file("read", &index, &io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let names: BTreeSet<String> = parsed.weight_map.into_values().collect();
    Ok(names.into_iter().map(|name| path.join(name)).collect())
}

fn by(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ")
}

#[cfg(test)]
mod architectures;
#[cfg(test)]
mod tests;
