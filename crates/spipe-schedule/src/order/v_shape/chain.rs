//! The chain of a microbatch's passes, and plans that give each pass a slot.

use crate::order::{Order, Pass, Token};
use std::collections::VecDeque;

/// The forwards of all stages followed by their backward-inputs. A pass of a microbatch waits for
/// its pass at the position before. With S stages, position s < S is the forward of stage s, and
/// position 2S − 1 − s its backward-input.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The device of each stage.
    device_of: Vec<usize>,
    /// The positions on each device, ascending.
    positions: Vec<Vec<usize>>,
    pub microbatches: usize,
}

impl Chain {
    /// Two stages per device, down the devices and up again, so that the first and the last stage
    /// share a device (Qi et al., arXiv 2401.10241, section 6).
    pub fn v_shape(devices: usize, microbatches: usize) -> Self {
        let device_of: Vec<usize> = (0..devices).chain((0..devices).rev()).collect();
        let length = 2 * device_of.len();
        let on = |device| (0..length).filter(|position| device_of[stage(*position, length)] == device).collect();
        let positions = (0..devices).map(on).collect();
        Self { device_of, positions, microbatches }
    }

    pub const fn devices(&self) -> usize {
        self.positions.len()
    }

    /// The number of positions.
    pub const fn len(&self) -> usize {
        2 * self.device_of.len()
    }

    pub const fn is_forward(&self, position: usize) -> bool {
        position < self.device_of.len()
    }

    /// The positions on `device`, ascending.
    pub fn positions(&self, device: usize) -> &[usize] {
        &self.positions[device]
    }

    pub fn stage(&self, position: usize) -> usize {
        stage(position, self.len())
    }

    pub fn device(&self, position: usize) -> usize {
        self.device_of[self.stage(position)]
    }

    pub fn token(&self, position: usize, microbatch: usize) -> Token {
        let pass = if self.is_forward(position) { Pass::Forward } else { Pass::BackwardInput };
        Token::new(self.stage(position), pass, microbatch)
    }
}

fn stage(position: usize, length: usize) -> usize {
    position.min(length - 1 - position)
}

/// A slot of unit time for every pass of a chain, by position and microbatch. Backward-weights are
/// not planned: they run in free slots.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub slots: Vec<Vec<usize>>,
}

/// The use of a slot of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    Forward,
    Backward,
}

impl Plan {
    /// A plan that starts every microbatch `period` slots after the one before, with the passes at
    /// `offsets`.
    pub fn repeat(offsets: &[usize], period: usize, microbatches: usize) -> Self {
        let slots = |offset: &usize| (0..microbatches).map(|microbatch| offset + period * microbatch).collect();
        Self { slots: offsets.iter().map(slots).collect() }
    }

    /// The slots of a device.
    pub fn row(&self, chain: &Chain, device: usize) -> Vec<Slot> {
        let positions = chain.positions(device);
        let length =
            positions.iter().filter_map(|position| self.slots[*position].last()).max().map_or(0, |last| last + 1);
        let mut row = vec![Slot::Free; length];
        for position in positions {
            let taken = if chain.is_forward(*position) { Slot::Forward } else { Slot::Backward };
            for slot in &self.slots[*position] {
                row[*slot] = taken;
            }
        }
        row
    }

    /// The most activations that a device holds if backward-weights run in the first free slots.
    pub fn peak(&self, chain: &Chain) -> usize {
        (0..chain.devices()).map(|device| peak(&self.row(chain, device))).max().unwrap_or(0)
    }

    /// The order of the plan, with backward-weights in the first free slots.
    pub fn order(&self, chain: &Chain) -> Order {
        let device = |device: usize| {
            let mut passes: Vec<(usize, Token)> = Vec::new();
            for position in chain.positions(device) {
                let tokens = (0..chain.microbatches).map(|microbatch| chain.token(*position, microbatch));
                passes.extend(self.slots[*position].iter().copied().zip(tokens));
            }
            passes.sort_unstable();
            let (mut tokens, mut pending, mut slot) = (Vec::new(), VecDeque::new(), 0);
            for (at, token) in passes {
                let free = at.saturating_sub(slot).min(pending.len());
                tokens.extend(pending.drain(..free));
                tokens.push(token);
                slot = at + 1;
                if token.pass == Pass::BackwardInput {
                    pending.push_back(Token { pass: Pass::BackwardWeight, ..token });
                }
            }
            tokens.extend(pending);
            tokens
        };
        Order::new((0..chain.devices()).map(device).collect())
    }

    /// All passes as positions and microbatches, sorted by slot and then by device.
    pub fn passes(&self, chain: &Chain) -> Vec<(usize, usize)> {
        let mut passes: Vec<(usize, usize)> =
            (0..chain.len()).flat_map(|position| (0..chain.microbatches).map(move |at| (position, at))).collect();
        passes.sort_by_key(|(position, microbatch)| (self.slots[*position][*microbatch], chain.device(*position)));
        passes
    }
}

/// The most activations held over a row of slots.
pub(super) fn peak(row: &[Slot]) -> usize {
    let (mut held, mut pending, mut most) = (0, 0, 0);
    for slot in row {
        match slot {
            Slot::Forward => held += 1,
            Slot::Backward => pending += 1,
            Slot::Free if pending > 0 => {
                pending -= 1;
                held -= 1;
            }
            Slot::Free => {}
        }
        most = most.max(held);
    }
    most
}
