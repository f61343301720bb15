//! Boundary slots: the outputs of a stage that may be on their way to another device at once.

use super::{Order, Pass, Token};

/// Double buffering: one output is copied while the next one is computed.
const DOUBLE_BUFFERING: usize = 2;

/// The outputs of one stage in one direction.
#[derive(Clone, Default)]
struct Outputs {
    /// In order.
    microbatches: Vec<usize>,
    /// By microbatch, its index in `microbatches`.
    places: Vec<Option<usize>>,
    /// The number of outputs whose computation has started.
    begun: usize,
}

impl Outputs {
    fn push(&mut self, microbatch: usize) {
        if self.places.len() <= microbatch {
            self.places.resize(microbatch + 1, None);
        }
        self.places[microbatch] = Some(self.microbatches.len());
        self.microbatches.push(microbatch);
    }

    fn place(&self, microbatch: usize) -> Option<usize> {
        self.places.get(microbatch).copied().flatten()
    }
}

/// The least power of two of slots per boundary with which `order` does not deadlock: two, unless a
/// device runs far ahead of its neighbour.
///
/// With n slots a computation starts once the output n before its own has been copied, and that
/// copy ends once the computation n − 1 before its consumer has started.
pub(crate) fn slots_of(order: &Order) -> usize {
    let mut slots = DOUBLE_BUFFERING;
    while slots < 2 * order.microbatches() && !completes(order, slots) {
        slots *= 2;
    }
    slots
}

/// Whether `order` runs to its end with `slots` slots per boundary.
fn completes(order: &Order, slots: usize) -> bool {
    let mut outputs: [Vec<Outputs>; 2] = std::array::from_fn(|_| vec![Outputs::default(); order.stages()]);
    for token in order.devices().iter().flatten() {
        if let Some(direction) = direction_of(token) {
            outputs[direction][token.stage.index()].push(token.microbatch.index());
        }
    }
    let home: Vec<Option<usize>> = (0..order.stages()).map(|stage| order.device_of(stage.into())).collect();
    let mut next = vec![0; order.devices().len()];
    loop {
        let mut moved = false;
        for (device, tokens) in order.devices().iter().enumerate() {
            while let Some(token) = tokens.get(next[device]).filter(|token| may_begin(token, (&outputs, &home), slots))
            {
                if let Some(direction) = direction_of(token) {
                    outputs[direction][token.stage.index()].begun += 1;
                }
                next[device] += 1;
                moved = true;
            }
        }
        if !moved {
            return order.devices().iter().zip(next).all(|(tokens, next)| tokens.len() == next);
        }
    }
}

/// The direction of a token's output: 0 for activations, 1 for gradients of inputs. Gradients of
/// weights are not passed on.
fn direction_of(token: &Token) -> Option<usize> {
    match token.pass {
        Pass::Forward => Some(0),
        Pass::Backward | Pass::BackwardInput => Some(1),
        Pass::BackwardWeight => None,
    }
}

/// Whether the input of `token` has been made and its output has a slot.
fn may_begin(token: &Token, (outputs, home): (&[Vec<Outputs>; 2], &[Option<usize>]), slots: usize) -> bool {
    let (Some(direction), stage) = (direction_of(token), token.stage.index()) else { return true };
    let (before, behind) = (stage.checked_sub(1), Some(stage + 1).filter(|behind| *behind < home.len()));
    let (from, to) = if direction == 0 { (before, behind) } else { (behind, before) };
    let made = from.is_none_or(|from| {
        let from = &outputs[direction][from];
        from.place(token.microbatch.index()).is_none_or(|index| index < from.begun)
    });
    let own = &outputs[direction][stage];
    let leaves = |to: usize| {
        let leaving = own.begun.checked_sub(slots).map(|index| own.microbatches[index]);
        let user = leaving.and_then(|microbatch| outputs[direction][to].place(microbatch));
        user.and_then(|user| user.checked_sub(slots - 1)).is_none_or(|other| other < outputs[direction][to].begun)
    };
    made && to.filter(|to| home[*to] != home[stage]).is_none_or(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_forward_one_backward;

    #[test]
    fn a_device_that_runs_ahead_needs_more_than_two_slots() {
        assert_eq!(slots_of(&one_forward_one_backward(4, 8, &[0; 4])), 2);
        // Stage 0 makes six outputs before stage 2, on its device, consumes the first. Stage 1
        // makes no second output before the first has been consumed by stage 3.
        let order: Order =
            "0F0,0F1,0F2,0F3,0F4,0F5,2F0,2F1,2F2,2F3,2F4,2F5\n1F0,3F0,1F1,3F1,1F2,3F2,1F3,3F3,1F4,3F4,1F5,3F5\n"
                .parse()
                .unwrap();
        assert_eq!(slots_of(&order), 4);
    }
}
