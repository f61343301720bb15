//! Quantities with units, typed ids, the vocabulary of actions, and diagnostics, shared by all
//! other crates.
//!
//! ```text
//! quantity    Bytes  Flops  Seconds  SimTime  Text<T>
//!             BytesPerSecond  FlopsPerSecond  ParamsPerSecond
//! id          LayerId  DeviceId  NodeId  TeamId  MemoryId  LinkId  LaneId  StageId  MicrobatchId
//!             BufferId  ActionId  LayerRange  IdVec<I, T>
//! action      ActionKind  Payload  Collective  LaneRole  Subject  IdleCause
//! data type   DataType
//! fold        Fold: a device that stands for others
//! diagnostic  Diagnostic  Faults  Position
//! readable    percentages, counts, rates and ranges of names for people
//! ```
//!
//! Quantities refuse invalid values. Only the operations with a physical meaning exist:
//!
//! ```
//! use spipe_base::{Bytes, BytesPerSecond, SimTime};
//!
//! let boundary = Bytes::new(8 * 2048 * 4096 * 2);
//! let pcie4 = BytesPerSecond::gb(32.0);
//! assert_eq!(SimTime::from_seconds(boundary / pcie4), SimTime::ns(4_194_304));
//! assert_eq!("128 MiB".parse::<Bytes>(), Ok(boundary));
//! assert!("128".parse::<Bytes>().is_err(), "a size without a unit is refused");
//! ```

mod action;
mod bytes;
mod data_type;
mod diagnostic;
mod fold;
mod id;
mod parse;
mod quantity;
pub mod readable;
mod text;
mod time;

pub use action::{ActionKind, Collective, IdleCause, LaneRole, Payload, Subject, UnknownWord};
pub use bytes::Bytes;
pub use data_type::DataType;
pub use diagnostic::{Diagnostic, Faults, Position, Severity, position_of, similar_word, words_of};
pub use fold::Fold;
pub use id::{
    ActionId, BufferId, DeviceId, IdVec, LaneId, LayerId, LayerRange, LinkId, MemoryId, MicrobatchId, NodeId,
    ParseRangeError, StageId, TeamId,
};
pub use parse::ParseQuantityError;
pub use quantity::{BytesPerSecond, Flops, FlopsPerSecond, ParamsPerSecond, Seconds};
pub use text::{Exact, Text};
pub use time::SimTime;
