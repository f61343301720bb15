//! Builds the trace of a run.

use crate::runtime::{
    program_index::ProgramIndex,
    run_state::{Iteration, RunState},
};
use spipe_base::{ActionId, ActionKind, LaneRole, SimTime};
use spipe_trace::{Arrow, FORMAT_VERSION, Lane, Origin, Span, Status, Trace, idle_intervals};
use std::collections::BTreeMap;

/// The trace of the iteration of median duration, without the first one if there are others, and
/// the share of that iteration that compute lanes spent neither in actions nor waiting.
pub(crate) fn trace(program_index: &ProgramIndex<'_>, state: &RunState) -> Option<(Trace, f64)> {
    let chosen = median(state)?;
    let iteration = &state.iterations[(chosen - state.oldest) as usize];
    // Real iterations differ a little. If a lane took longer for this iteration than the time since
    // the end of the one before, the longer time is the sum of its work and waiting.
    let period = state.durations[chosen as usize].max(longest_reach(program_index, iteration));
    let start = iteration.timings.iter().map(|timing| timing.start).min()?;
    let end = iteration.timings.iter().map(|timing| timing.end).max()?;
    let program = program_index.program;
    let lanes: Vec<Lane> = program
        .lanes()
        .iter()
        .map(|lane| Lane {
            name: lane.name.clone(),
            device: program.devices()[lane.device].name.clone(),
            role: lane.role,
        })
        .collect();
    let (spans, arrows) = spans(program_index, iteration, start);
    let trace = Trace {
        format_version: FORMAT_VERSION,
        name: program.shape().name.clone(),
        origin: Origin::Measured,
        notes: program.shape().notes.clone(),
        status: Status::Ok,
        iteration: period,
        iterations: state.durations.clone(),
        tokens: program.shape().tokens,
        folds: program.folds().to_vec(),
        idle: idle_intervals(&lanes, &spans, period),
        lanes,
        spans,
        arrows,
        memories: state.ledger.tracks(program_index, start, end),
        iteration_without_profiler: None,
        explanation: None,
    };
    Some((trace, overhead(program_index, iteration, period)))
}

/// The longest time of a compute lane from its first start to its last end.
fn longest_reach(program_index: &ProgramIndex<'_>, iteration: &Iteration) -> SimTime {
    let compute = program_index.program.lanes().iter().filter(|lane| lane.role == LaneRole::Compute);
    let reach = |lane: &spipe_schedule::Lane| {
        let (first, last) = (lane.queue.first()?, lane.queue.last()?);
        Some(iteration.timings[last.index()].end.saturating_sub(iteration.timings[first.index()].start))
    };
    compute.filter_map(reach).max().unwrap_or_default()
}

/// The index of the iteration of median duration.
fn median(state: &RunState) -> Option<u32> {
    let over = state.iterations.iter().enumerate().filter(|(_, iteration)| iteration.left == 0);
    let mut candidates: Vec<u32> = over.map(|(index, _)| state.oldest + index as u32).collect();
    if candidates.len() > 1 && candidates.first() == Some(&0) {
        candidates.remove(0);
    }
    candidates.sort_by_key(|index| (state.durations[*index as usize], *index));
    candidates.get(candidates.len().checked_sub(1)? / 2).copied()
}

fn spans(program_index: &ProgramIndex<'_>, iteration: &Iteration, zero: SimTime) -> (Vec<Span>, Vec<Arrow>) {
    let program = program_index.program;
    let mut spans = Vec::new();
    let mut place: BTreeMap<ActionId, u32> = BTreeMap::new();
    for (lane, queue) in program.lanes().enumerate() {
        for action in &queue.queue {
            let (this, timing) = (&program.actions()[*action], &iteration.timings[action.index()]);
            place.insert(*action, spans.len() as u32);
            let moves = matches!(this.kind, ActionKind::Copy(_) | ActionKind::Collective(_));
            spans.push(Span {
                lane,
                kind: this.kind,
                subject: this.subject,
                start: timing.start.saturating_sub(zero),
                end: timing.end.saturating_sub(zero),
                bytes: moves.then(|| program.flows(this).iter().map(|flow| flow.bytes).sum()),
                waited_for: timing.last.filter(|_| timing.waited).map(|last| last.cause),
            });
        }
    }
    let met = |action: &ActionId| iteration.timings[action.index()].last.and_then(|last| last.from);
    let mut arrows: Vec<Arrow> =
        place.iter().filter_map(|(action, to)| Some(Arrow { from: *place.get(&met(action)?)?, to: *to })).collect();
    arrows.sort_by_key(|arrow| (arrow.to, arrow.from));
    (spans, arrows)
}

/// The share of time between readiness and start, over all actions of compute lanes.
fn overhead(program_index: &ProgramIndex<'_>, iteration: &Iteration, period: SimTime) -> f64 {
    let program = program_index.program;
    let working: Vec<_> =
        program.lanes().iter().filter(|lane| lane.role == LaneRole::Compute && !lane.queue.is_empty()).collect();
    let lost: SimTime = working
        .iter()
        .flat_map(|lane| &lane.queue)
        .map(|action| &iteration.timings[action.index()])
        .map(|timing| timing.start.saturating_sub(timing.ready))
        .sum();
    let available = period.to_ms() * working.len() as f64;
    if available > 0.0 { lost.to_ms() / available } else { 0.0 }
}
