//! The microbatches that an order holds.

use super::{Order, Pass, Token, slots_of};
use spipe_base::{Bytes, IdVec, StageId};
use spipe_plan::{Boundary, Context, Held, InFlight, Placement, stage_footprint};

/// The microbatches that each stage holds under `order`.
///
/// [`Held::in_flight`] is taken at the time when the device of the stage holds the most bytes; the
/// other counts are maxima over the iteration.
pub fn in_flight(context: &Context<'_>, placement: &Placement, order: &Order) -> IdVec<StageId, Held> {
    let bytes = |id: StageId| {
        let stage = &placement.stages[id];
        stage_footprint(context, stage, InFlight(1), Boundary::around(placement, id)).per_microbatch
    };
    let bytes: IdVec<StageId, Bytes> = placement.stages.ids().map(bytes).collect();
    let returns = |id: StageId| context.backward_of(placement.stages[id].layers).is_some();
    let none = Held { slots: slots_of(order) as u64, ..Held::from(InFlight(0)) };
    let mut most: IdVec<StageId, Held> = placement.stages.iter().map(|_| none).collect();
    for tokens in order.devices() {
        count_passed_on(tokens, &mut most);
        let mut held: IdVec<StageId, u64> = placement.stages.iter().map(|_| 0).collect();
        let mut halfway = held.clone();
        let (mut now, mut peak) = (Bytes::ZERO, Bytes::ZERO);
        for token in tokens {
            match token.pass {
                Pass::Forward if !returns(token.stage) => {
                    most[token.stage].at_most = 1;
                    most[token.stage].in_flight = InFlight(1);
                }
                Pass::Forward => {
                    held[token.stage] += 1;
                    most[token.stage].at_most = most[token.stage].at_most.max(held[token.stage]);
                    now += bytes[token.stage];
                }
                Pass::BackwardInput => {
                    halfway[token.stage] += 1;
                    most[token.stage].awaiting_weights = most[token.stage].awaiting_weights.max(halfway[token.stage]);
                }
                Pass::Backward | Pass::BackwardWeight => {
                    held[token.stage] -= 1;
                    halfway[token.stage] = halfway[token.stage].saturating_sub(1);
                    now -= bytes[token.stage];
                }
            }
            if now > peak {
                peak = now;
                for (id, count) in
                    held.enumerate().filter(|(id, _)| returns(*id) && tokens.iter().any(|token| token.stage == *id))
                {
                    most[id].in_flight = InFlight(*count);
                }
            }
        }
    }
    most
}

/// Counts how far each stage of a device runs ahead of its neighbour on the same device: in outputs
/// forward, in gradients backward.
fn count_passed_on(tokens: &[Token], most: &mut IdVec<StageId, Held>) {
    let mut forwards: IdVec<StageId, u64> = most.iter().map(|_| 0).collect();
    let mut backwards = forwards.clone();
    for token in tokens {
        let (here, index) = (token.stage, token.stage.index());
        match token.pass {
            Pass::Forward => {
                forwards[here] += 1;
                if let Some(next) = forwards.get(StageId::from(index + 1)) {
                    most[here].outputs = most[here].outputs.max(forwards[here].saturating_sub(*next));
                }
            }
            Pass::Backward | Pass::BackwardInput => {
                backwards[here] += 1;
                if let Some(before) = index.checked_sub(1).and_then(|before| backwards.get(StageId::from(before))) {
                    most[here].gradients = most[here].gradients.max(backwards[here].saturating_sub(*before));
                }
            }
            Pass::BackwardWeight => {}
        }
    }
}
