//! The tables of hardware files.
//!
//! ```text
//! HardwareFile ─┬─ [[socket]] SocketFile ── dram = DramFile
//!               ├─ [[gpu]]    GpuFile
//!               ├─ [[nvme]]   NvmeFile
//!               ├─ [[root-complex]] [[switch]] [[nic]] NodeFile
//!               └─ [[link]]   LinkFile
//! ```
//!
//! Sockets and GPUs also have the tables `efficiency`, `matmul`, `elementwise`, `matvec`,
//! `layer-time` and `measured`.
//!
//! One table may stand for several equal items: `name = "gpu{0..3}"` is four GPUs, and
//! `between = ["gpu{0..3}", "root{0..6/2}"]` joins `gpu0` with `root0`, `gpu1` with `root2` and so
//! on. All ranges of a table have the same length; names without a range are repeated.

use crate::{CollectiveKind, DataType, FittedFile, NetworkFile, VectorExtension};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, ParamsPerSecond, Seconds, Text};
use std::collections::BTreeMap;

/// The version of the file format.
pub const FORMAT_VERSION: u32 = 1;

/// Measured rates of matmuls per data type: the work of one matmul and its rate.
pub type MatmulPoints = BTreeMap<DataType, Vec<(Text<Flops>, Text<FlopsPerSecond>)>>;

/// Measured bandwidths of memory-bound kernels: the bytes moved by one kernel and its bandwidth.
pub type ElementwisePoints = Vec<(Text<Bytes>, Text<BytesPerSecond>)>;

/// Data-sheet arithmetic rates per data type, without sparsity.
pub type Peak = BTreeMap<DataType, Text<FlopsPerSecond>>;

/// The description of a machine; [`Hardware::from_file`](crate::Hardware::from_file) checks it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HardwareFile {
    /// The version of the file format: 1.
    pub format_version: u32,
    /// The name of the machine.
    pub name: String,
    /// A description in one or two sentences.
    pub description: Option<String>,
    /// The parts of a catalogue that it was composed of, such as "2 x rtx3090".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// The number of equal computers, of which the file describes one; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The network between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkFile>,
    /// CPU sockets; a socket with several NUMA nodes has one table per node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub socket: Vec<SocketFile>,
    /// GPUs and emulated accelerators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<GpuFile>,
    /// Solid-state drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme: Vec<NvmeFile>,
    /// Root complexes. Names shared by several links need no declaration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root_complex: Vec<NodeFile>,
    /// PCIe, NVLink or network switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switch: Vec<NodeFile>,
    /// Network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nic: Vec<NodeFile>,
    /// Links between any two of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link: Vec<LinkFile>,
    /// Measured rates of copies between memories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy: Vec<CopyFile>,
    /// Measured collectives among neighbouring GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collective: Vec<CollectiveFile>,
    /// Constants fitted on measured runs, with their errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fitted: Vec<FittedFile>,
}

/// The cores of one NUMA node with its DRAM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketFile {
    /// Its name, such as `cpu0`.
    pub name: String,
    /// Whether only its memory may be used, and not its cores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_only: bool,
    /// Physical cores.
    pub cores: u32,
    /// Arithmetic rates of all cores together.
    pub peak: Peak,
    /// The parameters that all cores together update with AdamW, such as "2 Gparam/s".
    pub optimizer_rate: Text<ParamsPerSecond>,
    /// The memory of the node.
    pub dram: DramFile,
    /// The number of the NUMA node; by default the position of the socket in the file.
    pub numa_node: Option<u32>,
    /// DRAM channels.
    pub memory_channels: Option<u32>,
    /// Vector and matrix instructions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vector_extensions: Vec<VectorExtension>,
    /// The shortest time of a parallel operation; by default 5 µs (estimate: waking and joining the
    /// threads of a socket).
    pub launch_floor: Option<Text<Seconds>>,
    /// The efficiency of operations relative to the peaks.
    pub efficiency: Option<EfficiencyFile>,
    /// Measured rates of matmuls.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matmul: MatmulPoints,
    /// Measured bandwidths of memory-bound kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elementwise: ElementwisePoints,
    /// Measured bandwidths of products of a row with a matrix read from memory, by the bytes of the
    /// matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matvec: ElementwisePoints,
    /// Measured times of layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_time: Vec<LayerTimeFile>,
    /// The measurement that is the source of the numbers, if there is one.
    pub measured: Option<MeasuredFile>,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

/// The DRAM of one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DramFile {
    /// Its name, such as `dram0`; its pageable view is `dram0-pageable`.
    pub name: String,
    /// The total capacity.
    pub capacity: Text<Bytes>,
    /// The sustained bandwidth of reads and writes together.
    pub bandwidth: Text<BytesPerSecond>,
    /// The memory occupied by the operating system and other programs.
    pub reserved: Option<Text<Bytes>>,
    /// The bandwidth of one copy between pageable memory here and a GPU. By default it is half of
    /// the narrowest link on the route (estimate: the driver copies each piece through a pinned
    /// buffer).
    pub pageable_bandwidth: Option<Text<BytesPerSecond>>,
}

/// A GPU, or an accelerator emulated by CPU cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuFile {
    /// Its name, such as `gpu0`.
    pub name: String,
    /// The total capacity of its memory.
    pub memory: Text<Bytes>,
    /// The bandwidth of that memory.
    pub memory_bandwidth: Text<BytesPerSecond>,
    /// Arithmetic rates.
    pub peak: Peak,
    /// The memory occupied by contexts and libraries.
    pub reserved: Option<Text<Bytes>>,
    /// The shortest time of a kernel; by default 6 µs (estimate: launch and end of an empty CUDA
    /// kernel).
    pub launch_floor: Option<Text<Seconds>>,
    /// Whether other GPUs can read its memory over PCIe; by default they can. Otherwise copies pass
    /// through host memory, unless a link joins the two GPUs directly.
    pub peer_access: Option<bool>,
    /// Whether it is emulated by CPU cores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emulated: bool,
    /// The number of cores that emulate it, if it is emulated.
    pub cores: Option<u32>,
    /// Its number among the GPUs of its computer, as `nvidia-smi` counts them; by default they are in
    /// the order of the file. A table of several GPUs counts on from it.
    pub index: Option<u32>,
    /// The efficiency of operations relative to the peaks.
    pub efficiency: Option<EfficiencyFile>,
    /// The rates of fused attention kernels.
    pub attention: Option<AttentionFile>,
    /// Measured rates of matmuls.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matmul: MatmulPoints,
    /// Measured bandwidths of memory-bound kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elementwise: ElementwisePoints,
    /// Measured bandwidths of products of a row with a matrix read from memory, by the bytes of the
    /// matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matvec: ElementwisePoints,
    /// Measured times of layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_time: Vec<LayerTimeFile>,
    /// The measurement that is the source of the numbers, if there is one.
    pub measured: Option<MeasuredFile>,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

/// The shares of the arithmetic peak that fused attention kernels reach in a forward, counting the
/// causal half alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AttentionFile {
    /// Lengths of sequences, ascending.
    pub length: Vec<u32>,
    /// The share at each length with heads of 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub head_64: Vec<f64>,
    /// The share at each length with heads of 128.
    pub head_128: Vec<f64>,
    /// The factor on these shares of the kernel `flash-2`; 1 if not given.
    pub flash_2: Option<f64>,
    /// The source of these numbers.
    pub source: Option<String>,
}

/// The efficiency of operations without measured points: their rate is
/// `fraction × work / (work + fraction × peak × startup)` times the peak.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EfficiencyFile {
    /// The fraction of the arithmetic peak that large matmuls reach, above 0 and at most 1.
    pub matmul_fraction: Option<f64>,
    /// The time of a matmul in addition to its work at that rate.
    pub matmul_startup: Option<Text<Seconds>>,
    /// The fraction of the memory bandwidth that large memory-bound kernels reach, above 0 and at
    /// most 1.
    pub elementwise_fraction: Option<f64>,
    /// The time of such a kernel in addition to its bytes at that bandwidth.
    pub elementwise_startup: Option<Text<Seconds>>,
    /// Smallest dimensions of products, ascending, for the shares of `fraction`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<u32>,
    /// The share of the arithmetic peak that products with these smallest dimensions reach, used by
    /// runtimes whose `products` are by `smallest-dimension`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fraction: Vec<f64>,
    /// The share of the rates of short runs, those of `fraction` and of attention, that training holds for hours within the
    /// board's power limit; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained: Option<f64>,
    /// The source of these numbers.
    pub source: Option<String>,
}

/// The measured times of one layer on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LayerTimeFile {
    /// The layer's signature: kind, shapes and batch.
    pub layer: String,
    /// The data type of its computation.
    pub data_type: DataType,
    /// The forward.
    pub forward: Text<Seconds>,
    /// The part of the backward that yields the gradient of the input.
    pub backward_input: Text<Seconds>,
    /// The part of the backward that yields the gradients of the weights.
    pub backward_weight: Text<Seconds>,
    /// The additional time of the backward if activations were offloaded: only the outputs of products with weights
    /// are copied, and the other activations are recomputed from them. Zero if all activations are copied.
    pub replay: Option<Text<Seconds>>,
    /// The additional time of a backward that runs in two parts, of which the second comes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<Text<Seconds>>,
}

/// The measurement that is the source of numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MeasuredFile {
    /// The date.
    pub date: String,
    /// The command, with relative paths.
    pub command: String,
    /// The spread between repetitions, such as "2 %".
    pub spread: String,
}

/// A solid-state drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NvmeFile {
    /// Its name, such as `nvme0`.
    pub name: String,
    /// The total capacity.
    pub capacity: Text<Bytes>,
    /// The bandwidth of large sequential reads.
    pub read: Text<BytesPerSecond>,
    /// The bandwidth of large sequential writes.
    pub write: Text<BytesPerSecond>,
    /// The space that is already occupied.
    pub reserved: Option<Text<Bytes>>,
    /// The time of a request before its first byte.
    pub latency: Option<Text<Seconds>>,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

/// A node of the machine that neither computes nor stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodeFile {
    /// Its name.
    pub name: String,
    /// A description or source of the node.
    pub source: Option<String>,
}

/// A measured collective among neighbouring GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CollectiveFile {
    /// The kind.
    pub kind: CollectiveKind,
    /// The participants.
    pub gpus: u32,
    /// The time of the shortest message.
    pub latency: Text<Seconds>,
    /// Bus bandwidths as `nccl-tests` defines them, by bytes of the whole message.
    pub bandwidth: ElementwisePoints,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

/// A link between two named nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LinkFile {
    /// Its name; its directions are `name.up` and `name.down`.
    pub name: String,
    /// Its ends; `up` is from the first to the second. The name of a socket denotes its DRAM node.
    pub between: [String; 2],
    /// The bandwidth from the first end to the second.
    pub up: Option<Text<BytesPerSecond>>,
    /// The bandwidth from the second end to the first.
    pub down: Option<Text<BytesPerSecond>>,
    /// The bandwidth in each direction, instead of `up` and `down`.
    pub bandwidth: Option<Text<BytesPerSecond>>,
    /// The bandwidth of both directions together; by default nothing limits their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both: Option<Text<BytesPerSecond>>,
    /// The latency that it adds to every copy; zero by default.
    pub latency: Option<Text<Seconds>>,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

/// The measured rate of copies between memories, where it is below what their links allow: cards
/// without peer access, whose copies pass through buffers of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CopyFile {
    /// The names of the memories, such as `gpu{0..3}`; the table is about every two of them. The first
    /// table that names two memories holds.
    pub among: Vec<String>,
    /// The largest rate of one copy.
    pub bandwidth: Text<BytesPerSecond>,
    /// The largest rate of copies in both directions together, between any two of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both: Option<Text<BytesPerSecond>>,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

impl HardwareFile {
    /// Creates a machine without parts.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            name: name.into(),
            description: None,
            parts: Vec::new(),
            nodes: None,
            network: None,
            socket: Vec::new(),
            gpu: Vec::new(),
            nvme: Vec::new(),
            root_complex: Vec::new(),
            switch: Vec::new(),
            nic: Vec::new(),
            link: Vec::new(),
            copy: Vec::new(),
            collective: Vec::new(),
            fitted: Vec::new(),
        }
    }

    /// Formats the file as text that reads back as the same tables.
    pub fn to_toml(&self) -> String {
        match toml::to_string(self) {
            Ok(text) => text,
            Err(error) => unreachable!("a hardware file has string keys and finite numbers only: {error}"),
        }
    }
}

impl SocketFile {
    /// Creates a socket without optional values; it needs at least one peak.
    pub fn new(name: impl Into<String>, cores: u32, optimizer_rate: ParamsPerSecond, dram: DramFile) -> Self {
        Self {
            name: name.into(),
            memory_only: false,
            cores,
            peak: Peak::new(),
            optimizer_rate: Text(optimizer_rate),
            dram,
            numa_node: None,
            memory_channels: None,
            vector_extensions: Vec::new(),
            launch_floor: None,
            efficiency: None,
            matmul: MatmulPoints::new(),
            elementwise: ElementwisePoints::new(),
            matvec: ElementwisePoints::new(),
            layer_time: Vec::new(),
            measured: None,
            source: None,
        }
    }
}

impl DramFile {
    /// Creates a DRAM without optional values.
    pub fn new(name: impl Into<String>, capacity: Bytes, bandwidth: BytesPerSecond) -> Self {
        Self {
            name: name.into(),
            capacity: Text(capacity),
            bandwidth: Text(bandwidth),
            reserved: None,
            pageable_bandwidth: None,
        }
    }
}

impl GpuFile {
    /// Creates a GPU without optional values; it needs at least one peak.
    pub fn new(name: impl Into<String>, memory: Bytes, memory_bandwidth: BytesPerSecond) -> Self {
        Self {
            name: name.into(),
            memory: Text(memory),
            memory_bandwidth: Text(memory_bandwidth),
            peak: Peak::new(),
            reserved: None,
            launch_floor: None,
            peer_access: None,
            emulated: false,
            cores: None,
            index: None,
            efficiency: None,
            attention: None,
            matmul: MatmulPoints::new(),
            elementwise: ElementwisePoints::new(),
            matvec: ElementwisePoints::new(),
            layer_time: Vec::new(),
            measured: None,
            source: None,
        }
    }
}

impl LinkFile {
    /// Creates a link with the same bandwidth in both directions.
    pub fn new(name: impl Into<String>, between: [&str; 2], bandwidth: BytesPerSecond) -> Self {
        Self {
            name: name.into(),
            between: between.map(String::from),
            up: None,
            down: None,
            bandwidth: Some(Text(bandwidth)),
            both: None,
            latency: None,
            source: None,
        }
    }
}

/// Returns the JSON schema of hardware files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(HardwareFile)
}
