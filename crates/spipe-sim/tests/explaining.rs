//! Explanations: the critical path adds up to the iteration, and waits to the idle time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::SimTime;
use spipe_schedule::{
    Order, Program, StageTimes, StreamedTimes, bare, bare_streamed, gis, interleaved, one_forward_one_backward, zb_h1,
    zb_v,
};
use spipe_sim::{Iterations, Options, simulate, simulate_explained};

fn programs() -> Vec<(String, Program)> {
    let times = StageTimes {
        forward: SimTime::ms(3),
        backward_input: SimTime::ms(2),
        backward_weight: SimTime::ms(1),
        latency: SimTime::ns(250_000),
        weight_gradient_memory: StageTimes::UNIT.get(),
    };
    let orders: [(&str, Order); 5] = [
        ("1f1b", one_forward_one_backward(4, 8, &[])),
        ("zb-h1", zb_h1(4, 8).unwrap()),
        ("zb-v", zb_v(4, 8, &times, None).unwrap()),
        ("interleaved", interleaved(4, 2, 8, None).unwrap()),
        ("gis", gis(4, 2, 8, 4).unwrap()),
    ];
    let mut all: Vec<(String, Program)> =
        orders.into_iter().map(|(name, order)| (name.to_owned(), bare(name, &order, &times).unwrap())).collect();
    let streamed = StreamedTimes { forward: SimTime::ms(2), backward: SimTime::ms(5), ..StreamedTimes::default() };
    for (name, split) in [("spipe", true), ("mobius", false)] {
        all.push((name.to_owned(), bare_streamed((name, split), 3, 5, (2, 2), &streamed).unwrap()));
    }
    all
}

#[test]
fn the_critical_path_adds_up_to_the_iteration() {
    for (name, program) in programs() {
        for iterations in [Iterations::Enough, Iterations::One] {
            let options = Options { iterations, ..Options::default() };
            let trace = simulate_explained(&program, &options).trace;
            let explanation = trace.explanation.as_ref().unwrap();
            let path = &explanation.critical_path;
            let total: f64 = path.iter().map(|piece| piece.ms).sum();
            let iteration = trace.iteration.to_ms();
            assert!((total - iteration).abs() < 1e-6, "{name}, {iterations:?}: {total} of {iteration} ms");
            for pair in path.windows(2) {
                let end = pair[0].start_ms + pair[0].ms;
                assert!((pair[1].start_ms - end).abs() < 1e-6, "{name}, {iterations:?}: a gap before {:?}", pair[1]);
            }
            assert!(
                path.iter().all(|piece| piece.action != "idle"),
                "{name}, {iterations:?}: every piece has its action"
            );
        }
    }
}

#[test]
fn waits_add_up_to_the_idle_time_and_change_nothing_else() {
    for (name, program) in programs() {
        let mut explained = simulate_explained(&program, &Options::default()).trace;
        let explanation = explained.explanation.take().unwrap();
        assert_eq!(explained, simulate(&program, &Options::default()).trace, "{name}");
        let idle: f64 = explained.idle.iter().map(|idle| (idle.end - idle.start).to_ms()).sum();
        let waits: f64 = explanation.waits.iter().map(|wait| wait.ms).sum();
        assert!((idle - waits).abs() < 1e-6, "{name}: {waits} of {idle} ms");
        let intervals: u64 = explanation.waits.iter().map(|wait| wait.count).sum();
        assert_eq!(intervals, explained.idle.len() as u64, "{name}");
        assert!(explanation.waits.iter().all(|wait| !wait.chain.is_empty()), "{name}: every wait has a chain");
    }
}
