//! The frozen machine.

use crate::{
    Device, HardwareFile, Link, Memory, MemoryKind, Route,
    build::build,
    check::check,
    expand::Parts,
    read::read,
    report::{Report, Source},
    route::Routes,
};
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, IdVec, LinkId, MemoryId};
use toml::de::DeTable;

/// A machine that has been checked: devices, memories, links, and the route between any two memories.
///
/// ```
/// use spipe_hardware::{Hardware, shipped};
///
/// let (name, text) = shipped().iter().find(|(name, _)| *name == "one-gpu").ok_or("not shipped")?;
/// let machine = Hardware::from_toml(name, text)?;
/// let (gpu, dram) = (machine.memory("gpu0").ok_or("no gpu0")?, machine.memory("dram0").ok_or("no dram0")?);
/// let route = machine.route(gpu, dram).ok_or("not connected")?;
/// let names: Vec<&str> = route.links.iter().map(|link| machine.links()[*link].name.as_str()).collect();
/// assert_eq!(names, ["pcie0.up", "root0-dram0.up", "dram0.channels"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hardware {
    file: HardwareFile,
    devices: IdVec<DeviceId, Device>,
    memories: IdVec<MemoryId, Memory>,
    links: IdVec<LinkId, Link>,
    routes: Routes,
    warnings: Faults,
}

/// Equal machines have equal devices, memories, links and routes, however their files say so.
impl PartialEq for Hardware {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
            && self.devices == other.devices
            && self.memories == other.memories
            && self.links == other.links
            && self.routes == other.routes
    }
}

impl HardwareFile {
    /// Reads the tables of a file, without checking that they make a machine.
    ///
    /// # Errors
    /// Every syntax error, unknown key, missing key and value of a wrong kind or unit, with its place.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let mut report = Report::new(Source { file, text, root: Some(&root) });
        let parsed = parse(&mut report, &syntax)?;
        report.into_sorted().or(parsed)
    }

    /// The file as text, which reads back to the same tables.
    pub fn to_toml(&self) -> String {
        match toml::to_string(self) {
            Ok(text) => text,
            Err(error) => unreachable!("a hardware file has string keys and finite numbers only: {error}"),
        }
    }
}

fn parse(report: &mut Report<'_>, syntax: &[toml::de::Error]) -> Result<HardwareFile, Faults> {
    for error in syntax {
        let offset = error.span().map_or(0, |span| span.start);
        report.push_at(offset, Diagnostic::error(error.message().trim_end()));
    }
    match report.source.root {
        Some(root) if syntax.is_empty() => Ok(read(root, report)),
        _ => Err(std::mem::take(&mut report.faults)),
    }
}

impl Hardware {
    /// Reads and checks a machine. `file` is only named in messages.
    ///
    /// # Errors
    /// Everything that is wrong with the text, each with its place.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let mut report = Report::new(Source { file, text, root: Some(&root) });
        let parsed = parse(&mut report, &syntax)?;
        Self::checked(parsed, report)
    }

    /// Checks a machine that was not written by hand. `file` is only named in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_file(file: &str, parsed: HardwareFile) -> Result<Self, Faults> {
        Self::checked(parsed, Report::new(Source { file, text: "", root: None }))
    }

    /// The same machine with so much more in each of these memories of GPUs and sockets.
    ///
    /// # Errors
    /// What is wrong with a machine that has it.
    pub fn with_larger(&self, memories: &[MemoryId], more: Bytes) -> Result<Self, Faults> {
        let source = Source { file: &self.file.name, text: "", root: None };
        // Tables that stand for several equal things are written out, so that one of those can differ.
        let parts = Parts::new(&self.file, &mut Report::new(source));
        let larger = |name: &str| memories.iter().any(|memory| self.memories[*memory].name == name);
        let mut file = self.file.clone();
        file.gpu = parts.gpus.into_iter().map(|part| part.item).collect();
        file.socket = parts.sockets.into_iter().map(|part| part.item).collect();
        for gpu in file.gpu.iter_mut().filter(|gpu| larger(&gpu.name)) {
            gpu.memory.0 += more;
        }
        for dram in file.socket.iter_mut().map(|socket| &mut socket.dram).filter(|dram| larger(&dram.name)) {
            dram.capacity.0 += more;
        }
        Self::from_file(&self.file.name, file)
    }

    fn checked(file: HardwareFile, mut report: Report<'_>) -> Result<Self, Faults> {
        let parts = Parts::new(&file, &mut report);
        check(&file, &parts, &mut report);
        let mut hardware = build(&file, &parts);
        if report.faults.is_harmless() {
            hardware.check_connected(&parts, &mut report);
        }
        hardware.warnings = report.into_sorted();
        if hardware.warnings.is_harmless() { Ok(hardware) } else { Err(hardware.warnings) }
    }

    pub(crate) fn assemble(
        file: HardwareFile,
        (devices, memories, links): (IdVec<DeviceId, Device>, IdVec<MemoryId, Memory>, IdVec<LinkId, Link>),
        routes: Routes,
    ) -> Self {
        Self { file, devices, memories, links, routes, warnings: Faults::new() }
    }

    fn check_connected(&self, parts: &Parts, report: &mut Report<'_>) {
        let placed = parts.gpus.iter().map(|part| &part.path).chain(parts.sockets.iter().map(|part| &part.path));
        let paths: Vec<&String> = placed.chain(parts.nvmes.iter().map(|part| &part.path)).collect();
        let own: Vec<MemoryId> = self.memories.ids().take(paths.len()).collect();
        let stranded = |id: &MemoryId| self.memories[*id].kind == MemoryKind::Gpu && self.routes.hosts[*id].is_empty();
        for id in own.iter().filter(|id| stranded(id)) {
            let message = format!("gpu `{}` has no route to any DRAM", self.memories[*id].name);
            let hint = "add a `[[link]]` between it and a root complex, and one from there to the DRAM";
            report.push(paths[id.index()], Diagnostic::error(message).hint(hint));
        }
        let mut groups: Vec<Vec<MemoryId>> = Vec::new();
        for id in own.iter().filter(|id| !stranded(id)) {
            match groups.iter_mut().find(|group| self.route(group[0], *id).is_some()) {
                Some(group) => group.push(*id),
                None => groups.push(vec![*id]),
            }
        }
        for group in groups.iter().skip(1) {
            let message = format!("{} cannot reach {}", self.list(group), self.list(&groups[0]));
            let hint = "join the two with a `[[link]]`, for example between two sockets";
            report.push(paths[group[0].index()], Diagnostic::error(message).hint(hint));
        }
    }

    fn list(&self, memories: &[MemoryId]) -> String {
        let names: Vec<String> = memories.iter().map(|id| format!("`{}`", self.memories[*id].name)).collect();
        names.join(", ")
    }

    /// The machine as a file, which reads back to an equal machine.
    pub fn to_toml(&self) -> String {
        self.file.to_toml()
    }

    /// The tables that it was made from.
    pub const fn file(&self) -> &HardwareFile {
        &self.file
    }

    /// What is odd about it, although it can be used.
    pub const fn warnings(&self) -> &Faults {
        &self.warnings
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// What it is, if the file says.
    pub fn description(&self) -> Option<&str> {
        self.file.description.as_deref()
    }

    /// GPUs first, then sockets, each in file order.
    pub const fn devices(&self) -> &IdVec<DeviceId, Device> {
        &self.devices
    }

    /// The memories of GPUs, DRAMs, drives, each in file order, then the pageable views of the DRAMs.
    pub const fn memories(&self) -> &IdVec<MemoryId, Memory> {
        &self.memories
    }

    /// Both directions of each link in file order, then the channels of each DRAM, then the directions of each drive.
    pub const fn links(&self) -> &IdVec<LinkId, Link> {
        &self.links
    }

    /// The device of that name.
    pub fn device(&self, name: &str) -> Option<DeviceId> {
        self.devices.enumerate().find(|(_, device)| device.name == name).map(|(id, _)| id)
    }

    /// The memory of that name.
    pub fn memory(&self, name: &str) -> Option<MemoryId> {
        self.memories.enumerate().find(|(_, memory)| memory.name == name).map(|(id, _)| id)
    }

    /// The link of that name, with its direction.
    pub fn link(&self, name: &str) -> Option<LinkId> {
        self.links.enumerate().find(|(_, link)| link.name == name).map(|(id, _)| id)
    }

    /// The shortest way of a copy by latency, then the number of links, then their names. Copies pass through DRAM nodes, root
    /// complexes, switches and network cards, not through the memory of another GPU or a drive. `None` if the two are not connected.
    pub fn route(&self, from: MemoryId, to: MemoryId) -> Option<&Route> {
        self.routes.between.get(from)?.get(to)?.as_ref()
    }

    /// Every route with its ends, in the order of the memories.
    pub fn routes(&self) -> impl Iterator<Item = (MemoryId, MemoryId, &Route)> {
        let rows = self.routes.between.enumerate();
        rows.flat_map(|(from, row)| row.enumerate().filter_map(move |(to, route)| Some((from, to, route.as_ref()?))))
    }

    /// The DRAM nearest to a device: its own for a socket.
    pub fn host_memory(&self, device: DeviceId) -> Option<MemoryId> {
        self.host_memories(device).first().copied()
    }

    /// That DRAM, and the others that a device reaches without a network card, the nearest first.
    pub fn host_memories(&self, device: DeviceId) -> &[MemoryId] {
        &self.routes.hosts[self.devices[device].memory]
    }

    /// The channels of a DRAM or of its pageable view, which every copy in or out and all CPU work share.
    pub fn dram_channels(&self, memory: MemoryId) -> Option<LinkId> {
        self.routes.channels[memory]
    }

    /// The memory that holds the bytes: the DRAM of a pageable view, otherwise the memory itself.
    pub fn pool(&self, memory: MemoryId) -> MemoryId {
        self.memories[memory].pageable_view_of.unwrap_or(memory)
    }

    /// Whether two GPUs reach their host memory through the same root complex or switch.
    pub fn shared_root(&self, a: DeviceId, b: DeviceId) -> bool {
        let roots = |id: DeviceId| &self.routes.roots[self.devices[id].memory];
        let gpus = self.devices[a].is_gpu() && self.devices[b].is_gpu();
        gpus && roots(a).iter().any(|root| roots(b).contains(root))
    }
}
