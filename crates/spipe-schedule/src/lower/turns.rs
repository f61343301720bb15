//! In which order the devices of a placement take their turns, and how many microbatches that leaves in flight.

use super::{
    pipeline::{Times, times},
    slots::slots_of,
};
use crate::{
    Order, Pass, StageTimes, Token, automatic, gis, interleaved, system_order, uniform, v_of_stages, zb_h1, zb_h2,
};
use spipe_base::{Bytes, Faults, IdVec, Seconds, SimTime, StageId};
use spipe_plan::{
    Boundary, Context, Held, InFlight, Placement, StageFootprint, System, footprint_with, stage_footprint,
};

/// The order in which `placement` computes: stages at or below which nothing trains run their forwards alone, as all do in
/// inference.
///
/// Adjacent stages of one device take their turn together: a forward goes through them all, a backward back through them.
pub fn order_of(context: &Context<'_>, placement: &Placement) -> Result<Order, Faults> {
    Ok(what_trains(context, placement, &order_of_all(context, placement)?))
}

/// `order` without the backwards of stages at or below which nothing trains.
fn what_trains(context: &Context<'_>, placement: &Placement, order: &Order) -> Order {
    let computes = |token: &Token| {
        token.pass == Pass::Forward || context.backward_of(placement.stages[token.stage].layers).is_some()
    };
    let devices = order.devices().iter();
    Order::new(devices.map(|tokens| tokens.iter().copied().filter(&computes).collect()).collect())
}

/// The same as if every layer trained.
fn order_of_all(context: &Context<'_>, placement: &Placement) -> Result<Order, Faults> {
    let microbatches = context.workload().microbatches as usize;
    let (devices, chunks) = (placement.devices().len(), placement.chunks());
    let group = |default: usize| placement.knobs.group.map_or(default, |group| group as usize);
    match placement.system {
        System::Interleaved => interleaved(devices, chunks, microbatches),
        System::Gis => gis(devices, chunks, microbatches, group(devices)),
        System::GisH => gis(devices, chunks, microbatches, group(devices.div_ceil(2))),
        System::PoH | System::PoF => uniform(devices, chunks, microbatches),
        System::ZbV | System::VHalf | System::VMin => {
            let each: Vec<Vec<StageId>> = placement.stages.ids().map(|id| vec![id]).collect();
            let (as_equal, own) = v_of_stages(placement.system, &turn_times(context, placement, &each), microbatches)?;
            // Stages differ in bytes as well, so that one order may fit where another does not.
            Ok(own.filter(|order| has_room(context, placement, order)).unwrap_or(as_equal))
        }
        _ => one_turn_per_device(context, placement, microbatches),
    }
}

fn one_turn_per_device(context: &Context<'_>, placement: &Placement, microbatches: usize) -> Result<Order, Faults> {
    let turns = turns(placement);
    let count = turns.len();
    let of_turns = match placement.system {
        System::ZbH1 => zb_h1(count, microbatches)?,
        System::ZbH2 => zb_h2(count, microbatches)?,
        System::Zb1p => automatic(&turn_times(context, placement, &turns), microbatches, limit(placement, count))?,
        System::Zb2p => automatic(&turn_times(context, placement, &turns), microbatches, limit(placement, 2 * count))?,
        system => {
            let reached = placement.stages.enumerate().rfind(|(_, stage)| context.is_cpu(stage.device));
            let reached = reached.map_or(0, |(id, _)| turns.iter().filter(|turn| turn[0] <= id).count());
            let head_starts = vec![placement.knobs.head_start as usize; reached];
            system_order(system, count, microbatches, &head_starts)
        }
    };
    Ok(expand(&of_turns, &turns))
}

/// What a device may hold, in activations of one microbatch.
fn limit(placement: &Placement, default: usize) -> Bytes {
    StageTimes::UNIT * placement.knobs.memory_limit.unwrap_or(default as u64)
}

/// How long each turn takes on one microbatch, recompute included, and how long its output travels.
fn turn_times(context: &Context<'_>, placement: &Placement, turns: &[Vec<StageId>]) -> Vec<StageTimes> {
    let memory = |turn: &[StageId]| context.hardware.devices()[placement.stages[turn[0]].device].memory;
    let sum = |turn: &[StageId], part: fn(&Times) -> Seconds| {
        let time = turn.iter().map(|stage| part(&times(context, &placement.stages[*stage]))).sum();
        SimTime::from_seconds(time)
    };
    let latency = |turn: usize| {
        let (here, next) = (turns[turn].as_slice(), turns.get(turn + 1)?);
        let last = &placement.stages[here[here.len() - 1]];
        let bytes = context.cost.memory(last.layers.last(), last.device).boundary;
        let route = context.hardware.route(memory(here), memory(next))?;
        let slowest = route.links.iter().map(|link| context.hardware.links()[*link].bandwidth.get());
        let rate = slowest.chain(route.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min);
        let moving = Seconds::new(bytes.as_f64() / rate).unwrap_or(Seconds::ZERO);
        Some(SimTime::from_seconds(route.latency + moving))
    };
    let of_turn = |turn: usize| StageTimes {
        forward: sum(&turns[turn], |times| times.forward.0),
        backward_input: sum(&turns[turn], |times| times.recompute.0 + times.backward_input.0),
        backward_weight: sum(&turns[turn], |times| times.backward_weight.0),
        latency: latency(turn).unwrap_or_default(),
        // What a stage saves is kept for both parts of the backward.
        weight_gradient_memory: StageTimes::UNIT.get(),
    };
    (0..turns.len()).map(of_turn).collect()
}

/// Whether all that `order` holds at once has room.
fn has_room(context: &Context<'_>, placement: &Placement, order: &Order) -> bool {
    let held = in_flight(context, placement, &what_trains(context, placement, order));
    let needs = footprint_with(context, placement, &|stage| held[stage]);
    needs.into_iter().all(|(id, stages)| {
        let memory = &context.hardware.memories()[id];
        stages.values().map(StageFootprint::total).sum::<Bytes>() <= memory.usable()
    })
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

/// How many microbatches each stage holds between its passes: between forward and backward when its device holds the most
/// bytes, and between the parts of a split backward at most.
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
        count_handed_on(tokens, &mut most);
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

/// How far each stage of a device runs ahead of the next one, where that is on the same device, in either direction.
fn count_handed_on(tokens: &[Token], most: &mut IdVec<StageId, Held>) {
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
