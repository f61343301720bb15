//! Orders: the sequence of forwards and backwards of each device.

mod automatic;
mod choose;
mod grid;
mod grouped;
mod in_flight;
mod interleaved;
mod offload;
mod slots;
mod stage_times;
mod systems;
mod text;
mod timing;
mod turns;
mod v_shape;
mod validate;
mod zero_bubble;

pub use automatic::automatic;
pub use choose::order_of;
pub(crate) use grid::{Grid, PassGrid};
pub use grouped::{gis, gis_warning, uniform};
pub use in_flight::in_flight;
pub use interleaved::interleaved;
pub use offload::{Barrier, Offloading, Step, offloaded, offloaded_with_stage_times};
pub(crate) use slots::slots_of;
pub use stage_times::StageTimes;
pub use systems::{gpipe, one_forward_one_backward};
pub use text::{Skipped, Word};
pub use v_shape::{v_half, v_min, v_of_stages, zb_v};
pub use zero_bubble::{zb_h1, zb_h2};

use spipe_base::{Diagnostic, Faults, MicrobatchId, StageId};
use std::{collections::BTreeMap, fmt};

/// A computation of a stage on one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// `F`: forward.
    Forward,
    /// `B`: the fused backward.
    Backward,
    /// `I`: the backward-input, which computes the gradient of the input.
    BackwardInput,
    /// `W`: the backward-weight, which computes the gradients of the weights.
    BackwardWeight,
}

impl Pass {
    /// The letter of the pass in PyTorch's notation.
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::BackwardInput => 'I',
            Self::BackwardWeight => 'W',
        }
    }
}

/// One entry of an order, written `2F0`: stage, pass, microbatch.
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
        let (stage, letter, microbatch) = (self.stage.index(), self.pass.letter(), self.microbatch.index());
        if f.width().is_none() {
            return write!(f, "{stage}{letter}{microbatch}");
        }
        f.pad(&format!("{stage}{letter}{microbatch}"))
    }
}

/// The tokens of every device in execution order. The text form has one line per device and
/// round-trips.
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
    /// The forwards that are one action with the backward behind them, and that backward.
    overlapped: BTreeMap<Token, Token>,
}

impl Order {
    /// An order with one list of tokens per device.
    pub const fn new(devices: Vec<Vec<Token>>) -> Self {
        Self { devices, overlapped: BTreeMap::new() }
    }

    /// The pairs of a forward and the backward behind it that are one action (`OVERLAP_F_B`), which
    /// starts when the inputs of both have arrived and takes as long as both.
    pub fn overlapped(&self) -> impl Iterator<Item = [Token; 2]> {
        let pairs = self.devices.iter().flat_map(|tokens| tokens.windows(2).map(|pair| [pair[0], pair[1]]));
        pairs.filter(|[first, next]| self.overlaps(first, Some(next)))
    }

    /// Whether a token and the one behind it are one action.
    fn overlaps(&self, first: &Token, next: Option<&Token>) -> bool {
        next.is_some() && self.overlapped.get(first) == next
    }

    /// The same order on as many devices, stages and microbatches again, `times` times in all.
    pub(crate) fn repeated(&self, times: usize) -> Self {
        let (stages, microbatches) = (self.stages(), self.microbatches());
        let turn = |turn: usize| {
            let moved = move |token: &Token| {
                let (stage, microbatch) = (token.stage.index(), token.microbatch.index());
                Token::new(stage + turn * stages, token.pass, microbatch + turn * microbatches)
            };
            self.devices.iter().map(move |tokens| tokens.iter().map(moved).collect::<Vec<_>>())
        };
        Self::new((0..times).flat_map(turn).collect())
    }

    /// The tokens of each device.
    pub fn devices(&self) -> &[Vec<Token>] {
        &self.devices
    }

    /// The number of stages: one more than the largest stage id.
    pub fn stages(&self) -> usize {
        self.tokens().map(|token| token.stage.index() + 1).max().unwrap_or(0)
    }

    /// The number of microbatches: one more than the largest microbatch id.
    pub fn microbatches(&self) -> usize {
        self.tokens().map(|token| token.microbatch.index() + 1).max().unwrap_or(0)
    }

    /// The device of `stage`, if the order has it.
    pub fn device_of(&self, stage: StageId) -> Option<usize> {
        self.devices.iter().position(|tokens| tokens.iter().any(|token| token.stage == stage))
    }

    fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.devices.iter().flatten()
    }
}

/// Refuses amounts of zero, with one fault each.
fn at_least_one(amounts: &[(&str, usize)]) -> Result<(), Faults> {
    let mut faults = Faults::new();
    for (name, _) in amounts.iter().filter(|(_, amount)| *amount == 0) {
        faults.push(Diagnostic::error(format!("the number of {name} is zero")).hint("use at least 1"));
    }
    faults.or(())
}
