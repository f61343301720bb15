//! Generalised interleaved schedules, which repeat a building block of passes at fixed slots.

use super::{Order, Pass, Token, at_least_one};
use spipe_base::{Diagnostic, Faults};

/// The generalised interleaved schedule (Wan et al., PipeOffload, arXiv 2503.01328, section 3):
/// interleaved 1F1B with split backwards and groups of g = `group` microbatches, on d devices with
/// v chunks each.
///
/// - Device 0 peaks at g(v − 1) + d activations of one stage.
/// - The bubble is 2(d − 1) + (d − g)(v − 1) unit passes.
/// - g = d is the paper's GIS and g = ⌈d/2⌉ its GIS-H.
///
/// # Errors
/// A group below ⌈d/2⌉, which would return to device 0 only after the next group should have
/// started, or above d.
pub fn gis(devices: usize, chunks: usize, microbatches: usize, group: usize) -> Result<Order, Faults> {
    at_least_one(&[("devices", devices), ("chunks", chunks), ("microbatches", microbatches)])?;
    let (least, most) = (devices.div_ceil(2), devices);
    if group < least || group > most {
        let near = group.clamp(least, most);
        let fault = format!("groups of {group} microbatches are outside {least}..{most}");
        let hint = format!("a group is at least half of the {devices} devices and at most all of them: use {near}");
        return Err(Diagnostic::error(fault).hint(hint).into());
    }
    Ok(Block { devices, chunks, group, chunk_starts: (0..chunks).map(|chunk| chunk * group).collect() }
        .order(microbatches))
}

/// A warning if `group` does not divide `microbatches`.
pub fn gis_warning(microbatches: usize, group: usize) -> Option<Diagnostic> {
    (group > 0 && !microbatches.is_multiple_of(group)).then(|| {
        Diagnostic::warning(format!(
            "groups of {group} do not divide {microbatches} microbatches: the last one is smaller"
        ))
        .hint("the memory stays the same, but the bubble can be larger than its closed form")
    })
}

/// The building block of GIS-H repeated for every microbatch (g = 1, "uniform"). Chunks start ⌈d/2⌉
/// microbatches apart, plus one microbatch wherever two chunks would share a slot of the period.
pub fn uniform(devices: usize, chunks: usize, microbatches: usize) -> Result<Order, Faults> {
    at_least_one(&[("devices", devices), ("chunks", chunks), ("microbatches", microbatches)])?;
    let apart = devices.div_ceil(2);
    let turn = chunks / greatest_common_divisor(chunks, apart);
    let chunk_starts = (0..chunks).map(|chunk| apart * chunk + chunk / turn).collect();
    Ok(Block { devices, chunks, group: 1, chunk_starts }.order(microbatches))
}

const fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The passes of a group of microbatches at slots of unit time. From device to device a forward
/// moves by one slot and a backward by two; a backward-weight follows its backward-input at once.
/// Hence the forwards, the backward-inputs and the backward-weights of a device each use one slot
/// in three.
struct Block {
    devices: usize,
    chunks: usize,
    group: usize,
    /// The start of each chunk after the first one, in microbatches of three slots.
    chunk_starts: Vec<usize>,
}

impl Block {
    /// The tokens of all microbatches in the order of slots. The last group may be smaller.
    fn order(&self, microbatches: usize) -> Order {
        let device = |device: usize| {
            let mut slotted: Vec<(usize, Token)> =
                (0..microbatches).flat_map(|microbatch| self.passes(device, microbatch)).collect();
            slotted.sort_unstable_by_key(|(slot, _)| *slot);
            slotted.into_iter().map(|(_, token)| token).collect()
        };
        Order::new((0..self.devices).map(device).collect())
    }

    fn passes(&self, device: usize, microbatch: usize) -> Vec<(usize, Token)> {
        let start = 3 * (microbatch / self.group * self.group * self.chunks + microbatch % self.group);
        let turn = 3 * self.chunk_starts[self.chunks - 1] + device + 3 * (self.devices - 1 - device) + 1;
        let chunk = |chunk: usize| {
            let stage = chunk * self.devices + device;
            let forward = start + 3 * self.chunk_starts[chunk] + device;
            let backward = start + turn + 3 * self.chunk_starts[self.chunks - 1 - chunk];
            [
                (forward, Token::new(stage, Pass::Forward, microbatch)),
                (backward, Token::new(stage, Pass::BackwardInput, microbatch)),
                (backward + 1, Token::new(stage, Pass::BackwardWeight, microbatch)),
            ]
        };
        (0..self.chunks).flat_map(chunk).collect()
    }
}
