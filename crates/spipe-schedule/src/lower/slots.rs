//! How many outputs of a stage may be on their way at once for an order to be kept: two, unless a device runs far ahead of its neighbour.

use crate::{Order, Pass, Token};

/// While one output leaves, the next one is computed.
const DOUBLE_BUFFERING: usize = 2;

/// The outputs of one stage in one direction: the microbatches in order, the place of each, and how many have been begun.
#[derive(Clone, Default)]
struct Way {
    microbatches: Vec<usize>,
    places: Vec<Option<usize>>,
    begun: usize,
}

impl Way {
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

/// The least power of two of outputs, leaving and arriving, with which no device waits for itself. A computation starts once the output so
/// many before its own has left; that arrives once what is one less before its user has begun.
pub(super) fn slots_of(order: &Order) -> usize {
    let mut slots = DOUBLE_BUFFERING;
    while slots < 2 * order.microbatches() && !goes_through(order, slots) {
        slots *= 2;
    }
    slots
}

/// Whether all of `order` can be done with so many slots.
fn goes_through(order: &Order, slots: usize) -> bool {
    let mut ways: [Vec<Way>; 2] = std::array::from_fn(|_| vec![Way::default(); order.stages()]);
    for token in order.devices().iter().flatten() {
        if let Some(way) = way_of(token) {
            ways[way][token.stage.index()].push(token.microbatch.index());
        }
    }
    let home: Vec<Option<usize>> = (0..order.stages()).map(|stage| order.device_of(stage.into())).collect();
    let mut next = vec![0; order.devices().len()];
    loop {
        let mut moved = false;
        for (device, tokens) in order.devices().iter().enumerate() {
            while let Some(token) = tokens.get(next[device]).filter(|token| may_begin(token, (&ways, &home), slots)) {
                if let Some(way) = way_of(token) {
                    ways[way][token.stage.index()].begun += 1;
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

/// Forwards go one way, gradients of inputs the other; those of weights stay.
fn way_of(token: &Token) -> Option<usize> {
    match token.pass {
        Pass::Forward => Some(0),
        Pass::Backward | Pass::BackwardInput => Some(1),
        Pass::BackwardWeight => None,
    }
}

/// Whether what a token needs has been made, and its output has room.
fn may_begin(token: &Token, (ways, home): (&[Vec<Way>; 2], &[Option<usize>]), slots: usize) -> bool {
    let (Some(way), stage) = (way_of(token), token.stage.index()) else { return true };
    let (before, behind) = (stage.checked_sub(1), Some(stage + 1).filter(|behind| *behind < home.len()));
    let (from, to) = if way == 0 { (before, behind) } else { (behind, before) };
    let made = from.is_none_or(|from| {
        let from = &ways[way][from];
        from.place(token.microbatch.index()).is_none_or(|index| index < from.begun)
    });
    let own = &ways[way][stage];
    let leaves = |to: usize| {
        let leaving = own.begun.checked_sub(slots).map(|index| own.microbatches[index]);
        let user = leaving.and_then(|microbatch| ways[way][to].place(microbatch));
        user.and_then(|user| user.checked_sub(slots - 1)).is_none_or(|other| other < ways[way][to].begun)
    };
    made && to.filter(|to| home[*to] != home[stage]).is_none_or(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_forward_one_backward;

    #[test]
    fn neighbours_in_step_need_two_slots_and_one_that_runs_ahead_as_many_as_it_is_ahead() {
        assert_eq!(slots_of(&one_forward_one_backward(4, 8, &[0; 4])), 2);
        // Stage 0 makes six before stage 2, on its device, takes the first; stage 1 makes no second before that has gone on to stage 3.
        let order: Order =
            "0F0,0F1,0F2,0F3,0F4,0F5,2F0,2F1,2F2,2F3,2F4,2F5\n1F0,3F0,1F1,3F1,1F2,3F2,1F3,3F3,1F4,3F4,1F5,3F5\n"
                .parse()
                .unwrap();
        assert_eq!(slots_of(&order), 4);
    }
}
