//! Plans under pins.

use super::{
    CLOCK, add, exact,
    instances::{Instance, LayerText, MachineText, instance_of, machine_text, model_text, workload},
    run, simulated, solve,
};
use proptest::prelude::*;
use spipe_base::{DeviceId, LayerRange};
use spipe_cost::Mode;
use spipe_plan::{Knob, Placement, Stage, System, check};
use spipe_planner::{Named, Options, Pin, Pins, every};
use std::cell::Cell;

/// A pin that makes the optimizer a phase of its own: no placement with the pin is faster than the
/// bound, and the plan is the fastest of them.
#[test]
fn a_synchronous_optimizer_has_bounds_of_its_own() {
    let found = Cell::new(0);
    run(60, instance_of(3), |instance| {
        let context = instance.context();
        let pin = Pin::Knob(Knob::SynchronousOptimizer, 1);
        for system in [System::ZeroOffload, System::Fsdp, System::ZeroInfinity] {
            let pins = Pins::new(&[Named { words: "pin".into(), pin: pin.clone() }]).unwrap();
            let options = Options { pins, ..exact() };
            let Ok(one) = solve(&instance, &[system], options) else { continue };
            prop_assert!(one.placement.update.is_phase());
            let phased = |placement: Placement| placement.with(Knob::SynchronousOptimizer, 1);
            let all = every(context, system, usize::MAX).unwrap_or_default().into_iter().map(phased);
            let fit = all.filter(|placement| check(&context, placement).is_ok());
            let timed = |placement: Placement| Some((simulated(&instance, &placement)?, placement));
            let (best, fastest) = fit.filter_map(timed).min_by_key(|(time, _)| *time).unwrap();
            let agrees = one.bound <= best + CLOCK && one.simulated <= best + CLOCK;
            prop_assert!(agrees, "{}: {:?} but {}: {:?}", system, one, best, fastest);
            add(&found);
        }
        Ok(())
    });
    assert!(found.get() >= 40, "{} plans", found.get());
}

/// `layers` equal layers on two equal GPUs and `sockets` sockets.
fn on_equal_gpus(layers: usize, sockets: usize) -> Instance {
    let layer = LayerText {
        count: layers,
        times: [10, 10, 10],
        slowdown: 5,
        parameters: 1_000_000,
        boundary: 1,
        saved: 8,
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(600, 20); 2], root: 20, sockets: vec![2000; sockets] };
    let (model, machine) = (model_text(&[layer]), machine_text(&machine));
    Instance::new(&model, &machine, &workload(4, Mode::Train))
}

/// A pin to one of two equal GPUs: every system's plan satisfies it, and is as fast as without it.
#[test]
fn a_stage_pinned_to_one_of_equal_devices_costs_nothing() {
    let instance = on_equal_gpus(3, 1);
    let gpu = |name: &str| instance.hardware.device(name).unwrap().index();
    let last = Pin::Layers(LayerRange::new(2.into(), 2.into()).unwrap(), [gpu("gpu0")].into());
    for system in [System::OneForwardOneBackward, System::ZbH1, System::ZbV, System::Interleaved, System::Superpipeline]
    {
        let free = solve(&instance, &[system], exact()).unwrap();
        for pin in [Pin::Stage(0, [gpu("gpu1")].into()), last.clone()] {
            let pins = Pins::new(&[Named { words: "pin".into(), pin }]).unwrap();
            let options = Options { pins: pins.clone(), ..exact() };
            let pinned = solve(&instance, &[system], options).unwrap();
            assert!(pins.allow(&instance.context(), &pinned.placement), "{system}");
            assert_eq!(pinned.simulated, free.simulated, "{system}");
        }
    }
}

/// Shared layers are updated and held near each of their GPUs. Pins to sockets bind all of these,
/// and the plan is the fastest that satisfies them.
#[test]
fn pins_bind_every_gpu_that_shares_a_layer() {
    let instance = on_equal_gpus(2, 2);
    let context = instance.context();
    let device = |name: &str| instance.hardware.device(name).unwrap().index();
    let sockets = [vec![device("cpu0")], vec![device("cpu1")], vec![device("cpu0"), device("cpu1")]];
    let all = LayerRange::new(0.into(), 1.into()).unwrap();
    let mut plans = 0;
    for (system, sockets) in [System::Fsdp, System::ZeroInfinity]
        .into_iter()
        .flat_map(|system| sockets.iter().map(move |sockets| (system, sockets)))
    {
        for pin in
            [Pin::Optimizer(all, sockets.iter().copied().collect()), Pin::Host(all, sockets.iter().copied().collect())]
        {
            let pins = Pins::new(&[Named { words: "pin".into(), pin: pin.clone() }]).unwrap();
            let holds = |placement: &Placement| {
                let near = |gpu: DeviceId| {
                    let host = instance.hardware.host_memory(gpu)?;
                    Some(instance.hardware.memories()[host].device?.index())
                };
                let near: Vec<usize> = placement.replicas().into_iter().filter_map(near).collect();
                let hosted = |stage: &Stage| stage.optimizer.is_some();
                let pinned = near.iter().all(|socket| sockets.contains(socket));
                match pin {
                    Pin::Host(..) => pinned || !placement.stages.iter().any(hosted),
                    _ => pinned && placement.stages.iter().all(hosted),
                }
            };
            let options = Options { pins: pins.clone(), ..exact() };
            let found = solve(&instance, &[system], options);
            let each = every(context, system, usize::MAX).unwrap_or_default().into_iter();
            let fit = each.filter(|placement| holds(placement) && check(&context, placement).is_ok());
            let best = fit.filter_map(|placement| simulated(&instance, &placement)).min();
            assert_eq!(found.as_ref().ok().map(|found| found.simulated), best, "{system} {pin:?}: {found:?}");
            if let Ok(found) = found {
                assert!(holds(&found.placement) && found.bound <= found.simulated, "{system} {pin:?}");
                plans += 1;
            }
        }
    }
    assert!(plans >= 6, "{plans} plans");
}
