//! Interleaved 1F1B: several chunks of the model per device.

use super::{Order, Pass, Token, at_least_one};
use spipe_base::{Diagnostic, Faults};

/// Interleaved 1F1B (Narayanan et al., SC 2021, section 2.2) of m microbatches on p devices with v
/// chunks each. Chunk c of device i is stage c·p + i.
///
/// Microbatches form groups. A group passes through one chunk after the other: forwards in
/// ascending, backwards in descending order of chunks. Device i runs (v − 1)·g + 2(p − i − 1)
/// warm-up forwards, where g is the size of the first group, and then one forward and one backward
/// in turn.
///
/// Groups have p microbatches. If p does not divide m, there are ⌊m/p⌋ groups whose sizes differ by
/// at most one, larger ones first: a group smaller than p would starve the pipeline, and a group
/// larger than the one before would make a device wait for its own later passes. The span is 3m +
/// 3(p − 1)/v for every m ≥ p, in unit passes of a whole device.
///
/// Larger groups than p, which `group` asks for, hold more activations, and leave more time between a chunk's output and
/// its use (Megatron Core, `microbatch_group_size_per_vp_stage`). The last one may be smaller.
///
/// # Errors
/// A size that is zero, a group outside p..m, and a last one smaller than p.
pub fn interleaved(devices: usize, chunks: usize, microbatches: usize, group: Option<usize>) -> Result<Order, Faults> {
    at_least_one(&[("devices", devices), ("chunks", chunks), ("microbatches", microbatches)])?;
    let sizes = match group {
        Some(group) => given(devices, microbatches, group)?,
        None => {
            let groups = (microbatches / devices).max(1);
            (0..groups).map(|group| microbatches / groups + usize::from(group < microbatches % groups)).collect()
        }
    };
    let mut first = 0;
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    for size in &sizes {
        for chunk in 0..chunks {
            forwards.extend((first..first + size).map(|microbatch| (chunk, microbatch)));
            backwards.extend((first..first + size).map(|microbatch| (chunks - 1 - chunk, microbatch)));
        }
        first += size;
    }
    let ahead = (chunks - 1) * sizes[0];
    let distance = if chunks == 1 { 1 } else { 2 };
    let device = |device: usize| {
        let token =
            |pass| move |&(chunk, microbatch): &(usize, usize)| Token::new(chunk * devices + device, pass, microbatch);
        let warm_up = (ahead + distance * (devices - device - 1)).min(forwards.len());
        let pairs = forwards[warm_up..]
            .iter()
            .zip(&backwards)
            .flat_map(|(forward, backward)| [token(Pass::Forward)(forward), token(Pass::Backward)(backward)]);
        let last = backwards[forwards.len() - warm_up..].iter().map(token(Pass::Backward));
        forwards[..warm_up].iter().map(token(Pass::Forward)).chain(pairs).chain(last).collect()
    };
    Ok(Order::new((0..devices).map(device).collect()))
}

/// The sizes of groups of `group` microbatches.
fn given(devices: usize, microbatches: usize, group: usize) -> Result<Vec<usize>, Faults> {
    let fault = if (devices..=microbatches).contains(&group) {
        let last = microbatches % group;
        if last == 0 || last >= devices {
            let sizes = std::iter::repeat_n(group, microbatches / group);
            return Ok(sizes.chain((last > 0).then_some(last)).collect());
        }
        format!("groups of {group} of {microbatches} microbatches leave a last one of {last} for {devices} devices")
    } else {
        format!("groups of {group} microbatches are outside {devices}..{microbatches}")
    };
    let divides = |size: &usize| microbatches.is_multiple_of(*size);
    let near = (devices..=microbatches).filter(divides).min_by_key(|size| size.abs_diff(group));
    let hint = match near {
        Some(near) => format!("every group needs a microbatch for each device: use {near}"),
        None => format!("use at least {devices} microbatches"),
    };
    Err(Diagnostic::error(fault).hint(hint).into())
}
