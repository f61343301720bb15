//! Devices that compute, memories, links and routes: what a [`Hardware`](crate::Hardware) is made of.

use crate::{DataType, Efficiency, VectorExtension};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, Flops, FlopsPerSecond, LinkId, MemoryId, ParamsPerSecond, Seconds};
use std::{collections::BTreeMap, fmt};

/// A GPU or a CPU socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name, such as `gpu0` or `cpu0`.
    pub name: String,
    /// A GPU, or a socket with what only sockets have.
    pub kind: DeviceKind,
    /// The memory that it computes in: its own, or the DRAM of its NUMA node.
    pub memory: MemoryId,
    /// Data-sheet arithmetic rates without sparsity.
    pub peak: BTreeMap<DataType, FlopsPerSecond>,
    /// Bandwidth of that memory.
    pub memory_bandwidth: BytesPerSecond,
    /// Least time that a kernel takes, from launch to end.
    pub launch_floor: Seconds,
    /// How the achieved rates depend on the size of an operation.
    pub efficiency: Efficiency,
    /// Whether it stands for an accelerator that CPU cores play.
    pub emulated: bool,
    /// How many cores play it, if it is emulated and the file says so.
    pub emulated_cores: Option<u32>,
    /// Where its numbers come from, as the file says.
    pub source: String,
    pub(crate) layer_times: BTreeMap<(String, DataType), MeasuredLayer>,
    pub(crate) provenance: Provenance,
}

/// What kind of device it is.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceKind {
    /// An accelerator with its own memory behind a link.
    Gpu,
    /// The cores of one NUMA node, which compute in its DRAM.
    Socket {
        /// Physical cores.
        cores: u32,
        /// Parameters per second that all its cores together step with AdamW, mixed precision.
        optimizer_rate: ParamsPerSecond,
        /// Vector and matrix instructions.
        vector_extensions: Vec<VectorExtension>,
        /// The NUMA node, counted over the whole machine.
        numa_node: u32,
        /// DRAM channels, if the file says.
        memory_channels: Option<u32>,
    },
}

/// What one layer takes on one device, as measured there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredLayer {
    /// The forward.
    pub forward: Seconds,
    /// The backward as far as it yields the gradient of the input.
    pub backward_input: Seconds,
    /// The backward as far as it yields the gradients of the weights.
    pub backward_weight: Seconds,
    /// What the backward takes longer where activations were offloaded and not all that it needs has travelled.
    pub replay: Seconds,
}

/// Where a group of numbers comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// A data sheet, paper or manual, by name.
    DataSheet(String),
    /// A measurement on the machine itself.
    Measured {
        /// When, as the file says.
        date: String,
        /// The command that measured it.
        command: String,
        /// How far repetitions lay apart.
        spread: String,
    },
    /// An estimate, with its reason.
    Estimate(String),
}

impl Provenance {
    /// A `source` of a file: an estimate if it starts with that word.
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

    /// Whether it is a CPU socket.
    pub const fn is_socket(&self) -> bool {
        !self.is_gpu()
    }

    /// The type that arithmetic on `data_type` is done in here: itself if the device has a rate for it. Cores, those that play an
    /// emulated accelerator among them, widen f16 and bf16 to f32. `None` if the device cannot compute with it.
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

    /// The rate that a matmul of that much work reaches: from measured points, interpolated over the logarithm of the work and
    /// constant beyond the ends; otherwise the peak times a share that grows with the work ([`Efficiency`]). `None` if the device
    /// cannot compute with the type ([`Device::arithmetic_type`]).
    pub fn matmul_rate(&self, data_type: DataType, flops: Flops) -> Option<FlopsPerSecond> {
        let data_type = self.arithmetic_type(data_type)?;
        let flops = flops.max(Flops::flop(1.0));
        self.efficiency.matmul_rate(data_type, flops).or_else(|| {
            let peak = *self.peak.get(&data_type)?;
            FlopsPerSecond::new(peak.get() * self.efficiency.matmul.share(flops.get(), peak.get()))
        })
    }

    /// The bandwidth that a memory-bound kernel reaches which moves that many bytes, reads and writes together.
    pub fn elementwise_rate(&self, bytes: Bytes) -> BytesPerSecond {
        let bytes = bytes.max(Bytes::new(1));
        let peak = self.memory_bandwidth;
        let modelled =
            || BytesPerSecond::new(peak.get() * self.efficiency.elementwise.share(bytes.as_f64(), peak.get()));
        self.efficiency.elementwise_rate(bytes).or_else(modelled).unwrap_or(peak)
    }

    /// The bandwidth at which a matrix product moves that many bytes where it is bound by memory, as with few rows: what was
    /// measured of a matrix that comes from memory, otherwise that of any memory-bound kernel.
    pub fn matvec_rate(&self, bytes: Bytes) -> BytesPerSecond {
        let measured = self.efficiency.matvec_rate(bytes.max(Bytes::new(1)));
        measured.unwrap_or_else(|| self.elementwise_rate(bytes))
    }

    /// The measured times of exactly that layer and batch on this device, if there are any.
    pub fn layer_time(&self, signature: &str, data_type: DataType) -> Option<MeasuredLayer> {
        self.layer_times.get(&(signature.into(), data_type)).copied()
    }

    /// Where its numbers come from.
    pub const fn provenance(&self) -> &Provenance {
        &self.provenance
    }
}

/// A place for data, or a second view of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Its name: `gpu0`, `dram0` (pinned), `dram0-pageable`, `nvme0`.
    pub name: String,
    /// What it is made of.
    pub kind: MemoryKind,
    /// All of it.
    pub capacity: Bytes,
    /// What programs cannot use: contexts, libraries, the operating system.
    pub reserved: Bytes,
    /// The memory whose capacity it shares, if it is a view of pageable host memory.
    pub pageable_view_of: Option<MemoryId>,
    /// The device that computes in it, if any.
    pub device: Option<DeviceId>,
    /// Where its numbers come from.
    pub provenance: Provenance,
}

impl Memory {
    /// What programs can use.
    pub const fn usable(&self) -> Bytes {
        self.capacity.saturating_sub(self.reserved)
    }
}

/// What a memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// On a GPU.
    Gpu,
    /// DRAM of a NUMA node.
    Dram,
    /// A solid-state drive.
    Nvme,
}

/// One direction of a link, the channels of a DRAM, or one direction of a drive: what concurrent flows share.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name: `pcie0.up`, `pcie0.down`, `dram0.channels`, `nvme0.read`, `nvme0.write`.
    pub name: String,
    /// What it carries, all flows together.
    pub bandwidth: BytesPerSecond,
    /// What it adds to every copy before the first byte.
    pub latency: Seconds,
    /// The node that it leaves.
    pub from: String,
    /// The node that it reaches; the same as `from` for channels and drives.
    pub to: String,
    /// Where its numbers come from.
    pub provenance: Provenance,
}

/// The way of a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The links in order, the channels of a DRAM at its end. A link that carries every byte twice is there twice: the channels of a
    /// copy within one DRAM, or of a copy between GPUs that passes through host memory.
    pub links: Vec<LinkId>,
    /// The sum of the latencies.
    pub latency: Seconds,
    /// What the copy cannot exceed even alone: pageable host memory, or both ends in one GPU.
    pub rate_cap: Option<BytesPerSecond>,
}
