//! The priority of optimizer steps where gradients arrive faster than a socket can process them.
//! The parameters that the next forward needs first come first, so that it begins while the others
//! are updated.

use super::{Chunk, Spec};
use spipe_base::{DeviceId, SimTime};
use std::collections::BTreeMap;

/// An optimizer step of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub chunk: usize,
    /// The arrival of its gradients.
    pub arrival: SimTime,
    pub work: SimTime,
}

/// The chunks of `list` in the order of one socket's steps: always the first chunk of the model
/// among those that have arrived.
pub(super) fn by_need(mut list: Vec<Pending>) -> Vec<usize> {
    list.sort_by_key(|step| step.chunk);
    let (mut order, mut now) = (Vec::new(), SimTime::ZERO);
    while let Some(next) = list.iter().map(|step| step.arrival).min() {
        now = now.max(next);
        let Some(first) = list.iter().position(|step| step.arrival <= now) else { break };
        let step = list.remove(first);
        now += step.work;
        order.push(step.chunk);
    }
    order
}

/// The end of each chunk's backward if parameters and activations always arrive in time.
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
    fn waiting_steps_run_in_model_order() {
        let step = |(chunk, arrival, work)| Pending { chunk, arrival: SimTime::ns(arrival), work: SimTime::ns(work) };
        let order = |list: [(usize, u64, u64); 4]| by_need(list.map(step).to_vec());
        // Gradients arrive in reverse model order. If none waits, steps run in that order.
        assert_eq!(order([(3, 10, 1), (2, 20, 1), (1, 30, 1), (0, 40, 1)]), [3, 2, 1, 0]);
        // Where they wait, the last one to arrive is the first one to run.
        assert_eq!(order([(3, 10, 100), (2, 20, 1), (1, 30, 1), (0, 40, 1)]), [3, 0, 1, 2]);
        assert_eq!(order([(3, 10, 15), (2, 20, 25), (1, 30, 1), (0, 60, 1)]), [3, 2, 1, 0]);
    }
}
