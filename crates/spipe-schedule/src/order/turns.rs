//! Turns: maximal runs of adjacent stages on one device, which orders of one stage per device treat
//! as one stage.

use super::{Order, Pass, StageTimes, Token};
use crate::work::StageWork;
use spipe_base::{Seconds, SimTime, StageId};
use spipe_plan::{Context, Placement};

/// The stages of each turn of `placement`.
pub(super) fn turns(placement: &Placement) -> Vec<Vec<StageId>> {
    let ids: Vec<StageId> = placement.stages.ids().collect();
    let device = |id: &StageId| placement.stages[*id].lead();
    ids.chunk_by(|one, next| device(one) == device(next)).map(<[StageId]>::to_vec).collect()
}

/// The order of stages for an order of turns. A forward goes through the stages of its turn, a
/// backward back through them.
pub(super) fn expand(order: &Order, turns: &[Vec<StageId>]) -> Order {
    let tokens = |token: &Token| -> Vec<Token> {
        let one = |stage: &StageId| Token { stage: *stage, ..*token };
        let stages = turns[token.stage.index()].iter();
        if token.pass == Pass::Forward { stages.map(one).collect() } else { stages.rev().map(one).collect() }
    };
    Order::new(order.devices().iter().map(|device| device.iter().flat_map(tokens).collect()).collect())
}

/// The times of each turn on one microbatch, recompute included; the latency is that of the copy of
/// its output.
pub(super) fn turn_times(context: &Context<'_>, placement: &Placement, turns: &[Vec<StageId>]) -> Vec<StageTimes> {
    let sum = |turn: &[StageId], part: fn(&StageWork) -> Seconds| {
        let time = turn.iter().map(|stage| part(&StageWork::of(context, &placement.stages[*stage]))).sum();
        SimTime::from_seconds(time)
    };
    let of_turn = |turn: usize| StageTimes {
        forward: sum(&turns[turn], |work| work.forward.0),
        backward_input: sum(&turns[turn], |work| work.recompute.0 + work.backward_input.0),
        backward_weight: sum(&turns[turn], |work| work.backward_weight.0),
        latency: latency(context, placement, turns, turn).unwrap_or_default(),
        // Saved activations are held for both parts of the backward.
        weight_gradient_memory: StageTimes::UNIT.get(),
    };
    (0..turns.len()).map(of_turn).collect()
}

/// The time of a copy of the turn's output to the next turn without contention; `None` for the last
/// turn.
fn latency(context: &Context<'_>, placement: &Placement, turns: &[Vec<StageId>], turn: usize) -> Option<SimTime> {
    let memory = |turn: &[StageId]| context.hardware.devices()[placement.stages[turn[0]].lead()].memory;
    let (here, next) = (turns[turn].as_slice(), turns.get(turn + 1)?);
    let last = &placement.stages[here[here.len() - 1]];
    let bytes = context.cost.memory(last.layers.last(), last.lead()).boundary;
    let route = context.hardware.route(memory(here), memory(next))?;
    let slowest = route.links.iter().map(|link| context.hardware.links()[*link].bandwidth.get());
    let rate = slowest.chain(route.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min);
    let moving = Seconds::new(bytes.as_f64() / rate).unwrap_or(Seconds::ZERO);
    Some(SimTime::from_seconds(route.latency + moving))
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
