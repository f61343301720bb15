//! The least memory with which some plan exists.

use super::{Evaluator, Request, fits::fits};
use spipe_base::{Bytes, MemoryId, SimTime};
use spipe_cost::CostTable;
use spipe_hardware::Hardware;
use spipe_plan::{Context, Placement};
use spipe_planner::Fit;
use std::time::{Duration, Instant};

/// The search ends when the capacity is known to this fraction.
const PRECISION: f64 = 1.0 / 64.0;

/// The least capacity of one memory, while the others stay as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Least {
    pub memory: MemoryId,
    /// The capacity, known to a 64th; none where the time limit came first.
    pub capacity: Option<Bytes>,
    /// The iteration of the plan that was found for it.
    pub iteration: Option<SimTime>,
}

/// The least capacity of each of `memories`, of which a plan fills these bytes, in microbatches of
/// the smallest size. The memories share the time.
pub fn least(request: &Request<'_>, memories: &[(MemoryId, Bytes)], time_limit: Duration) -> Vec<Least> {
    let until = Instant::now() + time_limit;
    let mut left = memories.len() as u32;
    let mut list = Vec::new();
    for (memory, filled) in memories {
        let share = until.saturating_duration_since(Instant::now()) / left;
        list.push(of_memory(request, (*memory, *filled), Instant::now() + share));
        left -= 1;
    }
    list
}

fn of_memory(request: &Request<'_>, (memory, filled): (MemoryId, Bytes), until: Instant) -> Least {
    let reserved = request.hardware.memories()[memory].reserved;
    let unknown = Least { memory, capacity: None, iteration: None };
    let (mut low, mut high) = (Bytes::ZERO, reserved + filled);
    let mut found: Option<(Bytes, SimTime)> = None;
    while low.as_f64() < high.as_f64() * (1.0 - PRECISION) {
        // The plan itself fits its own bytes, or nearly: simulated peaks may lie above the count.
        let middle = if found.is_none() { high } else { Bytes::new(low.get().midpoint(high.get())).up_to_printed() };
        let Some(fitting) = fitting(request, (memory, middle), until) else { return unknown };
        match fitting {
            Some(iteration) => (high, found) = (middle, Some((middle, iteration))),
            None if found.is_none() => return unknown,
            None => low = middle,
        }
        if middle >= high && found.is_some_and(|(capacity, _)| capacity < middle) {
            break;
        }
    }
    Least { memory, capacity: found.map(|(capacity, _)| capacity), iteration: found.map(|(_, iteration)| iteration) }
}

/// The iteration of a plan that fits the machine with another capacity of a memory; none if none
/// fits. `None` if the time ends before that is known.
fn fitting(request: &Request<'_>, (memory, capacity): (MemoryId, Bytes), until: Instant) -> Option<Option<SimTime>> {
    let left = until.saturating_duration_since(Instant::now());
    let workload = request.workloads.iter().min_by_key(|workload| workload.microbatch)?;
    if left.is_zero() {
        return None;
    }
    // A machine with less memory than it reserves does not exist.
    let Ok(machine) = request.hardware.with_capacity(memory, capacity) else { return Some(None) };
    match fits((request.model, &machine), (workload, &request.systems, &request.pins), left) {
        Fit::Found(placement) => Some(iteration(request, &machine, &placement)),
        Fit::Never | Fit::NotFound => Some(None),
        Fit::Late => None,
    }
}

fn iteration(request: &Request<'_>, machine: &Hardware, placement: &Placement) -> Option<SimTime> {
    let workload = request.workloads.iter().min_by_key(|workload| workload.microbatch)?;
    let cost = CostTable::new(request.model, machine, workload).ok()?;
    Evaluator::new(Context { model: request.model, hardware: machine, cost: &cost }).checked_iteration(placement)
}
