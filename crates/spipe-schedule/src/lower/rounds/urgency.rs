//! Which gradients are stepped first where they come faster than a socket can step them: those of the parameters that the next
//! forward needs first, so that it begins while the others are stepped.

use super::{Chunk, Spec};
use spipe_base::{DeviceId, SimTime};
use std::collections::BTreeMap;

/// A step of a socket's: by when its gradients are there, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub chunk: usize,
    pub arrival: SimTime,
    pub work: SimTime,
}

/// The chunks of `list` in the order in which one socket steps them: of those that have arrived, always the first one of the model.
pub(super) fn by_need(mut list: Vec<Due>) -> Vec<usize> {
    list.sort_by_key(|due| due.chunk);
    let (mut order, mut now) = (Vec::new(), SimTime::ZERO);
    while let Some(next) = list.iter().map(|due| due.arrival).min() {
        now = now.max(next);
        let Some(first) = list.iter().position(|due| due.arrival <= now) else { break };
        let due = list.remove(first);
        now += due.work;
        order.push(due.chunk);
    }
    order
}

/// When the backward of each chunk ends, if parameters and activations are always there in time.
pub(super) fn ends_of_backwards(spec: &Spec) -> Vec<SimTime> {
    let mut free: BTreeMap<DeviceId, SimTime> = BTreeMap::new();
    let mut ready = vec![SimTime::ZERO; spec.microbatches];
    let mut pass = |chunk: &Chunk, work: SimTime| {
        let free = free.entry(chunk.device).or_default();
        for ready in &mut ready {
            *free = (*free).max(*ready) + work;
            *ready = *free;
        }
        *free
    };
    for chunk in &spec.forward {
        pass(chunk, chunk.work);
    }
    let mut ends = vec![SimTime::ZERO; spec.backward.len()];
    for (end, chunk) in ends.iter_mut().zip(&spec.backward).rev().filter(|(_, chunk)| chunk.returns.is_some()) {
        *end = pass(chunk, chunk.recompute + chunk.work);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_first_is_stepped_first_once_it_is_there() {
        let due = |(chunk, arrival, work)| Due { chunk, arrival: SimTime::ns(arrival), work: SimTime::ns(work) };
        let order = |list: [(usize, u64, u64); 4]| by_need(list.map(due).to_vec());
        // Gradients come against the order of the model: without haste they are stepped as they come, …
        assert_eq!(order([(3, 10, 1), (2, 20, 1), (1, 30, 1), (0, 40, 1)]), [3, 2, 1, 0]);
        // … and where they wait, the last to come is the first to go.
        assert_eq!(order([(3, 10, 100), (2, 20, 1), (1, 30, 1), (0, 40, 1)]), [3, 0, 1, 2]);
        assert_eq!(order([(3, 10, 15), (2, 20, 25), (1, 30, 1), (0, 60, 1)]), [3, 2, 1, 0]);
    }
}
