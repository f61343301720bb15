//! The checked, immutable machine.

use crate::{
    Collective, CollectiveKind, Device, HardwareFile, Link, Memory, MemoryKind, Route, Runtime, route::Routes,
};
use spipe_base::{Bytes, DeviceId, Faults, IdVec, LinkId, MemoryId};
use std::sync::Arc;

/// A checked machine: devices, memories, links, and the route between any two memories.
///
/// ```
/// use spipe_hardware::{Hardware, shipped};
///
/// let (name, text) = shipped().iter().find(|(name, _)| *name == "one-gpu").ok_or("not shipped")?;
/// let machine = Hardware::from_toml(name, text)?;
/// let gpu = machine.memory("gpu0").ok_or("no gpu0")?;
/// let dram = machine.memory("dram0").ok_or("no dram0")?;
/// let route = machine.route(gpu, dram).ok_or("not connected")?;
/// let name = |link| machine.links()[link].name.as_str();
/// let names: Vec<&str> = route.links.iter().map(|link| name(*link)).collect();
/// assert_eq!(names, ["pcie0.up", "root0-dram0.up", "dram0.channels"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hardware {
    file: HardwareFile,
    devices: IdVec<DeviceId, Device>,
    memories: IdVec<MemoryId, Memory>,
    links: IdVec<LinkId, Link>,
    routes: Arc<Routes>,
    warnings: Faults,
    runtime: Runtime,
    collectives: Vec<Collective>,
    /// The share of each memory that is left free.
    head_room: f64,
    /// The reserved part of each memory as the file states it.
    reserved: IdVec<MemoryId, Bytes>,
}

/// Machines are equal if their devices, memories, links, routes and runtimes are, even if their
/// files differ.
impl PartialEq for Hardware {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
            && self.devices == other.devices
            && self.memories == other.memories
            && self.links == other.links
            && self.routes == other.routes
            && self.runtime == other.runtime
            && self.collectives == other.collectives
    }
}

impl Hardware {
    pub(crate) fn assemble(
        file: HardwareFile,
        (devices, memories, links): (IdVec<DeviceId, Device>, IdVec<MemoryId, Memory>, IdVec<LinkId, Link>),
        routes: Routes,
    ) -> Self {
        let reserved = memories.iter().map(|memory| memory.reserved).collect();
        let (warnings, runtime) = (Faults::new(), Runtime::default());
        let collectives = file.collective.iter().map(Collective::new).collect();
        let routes = Arc::new(routes);
        Self { file, devices, memories, links, routes, warnings, runtime, collectives, head_room: 0.0, reserved }
    }

    pub(crate) fn with_warnings(self, warnings: Faults) -> Self {
        Self { warnings, ..self }
    }

    /// Returns the same machine as `runtime` finds it: each memory is smaller by what the runtime
    /// holds or cannot use. Contexts and communicators that the file reserves are not counted
    /// twice; the larger count holds.
    #[must_use]
    pub fn under(mut self, runtime: Runtime) -> Self {
        self.runtime = runtime;
        self.shrink_memories();
        self
    }

    /// Returns the same machine with the share `head_room` of each memory left free, from 0 to 1.
    #[must_use]
    pub fn with_head_room(mut self, head_room: f64) -> Self {
        self.head_room = head_room.clamp(0.0, 1.0);
        self.shrink_memories();
        self
    }

    fn shrink_memories(&mut self) {
        let is_real = |memory: &Memory| memory.device.is_some_and(|device| !self.devices[device].emulated);
        let gpus = self.gpus().count();
        let (context, buffers) = (self.runtime.context(gpus), self.runtime.buffers(gpus));
        let shrunk = |(id, memory): (MemoryId, &Memory)| {
            let stated = self.reserved[id];
            let (held, lost) = match memory.kind {
                MemoryKind::Gpu if is_real(memory) => (stated.max(context) + buffers, self.runtime.allocator_share()),
                MemoryKind::Dram => (stated, self.runtime.host_share()),
                MemoryKind::Gpu | MemoryKind::Nvme => (stated, 0.0),
            };
            let usable = memory.capacity.saturating_sub(held);
            let left = usable.as_f64() * (1.0 - lost) * (1.0 - self.head_room);
            // Whole bytes of a figure that nothing shrinks stay exact.
            let whole = lost == 0.0 && self.head_room == 0.0;
            let left = if whole { usable } else { Bytes::new(left as u64) };
            Memory { reserved: memory.capacity - left, ..memory.clone() }
        };
        self.memories = self.memories.enumerate().map(shrunk).collect();
    }

    /// Returns what executes plans on the machine.
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the measured collective of this kind among `gpus` GPUs; `None` if the file states none.
    pub fn collective(&self, kind: CollectiveKind, gpus: usize) -> Option<&Collective> {
        self.collectives.iter().find(|collective| collective.kind == kind && collective.gpus == gpus)
    }

    /// Returns the share of each memory that is left free.
    pub const fn head_room(&self) -> f64 {
        self.head_room
    }

    /// Formats the machine as a file that reads back as an equal machine.
    pub fn to_toml(&self) -> String {
        self.file.to_toml()
    }

    /// Returns the file from which it was built.
    pub const fn file(&self) -> &HardwareFile {
        &self.file
    }

    /// Returns the warnings about the machine.
    pub const fn warnings(&self) -> &Faults {
        &self.warnings
    }

    /// Returns the machine's name.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Returns the description, if the file has one.
    pub fn description(&self) -> Option<&str> {
        self.file.description.as_deref()
    }

    /// Returns the GPUs, emulated ones too, in the order of the devices.
    pub fn gpus(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id)
    }

    /// Returns the devices: GPUs, then sockets, each in file order.
    pub const fn devices(&self) -> &IdVec<DeviceId, Device> {
        &self.devices
    }

    /// Returns the memories: of GPUs, DRAMs and drives, each in file order, then the pageable views
    /// of the DRAMs.
    pub const fn memories(&self) -> &IdVec<MemoryId, Memory> {
        &self.memories
    }

    pub(crate) fn memories_mut(&mut self) -> impl Iterator<Item = &mut Memory> {
        self.memories.iter_mut()
    }

    /// Returns the links: both directions of each link in file order, then the channels of each
    /// DRAM, then both directions of each drive.
    pub const fn links(&self) -> &IdVec<LinkId, Link> {
        &self.links
    }

    /// Returns the device with this name.
    pub fn device(&self, name: &str) -> Option<DeviceId> {
        self.devices.enumerate().find(|(_, device)| device.name == name).map(|(id, _)| id)
    }

    /// Returns the memory with this name.
    pub fn memory(&self, name: &str) -> Option<MemoryId> {
        self.memories.enumerate().find(|(_, memory)| memory.name == name).map(|(id, _)| id)
    }

    /// Returns the link with this name, including its direction.
    pub fn link(&self, name: &str) -> Option<LinkId> {
        self.links.enumerate().find(|(_, link)| link.name == name).map(|(id, _)| id)
    }

    /// Returns the route of a copy: the path with the least latency, then the fewest links, then
    /// the first in the order of names. Copies pass through DRAM nodes, root complexes, switches
    /// and network cards, but not through the memory of another GPU or a drive. `None` if the two
    /// memories are not connected.
    pub fn route(&self, from: MemoryId, to: MemoryId) -> Option<&Route> {
        self.routes.between(from, to)
    }

    /// Iterates over all routes with their ends, in the order of the memories.
    pub fn routes(&self) -> impl Iterator<Item = (MemoryId, MemoryId, &Route)> {
        let ends = self.memories.ids().flat_map(|from| self.memories.ids().map(move |to| (from, to)));
        ends.filter_map(|(from, to)| Some((from, to, self.route(from, to)?)))
    }

    /// Returns the DRAM nearest to a device: its own for a socket.
    pub fn host_memory(&self, device: DeviceId) -> Option<MemoryId> {
        self.host_memories(device).first().copied()
    }

    /// Returns the DRAMs that a device reaches, nearest first: the nearest one, and the others that
    /// are not behind a network card.
    pub fn host_memories(&self, device: DeviceId) -> &[MemoryId] {
        self.nearest_drams(self.devices[device].memory)
    }

    pub(crate) fn nearest_drams(&self, memory: MemoryId) -> &[MemoryId] {
        self.routes.hosts(memory)
    }

    /// Returns the channels of a DRAM or of its pageable view, shared by all copies in or out and
    /// all CPU work.
    pub fn dram_channels(&self, memory: MemoryId) -> Option<LinkId> {
        self.routes.channels[memory]
    }

    /// Returns the memory that holds the bytes: the DRAM of a pageable view, otherwise the memory
    /// itself.
    pub fn pool(&self, memory: MemoryId) -> MemoryId {
        self.memories[memory].pageable_view_of.unwrap_or(memory)
    }

    /// Whether two GPUs reach their host memory through the same root complex or switch.
    pub fn shared_root(&self, a: DeviceId, b: DeviceId) -> bool {
        let roots = |id: DeviceId| self.routes.roots(self.devices[id].memory);
        let gpus = self.devices[a].is_gpu() && self.devices[b].is_gpu();
        gpus && roots(a).iter().any(|root| roots(b).contains(root))
    }
}
