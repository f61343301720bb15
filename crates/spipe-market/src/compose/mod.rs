//! Machines composed of parts, under rules that have names.
//!
//! ```text
//! Choice ─► rules, board, network, supply ─► Composed ─┬─ hardware  an ordinary hardware file
//!                                                      ├─ items     what to buy
//!                                                      └─ power     what it draws
//! ```

mod board;
mod choice;
mod machine;
mod network;
mod rented;
mod rules;

pub use choice::{Choice, Cluster, count_of};
pub use rented::compose_rented;
pub use rules::{COMPOSITION_RULES, Illegal};

use crate::{Catalogue, Kind, Watts};
use machine::Layout;
use network::{Cards, Network};
use spipe_base::Diagnostic;
use spipe_hardware::HardwareFile;

/// The share of the rated power of all parts that a supply must exceed their sum by. Estimate:
/// cards exceed their rated power for milliseconds.
pub(crate) const SUPPLY_SHARE: f64 = 1.25;

/// The power of supplies from which a machine needs a second circuit: 230 V and 16 A at three quarters of
/// the fuse.
pub const CIRCUIT: f64 = 2800.0;

/// The reason why parts make no machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ComposeError {
    /// The catalogue has no such part.
    #[error("{0}")]
    Unknown(Diagnostic),
    /// A rule is broken.
    #[error(transparent)]
    Illegal(#[from] Illegal),
}

impl ComposeError {
    /// Returns the name of the broken rule, or `unknown-part`.
    pub const fn rule(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown-part",
            Self::Illegal(illegal) => illegal.rule,
        }
    }

    /// Returns the error as a diagnostic.
    pub fn diagnostic(&self) -> Diagnostic {
        match self {
            Self::Unknown(diagnostic) => diagnostic.clone(),
            Self::Illegal(illegal) => Diagnostic::error(illegal.to_string()).hint(illegal.hint.clone()),
        }
    }
}

/// A number of equal parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: String,
    /// How many.
    pub count: u32,
}

/// The power that a machine draws at the wall.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Without GPUs, while the CPUs idle.
    pub base: Watts,
    /// Of one idle GPU.
    pub gpu_idle: Watts,
    /// Of one busy GPU.
    pub gpu_busy: Watts,
    /// The number of GPUs.
    pub gpus: u32,
    /// The power that all cores add while they are busy.
    pub cores_busy: Watts,
    /// The rated power of all GPUs and CPUs.
    pub rated: Watts,
}

impl Power {
    /// Returns the power of equal machines.
    pub fn times(self, machines: u32) -> Self {
        let all = f64::from(machines);
        let Self { base, gpus, cores_busy, rated, .. } = self;
        Self { base: base * all, gpus: gpus * machines, cores_busy: cores_busy * all, rated: rated * all, ..self }
    }

    /// Returns the power while GPUs and cores are busy for these shares of the time:
    /// `base + GPUs × (idle + share × (busy − idle)) + share × cores`.
    pub fn at(&self, gpu_share: f64, core_share: f64) -> Watts {
        let (idle, busy) = (self.gpu_idle.get(), self.gpu_busy.get());
        let gpus = f64::from(self.gpus) * (idle + gpu_share.clamp(0.0, 1.0) * (busy - idle));
        Watts::new(self.base.get() + gpus + core_share.clamp(0.0, 1.0) * self.cores_busy.get())
    }
}

/// A machine with the parts that it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Composed {
    /// A name made of the parts.
    pub name: String,
    /// The choice, with its board, its supply and its network.
    pub choice: Choice,
    /// The number of equal computers.
    pub nodes: u32,
    /// The parts to buy.
    pub items: Vec<Item>,
    /// The machine as an ordinary profile.
    pub hardware: HardwareFile,
    /// Its power.
    pub power: Power,
    /// The lanes of each GPU.
    pub lanes: u32,
    /// The assumptions that are no figures: lanes, copies between GPUs, circuits.
    pub notes: Vec<String>,
}

/// Composes a machine. A board and supplies that are not chosen are picked: the smallest board that
/// takes the parts, and the smallest sufficient supplies. Several computers are equal, with a network between them.
///
/// # Errors
/// An unknown part, or the first broken rule.
pub fn compose(catalogue: &Catalogue, choice: &Choice) -> Result<Composed, ComposeError> {
    let parts = choice::Parts::find(catalogue, choice)?;
    rules::modules(&parts)?;
    rules::bridge(&parts)?;
    let board = board::pick(catalogue, choice, &parts)?;
    let lanes = rules::lanes(&parts, board)?;
    let cards = network::cards(&parts, board, lanes)?;
    let network = cards.as_ref().map(|cards| Network::of(catalogue, cards)).transpose()?;
    let draws = cards.as_ref().map_or_else(Watts::default, Cards::power);
    let supply = board::supply(catalogue, choice, &parts, (board, draws))?;
    let layout = Layout { parts: &parts, board, lanes };
    let mut complete = choice.clone();
    complete.board = Some(board.name.clone());
    complete.supply = supply.as_ref().map(|(count, part)| (*count, part.name.clone()));
    complete.cluster = network.as_ref().map(Network::chosen);
    let items = complete.items(board.socket_count);
    let name = complete.name();
    let hardware = layout.hardware(&name, &items);
    let power = rules::power(&parts, board);
    let notes = layout.notes(rules::demand(&parts, board, draws));
    let one = Composed { name, choice: complete, nodes: 1, items, hardware, power, lanes, notes };
    Ok(match network {
        Some(network) => network.joined(one, &layout),
        None => one,
    })
}

impl Composed {
    /// Returns the part names with their numbers, such as "2 x rtx3090".
    pub fn parts(&self) -> Vec<String> {
        self.items.iter().map(|item| format!("{} x {}", item.count, item.name)).collect()
    }
}
