//! What each device computes, in which order, and nothing else.

mod automatic;
mod chain;
mod grouped;
mod interleaved;
mod list;
mod offload;
mod switch;
mod systems;
mod text;
mod tighten;
mod timing;
mod v_rounds;
mod v_shape;
mod validate;
mod zero_bubble;

pub use automatic::automatic;
pub use grouped::{gis, gis_warning, uniform};
pub use interleaved::interleaved;
pub use offload::{Barrier, Offloading, Step, offloaded};
pub use systems::{gpipe, one_forward_one_backward, system_order};
pub use v_shape::{v_half, v_min, v_of_stages, zb_v};
pub use zero_bubble::{zb_h1, zb_h2};

use spipe_base::{Diagnostic, Faults, MicrobatchId, StageId};
use std::fmt;

/// Which part of a stage's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// `F`: forward.
    Forward,
    /// `B`: the whole backward.
    Backward,
    /// `I`: the gradient of the input.
    BackwardInput,
    /// `W`: the gradients of the weights.
    BackwardWeight,
}

impl Pass {
    /// Its letter in PyTorch's spelling.
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::BackwardInput => 'I',
            Self::BackwardWeight => 'W',
        }
    }
}

/// One cell of an order, `2F0`: stage, pass, microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The stage.
    pub stage: StageId,
    /// The pass.
    pub pass: Pass,
    /// The microbatch.
    pub microbatch: MicrobatchId,
}

impl Token {
    pub(crate) fn new(stage: usize, pass: Pass, microbatch: usize) -> Self {
        Self { stage: stage.into(), pass, microbatch: microbatch.into() }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}{}", self.stage.index(), self.pass.letter(), self.microbatch.index()))
    }
}

/// The tokens of every device, first to last. Its text has one line per device and round-trips.
///
/// ```
/// use spipe_schedule::Order;
///
/// let order: Order = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n".parse()?;
/// assert_eq!(order, spipe_schedule::one_forward_one_backward(2, 2, &[0, 0]));
/// assert_eq!(order.to_string(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
/// # Ok::<(), spipe_base::Faults>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    devices: Vec<Vec<Token>>,
}

impl Order {
    /// One list of tokens per device.
    pub const fn new(devices: Vec<Vec<Token>>) -> Self {
        Self { devices }
    }

    /// One list of tokens per device.
    pub fn devices(&self) -> &[Vec<Token>] {
        &self.devices
    }

    /// How many stages it has: one more than the largest number.
    pub fn stages(&self) -> usize {
        self.tokens().map(|token| token.stage.index() + 1).max().unwrap_or(0)
    }

    /// How many microbatches it has: one more than the largest number.
    pub fn microbatches(&self) -> usize {
        self.tokens().map(|token| token.microbatch.index() + 1).max().unwrap_or(0)
    }

    /// The device of each stage.
    pub fn device_of(&self, stage: StageId) -> Option<usize> {
        self.devices.iter().position(|tokens| tokens.iter().any(|token| token.stage == stage))
    }

    fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.devices.iter().flatten()
    }
}

/// A fault for every amount that is zero.
fn at_least_one(amounts: &[(&str, usize)]) -> Result<(), Faults> {
    let mut faults = Faults::new();
    for (name, _) in amounts.iter().filter(|(_, amount)| *amount == 0) {
        faults.push(Diagnostic::error(format!("the number of {name} is zero")).hint("use at least 1"));
    }
    faults.or(())
}
