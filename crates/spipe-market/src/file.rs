//! The tables of catalogue files.
//!
//! ```text
//! CatalogueFile ─┬─ [[gpu]]      GpuPart       figures, power, prices
//!                ├─ [[platform]] PlatformPart  a CPU with its channels and lanes
//!                ├─ [[dram]]     DramPart      one module
//!                ├─ [[drive]]    DrivePart
//!                ├─ [[board]]    BoardPart     sockets, slots, and the fabric between modules
//!                ├─ [[bridge]]   BridgePart    joins two or four cards
//!                ├─ [[supply]]   SupplyPart
//!                ├─ [[rent]]     RentPart      a machine by the hour
//!                └─ [[network-card]], [[network-switch]], [[cable]]     between computers
//! ```

use crate::{
    CablePart, Condition, Date, DramKind, Fabric, Family, Form, HourFile, NetworkCardPart, NetworkSwitchPart, PcieFile,
    Per, PlatformForm, PriceFile, RentKind, RentedNetworkFile, Transfers, Watts,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, BytesPerSecond, FlopsPerSecond, Text};
use spipe_hardware::{DataType, EfficiencyFile, Peak, VectorExtension};

/// The version of the file format.
pub const FORMAT_VERSION: u32 = 1;

/// Parts of machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CatalogueFile {
    /// The version of the file format: 1.
    pub format_version: u32,
    /// The name of the file's contents.
    pub name: String,
    /// A description in one or two sentences.
    pub description: Option<String>,
    /// Graphics processors and accelerators.
    #[serde(default)]
    pub gpu: Vec<GpuPart>,
    /// CPUs.
    #[serde(default)]
    pub platform: Vec<PlatformPart>,
    /// Memory modules.
    #[serde(default)]
    pub dram: Vec<DramPart>,
    /// Solid-state drives.
    #[serde(default)]
    pub drive: Vec<DrivePart>,
    /// Boards with chassis and cooler.
    #[serde(default)]
    pub board: Vec<BoardPart>,
    /// Bridges between cards.
    #[serde(default)]
    pub bridge: Vec<BridgePart>,
    /// Power supplies.
    #[serde(default)]
    pub supply: Vec<SupplyPart>,
    /// Network cards.
    #[serde(default)]
    pub network_card: Vec<NetworkCardPart>,
    /// Switches between computers.
    #[serde(default)]
    pub network_switch: Vec<NetworkSwitchPart>,
    /// Cables between network ports.
    #[serde(default)]
    pub cable: Vec<CablePart>,
    /// Rented machines.
    #[serde(default)]
    pub rent: Vec<RentPart>,
}

/// A figure that breaks a rule of `spipe catalogue check` and is right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExceptionFile {
    /// The name of the rule.
    pub rule: String,
    /// The reason.
    pub reason: String,
}

/// The memory bus of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BusFile {
    /// The width in bits.
    pub width: u32,
    /// The data rate of each bit, such as "21 Gb/s".
    pub rate: Text<BytesPerSecond>,
    /// The source; it starts with "estimate" if it is estimated.
    pub source: String,
}

/// The best measured rate of a matmul.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MatmulFile {
    /// The rate, in bf16, or f16 where the GPU has no bf16.
    pub rate: Text<FlopsPerSecond>,
    /// The date of the measurement.
    pub date: Date,
    /// The source.
    pub source: String,
}

/// The power of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuPowerFile {
    /// The rated power of the board.
    pub board: Text<Watts>,
    /// The share of the rated power that a busy card draws in training, from 0 to 1.
    pub training: f64,
    /// The power of an idle card.
    pub idle: Text<Watts>,
    /// The source; it starts with "estimate" if it is estimated.
    pub source: String,
}

/// A graphics processor or accelerator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuPart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The family.
    pub family: Family,
    /// The year of the launch.
    pub year: Option<u32>,
    /// The mounting.
    pub form: Form,
    /// The widths of a slot that a card takes; 0 for modules.
    #[serde(default)]
    pub slots: u32,
    /// The memory as it is sold.
    pub memory: Text<Bytes>,
    /// The memory that error correction, contexts and libraries take; by default 1 GiB.
    pub reserved: Option<Text<Bytes>>,
    /// The bandwidth of the memory.
    pub memory_bandwidth: Text<BytesPerSecond>,
    /// The bus of the memory.
    pub bus: Option<BusFile>,
    /// Dense arithmetic rates, with f32 accumulation.
    pub peak: Peak,
    /// The best measured matmul.
    pub measured_matmul: Option<MatmulFile>,
    /// The efficiency of operations relative to the peaks.
    pub efficiency: Option<EfficiencyFile>,
    /// The connector to the host.
    pub pcie: PcieFile,
    /// The links to other GPUs, all of them and both directions together.
    pub link: Option<Text<BytesPerSecond>>,
    /// Whether other GPUs can read its memory over PCIe; by default they can.
    pub peer_access: Option<bool>,
    /// The power.
    pub power: GpuPowerFile,
    /// Rules that this part breaks rightly.
    #[serde(default)]
    pub exception: Vec<ExceptionFile>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures, separated by semicolons; with "estimate" where one is estimated.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// The memory controller of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ControllerFile {
    /// The kind of modules.
    pub kind: DramKind,
    /// The channels of one CPU.
    pub channels: u32,
    /// The rate with one module per channel.
    pub rate: Option<Text<Transfers>>,
    /// The rate with two modules per channel.
    pub two_per_channel: Option<Text<Transfers>>,
    /// The bandwidth, where it does not follow from channels and rate.
    pub bandwidth: Option<Text<BytesPerSecond>>,
    /// The largest module.
    pub largest_module: Option<Text<Bytes>>,
    /// The memory that is soldered beside the CPU.
    pub soldered: Option<Text<Bytes>>,
    /// The source; it starts with "estimate" if it is estimated.
    pub source: String,
}

/// The lanes of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LanesFile {
    /// The generation.
    pub generation: u32,
    /// The lanes for cards and drives.
    pub lanes: u32,
    /// The bandwidth between all lanes of a CPU and its DRAM, in each direction.
    pub host_bandwidth: Text<BytesPerSecond>,
    /// The source; it starts with "estimate" if it is estimated.
    pub source: String,
}

/// The power of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuPowerFile {
    /// The rated power.
    pub board: Text<Watts>,
    /// The power of an idle CPU.
    pub idle: Text<Watts>,
    /// The source; it starts with "estimate" if it is estimated.
    pub source: String,
}

/// A CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlatformPart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The class.
    pub form: PlatformForm,
    /// The socket, which a board names too.
    pub socket: String,
    /// The most of them on one board.
    pub most_sockets: u32,
    /// The cores of one CPU.
    pub cores: u32,
    /// The arithmetic rates of all its cores.
    pub peak: Peak,
    /// Vector and matrix instructions.
    #[serde(default)]
    pub vector_extensions: Vec<VectorExtension>,
    /// The memory controller.
    pub memory: ControllerFile,
    /// The lanes.
    pub pcie: LanesFile,
    /// The power.
    pub power: CpuPowerFile,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices of one CPU.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A memory module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DramPart {
    /// The name in the catalogue.
    pub name: String,
    /// The kind.
    pub kind: DramKind,
    /// The capacity.
    pub capacity: Text<Bytes>,
    /// The highest rate.
    pub rate: Text<Transfers>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices of one module.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A solid-state drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DrivePart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The capacity.
    pub capacity: Text<Bytes>,
    /// The bandwidth of large sequential reads.
    pub read: Text<BytesPerSecond>,
    /// The bandwidth of sustained sequential writes.
    pub write: Text<BytesPerSecond>,
    /// The connector.
    pub pcie: PcieFile,
    /// The bytes that may be written before the warranty ends.
    pub written: Option<Text<Bytes>>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A price that is a share of the price of a board's GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ShareFile {
    /// The lowest share.
    pub low: f64,
    /// The typical share.
    pub typical: f64,
    /// The highest share.
    pub high: f64,
    /// The date of the estimate.
    pub date: Date,
    /// The source.
    pub source: String,
}

/// A board with chassis and cooler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BoardPart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The sockets that it takes.
    pub sockets: Vec<String>,
    /// The number of CPUs, all of which are mounted.
    pub socket_count: u32,
    /// The memory modules of each channel.
    pub modules_per_channel: u32,
    /// The mounting of its GPUs.
    pub gpu_form: Form,
    /// The GPUs that it takes, where it takes no others.
    #[serde(default)]
    pub takes: Vec<String>,
    /// The most GPUs.
    pub gpu_slots: u32,
    /// The numbers of GPUs that it takes, where not all up to the most are possible.
    #[serde(default)]
    pub gpu_counts: Vec<u32>,
    /// The widths of all slots together.
    pub slot_widths: u32,
    /// The slots for network cards that take none from GPUs.
    #[serde(default)]
    pub network_slots: u32,
    /// How its GPUs are joined beside PCIe.
    pub fabric: Option<Fabric>,
    /// The generation of its slots.
    pub pcie_generation: u32,
    /// The slots for drives.
    pub m2: u32,
    /// The power of the machine without its GPUs, while its CPUs idle.
    pub power: Text<Watts>,
    /// The supply that its price includes.
    pub supply: Option<Text<Watts>>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
    /// Its price as a share of the price of its GPUs, instead of a price.
    pub share_of_gpus: Option<ShareFile>,
}

/// A bridge between cards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BridgePart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The cards that it joins.
    pub joins: Vec<String>,
    /// The most cards that one bridge joins.
    pub gpus: u32,
    /// The bandwidth of a card, both directions together.
    pub bandwidth: Text<BytesPerSecond>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A power supply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SupplyPart {
    /// The name in the catalogue.
    pub name: String,
    /// The rated power.
    pub power: Text<Watts>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A machine by the hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RentPart {
    /// The name in the catalogue.
    pub name: String,
    /// Its GPUs.
    pub gpu: String,
    /// Their number.
    pub gpus: u32,
    /// Its CPU.
    pub platform: String,
    /// Its memory.
    pub dram: Text<Bytes>,
    /// Whose price it has.
    pub kind: RentKind,
    /// The unit that an hour is paid for.
    pub per: Per,
    /// The network that joins several of them; none if they are rented one by one.
    pub network: Option<RentedNetworkFile>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices of an hour.
    pub hour: Vec<HourFile>,
}

impl GpuPart {
    /// Returns the rate of 16-bit matmuls: bf16, or f16 where there is no bf16.
    pub fn sixteen_bit(&self) -> Option<FlopsPerSecond> {
        [DataType::Bf16, DataType::F16].iter().find_map(|kind| self.peak.get(kind)).map(|rate| rate.0)
    }
}

/// Returns the JSON schema of catalogue files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(CatalogueFile)
}

/// A part as a row of a list: what it is, its name, and a price of some condition.
pub(crate) trait Priced {
    /// The name of the part.
    fn name(&self) -> &str;
    /// Its prices.
    fn prices(&self) -> &[PriceFile];
    /// The date and source of its figures.
    fn provenance(&self) -> (Date, &str);
}

macro_rules! priced {
    ($($type:ident),+) => {$(
        impl Priced for $type {
            fn name(&self) -> &str {
                &self.name
            }

            fn prices(&self) -> &[PriceFile] {
                &self.price
            }

            fn provenance(&self) -> (Date, &str) {
                (self.date, &self.source)
            }
        }
    )+};
}

priced!(GpuPart, PlatformPart, DramPart, DrivePart, BoardPart, BridgePart, SupplyPart);
priced!(NetworkCardPart, NetworkSwitchPart, CablePart);

/// Returns whether a part has a price in this condition.
pub(crate) fn sold(part: &impl Priced, condition: Condition) -> bool {
    part.prices().iter().any(|price| price.condition == condition)
}
