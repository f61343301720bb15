//! Tightening: the passes of a plan's head and tail move to earlier free slots.

use super::chain::{Chain, Plan, Slot, peak};

/// The ends of a plan to tighten. The steady state in between is unchanged.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    /// Up to the last pass of the first microbatch.
    pub head: bool,
    /// From the first pass of the last microbatch.
    pub tail: bool,
}

/// The same plan with tightened ends. In the order of slots, each pass of the ends moves to the
/// first free slot after its predecessors in which its device holds at most `limit` activations.
/// The result is then compacted in that order.
pub(super) fn tighten(chain: &Chain, plan: &Plan, limit: usize, ends: Ends) -> Plan {
    let mut plan = plan.clone();
    let mut rows: Vec<Vec<Slot>> = (0..chain.devices()).map(|device| plan.row(chain, device)).collect();
    let head_ends = plan.slots.last().map_or(0, |last| last[0]);
    let tail_starts = plan.slots[0][chain.microbatches - 1];
    for (position, microbatch) in plan.passes(chain) {
        let slot = plan.slots[position][microbatch];
        if !(ends.head && slot < head_ends || ends.tail && slot >= tail_starts.max(head_ends)) {
            continue;
        }
        let row = &mut rows[chain.device(position)];
        let taken = std::mem::replace(&mut row[slot], Slot::Free);
        let earliest = earliest(&plan.slots, position, microbatch);
        let better = (earliest..slot).find(|free| {
            row[*free] == Slot::Free && {
                row[*free] = taken;
                let fits = peak(row) <= limit;
                row[*free] = Slot::Free;
                fits
            }
        });
        let slot = better.unwrap_or(slot);
        row[slot] = taken;
        plan.slots[position][microbatch] = slot;
    }
    compact(chain, &plan)
}

/// The first slot after both predecessors: the same position of the microbatch before, and the
/// position before of the same microbatch.
fn earliest(slots: &[Vec<usize>], position: usize, microbatch: usize) -> usize {
    let before = position.checked_sub(1).map_or(0, |before| slots[before][microbatch] + 1);
    let same = microbatch.checked_sub(1).map_or(0, |earlier| slots[position][earlier] + 1);
    before.max(same)
}

/// The same plan with every pass as early as its predecessors and the order of slots permit.
/// Backward-weights keep their places between the other passes.
fn compact(chain: &Chain, plan: &Plan) -> Plan {
    // A backward-weight runs in every free slot while one is pending.
    let weights_before: Vec<Vec<usize>> =
        (0..chain.devices()).map(|device| weights_before(&plan.row(chain, device))).collect();
    let mut done = vec![0; chain.devices()];
    let mut free = vec![0; chain.devices()];
    let mut slots = vec![vec![0; chain.microbatches]; chain.len()];
    for (position, microbatch) in plan.passes(chain) {
        let device = chain.device(position);
        let weights = weights_before[device][plan.slots[position][microbatch]];
        free[device] += weights - done[device];
        done[device] = weights;
        let slot = free[device].max(earliest(&slots, position, microbatch));
        slots[position][microbatch] = slot;
        free[device] = slot + 1;
    }
    Plan { slots }
}

/// The number of backward-weights before each slot of a device.
fn weights_before(row: &[Slot]) -> Vec<usize> {
    let (mut pending, mut done) = (0, 0);
    row.iter()
        .map(|slot| {
            let before = done;
            match slot {
                Slot::Backward => pending += 1,
                Slot::Free if pending > 0 => {
                    pending -= 1;
                    done += 1;
                }
                Slot::Free | Slot::Forward => {}
            }
            before
        })
        .collect()
}
