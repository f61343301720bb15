//! SPipe, Mobius and Superpipeline from stage times alone, against exact closed forms.

use spipe_base::SimTime;
use spipe_schedule::{
    StageTimes, StreamedTimes, UnitTimes, bare_streamed, bare_superpipeline, bare_superpipeline_after,
};
use spipe_sim::{Iterations, Options, simulate};

fn span(program: &spipe_schedule::Program) -> u64 {
    let options = Options { iterations: Iterations::One, ..Options::default() };
    simulate(program, &options).trace.iteration.as_ns()
}

fn streamed(name: (&str, bool), devices: usize, microbatches: usize, stages: (usize, usize), times: (u64, u64)) -> u64 {
    let times =
        StreamedTimes { forward: SimTime::ns(times.0), backward: SimTime::ns(times.1), ..StreamedTimes::default() };
    match bare_streamed(name, devices, microbatches, stages, &times) {
        Ok(program) => span(&program),
        Err(faults) => panic!("{faults}"),
    }
}

/// F·M·τf + B·M·τb + (N − 1)·max(τf, τb): the only ramp is that of the slower pass.
#[test]
fn spipe_has_one_ramp() {
    for devices in 1..=8u64 {
        for (forward, backward) in (1..=3u64).flat_map(|forward| (1..=6u64).map(move |backward| (forward, backward))) {
            for microbatches in [devices, devices + 1, 2 * devices, 3 * devices + 2] {
                for (tf, tb) in [(10, 10), (10, 25), (30, 10)] {
                    let stages = (forward as usize, backward as usize);
                    let found = streamed(("spipe", true), devices as usize, microbatches as usize, stages, (tf, tb));
                    let expected =
                        forward * microbatches * tf + backward * microbatches * tb + (devices - 1) * tf.max(tb);
                    assert_eq!(
                        found, expected,
                        "N = {devices}, F = {forward}, B = {backward}, M = {microbatches}, τ = {tf}, {tb}"
                    );
                }
            }
        }
    }
}

/// (F·M + N − 1)(τf + τb): each pass has its own ramp.
#[test]
fn mobius_has_two_ramps() {
    for devices in 1..=8u64 {
        for stages in 1..=3u64 {
            for microbatches in [devices, devices + 1, 2 * devices, 3 * devices + 2] {
                for (tf, tb) in [(10, 10), (10, 30), (30, 10)] {
                    let both = (stages as usize, stages as usize);
                    let found = streamed(("mobius", false), devices as usize, microbatches as usize, both, (tf, tb));
                    assert_eq!(found, (stages * microbatches + devices - 1) * (tf + tb), "N = {devices}, F = {stages}");
                }
            }
        }
    }
}

/// max(c, h, d, (c + h + d)·k′/k) per unit in the steady state.
#[test]
fn superpipeline_is_bound_by_compute_copies_or_room() {
    for swap in 1..=4u64 {
        for ratio in 1..=4u64 {
            for (compute, load, evict) in [(10, 4, 3), (10, 20, 5), (10, 8, 24), (12, 12, 12), (5, 10, 0), (30, 1, 1)] {
                let (resident, cycle) = ((swap * ratio) as usize, swap * ratio);
                let times =
                    UnitTimes { compute: SimTime::ns(compute), load: SimTime::ns(load), evict: SimTime::ns(evict) };
                let whole = |cycles: u64| {
                    let units = (cycles * cycle) as usize;
                    match bare_superpipeline(units, resident, swap as usize, &times) {
                        Ok(program) => span(&program),
                        Err(faults) => panic!("{faults}"),
                    }
                };
                let steady = whole(60) - whole(40);
                let bound = (compute + load + evict) * swap;
                let expected = [compute, load, evict].map(|time| time * 20 * cycle).into_iter().max().unwrap_or(0);
                assert_eq!(steady, expected.max(bound * 20), "k = {resident}, k′ = {swap}: {compute}, {load}, {evict}");
            }
        }
    }
}

#[test]
fn superpipeline_holds_k_units_whatever_bounds_it() {
    for (resident, swap) in [(1, 1), (2, 1), (4, 2), (6, 3), (8, 1)] {
        for (compute, load, evict) in [(10, 1, 0), (10, 1, 1), (1, 10, 0), (1, 10, 3), (5, 5, 5)] {
            let times = UnitTimes { compute: SimTime::ns(compute), load: SimTime::ns(load), evict: SimTime::ns(evict) };
            let Ok(program) = bare_superpipeline(24, resident, swap, &times) else { panic!("it is well-formed") };
            let trace = simulate(&program, &Options::default()).trace;
            let Some(on_device) = trace.memories.iter().find(|memory| memory.name == "gpu0") else { panic!("no gpu0") };
            // The units, and the input and output of one of them.
            let peak = on_device.peak.get() / StageTimes::UNIT.get();
            let resident = resident as u64;
            assert!((resident..=resident + 2).contains(&peak), "{peak} with k = {resident}, k′ = {swap}, {times:?}");
        }
    }
}

#[test]
fn amounts_out_of_range_are_refused_with_the_nearest_in_range() {
    let times = StreamedTimes { forward: SimTime::ns(1), backward: SimTime::ns(1), ..StreamedTimes::default() };
    let refuse = |result: Result<spipe_schedule::Program, spipe_base::Faults>| match result {
        Ok(_) => panic!("it should be refused"),
        Err(faults) => faults.to_string(),
    };
    let few = refuse(bare_streamed(("spipe", true), 4, 3, (2, 6), &times));
    assert!(few.contains("3 microbatches are fewer than the 4 devices") && few.contains("use at least 4"), "{few}");
    let other = refuse(bare_streamed(("mobius", false), 4, 8, (2, 6), &times));
    assert!(other.contains("use 2 backward stages per device"), "{other}");
    let unit = UnitTimes { compute: SimTime::ns(1), load: SimTime::ns(1), evict: SimTime::ns(1) };
    let much = refuse(bare_superpipeline(32, 4, 5, &unit));
    assert!(much.contains("5 of 4 resident units") && much.contains("exchange between 1 and 4"), "{much}");
}

#[test]
fn preloaded_units_need_no_copy() {
    let times = UnitTimes { compute: SimTime::ns(10), load: SimTime::ns(100), evict: SimTime::ZERO };
    let end = |there: usize| match bare_superpipeline_after(there, 12, (4, 2), &times) {
        Ok(program) => span(&program),
        Err(faults) => panic!("{faults}"),
    };
    // Copies of k′ = 2 units bound the pass; after the last copy two units are computed.
    assert_eq!((end(0), end(2)), (12 * 100 + 20, 10 * 100 + 20));
    // With all k preloaded, the first copy has room once two units are computed.
    assert_eq!(end(4), 20 + 8 * 100 + 20);
    let refused = bare_superpipeline_after(5, 12, (4, 2), &times);
    assert!(refused.is_err_and(|faults| faults.to_string().contains("begin with at most 4")));
}

/// Parameters are loaded one stage ahead: the first stage of a device waits for its whole load, and
/// later ones for the part that M passes do not hide.
#[test]
fn loads_hide_behind_the_passes_of_the_stage_before() {
    let gpu = |load: u64| {
        let times = StreamedTimes {
            forward: SimTime::ns(10),
            backward: SimTime::ns(30),
            load: SimTime::ns(load),
            ..StreamedTimes::default()
        };
        span(&bare_streamed(("mobius", false), 2, 4, (2, 2), &times).unwrap())
    };
    let hidden = |load: u64| (2 * 4 + 1) * (10 + 30) + load;
    // Four forwards hide 40 ns, and four backwards more.
    assert_eq!(gpu(40), hidden(40));
    assert_eq!(gpu(1), hidden(1));
    assert_eq!(gpu(60), hidden(60) + 20);
}
