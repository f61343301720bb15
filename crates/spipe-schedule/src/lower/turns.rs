//! In which order the devices of a placement take their turns, and how many microbatches that leaves in flight.

use crate::{Order, Pass, Token, system_order};
use spipe_base::{Bytes, Diagnostic, Faults, IdVec, StageId};
use spipe_plan::{Boundary, Context, Dealing, InFlight, Placement, stage_footprint};

/// The order in which `placement` computes: in inference every stage runs its forwards in turn.
///
/// Adjacent stages of one device take their turn together: a forward goes through them all, a backward back through them.
pub fn order_of(context: &Context<'_>, placement: &Placement) -> Result<Order, Faults> {
    let microbatches = context.workload().microbatches as usize;
    match placement.system.dealing() {
        Dealing::Single => Ok(one_turn_per_device(context, placement, microbatches)),
        Dealing::RoundRobin | Dealing::Vee => {
            Err(Diagnostic::error(format!("system `{}` has no lowering", placement.system)).into())
        }
    }
}

fn one_turn_per_device(context: &Context<'_>, placement: &Placement, microbatches: usize) -> Order {
    let turns = turns(placement);
    let reached = placement.stages.enumerate().rfind(|(_, stage)| context.is_cpu(stage.device));
    let reached = reached.map_or(0, |(id, _)| turns.iter().filter(|turn| turn[0] <= id).count());
    let head_starts = vec![placement.knobs.head_start as usize; reached];
    expand(&system_order(placement.system, turns.len(), microbatches, &head_starts), &turns)
}

/// Maximal runs of adjacent stages on one device.
fn turns(placement: &Placement) -> Vec<Vec<StageId>> {
    let ids: Vec<StageId> = placement.stages.ids().collect();
    let device = |id: &StageId| placement.stages[*id].device;
    ids.chunk_by(|one, next| device(one) == device(next)).map(<[StageId]>::to_vec).collect()
}

/// The order of stages from that of turns.
fn expand(order: &Order, turns: &[Vec<StageId>]) -> Order {
    let tokens = |token: &Token| -> Vec<Token> {
        let one = |stage: &StageId| Token { stage: *stage, ..*token };
        let stages = turns[token.stage.index()].iter();
        if token.pass == Pass::Forward { stages.map(one).collect() } else { stages.rev().map(one).collect() }
    };
    Order::new(order.devices().iter().map(|device| device.iter().flat_map(tokens).collect()).collect())
}

/// How many microbatches of each stage are held between forward and backward when its device holds the most bytes.
pub fn in_flight(context: &Context<'_>, placement: &Placement, order: &Order) -> IdVec<StageId, InFlight> {
    let bytes = |id: StageId| {
        let stage = &placement.stages[id];
        stage_footprint(context, stage, InFlight(1), Boundary::around(placement, id)).per_microbatch
    };
    let bytes: IdVec<StageId, Bytes> = placement.stages.ids().map(bytes).collect();
    let mut most: IdVec<StageId, InFlight> = placement.stages.iter().map(|_| InFlight(1)).collect();
    for tokens in order.devices() {
        let mut held: IdVec<StageId, u64> = placement.stages.iter().map(|_| 0).collect();
        let (mut now, mut peak) = (Bytes::ZERO, Bytes::ZERO);
        for token in tokens {
            match token.pass {
                Pass::Forward => {
                    held[token.stage] += 1;
                    now += bytes[token.stage];
                }
                Pass::Backward | Pass::BackwardWeight => {
                    held[token.stage] -= 1;
                    now -= bytes[token.stage];
                }
                Pass::BackwardInput => {}
            }
            if now > peak {
                peak = now;
                for (id, count) in held.enumerate().filter(|(id, _)| tokens.iter().any(|token| token.stage == *id)) {
                    most[id] = InFlight(*count);
                }
            }
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_forward_one_backward;

    #[test]
    fn turns_go_through_the_stages_of_a_device_and_back() {
        let turns = vec![vec![StageId::new(0), StageId::new(1)], vec![StageId::new(2)]];
        let order = expand(&one_forward_one_backward(2, 1, &[]), &turns);
        assert_eq!(order.to_string(), "0F0,1F0,1B0,0B0\n2F0,2B0\n");
        assert_eq!(order.validate(), Ok(()));
    }
}
