//! The tables of hardware files, as they are written.
//!
//! ```text
//! HardwareFile ─┬─ [[socket]] SocketFile ── dram = DramFile ─┐
//!               ├─ [[gpu]]    GpuFile ───────────────────────┼─ efficiency, matmul, elementwise, layer-time, measured
//!               ├─ [[nvme]]   NvmeFile
//!               ├─ [[root-complex]] [[switch]] [[nic]] NodeFile
//!               └─ [[link]]   LinkFile
//! ```
//!
//! One table may stand for several equal things: `name = "gpu{0..3}"` is four GPUs, `between = ["gpu{0..3}", "root{0..6/2}"]`
//! joins `gpu0` with `root0`, `gpu1` with `root2` and so on. All ranges of a table count the same; names without one are repeated.

use crate::{DataType, VectorExtension};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, ParamsPerSecond, Seconds, Text};
use std::collections::BTreeMap;

/// The version of the format that this crate reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// Measured rates of matmuls per data type: work of one matmul, rate reached.
pub type MatmulPoints = BTreeMap<DataType, Vec<(Text<Flops>, Text<FlopsPerSecond>)>>;

/// Measured bandwidths of memory-bound kernels: bytes moved by one kernel, bandwidth reached.
pub type ElementwisePoints = Vec<(Text<Bytes>, Text<BytesPerSecond>)>;

/// Data-sheet arithmetic rates per data type, without sparsity.
pub type Peak = BTreeMap<DataType, Text<FlopsPerSecond>>;

/// A machine as a file describes it; [`Hardware::from_file`](crate::Hardware::from_file) checks it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HardwareFile {
    /// Always 1.
    pub format_version: u32,
    /// The name of the machine.
    pub name: String,
    /// What it is, in a sentence or two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// CPU sockets, or the NUMA nodes of which sockets have several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub socket: Vec<SocketFile>,
    /// GPUs and emulated accelerators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<GpuFile>,
    /// Solid-state drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme: Vec<NvmeFile>,
    /// Root complexes; names that several links share need no declaration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root_complex: Vec<NodeFile>,
    /// PCIe, NVLink or network switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switch: Vec<NodeFile>,
    /// Network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nic: Vec<NodeFile>,
    /// Links between any two of all these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link: Vec<LinkFile>,
}

/// The cores of one NUMA node with its DRAM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketFile {
    /// Its name, such as `cpu0`.
    pub name: String,
    /// Physical cores.
    pub cores: u32,
    /// Arithmetic rates of all cores together.
    pub peak: Peak,
    /// AdamW steps of all cores together, such as "2 Gparam/s".
    pub optimizer_rate: Text<ParamsPerSecond>,
    /// The memory of the node.
    pub dram: DramFile,
    /// The NUMA node; by default sockets are counted in file order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// DRAM channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_channels: Option<u32>,
    /// Vector and matrix instructions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vector_extensions: Vec<VectorExtension>,
    /// Least time of a parallel operation; by default 5 µs (estimate: waking and joining the threads of a socket).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_floor: Option<Text<Seconds>>,
    /// What operations reach of the peaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<EfficiencyFile>,
    /// Measured rates of matmuls.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matmul: MatmulPoints,
    /// Measured bandwidths of memory-bound kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elementwise: ElementwisePoints,
    /// Measured bandwidths of products of a row with a matrix that comes from memory, by the bytes of the matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matvec: ElementwisePoints,
    /// Measured layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_time: Vec<LayerTimeFile>,
    /// The measurement that the numbers come from, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredFile>,
    /// Where the numbers come from; starts with "estimate" if they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The DRAM of one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DramFile {
    /// Its name, such as `dram0`; `dram0-pageable` is its pageable view.
    pub name: String,
    /// All of it.
    pub capacity: Text<Bytes>,
    /// What it sustains, reads and writes together.
    pub bandwidth: Text<BytesPerSecond>,
    /// What the operating system and others keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Text<Bytes>>,
    /// What one copy between pageable memory here and a GPU reaches; by default half of the narrowest link on its way (estimate: the
    /// driver copies each piece through a pinned buffer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pageable_bandwidth: Option<Text<BytesPerSecond>>,
}

/// A GPU, or an accelerator that CPU cores play.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuFile {
    /// Its name, such as `gpu0`.
    pub name: String,
    /// All of its memory.
    pub memory: Text<Bytes>,
    /// The bandwidth of that memory.
    pub memory_bandwidth: Text<BytesPerSecond>,
    /// Arithmetic rates.
    pub peak: Peak,
    /// What contexts and libraries take of the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Text<Bytes>>,
    /// Least time of a kernel; by default 6 µs (estimate: launch and end of an empty CUDA kernel).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_floor: Option<Text<Seconds>>,
    /// Whether other GPUs can read its memory over PCIe; by default they can. Otherwise copies pass through host memory, unless a
    /// link joins the two directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_access: Option<bool>,
    /// Whether CPU cores play it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emulated: bool,
    /// How many cores play it, if it is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// What operations reach of the peaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<EfficiencyFile>,
    /// Measured rates of matmuls.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matmul: MatmulPoints,
    /// Measured bandwidths of memory-bound kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elementwise: ElementwisePoints,
    /// Measured bandwidths of products of a row with a matrix that comes from memory, by the bytes of the matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matvec: ElementwisePoints,
    /// Measured layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_time: Vec<LayerTimeFile>,
    /// The measurement that the numbers come from, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredFile>,
    /// Where the numbers come from; starts with "estimate" if they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What operations reach of a device's peaks where no points are measured: `fraction × work / (work + fraction × peak × startup)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EfficiencyFile {
    /// The share of the arithmetic peak that large matmuls reach, above 0 and at most 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matmul_fraction: Option<f64>,
    /// What a matmul takes beside its work at that rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matmul_startup: Option<Text<Seconds>>,
    /// The share of the memory bandwidth that large memory-bound kernels reach, above 0 and at most 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elementwise_fraction: Option<f64>,
    /// What such a kernel takes beside its bytes at that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elementwise_startup: Option<Text<Seconds>>,
    /// Where these come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The measured times of one layer on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LayerTimeFile {
    /// The layer's signature: kind, shapes and batch.
    pub layer: String,
    /// The type it computed in.
    pub data_type: DataType,
    /// Its forward.
    pub forward: Text<Seconds>,
    /// Its backward as far as it yields the gradient of the input.
    pub backward_input: Text<Seconds>,
    /// Its backward as far as it yields the gradients of the weights.
    pub backward_weight: Text<Seconds>,
    /// What its backward takes longer where its activations were offloaded: they are made again from those that travel. Nothing
    /// if all of them do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Text<Seconds>>,
}

/// The measurement that numbers come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MeasuredFile {
    /// When.
    pub date: String,
    /// The command, with relative paths.
    pub command: String,
    /// How far repetitions lay apart, such as "2 %".
    pub spread: String,
}

/// A solid-state drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NvmeFile {
    /// Its name, such as `nvme0`.
    pub name: String,
    /// All of it.
    pub capacity: Text<Bytes>,
    /// What large sequential reads reach.
    pub read: Text<BytesPerSecond>,
    /// What large sequential writes reach.
    pub write: Text<BytesPerSecond>,
    /// What is taken already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Text<Bytes>>,
    /// What a request takes before its first byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Text<Seconds>>,
    /// Where the numbers come from; starts with "estimate" if they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A node of the machine that neither computes nor stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodeFile {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A link between two named nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LinkFile {
    /// Its name; its directions are `name.up` and `name.down`.
    pub name: String,
    /// Its ends; `up` is from the first to the second. A socket's name means the node of its DRAM.
    pub between: [String; 2],
    /// What it carries from the first end to the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<Text<BytesPerSecond>>,
    /// What it carries from the second end to the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Text<BytesPerSecond>>,
    /// What it carries in each direction, instead of `up` and `down`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Text<BytesPerSecond>>,
    /// What it adds to every copy; by default nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Text<Seconds>>,
    /// Where the numbers come from; starts with "estimate" if they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl HardwareFile {
    /// A machine without parts.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            name: name.into(),
            description: None,
            socket: Vec::new(),
            gpu: Vec::new(),
            nvme: Vec::new(),
            root_complex: Vec::new(),
            switch: Vec::new(),
            nic: Vec::new(),
            link: Vec::new(),
        }
    }
}

impl SocketFile {
    /// A socket with nothing optional; it needs at least one peak.
    pub fn new(name: impl Into<String>, cores: u32, optimizer_rate: ParamsPerSecond, dram: DramFile) -> Self {
        Self {
            name: name.into(),
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
    /// DRAM with nothing optional.
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
    /// A GPU with nothing optional; it needs at least one peak.
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

impl LinkFile {
    /// A link that carries the same in both directions.
    pub fn new(name: impl Into<String>, between: [&str; 2], bandwidth: BytesPerSecond) -> Self {
        Self {
            name: name.into(),
            between: between.map(String::from),
            up: None,
            down: None,
            bandwidth: Some(Text(bandwidth)),
            latency: None,
            source: None,
        }
    }
}

/// The JSON Schema of hardware files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(HardwareFile)
}
