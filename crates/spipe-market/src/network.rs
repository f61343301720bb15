//! The tables of parts that join computers.
//!
//! ```text
//! [[network-card]]   NetworkCardPart     one port, in a slot of each computer
//! [[network-switch]] NetworkSwitchPart   ports of one kind and rate
//! [[cable]]          CablePart           joins two ports, with the transceivers at its ends
//! ```

use crate::{Date, NetworkKind, PcieFile, PriceFile, Watts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{BytesPerSecond, Text};

/// A network card with one port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetworkCardPart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The kind of the network.
    pub network: NetworkKind,
    /// The line rate of its port in each direction, such as "400 Gb/s".
    pub rate: Text<BytesPerSecond>,
    /// The connector to the host.
    pub pcie: PcieFile,
    /// The power.
    pub power: Text<Watts>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A switch that carries all of its ports at their rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetworkSwitchPart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The kind of the network.
    pub network: NetworkKind,
    /// The line rate of a port in each direction.
    pub rate: Text<BytesPerSecond>,
    /// The number of ports.
    pub ports: u32,
    /// The power with all ports in use.
    pub power: Text<Watts>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// A cable between two ports, with the transceivers that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CablePart {
    /// The name in the catalogue.
    pub name: String,
    /// The name on the box.
    pub title: Option<String>,
    /// The kind of the network.
    pub network: NetworkKind,
    /// The line rate in each direction.
    pub rate: Text<BytesPerSecond>,
    /// The date of the figures.
    pub date: Date,
    /// The sources of the figures.
    pub source: String,
    /// Prices.
    #[serde(default)]
    pub price: Vec<PriceFile>,
}

/// The network between the machines of one offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RentedNetworkFile {
    /// The cards of one machine.
    pub cards: u32,
    /// The line rate of each card in each direction, such as "400 Gb/s".
    pub rate: Text<BytesPerSecond>,
    /// The source; it starts with "estimate" if it is estimated.
    pub source: String,
}
