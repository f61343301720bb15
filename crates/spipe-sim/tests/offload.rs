//! Offloaded activations against the figures of PipeOffload (Wan et al., arXiv 2503.01328).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "the tests of orders use more of it")]
mod support;

use spipe_base::{LaneRole, SimTime};
use spipe_schedule::{Offloading, StageTimes, bare_offloaded, offloaded, uniform};
use spipe_sim::{Iterations, Options, simulate};
use spipe_trace::Trace;
use support::{makespan, ms, peaks, run, times};

/// The trace of one iteration, and the peaks of the devices.
fn run_offloaded(offloading: &Offloading, times: &StageTimes) -> (Trace, Vec<usize>) {
    let program = bare_offloaded("test", offloading, times).unwrap();
    let simulation = simulate(&program, &Options { iterations: Iterations::One, ..Options::default() });
    assert!(simulation.steady && spipe_sim::is_ok(&simulation));
    let devices = offloading.order.devices().len();
    let peaks = peaks(&simulation.trace).into_iter().take(devices).map(|peak| peak as usize).collect();
    (simulation.trace, peaks)
}

/// The time of one copy if the round trip takes `ratio` times forward, backward-input and
/// backward-weight together.
fn copy(ratio: f64, times: &StageTimes) -> SimTime {
    let work = times.forward + times.backward_input + times.backward_weight;
    ms(ratio / 2.0 * work.to_ms())
}

/// The uniform order with m = 4d: makespan minus work, and peaks by rank.
#[test]
fn uniform_blocks_meet_the_released_figures() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    for (d, v, idle, held) in
        [(4, 2, 9, vec![7, 6, 5, 4]), (4, 4, 18, vec![11, 10, 9, 8]), (8, 2, 23, vec![13, 12, 11, 10, 9, 8, 7, 6])]
    {
        let m = 4 * d;
        let trace = run(&uniform(d, v, m).unwrap(), &unit);
        assert_eq!(makespan(&trace), ms((3 * v * m + idle) as f64), "{d} {v}");
        assert_eq!(peaks(&trace).into_iter().map(|peak| peak as usize).collect::<Vec<_>>(), held, "{d} {v}");
    }
}

/// Peaks with offload for round trips of 0.5, 1 and 1.4 times a microbatch's work on a chunk, m =
/// 4d: at most those of the released generator, and feasible where it finds nothing. The makespan
/// is that of the uniform order.
#[test]
fn offload_lowers_peaks_as_far_as_the_released_schedules() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    for (d, v, chunks, most) in [
        (4, 2, 1, [4, 4, 5]),
        (4, 2, 2, [3, 4, 5]),
        (4, 4, 2, [5, 5, 6]),
        (4, 4, 3, [4, 4, 11]),
        (4, 4, 4, [3, 4, 11]),
        (8, 2, 1, [6, 6, 7]),
        (8, 2, 2, [3, 6, 13]),
    ] {
        let m = 4 * d;
        let without = run(&uniform(d, v, m).unwrap(), &unit).iteration;
        for (ratio, most) in [0.5, 1.0, 1.4].into_iter().zip(most) {
            let offloading = offloaded([d, v, m], &unit, chunks, copy(ratio, &unit)).unwrap();
            let (trace, peaks) = run_offloaded(&offloading, &unit);
            assert!(peaks.iter().all(|peak| *peak <= most), "{d} {v} {chunks} {ratio}: {peaks:?}");
            assert!(trace.iteration <= without, "{d} {v} {chunks} {ratio}: {} {without}", trace.iteration);
        }
    }
}

/// The same by rank, for published figures by rank.
#[test]
fn offload_lowers_the_peak_of_every_rank() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    for (d, v, ratio, most) in [
        (8, 2, 0.5, vec![3, 3, 3, 3, 3, 3, 3, 2]),
        (8, 2, 1.0, vec![6, 5, 6, 4, 4, 4, 3, 3]),
        (4, 4, 1.0, vec![5, 5, 4, 3]),
    ] {
        let offloading = offloaded([d, v, 4 * d], &unit, 2, copy(ratio, &unit)).unwrap();
        let (_, peaks) = run_offloaded(&offloading, &unit);
        assert!(peaks.iter().zip(&most).all(|(peak, most)| peak <= most), "{d} {v} {ratio}: {peaks:?}, not {most:?}");
    }
}

/// For random times, the simulated peaks equal the planned ones, compute is not delayed, a GPU runs
/// one copy at a time, and only one of two GPUs on a switch copies in each direction.
#[test]
fn copies_share_a_switch_and_delay_nothing() {
    let times = StageTimes { weight_gradient_memory: StageTimes::UNIT.get() * 2 / 5, ..times(0.8, 1.1, 0.6, 0.04) };
    for d in 1..=5usize {
        for v in 1..=4usize {
            for m in [1, 2, 5, 3 * d] {
                let without = run(&uniform(d, v, m).unwrap(), &times).iteration;
                for (chunks, ratio) in [(0, 1.0), (v.div_ceil(2), 0.7), (v, 1.0), (v, 2.5)] {
                    let offloading = offloaded([d, v, m], &times, chunks, copy(ratio, &times)).unwrap();
                    let (trace, peaks) = run_offloaded(&offloading, &times);
                    let name = format!("{d} {v} {m} {chunks} {ratio}");
                    assert!(peaks.iter().zip(&offloading.peaks).all(|(peak, planned)| peak <= planned), "{name}");
                    assert!(trace.iteration <= without, "{name}: {} {without}", trace.iteration);
                    no_two_copies_meet(&trace, &name);
                }
            }
        }
    }
    let refusal = offloaded([4, 2, 8], &times, 3, SimTime::ZERO).unwrap_err().to_string();
    assert!(refusal.contains("hint: offload at most 2"), "{refusal}");
}

/// Where copies take as long as computing, offloading more chunks never holds more: the largest peak
/// does not grow with the chunks, over devices, chunks and ratios. 16 devices, 4 chunks, 64
/// microbatches once held 8 with 3 chunks offloaded and 14 with all 4.
#[test]
fn offloading_more_never_holds_more() {
    let unit = times(1.0, 1.0, 1.0, 0.0);
    let few = [1, 2, 3, 5, 8].into_iter().flat_map(|d| [2, 3, 4].map(|v| (d, v, 3 * d)));
    let shapes = few.chain([(16, 4, 64), (4, 6, 8)]);
    for (d, v, m) in shapes {
        let ratios: &[f64] = if d == 16 { &[1.0] } else { &[0.8, 1.0, 1.4] };
        for ratio in ratios.iter().copied() {
            let mut before = usize::MAX;
            for chunks in 0..=v {
                let offloading = offloaded([d, v, m], &unit, chunks, copy(ratio, &unit)).unwrap();
                let (_, peaks) = run_offloaded(&offloading, &unit);
                let most = peaks.into_iter().max().unwrap();
                assert!(
                    most <= before,
                    "{d} {v} {m} {ratio}: {most} with {chunks} chunks offloaded, {before} with one less"
                );
                before = most;
            }
        }
    }
}

fn no_two_copies_meet(trace: &Trace, name: &str) {
    let copies: Vec<_> =
        trace.spans.iter().filter(|span| trace.lanes[span.lane.index()].role == LaneRole::Channel).collect();
    let gpu = |span: &spipe_trace::Span| -> usize {
        trace.lanes[span.lane.index()].device.trim_start_matches("gpu").parse().unwrap()
    };
    for (index, one) in copies.iter().enumerate() {
        for other in &copies[index + 1..] {
            let apart = one.end <= other.start || other.end <= one.start;
            let link = gpu(one) / 2 == gpu(other) / 2 && one.kind == other.kind;
            assert!(apart || !(link || gpu(one) == gpu(other)), "{name}: {one:?} {other:?}");
        }
    }
}
