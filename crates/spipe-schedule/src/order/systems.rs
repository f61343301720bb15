//! GPipe and 1F1B.

use super::{Order, Pass, Token};
/// GPipe: every stage runs all forwards, then all backwards (Huang et al. 2019). Both are in
/// ascending order of microbatches, so that gradients are summed in the same order as without a
/// pipeline.
pub fn gpipe(stages: usize, microbatches: usize) -> Order {
    let tokens = |stage: usize, pass| (0..microbatches).map(move |microbatch| Token::new(stage, pass, microbatch));
    Order::new(
        (0..stages).map(|stage| tokens(stage, Pass::Forward).chain(tokens(stage, Pass::Backward)).collect()).collect(),
    )
}

/// 1F1B: stage i of p runs p − i − 1 warm-up forwards, then one forward and one backward in turn,
/// then the remaining backwards (Narayanan et al., PipeDream-Flush, 2021). It holds at most min(m,
/// p − i) of m microbatches.
///
/// H = `head_starts[i]` additional warm-up forwards raise that to min(m, p − i + H). They hide the
/// time of a slow neighbour: its next microbatch is under way before the current one returns.
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
