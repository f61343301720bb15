//! Order-based schedules against closed forms, published tables and unit-time goldens.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use spipe_base::Bytes;
use spipe_schedule::{StageTimes, automatic, gis, interleaved, zb_h1, zb_h2, zb_v};
use support::{ZERO_BUBBLE_PROFILES, makespan, ms, peaks, rate, run, times};

const COLUMNS: [(&str, [f64; 6]); 4] = [
    ("zb-h1", [0.1585, 0.1242, 0.0674, 0.1397, 0.1088, 0.0576]),
    ("zb-h2", [0.1083, 0.0837, 0.0444, 0.0672, 0.0516, 0.0266]),
    ("zb-1p", [0.1585, 0.1242, 0.0674, 0.1397, 0.1088, 0.0576]),
    ("zb-2p", [0.0433, 0.0039, 0.0026, 0.0066, 0.0054, 0.0028]),
];

/// Qi et al. (arXiv 2401.10241), Table 5, to its four decimals. The automatic schedules are tried
/// with both shares of memory for the weight gradient that the authors use.
#[test]
fn zero_bubble_schedules_meet_their_table() {
    for (name, column) in COLUMNS {
        for (profile, published) in ZERO_BUBBLE_PROFILES.iter().zip(column) {
            let (p, m) = (profile.devices, profile.microbatches);
            for share in [profile.weight_share(), 0.5] {
                let weight_gradient_memory = (share * StageTimes::UNIT.as_f64()).round() as u64;
                let stages = vec![StageTimes { weight_gradient_memory, ..profile.times() }; p];
                let order = match name {
                    "zb-h1" => zb_h1(p, m),
                    "zb-h2" => zb_h2(p, m),
                    "zb-1p" => automatic(&stages, m, StageTimes::UNIT * p as u64),
                    _ => automatic(&stages, m, StageTimes::UNIT * (2 * p) as u64),
                };
                let rate = rate(&order.unwrap(), profile);
                assert!((rate - published).abs() < 0.000_05, "{name} {profile:?}: {rate:.5}, published {published}");
            }
        }
    }
}

/// The same table, column of interleaved 1F1B with three chunks. The paper counts p fewer
/// latencies.
#[test]
fn interleaved_meets_the_zero_bubble_table() {
    let published = [0.1055, 0.0818, 0.0443, 0.1104, 0.0852, 0.0445];
    for (profile, published) in ZERO_BUBBLE_PROFILES.iter().zip(published) {
        let (p, m) = (profile.devices, profile.microbatches);
        let chunk = times(profile.forward / 3.0, profile.input / 3.0, profile.weight / 3.0, profile.latency);
        let cost = makespan(&run(&interleaved(p, 3, m, None).unwrap(), &chunk)).to_ms();
        let rate = 1.0 - m as f64 * (profile.forward + profile.input + profile.weight) / cost;
        assert!((rate - published).abs() < 0.004, "{profile:?}: {rate:.5}, published {published}");
    }
}

/// Span 3vm + 3(p − 1) chunk passes for every m ≥ p, whether or not p divides m; rank i peaks at
/// (v − 1)g + 2(p − i − 1) + 1 chunks.
#[test]
fn interleaved_meets_its_closed_form() {
    for p in 1..=8usize {
        for v in 2..=4usize {
            for m in 1..=32usize {
                let trace = run(&interleaved(p, v, m, None).unwrap(), &times(1.0, 1.0, 1.0, 0.0));
                if m >= p {
                    assert_eq!(trace.iteration, ms(3.0 * (v * m + p - 1) as f64), "{p} {v} {m}");
                }
                let group = m.div_ceil((m / p).max(1));
                let peak: Vec<f64> =
                    (0..p).map(|i| (v * m).min((v - 1) * group + 2 * (p - i - 1) + 1) as f64).collect();
                assert_eq!(peaks(&trace), peak, "{p} {v} {m}");
            }
        }
    }
}

/// With groups of g ≥ p microbatches the span stays, and rank i peaks at (v − 1)g + 2(p − i − 1) + 1 chunks; a group that
/// would starve the pipeline is refused with the nearest that would not.
#[test]
fn larger_groups_of_interleaved_hold_more() {
    for (p, v, m, group) in [(2, 2, 8, 4), (4, 2, 16, 8), (4, 3, 12, 6), (3, 2, 11, 4), (4, 2, 8, 8)] {
        let trace = run(&interleaved(p, v, m, Some(group)).unwrap(), &times(1.0, 1.0, 1.0, 0.0));
        assert_eq!(trace.iteration, ms(3.0 * (v * m + p - 1) as f64), "{p} {v} {m} {group}");
        let peak: Vec<f64> = (0..p).map(|i| (v * m).min((v - 1) * group + 2 * (p - i - 1) + 1) as f64).collect();
        assert_eq!(peaks(&trace), peak, "{p} {v} {m} {group}");
    }
    for (group, near) in [(3, "use 4"), (9, "use 8"), (5, "use 4")] {
        let fault = interleaved(4, 2, 8, Some(group)).unwrap_err().to_string();
        assert!(fault.contains(near), "{fault}");
    }
}

/// One chunk is 1F1B.
#[test]
fn interleaved_with_one_chunk_is_1f1b() {
    for p in 1..=6usize {
        for m in 1..=12usize {
            assert_eq!(interleaved(p, 1, m, None).unwrap(), spipe_schedule::one_forward_one_backward(p, m, &[]));
        }
    }
}

/// Unit passes: ZB-H1 and ZB-1p span 3m + p − 1 with p activations on every rank; ZB-H2 hides the
/// bubble of every rank for 2p − 1 activations.
#[test]
fn zero_bubble_schedules_meet_their_closed_forms() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    for p in 1..=8usize {
        for m in 2 * p..=32usize {
            let automatic = automatic(&vec![unit; p], m, StageTimes::UNIT * p as u64).unwrap();
            for order in [zb_h1(p, m).unwrap(), automatic] {
                let trace = run(&order, &unit);
                assert_eq!(trace.iteration, ms((3 * m + p - 1) as f64), "{p} {m}");
                assert_eq!(peaks(&trace), vec![p as f64; p], "{p} {m}");
            }
            let trace = run(&zb_h2(p, m).unwrap(), &unit);
            assert_eq!(makespan(&trace), ms(3.0 * m as f64), "{p} {m}");
            assert_eq!(peaks(&trace), vec![(2 * p - 1) as f64; p], "{p} {m}");
        }
    }
}

/// No schedule exceeds its limit, and with more memory none is slower than ZB-H1's bubble allows.
#[test]
fn automatic_schedules_keep_to_their_limit() {
    let share = |thousandths: u64| StageTimes {
        weight_gradient_memory: thousandths * StageTimes::UNIT.get() / 1000,
        ..times(1.3, 1.1, 0.6, 0.05)
    };
    for p in 1..=6usize {
        for m in 1..=14usize {
            for units in [1, 2, p, 2 * p, 3 * p] {
                for thousandths in [0, 366, 500, 1000] {
                    let times = share(thousandths);
                    let limit = StageTimes::UNIT * units as u64;
                    let trace = run(&automatic(&vec![times; p], m, limit).unwrap(), &times);
                    assert!(peaks(&trace).iter().all(|peak| *peak <= units as f64), "{p} {m} {units} {thousandths}");
                }
            }
        }
    }
    let refusal = automatic(&[share(500)], 4, Bytes::new(999_999)).unwrap_err().to_string();
    assert!(refusal.contains("hint: use a limit of at least 1"), "{refusal}");
}

/// Peak g(v − 1) + d on rank 0 and bubble 2(d − 1) + (d − g)(v − 1), where ⌈d/2⌉ ≤ g ≤ d and g
/// divides m: Wan et al., PipeOffload (arXiv 2503.01328), section 3.
#[test]
fn grouped_schedules_meet_their_closed_forms() {
    for d in 1..=8usize {
        for v in 1..=4usize {
            for g in d.div_ceil(2)..=d {
                for groups in 2..=5usize {
                    let m = g * groups;
                    let trace = run(&gis(d, v, m, g).unwrap(), &times(1.0, 1.0, 1.0, 0.0));
                    let peak = peaks(&trace).into_iter().map(|peak| peak as usize).max();
                    assert_eq!(peak, Some(g * (v - 1) + d), "{d} {v} {m} {g}");
                    let bubble = 2 * (d - 1) + (d - g) * (v - 1);
                    assert_eq!(trace.iteration, ms((3 * v * m + bubble) as f64), "{d} {v} {m} {g}");
                }
            }
        }
    }
}

/// The bubble for unequal times, (d − 1)(TF + TB) + (v − 1)(d − g)(TF + TB − TW): Table 1 of the
/// same source.
#[test]
fn grouped_schedules_meet_their_closed_form_for_unequal_times() {
    for (forward, input, weight) in [(1.0, 1.2, 0.8), (1.0, 1.3, 1.0), (1.0, 1.0, 0.6)] {
        for (d, v) in [(4, 2), (4, 3), (8, 2), (8, 4)] {
            for g in [d / 2, d] {
                let m = 4 * d;
                let trace = run(&gis(d, v, m, g).unwrap(), &times(forward, input, weight, 0.0));
                let bubble = (d - 1) as f64 * (forward + input);
                let bubble = bubble + ((v - 1) * (d - g)) as f64 * (forward + input - weight);
                let span = (v * m) as f64 * (forward + input + weight) + bubble;
                assert_eq!(trace.iteration, ms(span), "{d} {v} {g} {forward} {input} {weight}");
            }
        }
    }
}

/// If g does not divide m, the peak is at most that of a multiple of g.
#[test]
fn grouped_schedules_keep_their_peak_for_any_number_of_microbatches() {
    for d in 2..=6usize {
        for v in 1..=3usize {
            for g in d.div_ceil(2)..=d {
                for m in 1..=3 * d {
                    let trace = run(&gis(d, v, m, g).unwrap(), &times(1.0, 1.0, 1.0, 0.0));
                    let most = (g * (v - 1) + d) as f64;
                    assert!(peaks(&trace).iter().all(|peak| *peak <= most), "{d} {v} {m} {g}: {:?}", peaks(&trace));
                }
            }
        }
    }
}

/// With the memory of ZB-2p, a V of the same stages cut in half has a smaller bubble than Table 5
/// of Zero Bubble gives ZB-2p.
#[test]
fn zb_v_with_twice_the_memory_beats_zb_2p() {
    let zb_2p = [0.0433, 0.0039, 0.0026, 0.0066, 0.0054, 0.0028];
    for (profile, published) in ZERO_BUBBLE_PROFILES.iter().zip(zb_2p) {
        let (p, m) = (profile.devices, profile.microbatches);
        let half = times(profile.forward / 2.0, profile.input / 2.0, profile.weight / 2.0, profile.latency);
        let share = (profile.weight_share() * StageTimes::UNIT.as_f64()).round() as u64;
        let half = StageTimes { weight_gradient_memory: share, ..half };
        let order = zb_v(p, m, &half, Some(StageTimes::UNIT * (4 * p) as u64)).unwrap();
        let trace = run(&order, &half);
        let cost = makespan(&trace).to_ms();
        let rate = 1.0 - m as f64 * (profile.forward + profile.input + profile.weight) / cost;
        assert!(rate < published, "{profile:?}: {rate:.5}, ZB-2p {published}");
        assert!(peaks(&trace).iter().all(|chunks| *chunks <= (4 * p) as f64), "{profile:?}: {:?}", peaks(&trace));
    }
}
