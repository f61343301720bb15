//! The two hand-made Zero Bubble schedules (Qi et al., arXiv 2401.10241, section 2).

use super::{Order, Pass, Token, at_least_one};
use spipe_base::Faults;

/// ZB-H1: the memory of 1F1B, bubble (p − 1)(TF + TB − TW). Stage i (from 0) holds p − i microbatches whose backward-input
/// is still to come and i whose backward-weight is, so that every stage peaks at p.
pub fn zb_h1(devices: usize, microbatches: usize) -> Result<Order, Faults> {
    delayed(devices, microbatches, |stage| (devices - stage, stage))
}

/// ZB-H2: bubble (p − 1)(TF + TB − 2TW) at a peak of 2p − 1. Stage i (from 0) warms up with 2(p − i) − 1 forwards and
/// delays 2i backward-weights, which fill what would have been the bubble at the end.
pub fn zb_h2(devices: usize, microbatches: usize) -> Result<Order, Faults> {
    delayed(devices, microbatches, |stage| (2 * (devices - stage) - 1, 2 * stage))
}

/// Stages that warm up with some forwards and then run backward-input, backward-weight, forward in turn, the backward-weight
/// some microbatches late; `amounts` says how many of both for a stage.
fn delayed(devices: usize, microbatches: usize, amounts: impl Fn(usize) -> (usize, usize)) -> Result<Order, Faults> {
    at_least_one(&[("devices", devices), ("microbatches", microbatches)])?;
    let device = |stage: usize| {
        let (warm_up, delay) = amounts(stage);
        let token = |pass, microbatch: usize| (microbatch < microbatches).then(|| Token::new(stage, pass, microbatch));
        let first = (0..warm_up).filter_map(move |microbatch| token(Pass::Forward, microbatch));
        let rest = (0..microbatches + delay).flat_map(move |step| {
            [
                token(Pass::BackwardInput, step),
                step.checked_sub(delay).and_then(|late| token(Pass::BackwardWeight, late)),
                token(Pass::Forward, step + warm_up),
            ]
        });
        first.chain(rest.flatten()).collect()
    };
    Ok(Order::new((0..devices).map(device).collect()))
}
