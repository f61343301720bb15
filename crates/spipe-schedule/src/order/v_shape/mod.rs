//! Schedules of two chunks per device in a V.

mod chain;
mod list;
mod rounds;
mod tighten;

use super::{Order, StageTimes, at_least_one, timing::Timing};
use chain::{Chain, Plan};
use list::{Choice, Listed, Overtaking, list};
use rounds::{Fill, rounds};
use spipe_base::{Bytes, Diagnostic, Faults, SimTime};
use spipe_plan::Vee;
use tighten::{Ends, tighten};

/// ZB-V (Qi et al., arXiv 2401.10241, section 6): the only bubble is p − 1 unit passes at the ends,
/// at the memory of 1F1B, which is 2p activations of one chunk. `limit` replaces that memory.
///
/// # Errors
/// A limit below two activations, which one microbatch needs.
pub fn zb_v(devices: usize, microbatches: usize, times: &StageTimes, limit: Option<Bytes>) -> Result<Order, Faults> {
    zb_v_of(&vec![*times; 2 * devices], microbatches, limit)
}

/// V-Half (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362): about half
/// the memory of 1F1B.
pub fn v_half(devices: usize, microbatches: usize, times: &StageTimes) -> Result<Order, Faults> {
    block(&vec![*times; 2 * devices], microbatches, half_offsets)
}

/// V-Min (the same paper): about a third of the memory of 1F1B, the least at which a V has no
/// bubble in its steady state.
pub fn v_min(devices: usize, microbatches: usize, times: &StageTimes) -> Result<Order, Faults> {
    block(&vec![*times; 2 * devices], microbatches, min_offsets)
}

/// The orders of shape `vee` for two stages per device with the given times.
///
/// The first is made as if all stages took as long as the slowest. The second is made for their own
/// times and returned only if it is faster. Both hold as many activations as the shape allows, but
/// not always of the same stages.
pub fn v_of_stages(vee: Vee, stages: &[StageTimes], microbatches: usize) -> Result<(Order, Option<Order>), Faults> {
    let order = |times: &[StageTimes]| match vee {
        Vee::Full => zb_v_of(times, microbatches, None),
        Vee::Half => block(times, microbatches, half_offsets),
        _ => block(times, microbatches, min_offsets),
    };
    let equal = vec![slowest(stages); stages.len()];
    let as_equal = order(&equal)?;
    if stages == equal {
        return Ok((as_equal, None));
    }
    let cost = |order: &Order| Timing::of(order, stages).cost(order);
    let own = order(stages)?;
    let faster = cost(&own) < cost(&as_equal);
    Ok((as_equal, faster.then_some(own)))
}

/// The maximum of each time over the stages.
fn slowest(stages: &[StageTimes]) -> StageTimes {
    let most = |part: fn(&StageTimes) -> SimTime| stages.iter().map(part).max().unwrap_or_default();
    StageTimes {
        forward: most(|times| times.forward),
        backward_input: most(|times| times.backward_input),
        backward_weight: most(|times| times.backward_weight),
        latency: most(|times| times.latency),
        weight_gradient_memory: stages.iter().map(|times| times.weight_gradient_memory).max().unwrap_or_default(),
    }
}

fn zb_v_of(stages: &[StageTimes], microbatches: usize, limit: Option<Bytes>) -> Result<Order, Faults> {
    let devices = stages.len() / 2;
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
    // At the slowest pace each microbatch starts after the end of the one before, so that two
    // activations are held.
    let plan = std::iter::once(half).chain((1..=devices + 1).map(slower)).find(fits);
    let along_plan = best(&chain, &plan.unwrap_or_else(|| slower(devices + 1)), stages, limit);
    let fills = [true, false].into_iter().flat_map(|backward| [true, false].map(|forward| Fill { forward, backward }));
    let in_rounds = fills.filter_map(|fill| rounds(&chain, stages, limit, fill));
    let best = in_rounds.chain(std::iter::once(along_plan)).min_by_key(|listed| listed.cost);
    best.map(|listed| listed.order).ok_or_else(Faults::new)
}

/// The slots from one microbatch to the next: three passes of each of two chunks.
const PERIOD: usize = 6;

/// The offsets of the building block of V-Half. Forwards of the first chunk and backwards of the
/// second go down in steps of two slots, the others up in steps of one. If the number of devices is
/// even, a gap of three slots prevents collisions.
fn half_offsets(devices: usize) -> Vec<usize> {
    let gap = if devices.is_multiple_of(2) { 3 } else { 0 };
    let down = (0..devices).map(|device| 2 * device);
    let up = (0..devices).map(|step| 2 * devices - 1 + step);
    let back_down = (0..devices).map(|device| 3 * devices + gap + 2 * device - 1);
    let back_up = (0..devices).map(|step| 5 * devices + gap - 1 + step);
    down.chain(up).chain(back_down).chain(back_up).collect()
}

/// The offsets of the building block of V-Min: one slot from pass to pass. If three divides the
/// number of devices, a gap of two slots prevents collisions.
fn min_offsets(devices: usize) -> Vec<usize> {
    let gap = if devices.is_multiple_of(3) { 2 } else { 0 };
    (0..2 * devices).chain((2 * devices..4 * devices).map(|slot| slot + gap)).collect()
}

/// The best order of a repeated building block within the block's own peak.
fn block(stages: &[StageTimes], microbatches: usize, offsets: impl Fn(usize) -> Vec<usize>) -> Result<Order, Faults> {
    let devices = stages.len() / 2;
    at_least_one(&[("devices", devices), ("microbatches", microbatches)])?;
    let chain = Chain::v_shape(devices, microbatches);
    let plan = Plan::repeat(&offsets(devices), PERIOD, microbatches);
    let limit = StageTimes::UNIT * plan.peak(&chain) as u64;
    Ok(best(&chain, &plan, stages, limit).order)
}

/// The rules of the list schedules, found by trial: passes in the plan's order, or in the given
/// ranks of first forward, second forward, second backward and first backward.
const CHOICES: [(Option<[usize; 4]>, Overtaking); 7] = [
    (None, Overtaking::Never),
    (None, Overtaking::Always),
    (Some([1, 0, 3, 2]), Overtaking::WarmUp),
    (Some([2, 0, 3, 1]), Overtaking::WarmUp),
    (Some([2, 1, 0, 3]), Overtaking::WarmUp),
    (Some([1, 0, 3, 2]), Overtaking::Always),
    (Some([2, 0, 3, 1]), Overtaking::Always),
];

/// The best of `plan` and of list schedules along it, each with and without tightened ends.
fn best(chain: &Chain, plan: &Plan, times: &[StageTimes], limit: Bytes) -> Listed {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pass, Token};

    /// Stages of `devices` devices with random times.
    fn stages(devices: usize, draw: &mut impl FnMut(u64) -> u64) -> Vec<StageTimes> {
        let spread = 1 + draw(100);
        let one = |_| StageTimes {
            forward: SimTime::ns(100 + draw(spread)),
            backward_input: SimTime::ns(100 + draw(spread)),
            backward_weight: SimTime::ns(50 + draw(spread)),
            latency: SimTime::ns(draw(20)),
            weight_gradient_memory: StageTimes::UNIT.get(),
        };
        (0..2 * devices).map(one).collect()
    }

    /// The most activations that a device holds.
    fn peak(order: &Order) -> usize {
        let of_device = |tokens: &Vec<Token>| {
            let (mut held, mut most) = (0usize, 0);
            for token in tokens {
                match token.pass {
                    Pass::Forward => held += 1,
                    Pass::BackwardInput => {}
                    _ => held -= 1,
                }
                most = most.max(held);
            }
            most
        };
        order.devices().iter().map(of_device).max().unwrap_or(0)
    }

    #[test]
    fn orders_for_own_times_are_faster_and_hold_no_more() {
        // Lehmer's generator draws the same cases everywhere.
        let mut state = 1u64;
        let mut draw = |most: u64| {
            state = state * 48_271 % 2_147_483_647;
            1 + state % most
        };
        let mut faster = 0;
        for case in 0..510 {
            let (devices, microbatches) = (2 + case % 5, 1 + case / 5 % 12);
            let vee = [Vee::Full, Vee::Half, Vee::Least][case % 3];
            let stages = stages(devices, &mut draw);
            let (as_equal, own) = v_of_stages(vee, &stages, microbatches).unwrap();
            assert_eq!(as_equal.validate(), Ok(()), "case {case}");
            let length = |order: &Order| Timing::of(order, &stages).cost(order);
            let Some(own) = own else { continue };
            assert_eq!(own.validate(), Ok(()), "case {case}");
            assert!(length(&own) < length(&as_equal), "case {case}");
            let limit = match vee {
                Vee::Full => 2 * devices,
                Vee::Half => Plan::repeat(&half_offsets(devices), PERIOD, microbatches)
                    .peak(&Chain::v_shape(devices, microbatches)),
                _ => Plan::repeat(&min_offsets(devices), PERIOD, microbatches)
                    .peak(&Chain::v_shape(devices, microbatches)),
            };
            assert!(peak(&own) <= limit, "case {case}: {} of {limit}", peak(&own));
            faster += 1;
        }
        assert!(faster > 100, "only {faster} are faster");
    }

    #[test]
    fn equal_times_have_one_order() {
        let times = StageTimes {
            forward: SimTime::ns(100),
            backward_input: SimTime::ns(90),
            backward_weight: SimTime::ns(110),
            latency: SimTime::ns(5),
            weight_gradient_memory: StageTimes::UNIT.get(),
        };
        for (system, alone) in [
            (Vee::Full, zb_v(4, 9, &times, None)),
            (Vee::Half, v_half(4, 9, &times)),
            (Vee::Least, v_min(4, 9, &times)),
        ] {
            assert_eq!(v_of_stages(system, &[times; 8], 9), alone.map(|order| (order, None)));
        }
    }
}
