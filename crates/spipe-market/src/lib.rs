//! Parts of machines with dated prices, the machines composed of them, and the cost of a job.
//!
//! ```text
//! catalogue files ──► Catalogue ──compose──► Composed ─┬─ an ordinary hardware profile
//!        │                                             ├─ a dated range of prices
//!      check                                           └─ the power at the wall
//! ```
//!
//! Nothing here plans: how long a job takes is an argument of its cost. Ages of prices count up to a
//! date that the caller states; nothing reads the clock or a network.
//!
#![doc = include_str!("../README.md")]

mod catalogue;
mod check;
mod compose;
mod cost;
mod date;
mod file;
mod money;
mod network;
mod pcie;
mod price;
mod shipped;
mod unit;
mod words;

pub use catalogue::{Catalogue, Kind, Part, Source};
pub use check::{RULES, TOLERANCE, check, check_fitting};
pub use compose::{
    CIRCUIT, COMPOSITION_RULES, Choice, Cluster, ComposeError, Composed, Illegal, Item, Power, compose, compose_rented,
    count_of,
};
pub use cost::{HOURS_PER_YEAR, MachinePrice, Ownership, Unpriced, job_cost, price, rent_hour};
pub use date::{Date, DateError};
pub use file::{
    BoardPart, BridgePart, BusFile, CatalogueFile, ControllerFile, CpuPowerFile, DramPart, DrivePart, ExceptionFile,
    GpuPart, GpuPowerFile, LanesFile, MatmulFile, PlatformPart, RentPart, ShareFile, SupplyPart, schema,
};
pub use money::{Currency, Money, MoneyError, Range, RateFile, Rates};
pub use network::{CablePart, NetworkCardPart, NetworkSwitchPart, RentedNetworkFile};
pub use pcie::PcieFile;
pub use price::{Condition, Dated, HourFile, OLD, PriceFile, STALE, WIDENED, current, in_condition};
pub use shipped::shipped;
pub use unit::{Transfers, UnitError, Watts};
pub use words::{DramKind, Fabric, Family, Form, NetworkKind, Per, PlatformForm, RentKind};
