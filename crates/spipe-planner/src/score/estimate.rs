//! An estimate of the iteration time in closed form, by which the search orders candidates before
//! it simulates them.

use crate::{
    costs::{CostSums, HostOffload},
    score::{sharded::estimate as estimate_of_shared, streamed::estimate as estimate_of_streamed},
    space::rules::{Family, SystemRules, Warmup},
};
use spipe_base::DeviceId;
use spipe_plan::{Dealing, Knob, Placement, Stage};
use std::collections::BTreeMap;

/// The work of one device, all its stages together, in ms: passes per microbatch, steps and copies
/// per iteration.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    forward: f64,
    recompute: f64,
    /// The part of `recompute` that needs no gradient: that of the device's last stage, the first
    /// in the backward.
    ahead: f64,
    backward: f64,
    /// Optimizer steps on the device itself.
    own: f64,
    /// The longest time for which a socket runs optimizer steps of this device and those before it.
    hosts: f64,
    /// Host offloads: the link, or the stream on which activations go out and come back.
    link: f64,
    /// The copies to the next device and back.
    p2p_both_ways: f64,
}

impl Turn {
    /// The time for which one microbatch occupies the device.
    const fn busy(&self) -> f64 {
        self.forward + self.recompute + self.backward
    }

    /// The part of [`Self::busy`] after the gradient has arrived.
    const fn returning(&self) -> f64 {
        self.recompute - self.ahead + self.backward
    }

    /// The time of one microbatch on a device that has waited for its gradient.
    const fn pass(&self) -> f64 {
        self.forward + self.returning()
    }
}

/// Estimates the iteration time of `placement`, in ms. `None` in inference, and for systems other
/// than sharded and streamed ones and pipelines with one run of consecutive stages per device.
///
/// A device with `a` of `m` microbatches in flight waits twice for the devices behind it: between
/// its first `a` forwards and the first gradient, and before its last `a` backwards. With F, C and
/// B the times of its own forward, recompute and backward of one microbatch, and R the sum over the
/// devices behind it, copies included, the iteration takes
///
/// ```text
/// max(a F, F + R) + (m − a) max(F + C + B, (F + B + R) / a) + max(a (C + B), R + B)
/// ```
///
/// plus the wait between two iterations: for the devices before it, or for optimizer steps. With
/// GPipe all devices wait for the slowest forward and the slowest backward.
pub(crate) fn estimate(costs: &CostSums<'_>, placement: &Placement) -> Option<f64> {
    let system = placement.system;
    let all_forwards_first = SystemRules::of(system).turn == Some(Warmup::GPipe);
    match Family::of(system) {
        Family::Sharded => return Some(estimate_of_shared(&costs.context, placement)),
        Family::Streamed => return Some(estimate_of_streamed(&costs.context, placement)),
        Family::Pipeline => {}
    }
    if system.dealing() != Dealing::Single || !costs.training {
        return None;
    }
    let turns = turns(costs, placement);
    let microbatches = costs.microbatches as f64;
    let passes = |turns: &[Turn]| turns.iter().map(Turn::pass).sum::<f64>();
    let copies = |turns: &[Turn]| turns.iter().map(|turn| turn.p2p_both_ways).sum::<f64>();
    let slowest = |part: fn(&Turn) -> f64| turns.iter().map(part).fold(0.0, f64::max);
    let apart = (microbatches - 1.0) * (slowest(|turn| turn.forward) + slowest(|turn| turn.recompute + turn.backward));
    let of_turn = |(index, turn): (usize, &Turn)| {
        let rest = passes(&turns[index + 1..]) + copies(&turns[index..]);
        let before = passes(&turns[..index]) + copies(&turns[..index]);
        let between = before.max(turn.own).max(turn.hosts - turn.pass());
        if all_forwards_first {
            return (apart + turn.pass() + rest + between).max(turn.link);
        }
        let in_flight =
            costs.microbatches.min((turns.len() - index) as u64 + Knob::HeadStart.of(placement).unwrap_or(0)) as f64;
        let forwards = (in_flight * turn.forward).max(turn.forward + rest);
        let backwards = (in_flight * (turn.recompute + turn.backward)).max(turn.returning() + rest);
        let cycle = turn.busy().max((turn.pass() + rest) / in_flight);
        (forwards + (microbatches - in_flight) * cycle + backwards + between).max(turn.link)
    };
    Some(turns.iter().enumerate().map(of_turn).fold(0.0, f64::max))
}

/// Returns the work of each device, in the order of their stages.
fn turns(costs: &CostSums<'_>, placement: &Placement) -> Vec<Turn> {
    let stages = placement.stages.as_slice();
    let of_devices: Vec<&[Stage]> = stages.chunk_by(|one, next| one.team == next.team).collect();
    let mut of_hosts: BTreeMap<DeviceId, f64> = BTreeMap::new();
    let mut turns: Vec<Turn> = of_devices.iter().map(|stages| turn(costs, stages, &mut of_hosts)).collect();
    for (turn, pair) in turns.iter_mut().zip(of_devices.windows(2)) {
        let (from, next) = (pair[0][0].lead(), &pair[1][0]);
        let (there, back) = costs.transfers((from.index(), next.lead().index()), next.layers.first().index());
        turn.p2p_both_ways = there + back;
    }
    turns
}

/// Returns the work of a device with these stages, where `of_hosts` has the optimizer steps that
/// sockets run for the devices before it.
fn turn(costs: &CostSums<'_>, stages: &[Stage], of_hosts: &mut BTreeMap<DeviceId, f64>) -> Turn {
    let mut turn = Turn::default();
    for stage in stages {
        let device = &costs.devices[stage.lead().index()];
        let layers = (stage.layers.first().index(), stage.layers.last().index() + 1);
        let host_offload = host_offload(costs, stage);
        let times = device.stage_times(layers, stage.recomputed, host_offload);
        turn.forward += times.forward;
        turn.recompute += times.recompute;
        turn.ahead = times.recompute;
        turn.backward += times.backward;
        turn.own += times.optimizer;
        turn.link += device.link_time(host_offload, costs.microbatches, layers, stage.recomputed);
        if let Some(socket) = stage.optimizer {
            *of_hosts.entry(socket).or_default() += times.step;
        }
    }
    turn.hosts = of_hosts.values().copied().fold(0.0, f64::max);
    turn
}

/// Returns the host offload of a stage.
fn host_offload(costs: &CostSums<'_>, stage: &Stage) -> HostOffload {
    if stage.optimizer.is_none() && stage.offload.is_none() {
        return HostOffload::NONE;
    }
    let device = &costs.devices[stage.lead().index()];
    let mut hosts = device.hosts();
    let host = hosts.position(|host| Some(host.socket) == stage.optimizer || Some(host.memory) == stage.offload);
    HostOffload { optimizer: stage.optimizer.is_some(), activations: stage.offload.is_some(), host: host.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::Options,
    };
    use spipe_base::LayerRange;
    use spipe_cost::Mode;
    use spipe_plan::System;

    const GPUS: usize = 3;
    const MICROBATCHES: u64 = 7;

    /// Equal layers without parameters, two for each GPU and two more for the socket.
    fn equal() -> Instance {
        let times = [10, 15, 5];
        let layer = LayerText { count: 8, times, slowdown: 4, parameters: 0, boundary: 0, saved: 1, workspace: 0 };
        let machine = MachineText { gpus: vec![(4000, 20); GPUS], root: 20, sockets: vec![8000] };
        Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(MICROBATCHES, Mode::Train))
    }

    /// One stage per GPU, which end before layers `ends`.
    fn on_gpus(instance: &Instance, ends: [usize; GPUS]) -> Vec<Stage> {
        let context = instance.context();
        let gpus = context.cost.devices().filter(|device| !context.is_cpu(*device));
        let layers = |turn: usize| {
            let from = turn.checked_sub(1).map_or(0, |before| ends[before]);
            LayerRange::new(from.into(), (ends[turn] - 1).into())
        };
        gpus.enumerate().filter_map(|(turn, gpu)| Some(Stage::new(gpu, layers(turn)?))).collect()
    }

    fn of(instance: &Instance, system: System, stages: Vec<Stage>) -> f64 {
        let costs = CostSums::new(instance.context(), &Options::default());
        estimate(&costs, &Placement::new(system, stages)).unwrap_or(f64::NAN)
    }

    #[test]
    fn equal_stages_take_what_the_closed_forms_say() {
        let instance = equal();
        let equal = on_gpus(&instance, [2, 4, 6]);
        // (m + p − 1) c with two layers of 3 ms, but for latencies.
        let c = 2.0 * 3.0;
        let expected = (MICROBATCHES as f64 + GPUS as f64 - 1.0) * c;
        for system in [System::OneForwardOneBackward, System::Gpipe] {
            let estimated = of(&instance, system, equal.clone());
            assert!((estimated / expected - 1.0).abs() < 0.02, "{system}: {estimated} but {expected}");
        }
    }

    #[test]
    fn what_is_recomputed_while_a_device_waits_costs_less() {
        let instance = equal();
        let plain = on_gpus(&instance, [2, 5, 8]);
        let recomputed = |which: usize| {
            let mut stages = plain.clone();
            stages[which] = stages[which].with_everything_recomputed();
            of(&instance, System::OneForwardOneBackward, stages)
        };
        let without = of(&instance, System::OneForwardOneBackward, plain.clone());
        // The first GPU has little to do and waits; the last one never does.
        assert!((recomputed(0) - without).abs() < 1e-9, "{} but {without}", recomputed(0));
        assert!(recomputed(2) > without, "{} but {without}", recomputed(2));
    }

    #[test]
    fn systems_of_several_turns_and_inference_are_not_estimated() {
        let instance = equal();
        let costs = CostSums::new(instance.context(), &Options::default());
        let stages = on_gpus(&instance, [2, 5, 8]);
        for system in [System::Interleaved, System::ZbV] {
            assert_eq!(estimate(&costs, &Placement::new(system, stages.clone())), None, "{system}");
        }
    }
}
