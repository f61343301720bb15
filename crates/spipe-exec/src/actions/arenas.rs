//! The arenas of a program: for each memory of the host, and for each that an emulated accelerator has in it, the
//! bytes of the tensors that stay there between actions.

use crate::device::arena::Arena;
use spipe_base::{BufferId, Bytes, DeviceId, IdVec, MemoryId};
use spipe_schedule::{Buffer, Content, Lifetime, Program};
use std::{collections::BTreeMap, io, sync::Arc};

/// The arenas of a run.
#[derive(Debug)]
pub(crate) struct Arenas {
    by_memory: BTreeMap<MemoryId, Arc<Arena>>,
    /// Takes everything from the allocator: for working copies on the way to a memory without an arena.
    none: Arc<Arena>,
}

impl Arenas {
    /// Arenas of these sizes. `touch` builds that of a memory on the cores next to it.
    ///
    /// # Errors
    /// A system that has no addresses left.
    pub fn new(
        planned: &BTreeMap<MemoryId, Planned>,
        touch: impl Fn(MemoryId, usize) -> io::Result<Arc<Arena>>,
    ) -> io::Result<Self> {
        let one = |(memory, planned): (&MemoryId, &Planned)| {
            touch(*memory, planned.kept.get() as usize).map(|arena| (*memory, arena))
        };
        Ok(Self { by_memory: planned.iter().map(one).collect::<Result<_, _>>()?, none: Arena::new(0)? })
    }

    /// An arena without room: everything comes from the allocator.
    pub const fn none(&self) -> &Arc<Arena> {
        &self.none
    }

    /// The arena of working copies on the way from a drive to a memory that has none: the largest.
    pub fn staging(&self) -> &Arc<Arena> {
        self.by_memory.values().max_by_key(|arena| arena.bytes()).unwrap_or(&self.none)
    }

    /// The arena of a memory.
    pub fn of(&self, memory: MemoryId) -> &Arc<Arena> {
        self.by_memory.get(&memory).unwrap_or(&self.none)
    }
}

/// The bytes of an arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Planned {
    /// All of them, at any time.
    pub bytes: Bytes,
    /// Bytes in the arena; the library of a GPU has others.
    pub kept: Bytes,
    /// By part of the memory, as reports name it: buffers that are not there at the same time count together.
    pub parts: BTreeMap<&'static str, Bytes>,
}

/// A memory's place, as far as arenas are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of the host; tensors of a device that computes there belong to its library.
    Host,
    /// The same beside a GPU, whose library has pinned memory of its own for what its engines bring.
    BesideGpu,
    /// Memory of an emulated accelerator: its library has the tensors that it computes with, and what copies
    /// bring in 16 bits is bytes.
    Emulated,
    /// Elsewhere.
    Elsewhere,
}

/// The arena of each memory of `program`. `peak` is the planned peak of a memory, `narrow` says whether a device
/// stores a content in 16 bits.
pub(crate) fn planned(
    program: &Program,
    computed_on: &IdVec<BufferId, Option<DeviceId>>,
    (place, peak): (impl Fn(MemoryId) -> Place, impl Fn(MemoryId) -> Option<Bytes>),
    narrow: impl Fn(DeviceId, &Content) -> bool,
) -> BTreeMap<MemoryId, Planned> {
    let is_bytes = |id: BufferId, content: &Content| computed_on[id].is_none_or(|device| narrow(device, content));
    let here = |(id, Buffer { content, memory, .. }): (BufferId, &Buffer)| match place(*memory) {
        Place::Host | Place::BesideGpu => stays(content) && is_bytes(id, content),
        Place::Emulated => is_copied(content) && is_bytes(id, content) || is_state(content),
        Place::Elsewhere => false,
    };
    let mut all: BTreeMap<MemoryId, (Planned, Bytes)> = BTreeMap::new();
    for (_, buffer) in program.buffers().enumerate().filter(|found| here(*found)) {
        let (planned, resident) = all.entry(buffer.memory).or_default();
        planned.bytes += buffer.bytes;
        if place(buffer.memory) != Place::BesideGpu || !is_brought(&buffer.content) {
            planned.kept += buffer.bytes;
        }
        *planned.parts.entry(buffer.content.part()).or_default() += buffer.bytes;
        if buffer.lifetime == Lifetime::Resident {
            *resident += buffer.bytes;
        }
    }
    let limited = |(memory, (planned, resident)): (MemoryId, (Planned, Bytes))| {
        let bytes = peak(memory).map_or(planned.bytes, |peak| planned.bytes.min(peak.max(resident)));
        (memory, Planned { bytes, kept: planned.kept.min(bytes), ..planned })
    };
    all.into_iter().map(limited).collect()
}

const fn is_copied(content: &Content) -> bool {
    matches!(content, Content::Parameters(_) | Content::Updated(_) | Content::Shared(_) | Content::Reloaded(..))
}

const fn is_state(content: &Content) -> bool {
    matches!(content, Content::OptimizerState(_) | Content::UndoLog(_))
}

/// Whether devices make it, and copies bring it.
const fn is_brought(content: &Content) -> bool {
    matches!(content, Content::Gradients(_) | Content::SharedGradients(_) | Content::Saved(..))
}

const fn stays(content: &Content) -> bool {
    is_copied(content) || is_state(content) || is_brought(content)
}
