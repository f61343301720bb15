//! The hardware file of a composed machine.
//!
//! ```text
//! gpu0 ─pcie0─ root0 ─root0-dram0─ dram0 (cpu0) ─interconnect─ dram1 (cpu1) ─ root1 ─ gpu1
//!   └─────────── bridge, mesh or switch between GPUs ──────────────────────────────────┘
//! ```

use super::{CIRCUIT, Item, choice::Parts};
use crate::{BoardPart, Fabric, Form, GpuPart, PcieFile, Watts, pcie};
use spipe_base::{Bytes, BytesPerSecond, ParamsPerSecond, Seconds, Text};
use spipe_hardware::{
    DataType, DramFile, EfficiencyFile, GpuFile, HardwareFile, LinkFile, NodeFile, NvmeFile, SocketFile,
};

/// The share of the bandwidth of all channels that reads and writes sustain: estimate, 160 of 204.8
/// GB/s on eight channels of DDR4-3200.
const SUSTAINED: f64 = 0.78;

/// The share of the bandwidth of all channels that AdamW on the CPU reaches (DeepSpeed's CPU Adam on
/// a DGX-2), and the bytes that it moves per parameter.
const OPTIMIZER: (f64, f64) = (0.43, 28.0);

/// The memory of a socket that the operating system takes: estimate.
const SYSTEM: Bytes = Bytes::gib(6);

/// The memory of a GPU that contexts and libraries take, where the part does not say: estimate.
const CONTEXT: Bytes = Bytes::gib(1);

/// The share of the rate of NVLink and its kin that copies reach: estimate, as in the shipped A100
/// profile.
const LINK_REACHED: f64 = 0.9;

/// The latencies of copies over PCIe, of links between GPUs, and of those between sockets: estimates, as in
/// the shipped profiles.
const LATENCY: [f64; 3] = [8.0, 1.5, 0.2];

/// The bandwidth between two sockets in each direction: estimate, half of three links of 16 lanes at 16 GT/s.
const INTERCONNECT: f64 = 50.0;

/// Parts on a board.
pub(super) struct Layout<'a> {
    pub parts: &'a Parts<'a>,
    pub board: &'a BoardPart,
    pub lanes: u32,
}

/// `name` with the range of its numbers.
fn ranged(name: &str, first: u32, last: u32) -> String {
    if first == last { format!("{name}{first}") } else { format!("{name}{{{first}..{last}}}") }
}

impl Layout<'_> {
    /// The machine as a profile.
    pub fn hardware(&self, name: &str, items: &[Item]) -> HardwareFile {
        let mut file = HardwareFile::new(name);
        file.parts = items.iter().map(|item| format!("{} x {}", item.count, item.name)).collect();
        file.socket = vec![self.socket()];
        file.gpu = self.parts.gpu.iter().map(|gpu| self.gpu(gpu)).collect();
        self.host_links(&mut file);
        self.gpu_links(&mut file);
        self.drives(&mut file);
        file
    }

    /// The assumptions of the machine.
    pub fn notes(&self, demand: Watts) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(gpu) = self.parts.gpu {
            if self.lanes < gpu.pcie.lanes {
                notes.push(format!("each card has {} of its {} lanes", self.lanes, gpu.pcie.lanes));
            }
            let generation = self.generation(gpu);
            if generation < gpu.pcie.generation {
                notes.push(format!("cards of PCIe {} run at generation {generation}", gpu.pcie.generation));
            }
            if self.parts.gpus > 1 {
                notes.push(self.copies(gpu).into());
            }
        }
        if demand.get() > CIRCUIT {
            notes.push(format!("its supplies must give {demand}: a second circuit of 230 V and 16 A"));
        }
        notes
    }

    /// How copies between GPUs travel.
    fn copies(&self, gpu: &GpuPart) -> &'static str {
        match (self.board.fabric, self.parts.bridge) {
            (Some(Fabric::Switch), _) => "copies between GPUs pass through switches at full rate",
            (Some(Fabric::Mesh), _) => "copies between GPUs take the link of their pair",
            (None, Some(_)) => "cards that a bridge joins copy through it, the others through the host",
            (None, None) if gpu.peer_access == Some(false) => "copies between GPUs are staged in DRAM",
            (None, None) => "copies between GPUs go through the root complex",
        }
    }

    fn generation(&self, gpu: &GpuPart) -> u32 {
        self.generation_of(gpu.pcie.generation)
    }

    /// The generation at which a card of this one runs.
    pub fn generation_of(&self, card: u32) -> u32 {
        card.min(self.board.pcie_generation).min(self.parts.platform.pcie.generation)
    }

    /// The root complexes of network cards in slots, those of the GPUs that they are for; none for cards beside modules.
    pub fn roots_of(&self, cards: u32) -> Vec<String> {
        if self.parts.gpu.is_some_and(|gpu| gpu.form != Form::Pcie) {
            return Vec::new();
        }
        let each = self.parts.gpus.div_ceil(self.board.socket_count).max(1);
        (0..cards).map(|card| format!("root{}", card * self.parts.gpus / cards / each)).collect()
    }

    fn socket(&self) -> SocketFile {
        let (platform, sockets) = (self.parts.platform, self.board.socket_count);
        let memory = &platform.memory;
        let (capacity, channels, all) = match self.parts.dram {
            Some((count, module)) => {
                let each = count / sockets;
                let doubled = each > memory.channels;
                let own = if doubled { memory.two_per_channel.or(memory.rate) } else { memory.rate };
                let rate = own.map_or(module.rate.0, |own| own.0.min(module.rate.0));
                let channels = each.min(memory.channels);
                // Eight bytes per transfer.
                let all = BytesPerSecond::bytes(f64::from(channels) * rate.get() * 1e6 * 8.0);
                (module.capacity.0 * u64::from(each), channels, all)
            }
            None => {
                let own = memory.bandwidth.map_or(BytesPerSecond::gb(1.0), |own| own.0);
                (memory.soldered.unwrap_or_default().0, memory.channels, own)
            }
        };
        let mut dram = DramFile::new(ranged("dram", 0, sockets - 1), capacity, all * SUSTAINED);
        dram.reserved = Some(Text(SYSTEM.min(Bytes::new(capacity.get() / 10))));
        let optimizer = ParamsPerSecond::params(OPTIMIZER.0 * all.get() / OPTIMIZER.1);
        let mut socket = SocketFile::new(ranged("cpu", 0, sockets - 1), platform.cores, optimizer, dram);
        socket.peak.clone_from(&platform.peak);
        socket.memory_channels = Some(channels);
        socket.vector_extensions.clone_from(&platform.vector_extensions);
        if platform.peak.contains_key(&DataType::Bf16) {
            let source = Some("estimate: DRAM and caches keep matrix tiles from their peak".into());
            socket.efficiency =
                Some(EfficiencyFile { matmul_fraction: Some(0.4), source, ..EfficiencyFile::default() });
        }
        socket.source = Some(format!(
            "{}; estimate for the optimizer: 28 B of traffic per parameter at 43 % of the channels, and for the DRAM: 78 % of \
             the channels",
            platform.source
        ));
        socket
    }

    fn gpu(&self, part: &GpuPart) -> GpuFile {
        let mut gpu = GpuFile::new(ranged("gpu", 0, self.parts.gpus - 1), part.memory.0, part.memory_bandwidth.0);
        gpu.peak.clone_from(&part.peak);
        gpu.reserved = Some(part.reserved.unwrap_or(Text(CONTEXT)));
        gpu.launch_floor = Some(Text(Seconds::us(5.0)));
        gpu.peer_access = part.peer_access;
        gpu.efficiency.clone_from(&part.efficiency);
        gpu.source = Some(part.source.clone());
        gpu
    }

    /// The GPUs of a socket, as first and last; none if it has none.
    fn gpus_of(&self, socket: u32) -> Option<(u32, u32)> {
        let (gpus, sockets) = (self.parts.gpus, self.board.socket_count);
        let each = gpus.div_ceil(sockets);
        let (first, end) = (socket * each, ((socket + 1) * each).min(gpus));
        (first < end).then(|| (first, end - 1))
    }

    fn host_links(&self, file: &mut HardwareFile) {
        let (platform, sockets) = (self.parts.platform, self.board.socket_count);
        if let Some(gpu) = self.parts.gpu {
            let rate = if gpu.form == Form::Superchip {
                platform.pcie.host_bandwidth.0
            } else {
                pcie::reached(PcieFile { generation: self.generation(gpu), lanes: self.lanes })
            };
            let spans = (0..sockets).filter_map(|socket| Some((socket, self.gpus_of(socket)?)));
            for (socket, (first, last)) in spans {
                let ends = [&ranged("gpu", first, last), &format!("root{socket}")];
                let mut link = LinkFile::new(ranged("pcie", first, last), ends.map(String::as_str), rate);
                link.latency = Some(Text(Seconds::us(LATENCY[0])));
                link.source = Some("estimate: pinned copies reach 80 % of the lanes".into());
                file.link.push(link);
            }
        }
        let roots = ranged("root", 0, sockets - 1);
        let drams = ranged("dram", 0, sockets - 1);
        file.root_complex.push(NodeFile { name: roots.clone(), source: Some("one per CPU".into()) });
        let mut link = LinkFile::new(format!("{roots}-{drams}"), [&roots, &drams], platform.pcie.host_bandwidth.0);
        link.source = Some(platform.pcie.source.clone());
        file.link.push(link);
        for socket in 1..sockets {
            let between = [format!("dram{}", socket - 1), format!("dram{socket}")];
            let ends = [between[0].as_str(), between[1].as_str()];
            let mut link = LinkFile::new(format!("interconnect{}", socket - 1), ends, BytesPerSecond::gb(INTERCONNECT));
            link.latency = Some(Text(Seconds::us(LATENCY[2])));
            link.source = Some("estimate: half of the links between two sockets".into());
            file.link.push(link);
        }
    }

    fn gpu_links(&self, file: &mut HardwareFile) {
        let gpus = self.parts.gpus;
        let own = self.parts.gpu.and_then(|gpu| gpu.link).map(|link| link.0);
        if let (Some(all), Some(fabric)) = (own, self.board.fabric)
            && gpus > 1
        {
            let source = "data sheet of the GPU, both directions together; estimate: 90 % reached";
            match fabric {
                Fabric::Switch => {
                    file.switch.push(NodeFile {
                        name: "fabric".into(),
                        source: Some("carries every GPU at full rate".into()),
                    });
                    let ends = [&ranged("gpu", 0, gpus - 1), "fabric"];
                    file.link.push(link_of(ranged("nvlink", 0, gpus - 1), ends, all * (0.5 * LINK_REACHED), source));
                }
                Fabric::Mesh => {
                    let pair = all * (0.5 * LINK_REACHED / f64::from(gpus - 1));
                    (0..gpus).for_each(|first| join(file, first, first + 1..gpus, pair, source));
                }
            }
        } else if let Some(bridge) = self.parts.bridge {
            let group = bridge.gpus.min(gpus).max(2);
            let pair = bridge.bandwidth.0 * (0.5 * LINK_REACHED / f64::from(group - 1));
            let source = format!("{}; estimate: 90 % reached", bridge.source);
            for first in 0..gpus {
                let end = ((first / group + 1) * group).min(gpus);
                join(file, first, first + 1..end, pair, &source);
            }
        }
    }

    fn drives(&self, file: &mut HardwareFile) {
        let mut next = 0;
        for (count, part) in &self.parts.drives {
            let generation =
                part.pcie.generation.min(self.parts.platform.pcie.generation).min(self.board.pcie_generation);
            let lanes = pcie::raw(PcieFile { generation, ..part.pcie });
            for _ in 0..*count {
                let name = format!("nvme{next}");
                file.nvme.push(NvmeFile {
                    name: name.clone(),
                    capacity: part.capacity,
                    read: Text(part.read.0.min(lanes)),
                    write: Text(part.write.0.min(lanes)),
                    reserved: None,
                    latency: Some(Text(Seconds::us(80.0))),
                    source: Some(part.source.clone()),
                });
                let root = format!("root{}", next % self.board.socket_count);
                file.link.push(link_of(format!("m2-{next}"), [&name, &root], lanes, "PCI Express, less coding"));
                next += 1;
            }
        }
    }
}

/// Joins one GPU with each of some others.
fn join(file: &mut HardwareFile, first: u32, others: std::ops::Range<u32>, rate: BytesPerSecond, source: &str) {
    for other in others {
        let ends = [format!("gpu{first}"), format!("gpu{other}")];
        file.link.push(link_of(format!("nvlink{first}-{other}"), [&ends[0], &ends[1]], rate, source));
    }
}

fn link_of(name: String, ends: [&str; 2], rate: BytesPerSecond, source: &str) -> LinkFile {
    let mut link = LinkFile::new(name, ends, rate);
    link.latency = Some(Text(Seconds::us(LATENCY[1])));
    link.source = Some(source.into());
    link
}
