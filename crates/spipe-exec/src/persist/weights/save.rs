//! Saves weights in the layout of transformers.

use super::{
    Index, IndexMetadata, WeightsError,
    file_names::{FILE, INDEX},
    layout::{Family, TensorPlace},
};
use crate::{
    nn::layers::Parameter,
    persist::tensor_file::{self, Entry},
    task_error::TaskError,
};
use spipe_base::LayerId;
use spipe_model::Model;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

/// A tensor to be written, and its parameters.
struct WholeTensor {
    entry: Entry,
    parts: Vec<(LayerId, usize, TensorPlace)>,
}

/// A function that returns the numbers of a parameter by layer and index.
pub(crate) type Numbers<'a> = &'a mut dyn FnMut(LayerId, usize) -> Result<Vec<f32>, TaskError>;

/// Creates the folder for the weights of `model`, so that a folder that cannot be written to is
/// found before the first step.
pub(crate) fn prepare(folder: &Path, model: &Model) -> Result<(), WeightsError> {
    Family::of(model).ok_or_else(|| WeightsError::NoLayout { model: model.name().into() })?;
    let probe = folder.join(".spipe-probe.tmp");
    let made = fs::create_dir_all(folder).and_then(|()| File::create(&probe)).and_then(|_| fs::remove_file(&probe));
    made.map_err(|error| WeightsError::file("write", folder, &error))
}

/// Saves the weights of `model`, whose layers have `parameters`, to `folder`. Files have at most
/// `most` bytes, or one tensor; each is renamed to its final name when complete, the index last.
pub(crate) fn save(
    folder: &Path,
    (model, parameters): (&Model, &[Vec<Parameter>]),
    numbers: Numbers<'_>,
    most: u64,
) -> Result<(), WeightsError> {
    let fail = |error: io::Error| WeightsError::file("write", folder, &error);
    let wholes = wholes(model, parameters)?;
    let shards = shards(wholes, most);
    fs::create_dir_all(folder).map_err(fail)?;
    let count = shards.len();
    let name = |shard: usize| match count {
        1 => FILE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
    };
    // Removes files of earlier weights: an index would name changed files, and readers prefer the
    // single file to an index.
    let forget = |name: &str| {
        let path = folder.join(name);
        let removed = fs::remove_file(&path)
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) });
        removed.map_err(|error| WeightsError::file("remove", &path, &error))
    };
    if count > 1 {
        forget(INDEX)?;
    }
    let mut index = Index { metadata: IndexMetadata { total_size: 0 }, weight_map: BTreeMap::new() };
    for (shard, wholes) in shards.iter().enumerate() {
        let path = folder.join(name(shard));
        in_place(&path, &mut |out| write(out, wholes, numbers))
            .map_err(|error| WeightsError::file("write", &path, &error))?;
        for whole in wholes {
            index.metadata.total_size += whole.entry.bytes();
            index.weight_map.insert(whole.entry.name.clone(), name(shard));
        }
    }
    if count > 1 {
        let path = folder.join(INDEX);
        let text = serde_json::to_string_pretty(&index).map_err(|error| fail(io::Error::other(error)))?;
        in_place(&path, &mut |out| out.write_all(text.as_bytes()))
            .map_err(|error| WeightsError::file("write", &path, &error))?;
        forget(FILE)?;
    } else {
        forget(INDEX)?;
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(fail)
}

/// Every tensor of `model` in the order of its layers.
fn wholes(model: &Model, parameters: &[Vec<Parameter>]) -> Result<Vec<WholeTensor>, WeightsError> {
    let no_layout = || WeightsError::NoLayout { model: model.name().into() };
    let family = Family::of(model).ok_or_else(no_layout)?;
    let mut wholes: Vec<WholeTensor> = Vec::new();
    for ((id, layer), parameters) in model.layers().enumerate().zip(parameters) {
        for (index, parameter) in parameters.iter().enumerate() {
            let place = family.place(layer, parameter).ok_or_else(no_layout)?;
            match wholes.iter_mut().rev().find(|whole| whole.entry.name == place.tensor) {
                Some(whole) => whole.parts.push((id, index, place)),
                None => wholes.push(WholeTensor {
                    entry: Entry { name: place.tensor.clone(), shape: place.shape.clone() },
                    parts: vec![(id, index, place)],
                }),
            }
        }
    }
    Ok(wholes)
}

/// The tensors of each file, of at most `most` bytes or one tensor.
fn shards(wholes: Vec<WholeTensor>, most: u64) -> Vec<Vec<WholeTensor>> {
    let mut shards: Vec<Vec<WholeTensor>> = vec![Vec::new()];
    let mut filled = 0;
    for whole in wholes {
        let bytes = whole.entry.bytes();
        if filled > 0 && filled + bytes > most {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("there is always one").push(whole);
    }
    shards
}

fn write(out: &mut dyn Write, wholes: &[WholeTensor], numbers: Numbers<'_>) -> io::Result<()> {
    let entries: Vec<Entry> = wholes.iter().map(|whole| whole.entry.clone()).collect();
    tensor_file::write(out, &entries, &mut |index| {
        let mut tensor = vec![0.0; entries[index].shape.iter().product()];
        for (layer, parameter, place) in &wholes[index].parts {
            place.put(&numbers(*layer, *parameter)?, &mut tensor);
        }
        Ok(tensor)
    })
}

/// Writes a temporary file, syncs it and renames it.
pub(super) fn in_place(path: &Path, fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let written = File::create(&temporary).and_then(|file| {
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        // The disk may refuse this as well.
        let _ = fs::remove_file(&temporary);
    }
    written
}
