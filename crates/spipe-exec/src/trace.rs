//! From records to a trace.

use crate::{
    rules::Rules,
    state::{Iteration, State},
};
use spipe_base::{ActionId, ActionKind, LaneRole, SimTime};
use spipe_trace::{Arrow, FORMAT_VERSION, Lane, Origin, Span, Status, Trace, idle_intervals};
use std::collections::BTreeMap;

/// The trace of the iteration of median duration among those that are remembered, the first one left out if there are
/// others, and the share of it that compute lanes spent neither in actions nor waiting for something to happen.
pub(crate) fn trace(rules: &Rules<'_>, state: &State) -> Option<(Trace, f64)> {
    let chosen = median(state)?;
    let iteration = &state.iterations[(chosen - state.oldest) as usize];
    // Real iterations differ a little: where a lane took longer for this one than the run took from its end to that of the one
    // before, the longer time is what the lane's work and waiting add up to.
    let period = state.durations[chosen as usize].max(longest_reach(rules, iteration));
    let start = iteration.records.iter().map(|record| record.start).min()?;
    let end = iteration.records.iter().map(|record| record.end).max()?;
    let program = rules.program;
    let lanes: Vec<Lane> = program
        .lanes()
        .iter()
        .map(|lane| Lane {
            name: lane.name.clone(),
            device: program.devices()[lane.device].name.clone(),
            role: lane.role,
        })
        .collect();
    let (spans, arrows) = spans(rules, iteration, start);
    let trace = Trace {
        format_version: FORMAT_VERSION,
        name: program.shape().name.clone(),
        origin: Origin::Measured,
        notes: program.shape().notes.clone(),
        status: Status::Ok,
        iteration: period,
        iterations: state.durations.clone(),
        tokens: program.shape().tokens,
        idle: idle_intervals(&lanes, &spans, period),
        lanes,
        spans,
        arrows,
        memories: state.account.tracks(rules, start, end),
    };
    Some((trace, overhead(rules, iteration, period)))
}

/// The longest way of a compute lane from its first start to its last end.
fn longest_reach(rules: &Rules<'_>, iteration: &Iteration) -> SimTime {
    let compute = rules.program.lanes().iter().filter(|lane| lane.role == LaneRole::Compute);
    let reach = |lane: &spipe_schedule::Lane| {
        let (first, last) = (lane.queue.first()?, lane.queue.last()?);
        Some(iteration.records[last.index()].end.saturating_sub(iteration.records[first.index()].start))
    };
    compute.filter_map(reach).max().unwrap_or_default()
}

/// The index of that iteration.
fn median(state: &State) -> Option<u32> {
    let over = state.iterations.iter().enumerate().filter(|(_, iteration)| iteration.left == 0);
    let mut candidates: Vec<u32> = over.map(|(index, _)| state.oldest + index as u32).collect();
    if candidates.len() > 1 && candidates.first() == Some(&0) {
        candidates.remove(0);
    }
    candidates.sort_by_key(|index| (state.durations[*index as usize], *index));
    candidates.get(candidates.len().checked_sub(1)? / 2).copied()
}

fn spans(rules: &Rules<'_>, iteration: &Iteration, zero: SimTime) -> (Vec<Span>, Vec<Arrow>) {
    let program = rules.program;
    let mut spans = Vec::new();
    let mut place: BTreeMap<ActionId, u32> = BTreeMap::new();
    for (lane, queue) in program.lanes().enumerate() {
        for action in &queue.queue {
            let (this, record) = (&program.actions()[*action], &iteration.records[action.index()]);
            place.insert(*action, spans.len() as u32);
            let moves = matches!(this.kind, ActionKind::Copy(_) | ActionKind::Collective(_));
            spans.push(Span {
                lane,
                kind: this.kind,
                subject: this.subject,
                start: record.start.saturating_sub(zero),
                end: record.end.saturating_sub(zero),
                bytes: moves.then(|| this.flows.iter().map(|flow| flow.bytes).sum()),
                waited_for: record.last.filter(|_| record.waited).map(|last| last.cause),
            });
        }
    }
    let met = |action: &ActionId| iteration.records[action.index()].last.and_then(|last| last.from);
    let mut arrows: Vec<Arrow> =
        place.iter().filter_map(|(action, to)| Some(Arrow { from: *place.get(&met(action)?)?, to: *to })).collect();
    arrows.sort_by_key(|arrow| (arrow.to, arrow.from));
    (spans, arrows)
}

/// Time from when everything was there to the start, over all actions of compute lanes.
fn overhead(rules: &Rules<'_>, iteration: &Iteration, period: SimTime) -> f64 {
    let program = rules.program;
    let working: Vec<_> =
        program.lanes().iter().filter(|lane| lane.role == LaneRole::Compute && !lane.queue.is_empty()).collect();
    let lost: SimTime = working
        .iter()
        .flat_map(|lane| &lane.queue)
        .map(|action| &iteration.records[action.index()])
        .map(|record| record.start.saturating_sub(record.ready))
        .sum();
    let available = period.to_ms() * working.len() as f64;
    if available > 0.0 { lost.to_ms() / available } else { 0.0 }
}
