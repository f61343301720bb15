//! Schedules of two chunks per device in a V against closed forms and unit-time goldens.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "the tests of orders use more of it")]
mod support;

use spipe_schedule::{StageTimes, v_half, v_min, zb_v};
use support::{ZERO_BUBBLE_PROFILES, makespan, ms, peaks, run, times};

/// ZB-V spans 6m + p − 1 chunk passes with 2p activations of a chunk: 3m + (p − 1)/2 and p of a
/// whole device. Once the pipeline is full no device has a bubble.
#[test]
fn zb_v_meets_its_closed_form() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    for p in 1..=8usize {
        for m in p.max(2)..=20usize {
            let trace = run(&zb_v(p, m, &unit, None).unwrap(), &unit);
            assert_eq!(trace.iteration, ms((6 * m + p - 1) as f64), "{p} {m}");
            if m >= 2 * p {
                assert_eq!(makespan(&trace), ms(6.0 * m as f64), "{p} {m}");
            }
            assert!(peaks(&trace).iter().all(|peak| *peak <= (2 * p) as f64), "{p} {m}: {:?}", peaks(&trace));
        }
    }
}

/// Spans of at most those of the released greedy algorithm (Qi et al., Pipeline Parallelism with
/// Controllable Memory, arXiv 2405.15362), at peaks of at most its; in passes and activations of
/// one chunk.
#[test]
fn controllable_memory_is_as_fast_as_the_released_schedules() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    for (p, m, half, half_peak, min, min_peak) in [(4, 8, 53.0, 6.0, 59.0, 4.0), (8, 32, 209.0, 10.0, 218.0, 8.0)] {
        for (name, order, span, peak) in [
            ("v-half", v_half(p, m, &unit).unwrap(), half, half_peak),
            ("v-min", v_min(p, m, &unit).unwrap(), min, min_peak),
        ] {
            let trace = run(&order, &unit);
            assert!(trace.iteration <= ms(span), "{name} {p} {m}: {}", trace.iteration);
            assert!(peaks(&trace).iter().all(|found| *found <= peak), "{name} {p} {m}: {:?}", peaks(&trace));
        }
    }
}

/// Bubble rates with the profiles of Qi et al. (arXiv 2401.10241), Table 9, every stage cut in
/// half: at most those of the released generator at the memory of 1F1B, computed separately.
#[test]
fn zb_v_is_as_good_as_the_released_schedule() {
    let released = [0.0703, 0.0543, 0.0298, 0.0498, 0.0381, 0.0195];
    for (profile, released) in ZERO_BUBBLE_PROFILES.iter().zip(released) {
        let weight_gradient_memory = (profile.weight_share() * StageTimes::UNIT.as_f64()).round() as u64;
        let half = times(profile.forward / 2.0, profile.input / 2.0, profile.weight / 2.0, profile.latency);
        let half = StageTimes { weight_gradient_memory, ..half };
        let cost = makespan(&run(&zb_v(profile.devices, profile.microbatches, &half, None).unwrap(), &half)).to_ms();
        let work = profile.microbatches as f64 * (profile.forward + profile.input + profile.weight);
        let rate = 1.0 - work / cost;
        assert!(rate < released + 0.000_05, "{profile:?}: {rate:.5}, released {released}");
    }
}

/// For random times and limits, no schedule deadlocks or exceeds the limit. A limit of less than
/// one microbatch is refused.
#[test]
fn v_shapes_keep_to_their_limits() {
    for weight_gradient_memory in [0, StageTimes::UNIT.get() / 3, StageTimes::UNIT.get()] {
        let uneven = StageTimes { weight_gradient_memory, ..times(0.9, 1.4, 0.5, 0.07) };
        for p in 1..=5usize {
            for m in [1, 2, 5, 9] {
                for limit in 2..=2 * p + 3 {
                    let order = zb_v(p, m, &uneven, Some(StageTimes::UNIT * limit as u64)).unwrap();
                    let peaks = peaks(&run(&order, &uneven));
                    assert!(peaks.iter().all(|peak| *peak <= limit as f64), "{p} {m} {limit}: {peaks:?}");
                }
                for (order, share) in [(v_half(p, m, &uneven), 0.5), (v_min(p, m, &uneven), 1.0 / 3.0)] {
                    let most = 2.0 * p as f64 * share + 3.0;
                    assert!(peaks(&run(&order.unwrap(), &uneven)).iter().all(|peak| *peak <= most), "{p} {m}");
                }
            }
        }
    }
    let refusal = zb_v(4, 8, &times(1.0, 1.0, 1.0, 0.0), Some(StageTimes::UNIT)).unwrap_err().to_string();
    assert!(refusal.contains("hint: use a limit of at least 2"), "{refusal}");
}
