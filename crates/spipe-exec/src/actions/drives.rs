//! Parameters, optimizer state and activations on drives: each has a place in the file that stands for its drive.

use super::{
    Interpreter,
    store::{HostLayer, Instance, LayersOnDrive, OnDrive, State, StateView, Value, wrong},
};
use crate::{
    actions::Outcome,
    device::arena::Arena,
    host::{count_copied, count_moved},
    nn::passes::SavedActivations,
    optimizer::{Slot, TensorState},
    persist::drive::{DriveFile, DrivePlace},
    task_error::TaskError,
};
use burn::tensor::{DType, Shape, TensorData};
use spipe_base::{BufferId, Bytes, MemoryId};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    sync::{Arc, Mutex, PoisonError},
};

/// The files that stand for the drives of a program, by memory.
#[derive(Debug, Default)]
pub(crate) struct Drives {
    files: BTreeMap<MemoryId, DriveFile>,
    /// The state that was read last for a checkpoint, which asks for one tensor after the other.
    last: Mutex<Option<(Instance, Arc<State>)>>,
}

impl Drives {
    /// The drives with these files.
    pub fn new(files: BTreeMap<MemoryId, DriveFile>) -> Self {
        Self { files, last: Mutex::new(None) }
    }

    fn file(&self, memory: MemoryId) -> Result<&DriveFile, TaskError> {
        self.files.get(&memory).ok_or_else(|| TaskError::inconsistent(format!("nothing stands for drive {memory}")))
    }

    /// Writes the bytes that `fill` produces.
    fn put(
        &self,
        memory: MemoryId,
        to: Spot,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<DrivePlace, TaskError> {
        let file = self.file(memory)?;
        let written = match to {
            Spot::Known(place) => file.write(place, fill),
            Spot::New(bytes) => file.add(bytes, fill),
            Spot::Lent(bytes) => file.lend(bytes, fill),
        };
        let written = written.map_err(|error| TaskError::drive(file.path(), "written", &error))?;
        count(&written);
        Ok(written)
    }

    /// Reads what is at a place, whose bytes must be those that were written last.
    fn get<T>(
        &self,
        memory: MemoryId,
        place: &DrivePlace,
        parse: impl FnOnce(&mut dyn Read) -> io::Result<T>,
    ) -> Result<T, TaskError> {
        let file = self.file(memory)?;
        let found = file.read(place, parse).map_err(|error| TaskError::drive(file.path(), "read", &error))?;
        count(place);
        Ok(found)
    }

    /// Writes a state: to its place, or to a new one.
    fn write(&self, memory: MemoryId, state: &State, place: Option<DrivePlace>) -> Result<OnDrive, TaskError> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let to = Spot::of(place, || state.bytes().get() as usize);
        let place = self.put(memory, to, |out| write_state(out, state))?;
        let shapes = |layer: &HostLayer| layer.iter().map(|data| data.shape().clone()).collect();
        let described = |layer: &Vec<TensorState>| layer.iter().map(|state| (state.slots(), state.steps())).collect();
        Ok(OnDrive {
            place,
            masters: state.master.as_ref().map(|layers| layers.iter().map(shapes).collect()),
            tensors: state.tensors.iter().map(described).collect(),
            squares: state.squares,
        })
    }

    /// Writes parameters: to their place, or to a new one.
    fn write_layers(
        &self,
        memory: MemoryId,
        layers: &[Arc<HostLayer>],
        place: Option<DrivePlace>,
    ) -> Result<Value, TaskError> {
        let tensors = || layers.iter().flat_map(|layer| layer.iter());
        let to = Spot::of(place, || tensors().map(|data| data.as_bytes().len()).sum());
        let place = self.put(memory, to, |out| tensors().try_for_each(|data| out.write_all(data.as_bytes())))?;
        let described =
            |layer: &Arc<HostLayer>| layer.iter().map(|data| (data.dtype(), data.shape().clone())).collect();
        Ok(Value::HostOnDrive(Box::new(LayersOnDrive { place, tensors: layers.iter().map(described).collect() })))
    }

    /// Reads parameters to the memory of `arena`.
    fn read_layers(
        &self,
        memory: MemoryId,
        kept: &LayersOnDrive,
        arena: &Arc<Arena>,
    ) -> Result<Vec<Arc<HostLayer>>, TaskError> {
        self.get(memory, &kept.place, |from| {
            kept.tensors.iter().map(|layer| read_tensors(from, layer.iter(), arena).map(Arc::new)).collect()
        })
    }

    /// Reads a state to the memory of `arena`.
    fn read(&self, memory: MemoryId, kept: &OnDrive, arena: &Arc<Arena>) -> Result<State, TaskError> {
        self.get(memory, &kept.place, |from| read_state(from, kept, arena))
    }

    /// The files that the system's cache stands before, because they take no direct transfers.
    pub fn buffered(&self) -> impl Iterator<Item = String> {
        self.files.values().filter(|file| !file.is_direct()).map(|file| file.path().display().to_string())
    }
}

/// Counts the bytes of a transfer: a drive moves them to or from memory that is aligned for it, a core from there
/// to the tensors or back.
fn count(place: &DrivePlace) {
    count_moved(place.bytes());
    count_copied(place.bytes());
}

/// Where bytes are written in the file of a drive.
enum Spot {
    /// A place that has as many already.
    Known(DrivePlace),
    /// A new place of this size.
    New(usize),
    /// Any place of this size that is free, from which they are read once.
    Lent(usize),
}

impl Spot {
    /// A known place, or a new one.
    fn of(place: Option<DrivePlace>, bytes: impl FnOnce() -> usize) -> Self {
        place.map_or_else(|| Self::New(bytes()), Self::Known)
    }
}

/// Writes parameters in f32, then the states of all tensors.
fn write_state(out: &mut dyn Write, state: &State) -> io::Result<()> {
    for data in state.master.iter().flatten().flatten() {
        out.write_all(data.as_bytes())?;
    }
    state.tensors.iter().flatten().try_for_each(|tensor| tensor.write(out))
}

/// Tensors of these types and shapes, one after the other.
fn read_tensors<'a>(
    from: &mut dyn Read,
    kept: impl Iterator<Item = &'a (DType, Shape)>,
    arena: &Arc<Arena>,
) -> io::Result<Vec<TensorData>> {
    kept.map(|(dtype, shape)| arena.read(shape.clone(), *dtype, from)).collect()
}

fn read_state(from: &mut dyn Read, kept: &OnDrive, arena: &Arc<Arena>) -> io::Result<State> {
    let mut master = |shapes: &Vec<Shape>| {
        let kinds: Vec<_> = shapes.iter().map(|shape| (DType::F32, shape.clone())).collect();
        read_tensors(from, kinds.iter(), arena)
    };
    let masters = kept.masters.as_ref().map(|layers| layers.iter().map(&mut master).collect());
    let masters: Option<Vec<HostLayer>> = masters.transpose()?;
    let mut tensor = |(slots, steps): &(Vec<Slot>, u32)| TensorState::read((slots, *steps), from, arena);
    let mut layer = |states: &Vec<(Vec<Slot>, u32)>| states.iter().map(&mut tensor).collect::<io::Result<Vec<_>>>();
    let tensors = kept.tensors.iter().map(&mut layer).collect::<io::Result<Vec<_>>>()?;
    Ok(State { master: masters, tensors, squares: kept.squares })
}

impl Interpreter<'_> {
    fn drive_of(&self, buffer: BufferId) -> Option<MemoryId> {
        let memory = self.program.buffers()[buffer].memory;
        self.drives.files.contains_key(&memory).then_some(memory)
    }

    /// Puts first parameters or a first state on their drive, if its buffer is there.
    pub(super) fn placed(&self, buffer: BufferId, value: Value) -> Result<Value, TaskError> {
        match (self.drive_of(buffer), value) {
            (Some(drive), Value::State(state)) => Ok(Value::OnDrive(Box::new(self.drives.write(drive, &state, None)?))),
            (Some(drive), Value::Host(layers)) => self.drives.write_layers(drive, &layers, None),
            (_, value) => Ok(value),
        }
    }

    /// Puts parameters on their drive, if their buffer is there.
    pub(super) fn shelved(&self, at: Instance, value: Value) -> Result<Value, TaskError> {
        let (Some(drive), Value::Host(layers)) = (self.drive_of(at.0), &value) else { return Ok(value) };
        let place = self.store.look(at, |value| match value {
            Value::HostOnDrive(kept) => Some(kept.place),
            _ => None,
        })?;
        self.drives.write_layers(drive, layers, Some(place))
    }

    /// The layers of a buffer on a drive; none if it is elsewhere.
    pub(super) fn layers_on_drive(&self, at: Instance) -> Result<Option<Vec<Arc<HostLayer>>>, TaskError> {
        let Some(drive) = self.drive_of(at.0) else { return Ok(None) };
        let look = |value: &Value| match value {
            Value::HostOnDrive(kept) => Some(kept.clone()),
            _ => None,
        };
        let kept = self.store.look(at, look)?;
        self.drives.read_layers(drive, &kept, self.arenas.staging()).map(Some)
    }

    /// Reads an optimizer state from its drive.
    pub(super) fn read_state(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let state = self.on_drive(self.at(from, iteration), self.arenas.of(self.memory_of(to)))?;
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::State(Box::new(state)));
        Ok(outcome)
    }

    /// Writes an optimizer state to its drive.
    pub(super) fn write_state(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let (source, target) = (self.at(from, iteration), self.at(to, iteration));
        let drive = self.drive_of(to).ok_or_else(|| wrong(target))?;
        let state = self.store.take_state(source)?;
        let place = self.kept(target)?.place;
        let kept = self.drives.write(drive, &state, Some(place))?;
        let mut outcome = Outcome { held: vec![(source, Bytes::ZERO)], ..Outcome::default() };
        self.put(&mut outcome, target, Value::OnDrive(Box::new(kept)));
        Ok(outcome)
    }

    /// Writes activations from host memory to the drive of `to`.
    pub(super) fn write_activations(
        &self,
        to: BufferId,
        saved: SavedActivations<TensorData>,
    ) -> Result<Value, TaskError> {
        let drive = self.drive_of(to).ok_or_else(|| TaskError::inconsistent(format!("{to} is on no drive")))?;
        let bytes = saved.iter().map(|data| data.as_bytes().len()).sum();
        let fill = |out: &mut dyn Write| saved.iter().try_for_each(|data| out.write_all(data.as_bytes()));
        let place = self.drives.put(drive, Spot::Lent(bytes), fill)?;
        Ok(Value::OffloadedToDrive(Box::new((saved.turned(|data| (data.dtype(), data.shape().clone())), place))))
    }

    /// Reads activations from the drive of `from` to host memory, which frees their place.
    pub(super) fn read_activations(
        &self,
        from: BufferId,
        (kept, place): (SavedActivations<(DType, Shape)>, DrivePlace),
        arena: &Arc<Arena>,
    ) -> Result<Value, TaskError> {
        let missing = || TaskError::inconsistent(format!("{from} is on no drive"));
        let drive = self.drive_of(from).ok_or_else(missing)?;
        let tensors = self.drives.get(drive, &place, |from| read_tensors(from, kept.iter(), arena))?;
        let saved = kept.of(tensors).ok_or_else(missing)?;
        self.drives.file(drive)?.free(place);
        Ok(Value::Offloaded(Box::new(saved)))
    }

    fn kept(&self, at: Instance) -> Result<OnDrive, TaskError> {
        self.store.look(at, |value| match value {
            Value::OnDrive(kept) => Some(OnDrive::clone(kept)),
            _ => None,
        })
    }

    fn on_drive(&self, at: Instance, arena: &Arc<Arena>) -> Result<State, TaskError> {
        let drive = self.drive_of(at.0).ok_or_else(|| wrong(at))?;
        self.drives.read(drive, &self.kept(at)?, arena)
    }

    /// Looks at an optimizer state wherever it is.
    pub(super) fn look_at_state<T>(
        &self,
        at: Instance,
        look: impl FnOnce(&dyn StateView) -> Result<T, TaskError>,
    ) -> Result<T, TaskError> {
        if self.drive_of(at.0).is_none() {
            return self.store.look(at, |value| value.state().map(look))?;
        }
        let mut last = self.drives.last.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match last.take() {
            Some((known, state)) if known == at => state,
            _ => Arc::new(self.on_drive(at, self.arenas.none())?),
        };
        *last = Some((at, Arc::clone(&state)));
        drop(last);
        look(state.as_ref())
    }
}
