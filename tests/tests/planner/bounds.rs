//! Bounds of systems: no placement is faster than the bound of its system, or than a proven plan.

use super::{
    CLOCK,
    draws::{random_sharded, random_stages, random_streamed},
    generate,
    instances::{
        Instance, LayerText, MachineText, crowded_instance, frozen, frozen_instance_of, instance_of, machine_text,
        model_text, one_gpu_instance, several_socket_instance_of, tied_instance_of, workload,
    },
    run, simulated, solve,
};
use proptest::prelude::*;
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{OutcomeStatus, System, Weights, check};
use spipe_planner::{Options, PlanError, candidates};
use std::cell::Cell;

/// No candidate of a system is faster than its bound, and a refused system has no candidate that
/// fits.
#[test]
fn no_candidate_of_any_system_beats_its_bound() {
    run(60, instance_of(6), bounded);
}

/// The same with frozen layers: the first ones, and perhaps some behind them.
#[test]
fn no_candidate_for_frozen_layers_beats_its_bound() {
    run(60, frozen_instance_of(6), bounded);
}

fn bounded(instance: Instance) -> Result<(), TestCaseError> {
    let context = instance.context();
    for system in System::ALL.into_iter().filter(|system| !spipe_planner::SYSTEMS.contains(system)) {
        let options = Options { refinements: 60, every_limit: 0, ..Options::default() };
        let found = generate(&instance, &[system], options);
        let times: Vec<SimTime> = candidates(&context, system)
            .iter()
            .filter(|placement| check(&context, placement).is_ok())
            .filter_map(|placement| simulated(&instance, placement))
            .collect();
        match found {
            Ok(found) => {
                prop_assert_eq!(Ok(()), check(&context, &found.placement));
                prop_assert_eq!(simulated(&instance, &found.placement), Some(found.simulated));
                let known = &found.considered[0];
                let bound = known.bound.unwrap();
                prop_assert!(bound <= found.simulated, "{}: {} but {}", system, bound, found.simulated);
                prop_assert!(times.iter().all(|time| bound <= *time + CLOCK), "{}: {} but {:?}", system, bound, times);
                prop_assert!(times.iter().all(|time| found.simulated <= *time), "{}", system);
            }
            Err(error) => prop_assert!(times.is_empty(), "{}: {} but {:?}", system, error, times),
        }
    }
    Ok(())
}

/// Sharded systems: no placement is faster than the bound, with any stages that recompute, stream,
/// or update on the host.
#[test]
fn no_sharded_placement_beats_its_bound() {
    sharded_bounds(150, instance_of(6));
}

/// The same with frozen layers, and with a first and a last layer that share parameters.
#[test]
fn no_sharded_placement_of_frozen_or_tied_layers_beats_its_bound() {
    sharded_bounds(60, prop_oneof![frozen_instance_of(6), tied_instance_of(4)]);
}

/// The same with more layers, whose inputs are either as large as their saved activations or tiny:
/// the memory of a stage that recomputes depends on its first layer.
#[test]
fn no_sharded_placement_of_layers_with_unlike_inputs_beats_its_bound() {
    let layer = |boundary: u64| LayerText {
        count: 1,
        times: [2, 2, 2],
        slowdown: 9,
        parameters: 1_000_000,
        boundary,
        saved: 100,
        workspace: 0,
    };
    let layers = prop::collection::vec(prop_oneof![Just(1u64), Just(100u64)].prop_map(layer), 4..=12);
    let on = (layers, 300u64..1200, 1u64..3).prop_map(|(layers, memory, microbatches)| {
        let machine = MachineText { gpus: vec![(memory, 20)], root: 20, sockets: vec![4000] };
        Instance::new(&model_text(&layers), &machine_text(&machine), &workload(microbatches, Mode::Train))
    });
    sharded_bounds(80, on);
}

fn sharded_bounds(cases: u32, on: impl Strategy<Value = Instance>) {
    let seen = Cell::new(0);
    let draws = prop::collection::vec(prop::collection::vec(any::<u8>(), 12), 24);
    run(cases, (on, draws), |(instance, draws)| {
        let context = instance.context();
        for system in System::ALL.into_iter().filter(|system| system.shards_parameters()) {
            let drawn = draws.iter().map(|draws| random_sharded(&context, system, draws));
            let all = candidates(&context, system).into_iter().chain(drawn);
            let fit = all.filter(|placement| check(&context, placement).is_ok());
            let times: Vec<SimTime> = fit.filter_map(|placement| simulated(&instance, &placement)).collect();
            let options = Options { every_limit: 0, ..Options::default() };
            let incumbent = Options { incumbent: Some(SimTime::ns(1)), ..options.clone() };
            match generate(&instance, &[system], incumbent) {
                Err(PlanError::NothingBetter { bound, .. }) => {
                    let all = times.iter().all(|time| bound <= *time + CLOCK);
                    prop_assert!(all, "{}: {} but {:?}", system, bound, times);
                    let close = times.iter().min().is_some_and(|least| bound.to_ms() >= 0.8 * least.to_ms());
                    seen.set(seen.get() + u32::from(close));
                }
                other => prop_assert!(times.is_empty(), "{}: {:?} but {:?}", system, other, times),
            }
            if let Ok(found) = generate(&instance, &[system], options.clone()) {
                let least = found.simulated.to_ms() * (1.0 - options.gap);
                let best = found.status == OutcomeStatus::Optimal;
                prop_assert!(!best || times.iter().all(|time| least <= (*time + CLOCK).to_ms()), "{:?}", times);
            }
        }
        Ok(())
    });
    assert!(seen.get() >= cases / 4, "few bounds are close: {}", seen.get());
}

/// Several stages on a device: no placement is faster than its system's bound, whatever it
/// recomputes, offloads, or updates on the host.
#[test]
fn no_placement_of_stages_beats_the_bound_of_its_system() {
    stage_bounds((400, 20), instance_of(6));
}

/// The same with several sockets, on any of which a stage may keep its offloaded state.
#[test]
fn no_placement_beside_several_sockets_beats_the_bound_of_its_system() {
    stage_bounds((500, 10), prop_oneof![several_socket_instance_of(6, 1), several_socket_instance_of(5, 2)]);
}

/// The same with a first and a last layer that share parameters.
#[test]
fn no_placement_of_tied_ends_beats_the_bound_of_its_system() {
    stage_bounds((300, 10), tied_instance_of(4));
}

fn stage_bounds((cases, close): (u32, u32), on: impl Strategy<Value = Instance>) {
    let seen = Cell::new(0);
    run(cases, (on, prop::collection::vec(any::<u8>(), 12)), |(instance, draws)| {
        let context = instance.context();
        for system in [System::OneForwardOneBackward, System::Gpipe, System::Hybrid] {
            let placement = random_stages(&context, system, &draws);
            if check(&context, &placement).is_err() {
                continue;
            }
            let Some(time) = simulated(&instance, &placement) else { continue };
            let incumbent = Some(SimTime::ns(1));
            let options = Options { incumbent, start: Some(placement.clone()), ..Options::default() };
            let Err(PlanError::NothingBetter { bound, .. }) = generate(&instance, &[system], options) else {
                return Err(TestCaseError::fail("nothing is faster than a nanosecond"));
            };
            prop_assert!(bound <= time + CLOCK, "{} but {}: {:?}", bound, time, placement);
            let several = placement.stages.len() > placement.devices().len();
            seen.set(seen.get() + u32::from(several && bound.to_ms() >= 0.7 * time.to_ms()));
        }
        Ok(())
    });
    assert!(seen.get() >= close, "{} bounds of several stages on a device were close", seen.get());
}

/// Searched systems: no placement of stages is faster than the proven bound, or than a plan that is
/// called optimal.
#[test]
fn no_placement_of_stages_beats_the_proven_bound() {
    proven_bounds(20, (6, 2), instance_of(6));
}

/// The same with several sockets, on any of which a stage may keep its offloaded state.
#[test]
fn no_placement_beside_several_sockets_beats_the_proven_bound() {
    proven_bounds(28, (5, 2), several_socket_instance_of(5, 1));
}

/// The same with layers whose optimizer state does not fit on the GPUs, and with microbatches
/// enough for the longest cycles of the event graph.
#[test]
fn no_placement_with_host_updates_beats_the_proven_bound() {
    proven_bounds(10, (0, 0), crowded_instance());
}

fn proven_bounds(cases: u32, (close, optimal): (u32, u32), on: impl Strategy<Value = Instance>) {
    let (seen, proven) = (Cell::new(0), Cell::new(0));
    let draws = prop::collection::vec(prop::collection::vec(any::<u8>(), 12), 24);
    run(cases, (on, draws), |(instance, draws)| {
        let context = instance.context();
        for system in [System::OneForwardOneBackward, System::Gpipe, System::Hybrid] {
            let options = Options { every_limit: 0, refinements: 400, ..Options::default() };
            let Ok(found) = solve(&instance, &[system], options.clone()) else { continue };
            let best = found.status == OutcomeStatus::Optimal;
            proven.set(proven.get() + u32::from(best));
            for placement in draws.iter().map(|draws| random_stages(&context, system, draws)) {
                // Without a CPU stage it is 1F1B.
                let named =
                    system != System::Hybrid || placement.devices().iter().any(|device| context.is_cpu(*device));
                let checked = named && check(&context, &placement).is_ok();
                let Some(time) = checked.then(|| simulated(&instance, &placement)).flatten() else { continue };
                prop_assert!(found.bound <= time + CLOCK, "{} but {}: {:?}", found.bound, time, placement);
                let least = found.simulated.to_ms() * (1.0 - options.gap);
                prop_assert!(!best || least <= (time + CLOCK).to_ms(), "{found:?} but {time}: {placement:?}");
                let several = placement.stages.len() > placement.devices().len();
                seen.set(seen.get() + u32::from(several && found.bound.to_ms() >= 0.8 * time.to_ms()));
            }
        }
        Ok(())
    });
    assert!(seen.get() >= close, "{} bounds of several stages on a device were close", seen.get());
    assert!(proven.get() >= optimal, "{} plans were proven", proven.get());
}

/// Streamed systems: no placement with some layers streamed and others resident is faster than its
/// system's bound, which counts whole layers.
#[test]
fn no_streamed_placement_beats_the_bound_of_its_system() {
    streamed_bounds((800, [10; 2]), instance_of(6));
}

/// The same with layers that are streamed from any of several sockets.
#[test]
fn no_placement_streamed_from_several_sockets_beats_the_bound_of_its_system() {
    streamed_bounds((400, [10; 2]), prop_oneof![several_socket_instance_of(6, 1), several_socket_instance_of(5, 2)]);
}

/// The same on one GPU, which has a tighter bound by cases of how layers are streamed.
#[test]
fn no_placement_streamed_to_one_gpu_beats_the_bound_of_its_system() {
    streamed_bounds((1500, [10; 2]), one_gpu_instance());
}

/// The same with frozen layers: the first ones, and perhaps some behind them.
#[test]
fn no_placement_of_frozen_layers_streamed_to_one_gpu_beats_the_bound_of_its_system() {
    streamed_bounds((1000, [10; 2]), frozen(one_gpu_instance()));
}

/// The same with a first and a last layer that share parameters: either both are streamed or
/// neither is.
#[test]
fn no_streamed_placement_of_tied_ends_beats_the_bound_of_its_system() {
    streamed_bounds((1000, [10; 2]), tied_instance_of(4));
}

/// The same with some layers that save too much and have to be recomputed, which a device may do
/// while it waits for its first gradient.
#[test]
fn no_streamed_placement_with_recompute_beats_the_bound_of_its_system() {
    let layer = |(forward, backward, large): (u32, u32, bool)| LayerText {
        count: 1,
        times: [forward, backward, backward],
        slowdown: 50,
        parameters: 1_000_000,
        boundary: 1,
        saved: if large { 3000 } else { 1 },
        workspace: 0,
    };
    let layers = prop::collection::vec((10u32..40, 10u32..50, any::<bool>()).prop_map(layer), 2..=4);
    let on = (layers, 2u64..6).prop_map(|(layers, microbatches)| {
        let machine = MachineText { gpus: vec![(4096, 20); 2], root: 40, sockets: vec![65_536] };
        Instance::new(&model_text(&layers), &machine_text(&machine), &workload(microbatches, Mode::Train))
    });
    streamed_bounds((600, [10, 0]), on);
}

fn streamed_bounds((cases, close): (u32, [u32; 2]), on: impl Strategy<Value = Instance>) {
    let seen = Cell::new([0; 2]);
    run(cases, (on, prop::collection::vec(any::<u8>(), 12)), |(instance, draws)| {
        let context = instance.context();
        for (index, system) in [System::Superpipeline, System::Mobius].into_iter().enumerate() {
            let placement = random_streamed(&context, system, &draws);
            let checked = placement.filter(|placement| check(&context, placement).is_ok());
            let Some(placement) = checked else { continue };
            let Some(time) = simulated(&instance, &placement) else { continue };
            let options =
                Options { incumbent: Some(SimTime::ns(1)), start: Some(placement.clone()), ..Options::default() };
            let Err(PlanError::NothingBetter { bound, .. }) = generate(&instance, &[system], options) else {
                return Err(TestCaseError::fail("nothing is faster than a nanosecond"));
            };
            prop_assert!(bound <= time + CLOCK, "{} but {}: {:?}", bound, time, placement);
            let kept = placement.stages.iter().filter(|stage| matches!(stage.weights, Weights::Resident)).count();
            let mixed = (1..placement.stages.len()).contains(&kept);
            let mut now = seen.get();
            now[index] += u32::from(mixed && bound.to_ms() >= 0.6 * time.to_ms());
            seen.set(now);
        }
        Ok(())
    });
    let enough = seen.get().iter().zip(close).all(|(seen, close)| *seen >= close);
    assert!(enough, "few bounds were close: {:?}", seen.get());
}
