//! The network between equal computers, as files and people write it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{BytesPerSecond, Seconds, Text};

/// The share of a line rate that large messages reach (estimate: InfiniBand with RDMA).
const REACHED: f64 = 0.92;

/// The network between equal computers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetworkFile {
    /// The cards of a computer. With as many as GPUs, each GPU has its own; otherwise they are at the switches or root
    /// complexes of their GPUs.
    pub cards: u32,
    /// The node that each card is at, as it is wired: the names of switches, root complexes, GPUs or DRAMs of one computer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<String>,
    /// The rate that large messages reach over one card.
    pub rate: Text<BytesPerSecond>,
    /// The latency from one computer to another; 5 µs by default (estimate).
    pub latency: Option<Text<Seconds>>,
    /// The rates of all cards of a computer together, relative to its way to the other computers; 1 by default: a switch
    /// that carries all of them.
    pub oversubscription: Option<f64>,
    /// The source of the numbers; it starts with "estimate" if they are estimated.
    pub source: Option<String>,
}

impl NetworkFile {
    /// Returns the rate that large messages reach over a card of this line rate: 92 % of it.
    pub fn reached(line: BytesPerSecond) -> BytesPerSecond {
        line * REACHED
    }

    /// The network of `4x200Gb`: cards per computer and the line rate of each, of which large messages reach 92 %. A rate in
    /// bytes, as in `8x50GB/s`, is the one reached.
    ///
    /// # Errors
    /// The part that is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (cards, rate) = text.split_once(['x', '×']).ok_or_else(|| format!("`{text}` is no network"))?;
        let cards = cards.trim().parse::<u32>().ok().filter(|cards| *cards > 0);
        let cards = cards.ok_or_else(|| format!("the network `{text}` has no cards"))?;
        let bits = rate.trim().trim_end_matches("/s").trim_end_matches("it");
        let rate = match bits.strip_suffix("Gb").and_then(|number| number.trim().parse::<f64>().ok()) {
            Some(gigabits) => BytesPerSecond::new(gigabits * 1e9 / 8.0).map(Self::reached),
            None => rate.trim().parse::<BytesPerSecond>().ok(),
        };
        let rate = rate.ok_or_else(|| format!("the network `{text}` has no rate above zero"))?;
        let source = format!("estimate: {text}, of whose line rate large messages reach 92 %");
        Ok(Self {
            cards,
            at: Vec::new(),
            rate: Text(rate),
            latency: None,
            oversubscription: None,
            source: Some(source),
        })
    }
}
