//! Writing a checkpoint: whole or not at all.

use super::{
    CheckpointError, Checkpoints, Disk, MANIFEST, OPTIMIZER, WEIGHTS,
    disk::{Summed, sync_folder},
    manifest::{Identity, LossScale, Manifest, Sum},
    name, steps,
};
use crate::{
    layers::Parameter,
    optimizer::Moments,
    tensor_file::{self, Entry},
};
use spipe_base::LayerId;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Checkpoints that are kept.
const KEPT: usize = 2;

/// Parameters and moments while no action runs.
pub(crate) trait Between {
    /// The numbers of a parameter.
    fn parameter(&self, layer: LayerId, index: usize) -> Result<Vec<f32>, String>;
    /// The moments of a parameter, if it has any.
    fn moments(&self, layer: LayerId, index: usize) -> Result<Option<Moments>, String>;
    /// Whether a layer has moments.
    fn trains(&self, layer: LayerId) -> Result<bool, String>;
    /// The gradient of a parameter that the next step is made with, if that has been left to it.
    fn waiting_gradient(&self, layer: LayerId, index: usize) -> Result<Option<Vec<f32>>, String>;
    /// What the next loss is multiplied with, if anything.
    fn loss_scale(&self) -> Option<LossScale>;
}

/// A layer's name and tensors.
pub(crate) type Described = (String, Vec<Parameter>);

/// What writes the checkpoints of a run.
pub(crate) struct Writer<'a> {
    pub place: Checkpoints,
    identity: Identity,
    layers: Vec<Described>,
    disk: &'a dyn Disk,
    /// The step from which the run goes on, and those after which it has written one.
    own: Mutex<BTreeSet<u32>>,
    /// Locked as long as the run may write to it.
    _folder: File,
}

impl<'a> Writer<'a> {
    /// Opens the folder of the checkpoints of a run, which goes on from one of them or begins with an empty folder: mixed with those of
    /// another run nobody could tell which is the newest.
    pub fn open(
        (place, resumed): (Checkpoints, Option<u32>),
        identity: Identity,
        layers: Vec<Described>,
        disk: &'a dyn Disk,
    ) -> Result<Self, CheckpointError> {
        let folder = prepare(&place.folder)?;
        let newest = steps(&place.folder)?.pop().filter(|_| resumed.is_none());
        match newest {
            Some((step, _)) => Err(CheckpointError::Taken { folder: place.folder, step }),
            None => {
                let own = Mutex::new(resumed.into_iter().collect());
                Ok(Self { place, identity, layers, disk, own, _folder: folder })
            }
        }
    }

    /// Writes the checkpoint after `step` steps, then forgets all but the last two.
    pub fn write(&self, step: u32, state: &dyn Between) -> Result<(), CheckpointError> {
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
        // Steps beyond this one are of another run; between those that are kept are damaged ones, if any.
        let outdated = |(of, _): &(u32, PathBuf)| *of <= step && own.len() == KEPT && !own.contains(of);
        for (_, path) in steps(folder)?.into_iter().filter(outdated) {
            fs::remove_dir_all(&path).map_err(|error| CheckpointError::file("remove", &path, &error))?;
        }
        Ok(())
    }

    /// Writes all files; `infinite` is the tensor that is not finite, if that is why it fails.
    fn fill(&self, folder: &Path, step: u32, state: &dyn Between, infinite: &mut Option<String>) -> io::Result<()> {
        fs::create_dir(folder)?;
        let mut files = BTreeMap::new();
        let (entries, places) = self.weights();
        let weights = self.tensors(&folder.join(WEIGHTS), &entries, &mut |index| {
            let (layer, tensor) = places[index];
            let numbers = state.parameter(layer, tensor)?;
            if numbers.iter().all(|number| number.is_finite()) {
                return Ok(numbers);
            }
            *infinite = Some(entries[index].name.clone());
            Err("it is not finite".into())
        })?;
        files.insert(WEIGHTS.to_owned(), weights);
        let (entries, places) = self.moments(state).map_err(io::Error::other)?;
        let mut optimizer_steps = BTreeMap::new();
        let optimizer = self.tensors(&folder.join(OPTIMIZER), &entries, &mut |index| {
            let (layer, tensor, kind) = places[index];
            let layer_name = &self.layers[layer.index()].0;
            if kind == Kind::Gradient {
                let gradient = state.waiting_gradient(layer, tensor)?;
                return gradient.ok_or_else(|| format!("`{layer_name}` has no gradients"));
            }
            let moments = state.moments(layer, tensor)?.ok_or_else(|| format!("`{layer_name}` has no moments"))?;
            optimizer_steps.insert(layer_name.clone(), moments.steps());
            Ok(moments.numbers()[usize::from(kind == Kind::SecondMoment)].to_vec())
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
        entries: &[Entry],
        numbers: &mut dyn FnMut(usize) -> Result<Vec<f32>, String>,
    ) -> io::Result<Sum> {
        let mut sink = self.disk.create(path)?;
        let mut summed = Summed::new(sink.as_mut());
        tensor_file::write(&mut summed, entries, numbers)?;
        let (bytes, crc32) = summed.finish()?;
        Ok(Sum { bytes, crc32 })
    }

    fn weights(&self) -> (Vec<Entry>, Vec<(LayerId, usize)>) {
        let all = self.layers.iter().enumerate().flat_map(|(layer, (name, parameters))| {
            parameters.iter().enumerate().map(move |(index, parameter)| {
                let entry = Entry { name: tensor_name(name, parameter), shape: parameter.shape.to_vec() };
                (entry, (LayerId::from(layer), index))
            })
        });
        all.unzip()
    }

    fn moments(&self, state: &dyn Between) -> Result<(Vec<Entry>, Vec<Place>), String> {
        let (entries, places) = self.weights();
        let mut both = Vec::new();
        for (entry, (layer, index)) in entries.into_iter().zip(places) {
            if state.trains(layer)? {
                let waiting = state.waiting_gradient(layer, index)?.map(|_| Kind::Gradient);
                both.extend([Kind::FirstMoment, Kind::SecondMoment].into_iter().chain(waiting).map(|kind| {
                    let entry = Entry { name: name_of(&entry.name, kind), ..entry.clone() };
                    (entry, (layer, index, kind))
                }));
            }
        }
        Ok(both.into_iter().unzip())
    }
}

/// The step of a folder that says whether any can be made.
const PROBE: &str = "probe";

/// Makes the folder, locks it, and removes what a killed run has left half-written: what cannot be written is known before the first step.
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
    // A new folder has to outlive a loss of power as well as what is in it.
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(parent).map_err(fail)?;
    Ok(lock)
}

/// Whether a run that was killed has left it: `.step-00000060.tmp`.
fn is_left(name: &str) -> bool {
    let step = name.strip_prefix(".step-").and_then(|rest| rest.strip_suffix(".tmp"));
    step.is_some_and(|step| step == PROBE || (!step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit())))
}

/// What is kept of a parameter for its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    FirstMoment,
    SecondMoment,
    /// That of a step that is yet to be made.
    Gradient,
}

/// It, by layer and parameter.
type Place = (LayerId, usize, Kind);

/// What a layer's tensor is called: `block.0.attention.query.weight`.
pub(super) fn tensor_name(layer: &str, parameter: &Parameter) -> String {
    format!("{layer}.{}", parameter.name)
}

/// What it is called beside the tensor.
pub(super) fn name_of(tensor: &str, kind: Kind) -> String {
    let word = match kind {
        Kind::FirstMoment => "first-moment",
        Kind::SecondMoment => "second-moment",
        Kind::Gradient => "gradient",
    };
    format!("{tensor}.{word}")
}

/// Gives a folder that is on the disk its name.
fn put_in_place(folder: &Path, temporary: &Path, path: &Path) -> io::Result<()> {
    let before = temporary.with_extension("old");
    if path.exists() {
        // A folder that is not empty cannot be renamed over.
        fs::rename(path, &before)?;
    }
    fs::rename(temporary, path)?;
    sync_folder(folder)?;
    if before.exists() { fs::remove_dir_all(&before) } else { Ok(()) }
}
