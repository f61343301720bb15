//! The steps from a file to a checked machine: read, expand, check, build, check the connections.

use crate::{
    Device, GpuFile, Hardware, HardwareFile, MemoryKind, NetworkFile, Runtime,
    build::build,
    check::{check, node_names},
    expand::Parts,
    read::{parse, parse_runtime},
    report::{Report, Source},
};
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, MemoryId};
use std::collections::{BTreeMap, BTreeSet};
use toml::de::DeTable;

impl Hardware {
    /// Reads and checks a machine. `file` is its name in messages.
    ///
    /// # Errors
    /// All faults of the text, each with its position.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let mut report = Report::new(Source { file, text, root: Some(&root) });
        let parsed = parse(&mut report, &syntax)?;
        Self::checked(parsed, report)
    }

    /// Checks a machine that was not read from text. `file` is its name in messages.
    ///
    /// # Errors
    /// All faults of the machine.
    pub fn from_file(file: &str, parsed: HardwareFile) -> Result<Self, Faults> {
        Self::checked(parsed, Report::new(Source { file, text: "", root: None }))
    }

    /// Returns its file with a table for each GPU, socket and link, so that one of several equal items
    /// can be changed.
    pub fn expanded(&self) -> HardwareFile {
        let source = Source { file: self.name(), text: "", root: None };
        let parts = Parts::new(self.file(), &mut Report::new(source));
        let mut file = of_one_table_each(self.file(), &parts);
        file.gpu = parts.gpus.into_iter().map(|part| part.item).collect();
        file.socket = parts.sockets.into_iter().map(|part| part.item).collect();
        file.link = parts.links.into_iter().map(|part| part.item).collect();
        file.copy = parts.copies.into_iter().map(|part| part.item).collect();
        file
    }

    /// Returns the same machine with `more` bytes in each of the `memories` of GPUs and sockets.
    ///
    /// # Errors
    /// All faults of the larger machine.
    pub fn with_larger(&self, memories: &[MemoryId], more: Bytes) -> Result<Self, Faults> {
        self.with_capacities(|memory, capacity| if memories.contains(&memory) { capacity + more } else { capacity })
    }

    /// Returns the machine with another capacity of `memory`.
    ///
    /// # Errors
    /// The faults of that machine.
    pub fn with_capacity(&self, memory: MemoryId, capacity: Bytes) -> Result<Self, Faults> {
        self.with_capacities(|other, before| if other == memory { capacity } else { before })
    }

    /// Returns the machine with other capacities of its memories, from those that they have.
    ///
    /// # Errors
    /// The faults of that machine.
    pub fn with_capacities(&self, capacity: impl Fn(MemoryId, Bytes) -> Bytes) -> Result<Self, Faults> {
        let changed = |name: &str, before: Bytes| self.memory(name).map_or(before, |memory| capacity(memory, before));
        let mut file = self.expanded();
        for gpu in &mut file.gpu {
            gpu.memory.0 = changed(&gpu.name, gpu.memory.0);
        }
        for dram in file.socket.iter_mut().map(|socket| &mut socket.dram) {
            dram.capacity.0 = changed(&dram.name, dram.capacity.0);
        }
        self.changed(file)
    }

    /// Returns the same machine with the memory of its GPUs as large as those of `whole`, of which it is a part: a runtime
    /// holds more on machines with several GPUs.
    #[must_use]
    pub fn with_gpu_memory_of(mut self, whole: &Self) -> Self {
        for memory in self.memories_mut().filter(|memory| memory.kind == MemoryKind::Gpu) {
            if let Some(other) = whole.memory(&memory.name) {
                memory.reserved = whole.memories()[other].reserved;
            }
        }
        self
    }

    /// Returns `nodes` such machines, as computers with a network between them, which may be that of its file.
    ///
    /// # Errors
    /// The machine has several computers already or no network, and all faults of the larger machine.
    pub fn on_nodes(&self, nodes: u32, network: Option<NetworkFile>) -> Result<Self, Faults> {
        if self.devices().iter().any(|device| device.node != self.devices()[DeviceId::from(0)].node) {
            let fault = Diagnostic::error(format!("`{}` has several computers already", self.name()));
            return Err(fault.hint("name the profile of one computer").into());
        }
        let name = format!("{}-n{nodes}", self.name());
        let network = network.or_else(|| self.file().network.clone()).ok_or_else(|| {
            let fault = Diagnostic::error(format!("`{}` has no network", self.name()));
            fault.hint("give its cards and their line rate, such as 4x200Gb, or add a table `[network]` to the profile")
        })?;
        let file = HardwareFile { name, nodes: Some(nodes), network: Some(network), ..self.file().clone() };
        self.changed(file)
    }

    /// Returns the machine of another `file`, under the same runtime and with the same head-room.
    ///
    /// # Errors
    /// All faults of the machine.
    pub fn changed(&self, file: HardwareFile) -> Result<Self, Faults> {
        let changed = Self::from_file(&file.name.clone(), file)?;
        Ok(changed.under(self.runtime().clone()).with_head_room(self.head_room()))
    }

    /// Returns the part of the machine with the `devices` of these names. The other sockets keep
    /// their memory, and their cores are not used.
    ///
    /// # Errors
    /// Unknown names, and all faults of the smaller machine.
    pub fn restricted_to(&self, devices: &[String]) -> Result<Self, Faults> {
        let known: Vec<&str> = self.devices().iter().map(|device| device.name.as_str()).collect();
        let unknown = devices.iter().filter(|name| !known.contains(&name.as_str()));
        let fault = |name: &String| {
            let fault = Diagnostic::error(format!("`{}` has no device `{name}`", self.name()));
            fault.hint(format!("its devices are {}", known.join(", ")))
        };
        let mut faults = Faults::new();
        unknown.for_each(|name| faults.push(fault(name)));
        faults.or(())?;
        let source = Source { file: self.name(), text: "", root: None };
        let parts = Parts::new(self.file(), &mut Report::new(source));
        let mut file = of_one_table_each(self.file(), &parts);
        let (gpus, removed): (Vec<GpuFile>, Vec<GpuFile>) =
            parts.gpus.into_iter().map(|part| part.item).partition(|gpu| devices.contains(&gpu.name));
        file.gpu = gpus.into_iter().map(|gpu| GpuFile { index: self.number_of(&gpu.name, devices), ..gpu }).collect();
        file.socket = parts.sockets.into_iter().map(|part| part.item).collect();
        for socket in file.socket.iter_mut().filter(|socket| !devices.contains(&socket.name)) {
            socket.memory_only = true;
        }
        file.link = parts.links.into_iter().map(|part| part.item).collect();
        file.link.retain(|link| !removed.iter().any(|gpu| link.between.contains(&gpu.name)));
        file.copy = parts.copies.into_iter().map(|part| part.item).collect();
        for copies in &mut file.copy {
            copies.among.retain(|name| !removed.iter().any(|gpu| gpu.name == *name));
        }
        file.copy.retain(|copies| copies.among.len() > 1);
        drop_dead_ends(&mut file);
        // Its cards may be at what is gone.
        file.network = file.network.filter(|network| network.at.is_empty());
        self.changed(file)
    }

    /// The number of a GPU among those of its computer, where the part of the machine with `devices` would
    /// count another.
    fn number_of(&self, name: &str, devices: &[String]) -> Option<u32> {
        let found = self.devices().iter().find(|device| device.name == name)?;
        let same = |device: &&Device| device.is_gpu() && device.node == found.node && devices.contains(&device.name);
        let at = self.devices().iter().filter(same).position(|device| device.name == name)?;
        (at != found.index as usize).then_some(found.index)
    }

    fn checked(file: HardwareFile, mut report: Report<'_>) -> Result<Self, Faults> {
        let parts = Parts::new(&file, &mut report);
        check(&file, &parts, &mut report);
        let hardware = build(&file, &parts);
        if report.faults.is_harmless() {
            check_connected(&hardware, &parts, &mut report);
        }
        let faults = report.into_sorted();
        if faults.is_harmless() { Ok(hardware.with_warnings(faults)) } else { Err(faults) }
    }
}

/// `file` with the drives, switches and cards of all computers, if there are several.
fn of_one_table_each(file: &HardwareFile, parts: &Parts) -> HardwareFile {
    let mut file = file.clone();
    if file.nodes.take().is_some_and(|nodes| nodes > 1) {
        file.network = None;
        file.nvme = parts.nvmes.iter().map(|part| part.item.clone()).collect();
        (file.root_complex, file.switch) = (Vec::new(), parts.nodes.iter().map(|part| part.item.clone()).collect());
        file.nic = parts.network_cards.iter().map(|part| part.item.clone()).collect();
    }
    file
}

/// Removes links to nodes that no other link and no table names, such as the root complex of removed
/// GPUs, until none is left.
fn drop_dead_ends(file: &mut HardwareFile) {
    let parts = Parts::new(file, &mut Report::new(Source { file: &file.name, text: "", root: None }));
    let declared: BTreeSet<String> = node_names(&parts).into_iter().map(|(name, _)| name).collect();
    loop {
        let mut uses: BTreeMap<String, usize> = BTreeMap::new();
        for end in file.link.iter().flat_map(|link| &link.between) {
            *uses.entry(end.clone()).or_default() += 1;
        }
        let before = file.link.len();
        let is_dead = |end: &String| !declared.contains(end) && uses[end] == 1;
        file.link.retain(|link| !link.between.iter().any(is_dead));
        if file.link.len() == before {
            return;
        }
    }
}

/// Refuses GPUs without a route to any DRAM, and parts of the machine that cannot reach each other.
fn check_connected(hardware: &Hardware, parts: &Parts, report: &mut Report<'_>) {
    let placed = parts.gpus.iter().map(|part| &part.path).chain(parts.sockets.iter().map(|part| &part.path));
    let paths: Vec<&String> = placed.chain(parts.nvmes.iter().map(|part| &part.path)).collect();
    let own: Vec<MemoryId> = hardware.memories().ids().take(paths.len()).collect();
    let stranded =
        |id: &MemoryId| hardware.memories()[*id].kind == MemoryKind::Gpu && hardware.nearest_drams(*id).is_empty();
    for id in own.iter().filter(|id| stranded(id)) {
        let message = format!("gpu `{}` has no route to any DRAM", hardware.memories()[*id].name);
        let hint = "add a `[[link]]` between it and a root complex, and one from there to the DRAM";
        report.push(paths[id.index()], Diagnostic::error(message).hint(hint));
    }
    let mut groups: Vec<Vec<MemoryId>> = Vec::new();
    for id in own.iter().filter(|id| !stranded(id)) {
        match groups.iter_mut().find(|group| hardware.route(group[0], *id).is_some()) {
            Some(group) => group.push(*id),
            None => groups.push(vec![*id]),
        }
    }
    for group in groups.iter().skip(1) {
        let message = format!("{} cannot reach {}", list(hardware, group), list(hardware, &groups[0]));
        let hint = "join the two with a `[[link]]`, for example between two sockets";
        report.push(paths[group[0].index()], Diagnostic::error(message).hint(hint));
    }
}

fn list(hardware: &Hardware, memories: &[MemoryId]) -> String {
    let names: Vec<String> = memories.iter().map(|id| format!("`{}`", hardware.memories()[*id].name)).collect();
    names.join(", ")
}

impl Runtime {
    /// Reads and checks a runtime. `file` is its name in messages.
    ///
    /// # Errors
    /// All faults of the text, each with its position.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let mut report = Report::new(Source { file, text, root: Some(&root) });
        let parsed = parse_runtime(&mut report, &syntax)?;
        Self::checked(parsed, report)
    }
}
