//! Spans, bubbles and peaks of orders against their closed forms and against published rows.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "the tests of orders use more of it")]
mod support;

use spipe_base::{IdleCause, LaneRole, SimTime};
use spipe_schedule::{gpipe, one_forward_one_backward};
use support::{ZERO_BUBBLE_PROFILES, ms, peaks, rate, run, times};

/// (m + p − 1)(TF + TB + TW), Huang et al. 2019; GPipe holds all microbatches, 1F1B min(m, p − i).
#[test]
fn gpipe_and_1f1b_meet_their_closed_forms() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    let uneven = times(0.7, 1.9, 0.4, 0.0);
    for (times, sum) in [(&unit, 3.0), (&uneven, 3.0)] {
        for p in 1..=8usize {
            for m in 1..=32usize {
                let span = ms(sum * (m + p - 1) as f64);
                let all_forward = run(&gpipe(p, m), times);
                assert_eq!(all_forward.iteration, span, "gpipe {p} {m}");
                assert_eq!(peaks(&all_forward), vec![m as f64; p], "gpipe {p} {m}");
                let alternating = run(&one_forward_one_backward(p, m, &[]), times);
                assert_eq!(alternating.iteration, span, "1f1b {p} {m}");
                let held: Vec<f64> = (0..p).map(|i| m.min(p - i) as f64).collect();
                assert_eq!(peaks(&alternating), held, "1f1b {p} {m}");
            }
        }
    }
}

/// The head start raises what stage i holds to min(m, p − i + H) and never lengthens an even
/// pipeline.
#[test]
fn head_start_holds_more_and_costs_nothing_when_even() {
    for p in 1..=6usize {
        for m in 1..=12usize {
            for h in 0..=3usize {
                let trace = run(&one_forward_one_backward(p, m, &vec![h; p]), &times(1.0, 1.0, 1.0, 0.0));
                let held: Vec<f64> = (0..p).map(|i| m.min(p - i + h) as f64).collect();
                assert_eq!(peaks(&trace), held, "{p} {m} {h}");
                assert!(trace.iteration <= ms(3.0 * (m + p - 1 + h) as f64), "{p} {m} {h}");
            }
        }
    }
}

/// Bubble rates of 1F1B with latency between stages: Qi et al., Zero Bubble Pipeline Parallelism
/// (arXiv 2401.10241), Table 5, from the profiled times of its Table 9. The cost is the largest
/// time of one device from its first start to its last end; the rate is (cost − m·ΣT) ÷ cost.
#[test]
fn one_forward_one_backward_meets_the_zero_bubble_table() {
    let published = [0.2431, 0.1985, 0.1240, 0.2552, 0.2082, 0.1251];
    for (profile, published) in ZERO_BUBBLE_PROFILES.iter().zip(published) {
        let rate = rate(&one_forward_one_backward(profile.devices, profile.microbatches, &[]), profile);
        assert!((rate - published).abs() < 0.000_05, "{profile:?}: {rate:.5}, published {published}");
    }
}

/// Work and idle time of every compute lane add up to the iteration, to the nanosecond.
#[test]
fn idle_causes_add_up() {
    for p in 1..=5usize {
        for m in 1..=9usize {
            let trace = run(&one_forward_one_backward(p, m, &[]), &times(0.3, 0.77, 0.21, 0.05));
            for (lane, _) in trace.lanes.iter().enumerate().filter(|(_, lane)| lane.role == LaneRole::Compute) {
                let work: SimTime =
                    trace.spans.iter().filter(|span| span.lane.index() == lane).map(|span| span.duration()).sum();
                let idle: SimTime =
                    trace.idle.iter().filter(|idle| idle.lane.index() == lane).map(|idle| idle.end - idle.start).sum();
                assert_eq!(work + idle, trace.iteration, "{p} {m} lane {lane}");
            }
            let causes: Vec<IdleCause> = trace.idle.iter().map(|idle| idle.cause).collect();
            let known = [IdleCause::WarmUp, IdleCause::Drain, IdleCause::Activation, IdleCause::Gradient];
            assert!(causes.iter().all(|cause| known.contains(cause)), "{causes:?}");
        }
    }
}
