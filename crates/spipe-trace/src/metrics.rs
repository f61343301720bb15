//! The key figures of a trace.

use crate::Trace;
use spipe_base::{ActionKind, Bytes, IdleCause, LaneId, LaneRole, SimTime};
use std::collections::BTreeMap;

/// The figures of a trace that reports print.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// The steady-state period.
    pub iteration: SimTime,
    /// Tokens per second, if the trace counts tokens.
    pub tokens_per_second: Option<f64>,
    /// Idle time ÷ (compute lanes that work × iteration).
    pub bubble_fraction: f64,
    /// Busy time of every lane.
    pub busy: BTreeMap<LaneId, SimTime>,
    /// Idle time of every compute lane by cause.
    pub idle: BTreeMap<LaneId, BTreeMap<IdleCause, SimTime>>,
    /// Busy time by kind of action.
    pub kinds: BTreeMap<ActionKind, SimTime>,
    /// Peak of every memory by name.
    pub peaks: BTreeMap<String, Bytes>,
}

impl Metrics {
    /// Computes the figures of `trace`.
    pub fn of(trace: &Trace) -> Self {
        let mut busy = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for span in &trace.spans {
            *busy.entry(span.lane).or_insert(SimTime::ZERO) += span.duration();
            *kinds.entry(span.kind).or_insert(SimTime::ZERO) += span.duration();
        }
        let mut idle: BTreeMap<LaneId, BTreeMap<IdleCause, SimTime>> = BTreeMap::new();
        for interval in &trace.idle {
            *idle.entry(interval.lane).or_default().entry(interval.cause).or_insert(SimTime::ZERO) +=
                interval.end - interval.start;
        }
        let working = busy.keys().filter(|lane| trace.lanes[lane.index()].role == LaneRole::Compute).count() as u64;
        let idle_total: SimTime = trace.idle.iter().map(|interval| interval.end - interval.start).sum();
        let available = trace.iteration * working;
        let seconds = trace.iteration.to_seconds().get();
        Self {
            iteration: trace.iteration,
            tokens_per_second: trace.tokens.filter(|_| seconds > 0.0).map(|tokens| tokens as f64 / seconds),
            bubble_fraction: if available == SimTime::ZERO { 0.0 } else { idle_total.to_ms() / available.to_ms() },
            busy,
            idle,
            kinds,
            peaks: trace.memories.iter().map(|memory| (memory.name.clone(), memory.peak)).collect(),
        }
    }
}
