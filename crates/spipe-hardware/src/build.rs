//! Construction of a machine from a checked file: ids in file order, the graph, the routes.

use crate::{
    Attention, Device, DeviceKind, Efficiency, ElementwisePoints, GpuFile, Hardware, HardwareFile, LayerTimeFile, Link,
    MatmulPoints, MeasuredFile, MeasuredLayer, Memory, MemoryKind, Peak, Provenance, SocketFile,
    check::pageable,
    expand::{Parts, Placed},
    route::{Copies, End, Limits, Routes},
    topology::{Node, Topology},
};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, IdVec, LinkId, MemoryId, NodeId, Seconds, Text};
use std::collections::BTreeMap;

/// Estimate: a CUDA kernel launch takes 3 to 6 µs from call to start, and an empty kernel about as
/// long again.
const GPU_LAUNCH_FLOOR: f64 = 6e-6;
/// Estimate: the time to wake and join the worker threads of a socket.
const SOCKET_LAUNCH_FLOOR: f64 = 5e-6;

struct Builder<'a> {
    parts: &'a Parts,
    devices: IdVec<DeviceId, Device>,
    memories: IdVec<MemoryId, Memory>,
    links: IdVec<LinkId, Link>,
    ends: IdVec<MemoryId, End>,
    limits: Limits,
    topology: Topology,
}

/// Builds the machine. It never fails, so that the routes of a faulty file can be examined too.
pub(crate) fn build(file: &HardwareFile, parts: &Parts) -> Hardware {
    let mut builder = Builder {
        parts,
        devices: IdVec::new(),
        memories: IdVec::new(),
        links: IdVec::new(),
        ends: IdVec::new(),
        limits: Limits::default(),
        topology: Topology::default(),
    };
    builder.add_memories();
    builder.add_devices();
    builder.add_nodes();
    builder.add_links();
    builder.number_nodes();
    builder.add_memory_links();
    builder.add_limits();
    let parts = (builder.ends, builder.limits);
    let routes = Routes::new(builder.topology, builder.links.clone(), builder.memories.clone(), parts);
    Hardware::assemble(file.clone(), (builder.devices, builder.memories, builder.links), routes)
}

/// The number of each item among those of its computer: the stated one, or its place in the file.
fn in_order<'a>(items: impl Iterator<Item = (&'a String, usize, Option<u32>)>) -> Vec<(&'a String, u32)> {
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    let number = |(name, computer, stated): (&'a String, usize, Option<u32>)| {
        let next = counts.entry(computer).or_default();
        *next += 1;
        (name, stated.unwrap_or(*next - 1))
    };
    items.map(number).collect()
}

fn provenance(source: Option<&String>, measured: Option<&MeasuredFile>) -> Provenance {
    match measured {
        Some(MeasuredFile { date, command, spread }) => {
            Provenance::Measured { date: date.clone(), command: command.clone(), spread: spread.clone() }
        }
        None => Provenance::from_source(source.map_or("", String::as_str)),
    }
}

impl Builder<'_> {
    fn memory(&mut self, name: &str, kind: MemoryKind, sizes: (Bytes, Option<Text<Bytes>>), provenance: Provenance) {
        let reserved = sizes.1.map_or(Bytes::ZERO, |text| text.0);
        self.memories.push(Memory {
            name: name.into(),
            kind,
            capacity: sizes.0,
            reserved,
            pageable_view_of: None,
            device: None,
            provenance,
        });
        let end = End {
            node: name.into(),
            leaving: Vec::new(),
            arriving: Vec::new(),
            pageable: None,
            within: None,
            peer_access: true,
        };
        self.ends.push(end);
    }

    /// Adds the memories of GPUs, DRAMs and drives, then the pageable views of the DRAMs.
    fn add_memories(&mut self) {
        for Placed { item, .. } in &self.parts.gpus {
            let provenance = provenance(item.source.as_ref(), item.measured.as_ref());
            self.memory(&item.name, MemoryKind::Gpu, (*item.memory, item.reserved), provenance);
        }
        for Placed { item, .. } in &self.parts.sockets {
            let provenance = provenance(item.source.as_ref(), item.measured.as_ref());
            self.memory(&item.dram.name, MemoryKind::Dram, (*item.dram.capacity, item.dram.reserved), provenance);
        }
        for Placed { item, .. } in &self.parts.nvmes {
            let provenance = provenance(item.source.as_ref(), None);
            self.memory(&item.name, MemoryKind::Nvme, (*item.capacity, item.reserved), provenance);
        }
        for (index, Placed { item, .. }) in self.parts.sockets.iter().enumerate() {
            let dram = self.dram(index);
            let view =
                Memory { name: pageable(&item.dram.name), pageable_view_of: Some(dram), ..self.memories[dram].clone() };
            self.memories.push(view);
            let stated = item.dram.pageable_bandwidth.map(|text| text.0);
            self.ends.push(End { pageable: Some(stated), ..self.ends[dram].clone() });
        }
    }

    fn dram(&self, socket: usize) -> MemoryId {
        MemoryId::from(self.parts.gpus.len() + socket)
    }

    fn view(&self, socket: usize) -> MemoryId {
        MemoryId::from(self.parts.gpus.len() + self.parts.sockets.len() + self.parts.nvmes.len() + socket)
    }

    fn add_devices(&mut self) {
        for (index, Placed { item, .. }) in self.parts.gpus.iter().enumerate() {
            let memory = MemoryId::from(index);
            self.memories[memory].device = Some(self.devices.push(gpu(item, memory)));
            self.ends[memory].peer_access = item.peer_access.unwrap_or(true);
            self.ends[memory].within = BytesPerSecond::new(item.memory_bandwidth.get() / 2.0);
        }
        for (index, Placed { item, .. }) in self.parts.sockets.iter().enumerate() {
            if item.memory_only {
                continue;
            }
            let (memory, view) = (self.dram(index), self.view(index));
            let device = self.devices.push(socket(item, memory, index));
            self.memories[memory].device = Some(device);
            self.memories[view].device = Some(device);
        }
    }

    fn add_nodes(&mut self) {
        for memory in self.memories.iter().filter(|memory| memory.pageable_view_of.is_none()) {
            let node = if memory.kind == MemoryKind::Dram { Node::Dram } else { Node::Closed };
            self.topology.add(&memory.name, node);
        }
        for Placed { item, .. } in &self.parts.sockets {
            self.topology.alias(&item.name, &item.dram.name);
        }
        for Placed { item, .. } in &self.parts.nodes {
            self.topology.add(&item.name, Node::Open);
        }
        for Placed { item, .. } in &self.parts.network_cards {
            self.topology.add(&item.name, Node::NetworkCard);
        }
        for end in self.parts.links.iter().flat_map(|part| &part.item.between) {
            self.topology.add(end, Node::Open);
        }
    }

    fn add_links(&mut self) {
        for Placed { item, .. } in &self.parts.links {
            let [first, second] = &item.between;
            let latency = item.latency.map_or(Seconds::ZERO, |text| text.0);
            let directions = [("up", item.up, first, second), ("down", item.down, second, first)];
            for (direction, own, from, to) in directions {
                let Some(bandwidth) = own.or(item.bandwidth) else { continue };
                let link = self.links.push(Link {
                    name: format!("{}.{direction}", item.name),
                    bandwidth: *bandwidth,
                    latency,
                    from: from.clone(),
                    to: to.clone(),
                    provenance: Provenance::from_source(item.source.as_deref().unwrap_or_default()),
                });
                if !self.topology.same(from, to) {
                    self.topology.join(from, to, link);
                }
            }
        }
    }

    /// Numbers the computers of the machine in the order of their first devices, and the devices of each
    /// where the file does not.
    fn number_nodes(&mut self) {
        let parts = self.topology.computers();
        let part = |name: &str| parts.get(name).copied().unwrap_or_default();
        let mut numbers = BTreeMap::new();
        for device in self.devices.iter_mut() {
            let next = numbers.len();
            let node = *numbers.entry(part(&self.memories[device.memory].name)).or_insert(next);
            device.node = NodeId::from(node);
        }
        // Sockets that are there for their memory alone are counted too.
        let gpus = self.parts.gpus.iter().map(|gpu| (&gpu.item.name, part(&gpu.item.name), gpu.item.index));
        let sockets = self.parts.sockets.iter().map(|Placed { item, .. }| (&item.name, part(&item.dram.name), None));
        let numbered: BTreeMap<&String, u32> = in_order(gpus).into_iter().chain(in_order(sockets)).collect();
        for device in self.devices.iter_mut() {
            device.index = numbered.get(&device.name).copied().unwrap_or_default();
        }
    }

    /// Adds the channels of each DRAM and both directions of each drive.
    fn add_memory_links(&mut self) {
        for (index, Placed { item, .. }) in self.parts.sockets.iter().enumerate() {
            let dram = self.dram(index);
            let channels = self.memory_link(dram, "channels", (*item.dram.bandwidth, Seconds::ZERO));
            for memory in [dram, self.view(index)] {
                self.ends[memory].leaving = vec![channels];
                self.ends[memory].arriving = vec![channels];
            }
        }
        for (index, Placed { item, .. }) in self.parts.nvmes.iter().enumerate() {
            let memory = MemoryId::from(self.parts.gpus.len() + self.parts.sockets.len() + index);
            let latency = item.latency.map_or(Seconds::ZERO, |text| text.0);
            let read = self.memory_link(memory, "read", (*item.read, latency));
            let write = self.memory_link(memory, "write", (*item.write, latency));
            self.ends[memory].leaving = vec![read];
            self.ends[memory].arriving = vec![write];
        }
    }

    /// Adds the limits on both directions together: of links, then of copies between two memories.
    fn add_limits(&mut self) {
        for Placed { item, .. } in &self.parts.links {
            let Some(bandwidth) = item.both else { continue };
            let sum = self.limit(&item.name, &item.between[0], (*bandwidth, item.source.as_ref()));
            for direction in ["up", "down"] {
                let name = format!("{}.{direction}", item.name);
                let one = self.links.enumerate().find(|(_, link)| link.name == name).map(|(id, _)| id);
                self.limits.both.extend(one.map(|one| (one, sum)));
            }
        }
        for Placed { item, .. } in &self.parts.copies {
            let named = |name: &String| self.memories.enumerate().find(|(_, memory)| memory.name == *name);
            let among: Vec<MemoryId> = item.among.iter().filter_map(|name| Some(named(name)?.0)).collect();
            let mut both = BTreeMap::new();
            if let Some(bandwidth) = item.both {
                for (at, first) in among.iter().enumerate() {
                    for second in &among[at + 1..] {
                        let [one, other] = [first, second].map(|id| self.memories[*id].name.clone());
                        let sum = self.limit(&format!("{one}-{other}"), &one, (*bandwidth, item.source.as_ref()));
                        both.insert((*first.min(second), *first.max(second)), sum);
                    }
                }
            }
            self.limits.copies.push(Copies { among, bandwidth: *item.bandwidth, both });
        }
    }

    /// Adds the limit on both directions of `name`, which is no link of the graph.
    fn limit(&mut self, name: &str, at: &str, (bandwidth, source): (BytesPerSecond, Option<&String>)) -> LinkId {
        self.links.push(Link {
            name: format!("{name}.both"),
            bandwidth,
            latency: Seconds::ZERO,
            from: at.into(),
            to: at.into(),
            provenance: Provenance::from_source(source.map_or("", String::as_str)),
        })
    }

    fn memory_link(&mut self, memory: MemoryId, what: &str, (bandwidth, latency): (BytesPerSecond, Seconds)) -> LinkId {
        let Memory { name, provenance, .. } = &self.memories[memory];
        self.links.push(Link {
            name: format!("{name}.{what}"),
            bandwidth,
            latency,
            from: name.clone(),
            to: name.clone(),
            provenance: provenance.clone(),
        })
    }
}

fn gpu(file: &GpuFile, memory: MemoryId) -> Device {
    let mut efficiency = Efficiency::new(file.efficiency.as_ref(), false);
    efficiency.attention = Attention::new(file.attention.as_ref());
    measured_points(&mut efficiency, &file.matmul, [&file.elementwise, &file.matvec]);
    Device {
        name: file.name.clone(),
        kind: DeviceKind::Gpu,
        node: NodeId::from(0),
        index: file.index.unwrap_or_default(),
        memory,
        peak: rates(&file.peak),
        memory_bandwidth: *file.memory_bandwidth,
        launch_floor: file.launch_floor.map_or(Seconds::s(GPU_LAUNCH_FLOOR), |text| text.0),
        efficiency,
        emulated: file.emulated,
        emulated_cores: file.cores,
        source: file.source.clone().unwrap_or_default(),
        layer_times: layer_times(&file.layer_time),
        provenance: provenance(file.source.as_ref(), file.measured.as_ref()),
    }
}

fn socket(file: &SocketFile, memory: MemoryId, index: usize) -> Device {
    let mut efficiency = Efficiency::new(file.efficiency.as_ref(), true);
    measured_points(&mut efficiency, &file.matmul, [&file.elementwise, &file.matvec]);
    Device {
        name: file.name.clone(),
        kind: DeviceKind::Socket {
            cores: file.cores,
            optimizer_rate: *file.optimizer_rate,
            vector_extensions: file.vector_extensions.clone(),
            numa_node: file.numa_node.unwrap_or(index as u32),
            memory_channels: file.memory_channels,
        },
        node: NodeId::from(0),
        index: 0,
        memory,
        peak: rates(&file.peak),
        memory_bandwidth: *file.dram.bandwidth,
        launch_floor: file.launch_floor.map_or(Seconds::s(SOCKET_LAUNCH_FLOOR), |text| text.0),
        efficiency,
        emulated: false,
        emulated_cores: None,
        source: file.source.clone().unwrap_or_default(),
        layer_times: layer_times(&file.layer_time),
        provenance: provenance(file.source.as_ref(), file.measured.as_ref()),
    }
}

fn rates(peak: &Peak) -> std::collections::BTreeMap<crate::DataType, spipe_base::FlopsPerSecond> {
    peak.iter().map(|(data_type, rate)| (*data_type, rate.0)).collect()
}

fn measured_points(efficiency: &mut Efficiency, matmul: &MatmulPoints, bandwidths: [&ElementwisePoints; 2]) {
    let plain = |points: &Vec<(Text<_>, Text<_>)>| points.iter().map(|(size, rate)| (size.0, rate.0)).collect();
    efficiency.matmul_points = matmul.iter().map(|(data_type, points)| (*data_type, plain(points))).collect();
    let [elementwise, matvec] = bandwidths.map(|points| points.iter().map(|(size, rate)| (size.0, rate.0)).collect());
    efficiency.elementwise_points = elementwise;
    efficiency.matvec_points = matvec;
}

fn layer_times(times: &[LayerTimeFile]) -> std::collections::BTreeMap<(String, crate::DataType), MeasuredLayer> {
    let entry = |time: &LayerTimeFile| {
        let measured = MeasuredLayer {
            forward: time.forward.0,
            backward_input: time.backward_input.0,
            backward_weight: time.backward_weight.0,
            replay: time.replay.map_or(Seconds::ZERO, |time| time.0),
            split: time.split.map_or(Seconds::ZERO, |time| time.0),
        };
        ((time.layer.clone(), time.data_type), measured)
    };
    times.iter().map(entry).collect()
}
