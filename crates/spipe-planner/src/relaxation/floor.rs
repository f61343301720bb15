//! What is certain at once, whatever the time: if all devices computed all the time.

use crate::{figures::Figures, freedom::Computing, systems::shares};

/// What no placement of any system takes less than, in ms.
pub(crate) fn floor(figures: &Figures<'_>) -> f64 {
    of(figures, Computing::All)
}

/// The same where only some devices compute.
pub(super) fn of(figures: &Figures<'_>, computing: Computing) -> f64 {
    let devices: Vec<usize> = (0..figures.devices.len()).filter(|device| computing.allows(*device, figures)).collect();
    if computing == Computing::OneGpu {
        return devices.iter().map(|gpu| if_all_compute(figures, &[*gpu])).fold(f64::INFINITY, f64::min);
    }
    if_all_compute(figures, &devices)
}

/// The same where GPUs share everything, however many of them.
pub(super) fn of_shared(figures: &Figures<'_>) -> f64 {
    let gpus: Vec<usize> = (0..figures.devices.len()).filter(|device| !figures.devices[*device].is_cpu).collect();
    let together = |count: usize| if_all_compute(figures, &gpus[..count]);
    shares(&figures.context).map(together).fold(f64::INFINITY, f64::min)
}

/// How long an iteration takes, in ms, if `devices` compute all the time. Beside the fastest of them, a device does as much of the work as in
/// the layer that it is best at, at most.
fn if_all_compute(figures: &Figures<'_>, devices: &[usize]) -> f64 {
    let pass = |device: usize, layer: usize| {
        let device = &figures.devices[device];
        let able = device.able(layer, layer + 1);
        if able { device.pass((layer, layer + 1), figures.training) } else { f64::INFINITY }
    };
    let fastest = |layer: usize| devices.iter().map(|device| pass(*device, layer)).fold(f64::INFINITY, f64::min);
    let times = (0..figures.layers).map(|layer| (layer, fastest(layer)));
    let work: Vec<(usize, f64)> = times.filter(|(_, time)| *time > 0.0 && time.is_finite()).collect();
    let speed = |device: &usize| work.iter().map(|(layer, time)| time / pass(*device, *layer)).fold(0.0, f64::max);
    let speeds: f64 = devices.iter().map(speed).sum();
    let all: f64 = work.iter().map(|(_, time)| time).sum();
    if speeds > 0.0 { figures.microbatches as f64 * all / speeds } else { 0.0 }
}

#[cfg(test)]
mod tests;
