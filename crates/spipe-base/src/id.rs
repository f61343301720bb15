//! Typed ids, each printed with its letter, and vectors that only their own id type can index.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    borrow::Cow,
    fmt,
    marker::PhantomData,
    num::NonZeroU32,
    ops::{Index, IndexMut},
    str::FromStr,
};

/// The number of an id. It leaves one number of 32 bits free, so that an `Option` of an id is no
/// larger than the id: there are programs of millions of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Number(NonZeroU32);

impl Number {
    const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::MIN.checked_add(number) {
            Some(next) => Some(Self(next)),
            None => None,
        }
    }

    const fn get(self) -> u32 {
        self.0.get() - 1
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.get())
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        Self::new(number).ok_or_else(|| serde::de::Error::custom(format!("{number} is too large for an id")))
    }
}

impl schemars::JsonSchema for Number {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        u32::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        u32::json_schema(generator)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $letter:literal),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Number);

        impl $name {
            /// Creates the id with this number.
            ///
            /// # Panics
            /// For the largest number of 32 bits, which no id has.
            pub const fn new(number: u32) -> Self {
                match Number::new(number) {
                    Some(number) => Self(number),
                    None => panic!("a number is too large for an id"),
                }
            }

            /// Returns its number, counted from zero.
            pub const fn index(self) -> usize {
                self.0.get() as usize
            }
        }

        impl From<usize> for $name {
            fn from(number: usize) -> Self {
                match u32::try_from(number).ok().and_then(Number::new) {
                    Some(number) => Self(number),
                    None => panic!("{number} is too large for an id"),
                }
            }
        }

        impl From<$name> for usize {
            fn from(id: $name) -> usize {
                id.index()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $letter, self.0.get())
            }
        }
    )+};
}

ids! {
    /// A layer of the model, in model order.
    LayerId "l",
    /// A device that computes: a GPU or a CPU socket.
    DeviceId "d",
    /// Devices that run a stage together, named after the first of them: a device belongs to one team.
    TeamId "t",
    /// A computer of a machine that may have several, joined by a network.
    NodeId "n",
    /// A memory of the machine.
    MemoryId "r",
    /// One direction of a link, or the channels of a memory; flows share its bandwidth.
    LinkId "k",
    /// An in-order queue of actions on the machine.
    LaneId "q",
    /// A stage of the pipeline, in model order.
    StageId "s",
    /// A microbatch of an iteration.
    MicrobatchId "m",
    /// A buffer of a program.
    BufferId "b",
    /// An action of a program.
    ActionId "a",
}

impl TeamId {
    /// The team whose first device is `device`.
    pub const fn led_by(device: DeviceId) -> Self {
        Self(device.0)
    }

    /// Its first device.
    pub const fn lead(self) -> DeviceId {
        DeviceId(self.0)
    }
}

/// A vector indexed by one type of id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    id: PhantomData<fn(I)>,
}

impl<I, T> Default for IdVec<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), id: PhantomData }
    }
}

impl<I: From<usize> + Into<usize>, T> IdVec<I, T> {
    /// Creates an empty vector.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an element and returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::from(self.items.len() - 1)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Iterates over the elements in the order of their ids.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Iterates over the elements mutably, in the order of their ids.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Iterates over the elements with their ids.
    pub fn enumerate(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, item)| (I::from(index), item))
    }

    /// Iterates over the ids, ascending.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::from)
    }

    /// Returns the element with this id, if there is one.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.into())
    }

    /// Returns the elements as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }
}

impl<I: Into<usize>, T> Index<I> for IdVec<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.items[id.into()]
    }
}

impl<I: Into<usize>, T> IndexMut<I> for IdVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.into()]
    }
}

impl<I, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(items: It) -> Self {
        Self { items: items.into_iter().collect(), id: PhantomData }
    }
}

impl<I, T> IntoIterator for IdVec<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, I, T> IntoIterator for &'a IdVec<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

/// The layers `first..last`, both included, as in files and reports; or none, behind a layer: then
/// `last` is the layer before `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerRange {
    first: LayerId,
    last: LayerId,
}

/// The error of a text that is not a range of layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a range of layers (write the first and the last, both included, like \"0..3\")")]
pub struct ParseRangeError(String);

impl LayerRange {
    /// Formats the range for a sentence: `layer 4`, `layers 0..3`.
    pub fn in_words(self) -> String {
        match self.count() {
            0 => "no layers".into(),
            1 => format!("layer {}", self.first.index()),
            _ => format!("layers {self}"),
        }
    }

    /// Creates the range from `first` to `last`, both included; `None` if `last` comes before
    /// `first`.
    pub fn new(first: LayerId, last: LayerId) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Creates the range of no layers behind `last`: that of a stage which passes on what it receives.
    pub const fn empty_behind(last: LayerId) -> Self {
        Self { first: LayerId::new(last.0.get() + 1), last }
    }

    /// Whether no layer belongs to the range.
    pub fn is_empty(self) -> bool {
        self.last < self.first
    }

    /// The first layer.
    pub const fn first(self) -> LayerId {
        self.first
    }

    /// The last layer, which belongs to the range; of an empty one, the layer before it.
    pub const fn last(self) -> LayerId {
        self.last
    }

    /// Returns the number of layers.
    pub const fn count(self) -> usize {
        self.last.index() + 1 - self.first.index()
    }

    /// Whether `layer` belongs to the range.
    pub fn contains(self, layer: LayerId) -> bool {
        self.first <= layer && layer <= self.last
    }

    /// Iterates over the layers, ascending.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = LayerId> + Clone {
        (self.first.index()..=self.last.index()).map(LayerId::from)
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first.index(), self.last.index())
    }
}

impl FromStr for LayerRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let range = || {
            let (first, last) = text.split_once("..").unwrap_or((text, text));
            let layer = |text: &str| text.trim().parse().ok().and_then(Number::new).map(LayerId);
            Self::new(layer(first)?, layer(last)?)
        };
        range().ok_or_else(|| ParseRangeError(text.into()))
    }
}

impl TryFrom<String> for LayerRange {
    type Error = ParseRangeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<LayerRange> for String {
    fn from(range: LayerRange) -> String {
        range.to_string()
    }
}

impl schemars::JsonSchema for LayerRange {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LayerRange".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+\\.\\.[0-9]+$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends_and_round_trip() {
        let range: LayerRange = "0..3".parse().unwrap();
        assert_eq!((range.count(), range.to_string()), (4, "0..3".into()));
        assert!(range.contains(LayerId::new(3)) && !range.contains(LayerId::new(4)));
        assert_eq!("7".parse::<LayerRange>().unwrap().count(), 1);
        assert!("3..0".parse::<LayerRange>().is_err());
    }

    #[test]
    fn ids_print_their_letter() {
        assert_eq!(format!("{} {} {}", StageId::new(2), MicrobatchId::new(5), LayerId::new(12)), "s2 m5 l12");
    }
}
