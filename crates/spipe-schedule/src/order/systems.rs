//! The orders of systems, one function each.

use super::{Order, Pass, Token};
use spipe_plan::System;

/// The order that `system` prescribes for one stage per device: 1F1B unless it is another; `head_starts` matter to the hybrid
/// alone.
pub fn system_order(system: System, stages: usize, microbatches: usize, head_starts: &[usize]) -> Order {
    match system {
        System::Gpipe => gpipe(stages, microbatches),
        System::Hybrid => one_forward_one_backward(stages, microbatches, head_starts),
        _ => one_forward_one_backward(stages, microbatches, &[]),
    }
}

/// GPipe: every stage runs all forwards, then all backwards (Huang et al. 2019), both in ascending order of microbatches,
/// so that gradients accumulate as in a run without a pipeline.
pub fn gpipe(stages: usize, microbatches: usize) -> Order {
    let tokens = |stage: usize, pass| (0..microbatches).map(move |microbatch| Token::new(stage, pass, microbatch));
    Order::new(
        (0..stages).map(|stage| tokens(stage, Pass::Forward).chain(tokens(stage, Pass::Backward)).collect()).collect(),
    )
}

/// 1F1B: stage i of p runs p − i − 1 forwards to warm up, then one forward and one backward in turn, then the backwards
/// that are left (Narayanan et al., PipeDream-Flush, 2021). It holds at most min(m, p − i) microbatches.
///
/// `head_starts[i]` more warm-up forwards raise that to min(m, p − i + H): a stage that waits for a slow neighbour then has
/// its next microbatch under way before the current one returns.
pub fn one_forward_one_backward(stages: usize, microbatches: usize, head_starts: &[usize]) -> Order {
    let device = |stage: usize| {
        let head_start = head_starts.get(stage).copied().unwrap_or(0);
        let warm_up = (stages - stage - 1 + head_start).min(microbatches);
        let first = (0..warm_up).map(move |microbatch| Token::new(stage, Pass::Forward, microbatch));
        let pairs = (0..microbatches - warm_up).flat_map(move |microbatch| {
            [Token::new(stage, Pass::Forward, warm_up + microbatch), Token::new(stage, Pass::Backward, microbatch)]
        });
        let last =
            (microbatches - warm_up..microbatches).map(move |microbatch| Token::new(stage, Pass::Backward, microbatch));
        first.chain(pairs).chain(last).collect()
    };
    Order::new((0..stages).map(device).collect())
}
