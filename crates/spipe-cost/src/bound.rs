//! A lower bound of the time of an iteration, from the cost table alone.
//!
//! ```text
//! iteration ≥ microbatches · min over splits of max over kinds of devices of (Σ time of its layers ÷ devices of the kind)
//! ```
//!
//! A split gives every layer, or a part of it, to one kind of device. Each pass of a layer takes its
//! time of the table on the device that runs it, and devices run one pass at a time, so no plan is
//! faster. Recompute, transfers and optimizer steps are left out.
//!
//! Systems that divide no layer among devices have each layer on one device:
//!
//! ```text
//! iteration ≥ microbatches · max over layers of min over devices of time
//! ```

use crate::{CostTable, Mode};
use spipe_base::{DeviceId, LayerId, SimTime};
use spipe_hardware::Hardware;

/// The part of a bound by which the simulator's whole nanoseconds may be shorter than the table's times.
pub const BOUND_ROUNDING: f64 = 1e-4;

/// Returns a time that no plan of a training undercuts with the size of microbatches of `table`: the least time in
/// which the devices of `hardware` do all passes, where each layer is `whole` on one of them or not. Zero outside of
/// training, and where nothing is known.
pub fn least_iteration(table: &CostTable, hardware: &Hardware, whole: bool) -> SimTime {
    let workload = table.workload();
    if workload.mode != Mode::Train {
        return SimTime::ZERO;
    }
    let mut kinds: Vec<(Vec<f64>, f64)> = Vec::new();
    for (device, _) in hardware.devices().enumerate() {
        let times: Vec<f64> = table.layers().map(|layer| layer_time(table, layer, device)).collect();
        let equal = |one: &[f64]| one.iter().zip(&times).all(|(left, right)| left.total_cmp(right).is_eq());
        match kinds.iter_mut().find(|(known, _)| equal(known)) {
            Some((_, count)) => *count += 1.0,
            None => kinds.push((times, 1.0)),
        }
    }
    let kinds: Vec<(&[f64], f64)> = kinds.iter().map(|(times, count)| (times.as_slice(), *count)).collect();
    let longest = if whole { longest_layer(&kinds) } else { 0.0 };
    let ns = workload.microbatches as f64 * least_time(&kinds).max(longest) * (1.0 - BOUND_ROUNDING) * 1e6;
    if ns < u64::MAX as f64 { SimTime::ns(ns as u64) } else { SimTime::ZERO }
}

/// Returns the time of the layer that takes longest on the kind of device that is fastest at it.
fn longest_layer(kinds: &[(&[f64], f64)]) -> f64 {
    let layers = kinds.first().map_or(0, |(times, _)| times.len());
    let fastest = |layer: usize| kinds.iter().map(|(times, _)| times[layer]).fold(f64::INFINITY, f64::min);
    (0..layers).map(fastest).fold(0.0, f64::max)
}

/// Returns the passes of a layer over one microbatch, in ms, without recompute; infinite if it cannot
/// run on `device`.
pub fn layer_time(table: &CostTable, layer: LayerId, device: DeviceId) -> f64 {
    let Some(time) = table.time(layer, device) else { return f64::INFINITY };
    // The first layer passes no gradient on.
    let passes = table.needs_backward(layer) && layer.index() > 0;
    let input = if passes { time.backward_input.to_ms() } else { 0.0 };
    let weight = if table.trained_parameters(layer) > 0 { time.backward_weight.to_ms() } else { 0.0 };
    time.forward.to_ms() + input + weight
}

/// Returns the least time in which kinds of devices, each with its count, do all layers once. With
/// two kinds it is exact: the layers on which the second kind is relatively best go to it, the last
/// of them in part. With more, every layer takes its least time on any of the devices.
pub fn least_time(kinds: &[(&[f64], f64)]) -> f64 {
    match kinds {
        [] => f64::INFINITY,
        [(times, count)] => times.iter().sum::<f64>() / count,
        [first, second] => split(*first, *second),
        more => {
            let layers = more.first().map_or(0, |(times, _)| times.len());
            let least = |layer: usize| more.iter().map(|(times, _)| times[layer]).fold(f64::INFINITY, f64::min);
            (0..layers).map(least).sum::<f64>() / more.iter().map(|(_, count)| count).sum::<f64>()
        }
    }
}

/// The least makespan of layers that may be split between two kinds of devices.
fn split((first, firsts): (&[f64], f64), (second, seconds): (&[f64], f64)) -> f64 {
    let mut order: Vec<(f64, f64)> =
        first.iter().zip(second).map(|(first, second)| (first / firsts, second / seconds)).collect();
    // A layer that only one kind runs has a ratio of zero or infinity.
    let ratio = |pair: &(f64, f64)| if pair.0.is_finite() { pair.0 / pair.1 } else { f64::INFINITY };
    order.sort_by(|left, right| ratio(right).total_cmp(&ratio(left)));
    let fixed: f64 = order.iter().filter(|pair| pair.0.is_infinite()).map(|pair| pair.1).sum();
    let (mut on_first, mut on_second) =
        (order.iter().map(|pair| pair.0).filter(|time| time.is_finite()).sum::<f64>(), fixed);
    for (slow, fast) in order.into_iter().filter(|pair| pair.0.is_finite()) {
        if on_second + fast <= on_first - slow {
            (on_first, on_second) = (on_first - slow, on_second + fast);
            continue;
        }
        // The part p of this layer that equals both: on_first − p · slow = on_second + p · fast.
        let part = ((on_first - on_second) / (slow + fast)).clamp(0.0, 1.0);
        let part = if part.is_finite() { part } else { 0.0 };
        return (on_first - part * slow).max(on_second + if part > 0.0 { part * fast } else { 0.0 });
    }
    on_first.max(on_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn layers_go_where_they_are_relatively_fast() {
        assert!(close(least_time(&[(&[1.0, 3.0], 2.0)]), 2.0));
        // The second kind takes the layer that both run equally fast, and no more.
        assert!(close(least_time(&[(&[1.0, 1.0], 1.0), (&[10.0, 1.0], 1.0)]), 1.0));
        // It takes half of the only layer.
        assert!(close(least_time(&[(&[1.0], 1.0), (&[1.0], 1.0)]), 0.5));
        // A layer that the first cannot run stays on the second.
        assert!(close(least_time(&[(&[f64::INFINITY, 4.0], 1.0), (&[3.0, f64::INFINITY], 1.0)]), 4.0));
        assert!(close(least_time(&[(&[2.0], 1.0), (&[4.0], 1.0), (&[8.0], 2.0)]), 0.5));
        assert!(least_time(&[]).is_infinite());
    }

    #[test]
    fn a_whole_layer_takes_its_time_on_the_fastest_device() {
        assert!(close(longest_layer(&[(&[1.0, 3.0], 2.0), (&[4.0, 2.0], 8.0)]), 2.0));
        assert!(close(longest_layer(&[]), 0.0));
    }
}
