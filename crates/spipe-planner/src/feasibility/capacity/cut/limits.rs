//! The values that transient bytes and offloaded bytes of stages can take.

use crate::costs::{CostSums, StageSlot};
use crate::feasibility::capacity::cut::{LayerRangeNeeds, same};
use spipe_plan::{Boundary, OFFLOAD_SLOTS};
use std::collections::BTreeMap;

/// The number of equal intervals that replace the list of values where listing them would take more
/// than [`MOST_LISTED`] steps.
const PARTS: u64 = 1 << 12;
const MOST_LISTED: usize = 1 << 19;

/// An interval of limits: `high` is a limit on transient bytes, or a slot size, and `low` the least
/// value above the previous limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub low: u64,
    pub high: u64,
}

/// The limits on transient bytes, and the slot sizes for offloaded bytes of one microbatch, zero
/// included.
pub(crate) struct CutLimits {
    pub passing: Vec<Limit>,
    pub slots: Vec<Limit>,
}

/// Returns all values for stages of `parts`, or equal intervals where these are very many.
pub(crate) fn limits(costs: &CostSums<'_>, index: usize, parts: &BTreeMap<LayerRangeNeeds, u64>) -> CutLimits {
    let (device, seat) = (&costs.devices[index], StageSlot::alone(index));
    let first = parts.keys().map(|part| part.from).min().unwrap_or(0);
    let last = parts.keys().map(|part| part.to).max().unwrap_or(0);
    let longest = parts.keys().map(|part| part.to - part.from).max().unwrap_or(0);
    let helped = costs.hosts(index).next().is_some();
    let (mut values, mut slots) = (Vec::new(), vec![0]);
    let mut listed = 0;
    for from in first..last {
        for to in from + 1..=last.min(from + longest) {
            // Stages like those one layer earlier are there already.
            if from >= first + 2 && to < costs.layers && same(costs, from - 2, to) {
                continue;
            }
            let Some((fewest, most)) = device.recomputes(costs.training, from, to) else { continue };
            listed += AROUND.len() * (most + 1 - fewest);
            if listed > MOST_LISTED {
                let slots = if helped { equal(device.usable / OFFLOAD_SLOTS) } else { listed_limits(vec![0]) };
                return CutLimits { passing: equal(device.usable), slots };
            }
            if helped {
                slots.extend((fewest..=most).map(|recomputed| device.leaving((from, to), recomputed)));
            }
            for around in AROUND {
                let passing = |recomputed: usize| device.parts(seat, (from, to), recomputed, around).1;
                values.extend((fewest..=most).map(passing).take_while(|passing| *passing <= device.usable));
            }
        }
    }
    slots.retain(|slot| *slot <= device.usable / OFFLOAD_SLOTS);
    CutLimits { passing: listed_limits(values), slots: listed_limits(slots) }
}

/// Returns a limit for each of `values`.
fn listed_limits(mut values: Vec<u64>) -> Vec<Limit> {
    values.sort_unstable();
    values.dedup();
    values.into_iter().map(|value| Limit { low: value, high: value }).collect()
}

/// The boundaries of a stage on which its transient bytes depend.
const AROUND: [[Boundary; 2]; 4] = [
    [Boundary::End, Boundary::End],
    [Boundary::End, Boundary::Within],
    [Boundary::Within, Boundary::End],
    [Boundary::Within, Boundary::Within],
];

/// Returns equally spaced limits up to `most`.
fn equal(most: u64) -> Vec<Limit> {
    let at = |part: u64| (u128::from(most) * u128::from(part) / u128::from(PARTS)) as u64;
    (0..PARTS).map(|part| Limit { low: if part == 0 { 0 } else { at(part) + 1 }, high: at(part + 1) }).collect()
}
