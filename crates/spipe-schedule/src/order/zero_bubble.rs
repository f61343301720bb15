//! The two handcrafted Zero Bubble schedules (Qi et al., arXiv 2401.10241, section 2).

use super::{Order, Pass, Token, at_least_one};
use spipe_base::Faults;

/// ZB-H1: the memory of 1F1B, with a bubble of (p − 1)(TF + TB − TW). Stage i, counted from 0,
/// holds p − i microbatches before their backward-input and i before their backward-weight, so that
/// every stage peaks at p.
pub fn zb_h1(devices: usize, microbatches: usize) -> Result<Order, Faults> {
    delayed(devices, microbatches, |stage| (devices - stage, stage))
}

/// ZB-H2: a bubble of (p − 1)(TF + TB − 2TW) at a peak of 2p − 1 microbatches. Stage i, counted
/// from 0, runs 2(p − i) − 1 warm-up forwards and delays 2i backward-weights, which fill the bubble
/// at the end.
pub fn zb_h2(devices: usize, microbatches: usize) -> Result<Order, Faults> {
    delayed(devices, microbatches, |stage| (2 * (devices - stage) - 1, 2 * stage))
}

/// An order in which each stage runs some warm-up forwards, and then backward-input,
/// backward-weight and forward in turn, with the backward-weight some microbatches late. `amounts`
/// returns the warm-up forwards and the delay of a stage.
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
