//! Writes checkpoints atomically.

use super::{
    CheckpointError, Checkpoints, Disk, MANIFEST, OPTIMIZER, WEIGHTS,
    disk::{ChecksumWriter, sync_folder},
    manifest::{Identity, LossScale, Manifest, Sum},
    name, steps,
};
use crate::{
    nn::layers::Parameter,
    optimizer::{Array, Extent, Optimizer, TensorState},
    persist::tensor_file::{self, Entry, Stored},
    task_error::{NotFinite, TaskError},
};
use safetensors::Dtype;
use spipe_base::LayerId;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Number of checkpoints that are kept.
const KEPT: usize = 2;

/// Parameters and optimizer state between two steps.
pub(crate) trait TrainingState {
    /// The numbers of a parameter.
    fn parameter(&self, layer: LayerId, index: usize) -> Result<Vec<f32>, TaskError>;
    /// The optimizer's state of a parameter; none if it is not trained.
    fn state(&self, layer: LayerId, index: usize) -> Result<Option<TensorState>, TaskError>;
    /// Number of steps in the state of a layer; none if it is not trained.
    fn steps(&self, layer: LayerId) -> Result<Option<u32>, TaskError>;
    /// Whether a parameter is trained.
    fn trains(&self, layer: LayerId, index: usize) -> Result<bool, TaskError>;
    /// The gradient of a parameter that a delayed step leaves for the next one, if there is one.
    fn waiting_gradient(&self, layer: LayerId, index: usize) -> Result<Option<Vec<f32>>, TaskError>;
    /// The state of loss scaling, if losses are scaled.
    fn loss_scale(&self) -> Option<LossScale>;
}

/// A layer's name and tensors.
pub(crate) type NamedLayer = (String, Vec<Parameter>);

/// The writer of a run's checkpoints.
pub(crate) struct Writer<'a> {
    pub place: Checkpoints,
    identity: Identity,
    optimizer: Optimizer,
    layers: Vec<NamedLayer>,
    disk: &'a dyn Disk,
    /// The step that the run resumed from, and those after which it has written a checkpoint.
    own: Mutex<BTreeSet<u32>>,
    /// Locked while the run may write to it.
    _folder: File,
}

impl<'a> Writer<'a> {
    /// Opens the folder of a run's checkpoints. A run that does not resume needs a folder without
    /// checkpoints: otherwise nobody could tell which is the newest of which run.
    pub fn open(
        (place, resumed): (Checkpoints, Option<u32>),
        (identity, optimizer): (Identity, Optimizer),
        layers: Vec<NamedLayer>,
        disk: &'a dyn Disk,
    ) -> Result<Self, CheckpointError> {
        let folder = prepare(&place.folder)?;
        let newest = steps(&place.folder)?.pop().filter(|_| resumed.is_none());
        match newest {
            Some((step, _)) => Err(CheckpointError::Taken { folder: place.folder, step }),
            None => {
                let own = Mutex::new(resumed.into_iter().collect());
                Ok(Self { place, identity, optimizer, layers, disk, own, _folder: folder })
            }
        }
    }

    /// Writes the checkpoint after `step` steps, then removes all but the last two.
    pub fn write(&self, step: u32, state: &dyn TrainingState) -> Result<(), CheckpointError> {
        let folder = &self.place.folder;
        let temporary = folder.join(format!(".{}.tmp", name(step)));
        let path = folder.join(name(step));
        let mut infinite = None;
        let written = self.fill(&temporary, step, state, &mut infinite);
        if let Err(error) = written.and_then(|()| put_in_place(folder, &temporary, &path)) {
            // The disk may refuse this as well; the next run removes it.
            let _ = fs::remove_dir_all(&temporary);
            if let Some(tensor) = infinite {
                return Err(CheckpointError::NotFinite { tensor, step: step.saturating_sub(1) });
            }
            return Err(CheckpointError::file("write", &path, &error));
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.insert(step);
        while own.len() > KEPT {
            own.pop_first();
        }
        // Later steps belong to another run. Steps between the kept ones are damaged.
        let outdated = |(of, _): &(u32, PathBuf)| *of <= step && own.len() == KEPT && !own.contains(of);
        for (_, path) in steps(folder)?.into_iter().filter(outdated) {
            fs::remove_dir_all(&path).map_err(|error| CheckpointError::file("remove", &path, &error))?;
        }
        Ok(())
    }

    /// Writes all files; `infinite` becomes the tensor that is not finite, if that is the reason of
    /// a failure.
    fn fill(
        &self,
        folder: &Path,
        step: u32,
        state: &dyn TrainingState,
        infinite: &mut Option<String>,
    ) -> io::Result<()> {
        fs::create_dir(folder)?;
        let mut files = BTreeMap::new();
        let (entries, places) = self.weights();
        let weights = self.tensors(&folder.join(WEIGHTS), &entries, &mut |index| {
            let (layer, tensor) = places[index];
            let numbers = state.parameter(layer, tensor)?;
            if numbers.iter().all(|number| number.is_finite()) {
                return Ok(Stored::F32(numbers));
            }
            *infinite = Some(entries[index].0.name.clone());
            Err(NotFinite::Parameter.into())
        })?;
        files.insert(WEIGHTS.to_owned(), weights);
        let (entries, places) = self.optimizer_state(state).map_err(io::Error::other)?;
        let optimizer_steps = self.steps(state).map_err(io::Error::other)?;
        let optimizer = self.tensors(&folder.join(OPTIMIZER), &entries, &mut |index| {
            let (layer, tensor, kind) = places[index];
            let layer_name = &self.layers[layer.index()].0;
            let Kind::Array(buffer, array) = kind else {
                let gradient = state.waiting_gradient(layer, tensor)?.map(Stored::F32);
                return gradient.ok_or_else(|| TaskError::inconsistent(format!("`{layer_name}` has no gradients")));
            };
            match state.state(layer, tensor)?.and_then(|found| found.array((buffer, array))) {
                Some(Array::F32(numbers)) => Ok(Stored::F32(numbers)),
                Some(Array::Codes(codes)) => Ok(Stored::U8(codes)),
                None => Err(TaskError::inconsistent(format!("`{layer_name}` has no optimizer state"))),
            }
        })?;
        files.insert(OPTIMIZER.to_owned(), optimizer);
        let manifest = Manifest::new(&self.identity, step, (optimizer_steps, state.loss_scale()), files);
        let text = manifest.text().map_err(io::Error::other)?;
        let mut sink = self.disk.create(&folder.join(MANIFEST))?;
        sink.write_all(text.as_bytes())?;
        sink.sync()?;
        sync_folder(folder)
    }

    fn tensors(
        &self,
        path: &Path,
        entries: &[TypedEntry],
        numbers: &mut dyn FnMut(usize) -> Result<Stored, TaskError>,
    ) -> io::Result<Sum> {
        let mut sink = self.disk.create(path)?;
        let mut summed = ChecksumWriter::new(sink.as_mut());
        tensor_file::write_stored(&mut summed, entries, numbers)?;
        let (bytes, crc32) = summed.finish()?;
        Ok(Sum { bytes, crc32 })
    }

    fn weights(&self) -> (Vec<TypedEntry>, Vec<(LayerId, usize)>) {
        let all = self.layers.iter().enumerate().flat_map(|(layer, (name, parameters))| {
            parameters.iter().enumerate().map(move |(index, parameter)| {
                let entry = Entry { name: tensor_name(name, parameter), shape: parameter.shape.to_vec() };
                ((entry, Dtype::F32), (LayerId::from(layer), index))
            })
        });
        all.unzip()
    }

    /// The buffers of the optimizer's state, and gradients that wait for a delayed step.
    fn optimizer_state(&self, state: &dyn TrainingState) -> Result<(Vec<TypedEntry>, Vec<Place>), TaskError> {
        let (entries, places) = self.weights();
        let mut all = Vec::new();
        for ((entry, _), (layer, index)) in entries.into_iter().zip(places) {
            if !state.trains(layer, index)? {
                continue;
            }
            let shape = self.layers[layer.index()].1[index].shape;
            for (place, slot) in self.optimizer.slots(&Extent::whole(shape)).iter().enumerate() {
                for (array, (word, count, codes)) in slot.arrays().into_iter().enumerate() {
                    let per_number = count == shape.iter().product::<usize>();
                    let shape = if per_number { entry.shape.clone() } else { vec![count] };
                    let entry = Entry { name: name_of(&entry.name, &word), shape };
                    let dtype = if codes { Dtype::U8 } else { Dtype::F32 };
                    all.push(((entry, dtype), (layer, index, Kind::Array(place, array))));
                }
            }
            if state.waiting_gradient(layer, index)?.is_some() {
                let entry = Entry { name: name_of(&entry.name, GRADIENT), ..entry };
                all.push(((entry, Dtype::F32), (layer, index, Kind::Gradient)));
            }
        }
        Ok(all.into_iter().unzip())
    }

    /// Number of steps in the state of each trained layer.
    fn steps(&self, state: &dyn TrainingState) -> Result<BTreeMap<String, u32>, TaskError> {
        let mut steps = BTreeMap::new();
        for (layer, (name, parameters)) in self.layers.iter().enumerate() {
            let layer = LayerId::from(layer);
            if !parameters.is_empty() && state.trains(layer, 0)? {
                steps.extend(state.steps(layer)?.map(|steps| (name.clone(), steps)));
            }
        }
        Ok(steps)
    }
}

/// The step in the name of a folder that tests whether folders can be created.
const PROBE: &str = "probe";

/// Creates and locks the folder, and removes leftovers of a killed run, so that a folder that
/// cannot be written to is found before the first step.
fn prepare(folder: &Path) -> Result<File, CheckpointError> {
    let fail = |error: io::Error| CheckpointError::file("write to", folder, &error);
    fs::create_dir_all(folder).map_err(fail)?;
    let lock = File::open(folder).map_err(fail)?;
    match lock.try_lock() {
        Err(fs::TryLockError::WouldBlock) => return Err(CheckpointError::InUse { folder: folder.into() }),
        // Some file systems cannot lock.
        Err(fs::TryLockError::Error(_)) | Ok(()) => {}
    }
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_left) {
            fs::remove_dir_all(&path).map_err(fail)?;
        }
    }
    let probe = folder.join(format!(".step-{PROBE}.tmp"));
    fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)).map_err(fail)?;
    // A new folder must survive a loss of power as well as its content.
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(parent).map_err(fail)?;
    Ok(lock)
}

/// Whether it is a leftover of a killed run: `.step-00000060.tmp`.
fn is_left(name: &str) -> bool {
    let step = name.strip_prefix(".step-").and_then(|rest| rest.strip_suffix(".tmp"));
    step.is_some_and(|step| step == PROBE || (!step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit())))
}

/// An entry of a checkpoint for a trained parameter, besides its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An array of the optimizer's state, by the position of its buffer and its own in that.
    Array(usize, usize),
    /// The gradient of a delayed step.
    Gradient,
}

/// The name of the gradient of a delayed step.
pub(super) const GRADIENT: &str = "gradient";

/// A tensor of a file and the type of its numbers.
type TypedEntry = (Entry, Dtype);

/// Optimizer state by layer and parameter.
type Place = (LayerId, usize, Kind);

/// The name of a layer's tensor: `block.0.attention.query.weight`.
pub(super) fn tensor_name(layer: &str, parameter: &Parameter) -> String {
    format!("{layer}.{}", parameter.name)
}

/// The name of optimizer state of a tensor: `block.0.attention.query.weight.first-moment`.
pub(super) fn name_of(tensor: &str, word: &str) -> String {
    format!("{tensor}.{word}")
}

/// Renames a synced folder to its final name.
fn put_in_place(folder: &Path, temporary: &Path, path: &Path) -> io::Result<()> {
    let before = temporary.with_extension("old");
    if path.exists() {
        // A folder cannot be renamed over one that is not empty.
        fs::rename(path, &before)?;
    }
    fs::rename(temporary, path)?;
    sync_folder(folder)?;
    if before.exists() { fs::remove_dir_all(&before) } else { Ok(()) }
}
