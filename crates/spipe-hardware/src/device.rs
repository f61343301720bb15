//! The parts of a [`Hardware`](crate::Hardware): devices, memories, links and routes.

use crate::{DataType, Efficiency, VectorExtension};
use spipe_base::{
    Bytes, BytesPerSecond, DeviceId, Flops, FlopsPerSecond, LinkId, MemoryId, NodeId, ParamsPerSecond, Seconds,
};
use std::{collections::BTreeMap, fmt};

/// A GPU or a CPU socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name, such as `gpu0` or `cpu0`.
    pub name: String,
    /// A GPU, or a socket with its additional figures.
    pub kind: DeviceKind,
    /// The computer that it is part of: those it reaches without a network card.
    pub node: NodeId,
    /// Its number among the GPUs, or the sockets, of that computer.
    pub index: u32,
    /// The memory in which it computes: its own, or the DRAM of its NUMA node.
    pub memory: MemoryId,
    /// Data-sheet arithmetic rates without sparsity.
    pub peak: BTreeMap<DataType, FlopsPerSecond>,
    /// The bandwidth of that memory.
    pub memory_bandwidth: BytesPerSecond,
    /// The shortest time of a kernel, from launch to end.
    pub launch_floor: Seconds,
    /// The achieved rates by size of operation.
    pub efficiency: Efficiency,
    /// Whether it is an accelerator emulated by CPU cores.
    pub emulated: bool,
    /// The number of cores that emulate it, if the file states it.
    pub emulated_cores: Option<u32>,
    /// The source of its numbers, as in the file.
    pub source: String,
    pub(crate) layer_times: BTreeMap<(String, DataType), MeasuredLayer>,
    pub(crate) provenance: Provenance,
}

/// The kind of a device.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceKind {
    /// An accelerator with its own memory behind a link.
    Gpu,
    /// The cores of one NUMA node, which compute in its DRAM.
    Socket {
        /// Physical cores.
        cores: u32,
        /// The parameters that all its cores together update per second with AdamW in mixed
        /// precision.
        optimizer_rate: ParamsPerSecond,
        /// Vector and matrix instructions.
        vector_extensions: Vec<VectorExtension>,
        /// The number of the NUMA node in the whole machine.
        numa_node: u32,
        /// DRAM channels, if the file states them.
        memory_channels: Option<u32>,
    },
}

/// The measured times of one layer on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredLayer {
    /// The forward.
    pub forward: Seconds,
    /// The part of the backward that yields the gradient of the input.
    pub backward_input: Seconds,
    /// The part of the backward that yields the gradients of the weights.
    pub backward_weight: Seconds,
    /// The additional time of the backward if only a part of the activations that it needs was
    /// offloaded and copied back.
    pub replay: Seconds,
    /// The additional time of a backward that runs in two parts, of which the second comes later.
    pub split: Seconds,
}

/// The source of a group of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// A data sheet, paper or manual, by name.
    DataSheet(String),
    /// A measurement on the machine itself.
    Measured {
        /// The date, as in the file.
        date: String,
        /// The command that measured it.
        command: String,
        /// The spread between repetitions.
        spread: String,
    },
    /// An estimate, with its reason.
    Estimate(String),
}

impl Provenance {
    /// Parses a `source` of a file: an estimate if it starts with that word.
    pub(crate) fn from_source(source: &str) -> Self {
        match source.strip_prefix("estimate") {
            Some(reason) => Self::Estimate(reason.trim_start_matches([':', ' ']).into()),
            None if source.is_empty() => Self::Estimate("no source given".into()),
            None => Self::DataSheet(source.into()),
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataSheet(name) => write!(f, "data sheet: {name}"),
            Self::Measured { date, command, spread } => write!(f, "measured {date} with `{command}`, spread {spread}"),
            Self::Estimate(reason) => write!(f, "estimate: {reason}"),
        }
    }
}

impl Device {
    /// Whether it is a GPU, emulated or not.
    pub const fn is_gpu(&self) -> bool {
        matches!(self.kind, DeviceKind::Gpu)
    }

    /// Whether another device computes everything in the same time: it differs at most in its name and its place.
    pub fn computes_like(&self, other: &Self) -> bool {
        let same = self.kind == other.kind && self.peak == other.peak && self.emulated == other.emulated;
        let rates = self.memory_bandwidth == other.memory_bandwidth && self.launch_floor == other.launch_floor;
        let cores = self.emulated_cores == other.emulated_cores && self.provenance == other.provenance;
        same && rates && cores && self.efficiency == other.efficiency && self.layer_times == other.layer_times
    }

    /// Whether it is a CPU socket.
    pub const fn is_socket(&self) -> bool {
        !self.is_gpu()
    }

    /// Returns the type in which the device computes with `data_type`: that type itself if the
    /// device has a rate for it. CPU cores, including those that emulate an accelerator, widen f16
    /// and bf16 to f32. `None` if the device cannot compute with the type.
    pub fn arithmetic_type(&self, data_type: DataType) -> Option<DataType> {
        let has = |wanted| self.peak.contains_key(&wanted) || self.efficiency.matmul_points.contains_key(&wanted);
        let widens = self.is_socket() || self.emulated;
        match data_type {
            own if has(own) => Some(own),
            DataType::F16 | DataType::Bf16 | DataType::Tf32 if widens && has(DataType::F32) => Some(DataType::F32),
            DataType::Tf32 if has(DataType::F32) => Some(DataType::F32),
            _ => None,
        }
    }

    /// Returns the rate of a matmul of `flops` operations. Measured points are interpolated over
    /// the logarithm of the work, constant beyond the ends. Without points, the rate is the peak
    /// times a share that grows with the work ([`Efficiency`]). `None` if the device cannot compute
    /// with the type ([`Device::arithmetic_type`]).
    pub fn matmul_rate(&self, data_type: DataType, flops: Flops) -> Option<FlopsPerSecond> {
        let data_type = self.arithmetic_type(data_type)?;
        let flops = flops.max(Flops::flop(1.0));
        self.efficiency.matmul_rate(data_type, flops).or_else(|| {
            let peak = *self.peak.get(&data_type)?;
            FlopsPerSecond::new(peak.get() * self.efficiency.matmul.share(flops.get(), peak.get()))
        })
    }

    /// Returns the bandwidth of a memory-bound kernel that reads and writes `bytes` in total.
    pub fn elementwise_rate(&self, bytes: Bytes) -> BytesPerSecond {
        let bytes = bytes.max(Bytes::new(1));
        let peak = self.memory_bandwidth;
        let modelled =
            || BytesPerSecond::new(peak.get() * self.efficiency.elementwise.share(bytes.as_f64(), peak.get()));
        self.efficiency.elementwise_rate(bytes).or_else(modelled).unwrap_or(peak)
    }

    /// Returns the bandwidth of a memory-bound matrix product, such as one with few rows, that
    /// moves `bytes`: the measured one for matrices read from memory, otherwise that of any
    /// memory-bound kernel.
    pub fn matvec_rate(&self, bytes: Bytes) -> BytesPerSecond {
        let measured = self.efficiency.matvec_rate(bytes.max(Bytes::new(1)));
        measured.unwrap_or_else(|| self.elementwise_rate(bytes))
    }

    /// Returns the measured times of exactly this layer and batch on the device, if there are any.
    pub fn layer_time(&self, signature: &str, data_type: DataType) -> Option<MeasuredLayer> {
        self.layer_times.get(&(signature.into(), data_type)).copied()
    }

    /// Returns the source of its numbers.
    pub const fn provenance(&self) -> &Provenance {
        &self.provenance
    }
}

/// A memory, or a second view of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Its name: `gpu0`, `dram0` (pinned), `dram0-pageable`, `nvme0`.
    pub name: String,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The total capacity.
    pub capacity: Bytes,
    /// The part that is unavailable: contexts, libraries, the operating system.
    pub reserved: Bytes,
    /// The DRAM whose capacity it shares, if it is a view of pageable host memory.
    pub pageable_view_of: Option<MemoryId>,
    /// The device that computes in it, if any.
    pub device: Option<DeviceId>,
    /// The source of its numbers.
    pub provenance: Provenance,
}

impl Memory {
    /// Returns the available capacity.
    pub const fn usable(&self) -> Bytes {
        self.capacity.saturating_sub(self.reserved)
    }
}

/// The kind of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// The memory of a GPU.
    Gpu,
    /// DRAM of a NUMA node.
    Dram,
    /// A solid-state drive.
    Nvme,
}

/// One direction of a link, the channels of a DRAM, one direction of a drive, or a limit on both
/// directions together. Concurrent flows share its bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name: `pcie0.up`, `pcie0.down`, `dram0.channels`, `nvme0.read`, `nvme0.write`, `pcie0.both`,
    /// `gpu0-gpu1.both`.
    pub name: String,
    /// The bandwidth of all flows together.
    pub bandwidth: BytesPerSecond,
    /// The latency that it adds to every copy before the first byte.
    pub latency: Seconds,
    /// The node where it starts.
    pub from: String,
    /// The node where it ends; equal to `from` for channels, drives and limits on both directions.
    pub to: String,
    /// The source of its numbers.
    pub provenance: Provenance,
}

/// The path of a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The links in order, including the channels of a DRAM at an end, then the limits on both directions
    /// of links and of copies. A link that carries every
    /// byte twice is listed twice: the channels in a copy within one DRAM, or in a copy between
    /// GPUs through host memory.
    pub links: Vec<LinkId>,
    /// The sum of the links' latencies.
    pub latency: Seconds,
    /// The rate limit of a single copy, due to pageable host memory, to both ends being in one GPU, or
    /// measured.
    pub rate_cap: Option<BytesPerSecond>,
}
