//! Orders as PyTorch prints them, and times by stage.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "the tests of orders use more of it")]
mod support;

use spipe_base::{Bytes, SimTime};
use spipe_schedule::{Order, StageTimes, automatic, bare, bare_with_stage_times, one_forward_one_backward};
use spipe_sim::{Iterations, Options, simulate};
use spipe_trace::Trace;
use support::{ms, times};

fn run(program: &spipe_schedule::Program) -> Trace {
    simulate(program, &Options { iterations: Iterations::One, ..Options::default() }).trace
}

/// PyTorch 2.15's lowering of a compute-only file (`_load_csv`, `compute_comms`) has the span of the
/// file itself.
#[test]
fn both_dialects_have_the_same_span() {
    let only = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    let comms = "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,0REDUCE_GRAD,\
                 0WAIT_REDUCE_GRAD,0RESHARD\n1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,\
                 1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1\n";
    let times = times(1.0, 1.5, 0.5, 0.25);
    let (printed, skipped) = Order::read("s.csv", comms).unwrap();
    let plain: Order = only.parse().unwrap();
    assert_eq!(printed, plain);
    assert_eq!(skipped.values().sum::<usize>(), 20);
    assert_eq!(run(&bare("s", &printed, &times).unwrap()), run(&bare("s", &plain, &times).unwrap()));
}

/// An overlapped pair is one action: it takes as long as both parts, starts when both inputs are
/// there, and both results are there at its end.
#[test]
fn an_overlapped_pair_takes_forward_and_backward() {
    // A V of 2 devices and 4 stages, as DualPipeV overlaps in it.
    let text = "0F0,0F1,3F0,(0F2;3B0)OVERLAP_F_B,3F1,3B1,0B0,3F2,0B1,3B2,0B2\n\
                1F0,2F0,1F1,2F1,2B0,1F2,1B0,2F2,2B1,1B1,2B2,1B2\n";
    let order: Order = text.parse().unwrap();
    assert_eq!(order.to_string(), text);
    let trace = run(&bare("v", &order, &times(1.0, 1.0, 1.0, 0.0)).unwrap());
    let find = |label: &str| trace.spans.iter().find(|span| span.label() == label).unwrap();
    let (forward, backward) = (find("0F2"), find("3B0"));
    assert_eq!((forward.end, backward.end - forward.start), (backward.start, ms(3.0)));
    // The next stage of the forward, and that of the backward, wait for the end of both.
    assert!(find("1F2").start >= backward.end && find("2B0").start >= backward.end);
    // A pair whose backward needs its own forward's successor deadlocks, and a plain order does not.
    let stuck = "0F0,(0F1;1B0)OVERLAP_F_B,0B0,0B1\n1F0,1B1\n";
    assert!(stuck.parse::<Order>().unwrap().validate().is_err());
}

fn stages(forwards: [f64; 4]) -> Vec<StageTimes> {
    forwards.map(|forward| times(forward, 1.0, 1.0, 0.0)).to_vec()
}

/// Equal times by stage are the uniform times; a slow stage is the pace of 1F1B.
#[test]
fn stages_may_have_their_own_times() {
    let order = one_forward_one_backward(4, 12, &[]);
    let uniform = run(&bare("1f1b", &order, &times(1.0, 1.0, 1.0, 0.0)).unwrap());
    let equal = run(&bare_with_stage_times("1f1b", &order, &stages([1.0; 4])).unwrap());
    assert_eq!(uniform, equal);
    let slow = run(&bare_with_stage_times("1f1b", &order, &stages([1.0, 1.0, 3.0, 1.0])).unwrap());
    // Twelve microbatches of five on the slow stage, and the others around it once.
    assert!(slow.iteration >= ms(60.0) && slow.iteration <= ms(60.0 + 9.0), "{}", slow.iteration);
    let refused = bare_with_stage_times("1f1b", &order, &stages([1.0; 4])[..3]).unwrap_err().to_string();
    assert!(refused.contains("times for 3 stages, and 4 stages"), "{refused}");
}

/// Searched with the times of the stages, the order is at least as good as one searched for equal
/// stages.
#[test]
fn the_automatic_order_is_searched_with_these_times() {
    let each = stages([0.5, 1.0, 2.0, 0.5]);
    let limit: Bytes = StageTimes::UNIT * 4;
    let span = |order: &Order| -> SimTime { run(&bare_with_stage_times("zb", order, &each).unwrap()).iteration };
    let own = automatic(&each, 12, limit).unwrap();
    let other = automatic(&[times(1.0, 1.0, 1.0, 0.0); 4], 12, limit).unwrap();
    assert!(span(&own) <= span(&other), "{} and {}", span(&own), span(&other));
}
