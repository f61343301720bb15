//! Refused periods are infeasible: the least period of all partitions of a subproblem is accepted.

use super::*;
use crate::{
    common::{Instance, MachineText, frozen_instance_of, instance_of, layer, machine_text, model_text, workload},
    runner::for_all,
    score::event_graph::EventGraph,
    space::{
        device_orders,
        subproblem::{Partition, schedule_kinds},
    },
};
use proptest::prelude::*;
use spipe_cost::Mode;
use spipe_plan::check;

/// Every partition of the layers into the stages of `case`.
fn partitions(costs: &CostSums<'_>, case: &Subproblem) -> Vec<Partition> {
    let mut list = vec![Partition { ends: Vec::new(), recomputed: Vec::new() }];
    for stage in 0..case.stages() {
        let last = stage + 1 == case.stages();
        let longer = |partition: &Partition| -> Vec<Partition> {
            let from = partition.ends.last().copied().unwrap_or(0);
            let ends = if last { costs.layers..=costs.layers } else { from + 1..=costs.layers };
            let choices = |to: usize| {
                (0..=if costs.training { to.saturating_sub(from) } else { 0 }).map(move |recomputed| (to, recomputed))
            };
            let with = |(to, recomputed): (usize, usize)| Partition {
                ends: [partition.ends.as_slice(), &[to]].concat(),
                recomputed: [partition.recomputed.as_slice(), &[recomputed]].concat(),
            };
            ends.filter(|to| *to > from).flat_map(choices).map(with).collect()
        };
        list = list.iter().flat_map(longer).collect();
    }
    list
}

prop_compose! {
    /// Three GPUs, the last of them near a socket of its own.
    fn near_two_sockets()(
        mut layers in prop::collection::vec(layer(1), 3..=4), gpu in (100u64..700, 2u32..30), microbatches in 1u64..6,
    ) -> Instance {
        layers.iter_mut().for_each(|layer| layer.parameters *= 4);
        let machine = MachineText { gpus: vec![gpu; 3], root: 20, sockets: vec![3000; 2] };
        let second = machine_text(&machine)
            .replace("[\"gpu2\", \"root0\"]", "[\"gpu2\", \"root1\"]")
            .replace("[\"root0\", \"dram1\"]", "[\"root1\", \"dram1\"]");
        let text = second + "[[link]]\nname = \"between\"\nbetween = [\"root0\", \"root1\"]\nbandwidth = \"20 GB/s\"\n";
        Instance::new(&model_text(&layers), &text, &workload(microbatches, Mode::Train))
    }
}

fn run(count: u32, on: impl Strategy<Value = Instance>, on_sockets: bool) {
    for_all(count, &on, |instance| {
        let costs = CostSums::new(instance.context(), &crate::Options::default());
        for devices in device_orders::sequences(&costs, 1000, None).list {
            let has_cpu = devices.iter().any(|device| costs.devices[*device].is_cpu);
            for schedule in
                schedule_kinds(&crate::problem::SYSTEMS, has_cpu).into_iter().filter(|_| on_sockets || !has_cpu)
            {
                least_period_is_accepted(
                    &instance,
                    &costs,
                    &Subproblem::new(&costs, &devices, schedule).with_host_offload(&costs, None),
                )?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_refused_period_is_infeasible() {
    run(60, instance_of(4), true);
}

#[test]
fn a_refused_period_of_frozen_layers_is_infeasible() {
    run(60, frozen_instance_of(4), true);
}

#[test]
fn a_refused_period_near_two_sockets_is_infeasible() {
    run(40, near_two_sockets(), false);
}

/// Checks that the least period of all partitions of `case` that fit is accepted.
fn least_period_is_accepted(instance: &Instance, costs: &CostSums<'_>, case: &Subproblem) -> Result<(), TestCaseError> {
    let mut partitioner = Partitioner::new(costs, std::slice::from_ref(case));
    let mut least = f64::INFINITY;
    for case in case.clone().decided(costs) {
        let graph = EventGraph::new(costs, &case);
        for partition in partitions(costs, &case) {
            if check(&instance.context(), &case.placement(costs, &partition)).is_ok() {
                let period = graph.period(&case.times(costs, &partition));
                least = least.min(streams(costs, &case, &partition).fold(period, f64::max));
            }
        }
        partitioner.extend(&[case]);
    }
    for grain in LabelLimits::ALL {
        let found = |limit: f64| partitioner.divide(&[case], (limit, grain), None)[0].clone().unwrap();
        if least.is_finite() {
            let possible = found(least * (1.0 + 1e-6)).is_some();
            prop_assert!(possible, "{grain:?}: {least} is refused for {case:?}");
        }
        if let Some(DecidedPartition { partition, case: decided, .. }) = found(f64::INFINITY) {
            let all = decided.stage_slots.iter().all(|stage_slot| stage_slot.host_offload.is_some());
            prop_assert!(all && partition.ends.len() == case.stages());
        }
    }
    Ok(())
}

/// Returns the load, in ms, of each stage's links to the host, which the event graph leaves out.
fn streams(costs: &CostSums<'_>, case: &Subproblem, partition: &Partition) -> impl Iterator<Item = f64> {
    (0..case.stages()).map(|stage| {
        let (layers, recomputed) = (partition.layers(stage), partition.recomputed[stage]);
        case.device(costs, stage).link_time(case.host_offload(stage), costs.microbatches, layers, recomputed)
    })
}
