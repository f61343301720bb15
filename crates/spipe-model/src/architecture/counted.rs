//! Networks that are counted and not planned: encoders with decoders, networks over two streams, and
//! towers of other networks.

/// A network known by the parameters of its parts alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The type of network, such as `t5`.
    pub what: String,
    /// Its parts, in model order.
    pub parts: Vec<CountedPart>,
}

/// Equal parts of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedPart {
    /// Their name. A single part has it; several are named `name.0`, `name.1` ….
    pub name: String,
    /// The number of parts.
    pub count: u64,
    /// The parameters of each.
    pub parameters: u64,
}

impl CountedPart {
    /// Returns the name of each part.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|index| if self.count == 1 { self.name.clone() } else { format!("{}.{index}", self.name) })
    }
}
