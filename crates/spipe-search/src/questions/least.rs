//! The least memory with which some plan exists.

use crate::{
    request::Request,
    search::{fits::fits, found::Found},
    setting::Setting,
};
use spipe_base::{Bytes, MemoryId, SimTime};
use spipe_hardware::Hardware;
use spipe_plan::uses_drives;
use spipe_planner::{Fit, Options};
use std::time::{Duration, Instant};

/// The most time: where the least memory is not known by then, proofs that nothing fits take long.
const MOST: Duration = Duration::from_secs(1);

/// The same where the search counts steps and is to end at once.
const BY_STEPS: Duration = Duration::from_millis(100);

/// The search ends when the capacity is known to this fraction.
const PRECISION: f64 = 1.0 / 64.0;

/// The least capacity of one memory, while the others stay as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Least {
    /// The memory.
    pub memory: MemoryId,
    /// The capacity, known to a 64th; none where the time limit came first.
    pub capacity: Option<Bytes>,
    /// The least capacity for which a plan was found: that one, or at most what the plan fills beside the reserved part.
    pub found: Bytes,
    /// The reserved part of that capacity: runtimes reserve shares of it.
    pub reserved: Bytes,
    /// The iteration of the plan with the capacity `found`.
    pub iteration: SimTime,
}

/// The least memory for some plan beside the one that was found, in the time that the search has left after `elapsed`, or
/// a tenth of a second where it counts steps, in microbatches of the smallest size. The memories share the time. It is not
/// sought for given stages, and unknown where drives help out.
pub fn least(request: &Request, found: &Found, elapsed: Duration) -> Vec<Least> {
    if request.pins.given_stages().is_some() {
        return Vec::new();
    }
    let memories: Vec<(MemoryId, Bytes)> = found.plan.peaks().into_iter().collect();
    if uses_drives(&found.plan.context(), found.plan.placement()) {
        return memories.into_iter().map(|memory| of_plan(found, memory)).collect();
    }
    let limit = if request.effort.is_some() { BY_STEPS } else { request.time_limit.saturating_sub(elapsed).min(MOST) };
    let until = Instant::now() + limit;
    let mut left = memories.len() as u32;
    let mut list = Vec::new();
    for (memory, filled) in memories {
        let share = until.saturating_duration_since(Instant::now()) / left;
        list.push(of_memory(request, of_plan(found, (memory, filled)), Instant::now() + share));
        left -= 1;
    }
    list
}

/// An upper bound from the plan itself: it runs with the bytes that it fills.
fn of_plan(found: &Found, (memory, filled): (MemoryId, Bytes)) -> Least {
    let reserved = found.plan.context().hardware.memories()[memory].reserved;
    let iteration = found.solution.simulated;
    Least { memory, capacity: None, found: reserved + filled, reserved, iteration }
}

/// Looks for smaller capacities than that of `plan`.
fn of_memory(request: &Request, plan: Least, until: Instant) -> Least {
    let memory = plan.memory;
    let (mut low, mut high) = (Bytes::ZERO, plan.found);
    let mut found: Option<(Bytes, (SimTime, Bytes))> = None;
    let best = |found: Option<(Bytes, (SimTime, Bytes))>| match found {
        Some((capacity, (iteration, reserved))) if capacity < plan.found => {
            Least { found: capacity, reserved, iteration, ..plan.clone() }
        }
        Some((_, (iteration, _))) => Least { iteration, ..plan.clone() },
        None => plan.clone(),
    };
    while low.as_f64() < high.as_f64() * (1.0 - PRECISION) {
        // The plan itself fits its own bytes, or nearly: simulated peaks may lie above the count.
        let middle = if found.is_none() { high } else { Bytes::new(low.get().midpoint(high.get())).up_to_printed() };
        let Some(fitting) = fitting(request, (memory, middle), until) else { return best(found) };
        match fitting {
            Some(fitting) => (high, found) = (middle, Some((middle, fitting))),
            None if found.is_none() => return plan,
            None => low = middle,
        }
        if middle >= high && found.is_some_and(|(capacity, _)| capacity < middle) {
            break;
        }
    }
    let least = best(found);
    Least { capacity: found.map(|_| least.found), ..least }
}

/// The iteration of a plan that fits the machine with another capacity of a memory, and the reserved part
/// of it; none if none fits. `None` if the time ends before that is known.
fn fitting(
    request: &Request,
    (memory, capacity): (MemoryId, Bytes),
    until: Instant,
) -> Option<Option<(SimTime, Bytes)>> {
    let left = until.saturating_duration_since(Instant::now());
    let workload = request.workloads.iter().min_by_key(|workload| workload.microbatch)?;
    if left.is_zero() {
        return None;
    }
    // A machine with less memory than it reserves does not exist.
    let with = |hardware: &Hardware| hardware.with_capacity(memory, capacity);
    let Ok(machine) = request.machine.changed(with) else { return Some(None) };
    let options = Options { pins: request.pins.clone(), time_limit: left, ..Options::default() };
    match fits((&request.model, &machine), (workload, &request.systems), &options) {
        Fit::Found(placement) => {
            let hardware = machine.of(placement.system);
            let setting = Setting::new(&request.model, hardware, workload).ok();
            let iteration = setting.and_then(|setting| setting.evaluator().checked_iteration(&placement));
            Some(iteration.map(|iteration| (iteration, hardware.memories()[memory].reserved)))
        }
        Fit::Never | Fit::NotFound => Some(None),
        Fit::Late => None,
    }
}
