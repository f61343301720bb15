//! Schedules of two chunks per device in a V.

use super::{
    Order, at_least_one,
    chain::{Chain, Plan},
    list::{Choice, Listed, Overtaking, list},
    tighten::{Ends, tighten},
    timing::Timing,
    v_rounds::{Fill, rounds},
};
use crate::StageTimes;
use spipe_base::{Bytes, Diagnostic, Faults};

/// ZB-V (Qi et al., arXiv 2401.10241, section 6): no bubble but (p − 1) unit passes at the ends, with the memory of 1F1B,
/// 2p activations of one chunk. `limit` replaces those; a microbatch needs at least two.
pub fn zb_v(devices: usize, microbatches: usize, times: &StageTimes, limit: Option<Bytes>) -> Result<Order, Faults> {
    at_least_one(&[("devices", devices), ("microbatches", microbatches)])?;
    let limit = limit.unwrap_or(StageTimes::UNIT * (2 * devices) as u64);
    let most = limit.get() / StageTimes::UNIT.get();
    if most < 2 {
        let fault = format!(
            "a limit of {} activations leaves no room for a microbatch",
            limit.as_f64() / StageTimes::UNIT.as_f64()
        );
        return Err(Diagnostic::error(fault).hint("use a limit of at least 2: both chunks of one microbatch").into());
    }
    let chain = Chain::v_shape(devices, microbatches);
    let half = Plan::repeat(&half_offsets(devices), PERIOD, microbatches);
    let fits = |plan: &Plan| plan.peak(&chain) as u64 <= most;
    let slower = |pace: usize| Plan::repeat(&min_offsets(devices), PERIOD * pace, microbatches);
    // A microbatch that starts only after the one before has ended holds two.
    let plan = std::iter::once(half).chain((1..=devices + 1).map(slower)).find(fits);
    let along_plan = best(&chain, &plan.unwrap_or_else(|| slower(devices + 1)), times, limit);
    let fills = [true, false].into_iter().flat_map(|backward| [true, false].map(|forward| Fill { forward, backward }));
    let in_rounds = fills.filter_map(|fill| rounds(&chain, times, limit, fill));
    let best = in_rounds.chain(std::iter::once(along_plan)).min_by_key(|listed| listed.cost);
    best.map(|listed| listed.order).ok_or_else(Faults::new)
}

/// V-Half (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362): about half the memory of 1F1B.
pub fn v_half(devices: usize, microbatches: usize, times: &StageTimes) -> Result<Order, Faults> {
    block(devices, microbatches, times, half_offsets)
}

/// V-Min (the same paper): about a third of the memory of 1F1B, the least at which a V loses nothing in its steady state.
pub fn v_min(devices: usize, microbatches: usize, times: &StageTimes) -> Result<Order, Faults> {
    block(devices, microbatches, times, min_offsets)
}

/// Slots from one microbatch to the next: three passes of each of two chunks.
const PERIOD: usize = 6;

/// The building block of V-Half: forwards of the first chunk and backwards of the second go down in steps of two slots, the
/// others up in steps of one. Three slots in between keep devices of even number from needing one slot twice.
fn half_offsets(devices: usize) -> Vec<usize> {
    let gap = if devices.is_multiple_of(2) { 3 } else { 0 };
    let down = (0..devices).map(|device| 2 * device);
    let up = (0..devices).map(|step| 2 * devices - 1 + step);
    let back_down = (0..devices).map(|device| 3 * devices + gap + 2 * device - 1);
    let back_up = (0..devices).map(|step| 5 * devices + gap - 1 + step);
    down.chain(up).chain(back_down).chain(back_up).collect()
}

/// The building block of V-Min: one slot from pass to pass, and two in between where three divides the devices.
fn min_offsets(devices: usize) -> Vec<usize> {
    let gap = if devices.is_multiple_of(3) { 2 } else { 0 };
    (0..2 * devices).chain((2 * devices..4 * devices).map(|slot| slot + gap)).collect()
}

fn block(
    devices: usize,
    microbatches: usize,
    times: &StageTimes,
    offsets: impl Fn(usize) -> Vec<usize>,
) -> Result<Order, Faults> {
    at_least_one(&[("devices", devices), ("microbatches", microbatches)])?;
    let chain = Chain::v_shape(devices, microbatches);
    let plan = Plan::repeat(&offsets(devices), PERIOD, microbatches);
    let limit = StageTimes::UNIT * plan.peak(&chain) as u64;
    Ok(best(&chain, &plan, times, limit).order)
}

/// How devices choose, by trial: passes in the plan's order, or in these ranks of first forward, second forward, second
/// backward, first backward.
const CHOICES: [(Option<[usize; 4]>, Overtaking); 7] = [
    (None, Overtaking::Never),
    (None, Overtaking::Always),
    (Some([1, 0, 3, 2]), Overtaking::WarmUp),
    (Some([2, 0, 3, 1]), Overtaking::WarmUp),
    (Some([2, 1, 0, 3]), Overtaking::WarmUp),
    (Some([1, 0, 3, 2]), Overtaking::Always),
    (Some([2, 0, 3, 1]), Overtaking::Always),
];

/// The best of `plan` and some list schedules along it, as it is and with its ends tightened.
fn best(chain: &Chain, plan: &Plan, times: &StageTimes, limit: Bytes) -> Listed {
    let most = (limit.get() / StageTimes::UNIT.get()) as usize;
    let tail = tighten(chain, plan, most, Ends { head: false, tail: true });
    let both = tighten(chain, plan, most, Ends { head: true, tail: true });
    let as_planned = |plan: &Plan| {
        let order = plan.order(chain);
        Listed { cost: Timing::of(&order, times).cost(&order), order }
    };
    let mut best = as_planned(plan);
    for plan in [plan, &tail, &both] {
        let lists = CHOICES.into_iter().flat_map(|(ranks, overtaking)| {
            [true, false].map(|wait| list(chain, plan, times, limit, Choice { ranks, overtaking, wait }))
        });
        for listed in std::iter::once(as_planned(plan)).chain(lists) {
            if listed.cost < best.cost {
                best = listed;
            }
        }
    }
    best
}
