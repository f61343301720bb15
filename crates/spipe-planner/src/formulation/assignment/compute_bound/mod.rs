//! Compute bound: the iteration if all devices computed all the time. It is available at once.

use crate::{
    costs::CostSums,
    problem::bound::Bound,
    space::{rules::DeviceSet, sharded::shares},
};

/// Returns a lower bound of every placement of any system, in ms.
pub(crate) fn floor(costs: &CostSums<'_>) -> f64 {
    let all: Vec<usize> = (0..costs.devices.len()).collect();
    if_all_compute(costs, &all)
}

/// Returns the bound where only the devices of `computing` compute.
pub(crate) fn of(costs: &CostSums<'_>, computing: DeviceSet) -> Bound {
    let devices: Vec<usize> = (0..costs.devices.len()).filter(|device| computing.allows(*device, costs)).collect();
    if computing == DeviceSet::OneGpu {
        return least(devices.iter().map(|gpu| if_all_compute(costs, &[*gpu])));
    }
    Bound::AtLeast(if_all_compute(costs, &devices).max(longest_layer(costs, &devices)))
}

/// Returns the bound of systems in which some number of GPUs share everything.
pub(crate) fn of_shared(costs: &CostSums<'_>) -> Bound {
    let gpus: Vec<usize> = (0..costs.devices.len()).filter(|device| !costs.devices[*device].is_cpu).collect();
    let together = |count: usize| if_all_compute(costs, &gpus[..count]);
    least(shares(&costs.context).map(together))
}

fn least(bounds: impl Iterator<Item = f64>) -> Bound {
    bounds.map(Bound::AtLeast).fold(Bound::Infeasible, Bound::min)
}

/// Returns the time, in ms, that the longest layer takes on the device that is fastest at it.
fn longest_layer(costs: &CostSums<'_>, devices: &[usize]) -> f64 {
    let fastest = |layer: usize| devices.iter().map(|device| pass(costs, *device, layer)).fold(f64::INFINITY, f64::min);
    let longest = (0..costs.layers).map(fastest).filter(|time| time.is_finite()).fold(0.0, f64::max);
    costs.microbatches as f64 * longest
}

/// Returns the passes of a layer over one microbatch, in ms; infinite where the device cannot run it.
fn pass(costs: &CostSums<'_>, device: usize, layer: usize) -> f64 {
    let device = &costs.devices[device];
    if device.able(layer, layer + 1) { device.pass((layer, layer + 1), costs.training) } else { f64::INFINITY }
}

/// Returns the iteration, in ms, if `devices` compute all the time. Relative to the fastest device
/// per layer, a device has at most the speed that it has in its best layer.
fn if_all_compute(costs: &CostSums<'_>, devices: &[usize]) -> f64 {
    let pass = |device: usize, layer: usize| pass(costs, device, layer);
    let fastest = |layer: usize| devices.iter().map(|device| pass(*device, layer)).fold(f64::INFINITY, f64::min);
    let times = (0..costs.layers).map(|layer| (layer, fastest(layer)));
    let work: Vec<(usize, f64)> = times.filter(|(_, time)| *time > 0.0 && time.is_finite()).collect();
    let speed = |device: &usize| work.iter().map(|(layer, time)| time / pass(*device, *layer)).fold(0.0, f64::max);
    let speeds: f64 = devices.iter().map(speed).sum();
    let all: f64 = work.iter().map(|(_, time)| time).sum();
    if speeds > 0.0 { costs.microbatches as f64 * all / speeds } else { 0.0 }
}

#[cfg(test)]
mod tests;
