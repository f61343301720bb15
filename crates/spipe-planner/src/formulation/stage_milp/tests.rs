//! Comparison of the program with the memory count, the event graph, and enumeration of all
//! partitions.

use super::*;
use crate::{
    common::{
        Instance, MachineText, frozen_instance_of, instance_of, machine_text, several_socket_instance_of, workload,
    },
    formulation::solver::{Answer, Settings, solve},
    runner::for_all,
    score::event_graph::EventGraph,
    space::{
        device_orders,
        subproblem::{ScheduleKind, schedule_kinds},
    },
};
use proptest::{prelude::*, test_runner::TestCaseResult};
use spipe_base::DeviceId;
use spipe_cost::Mode;
use spipe_plan::{StageFootprint, System, footprint};
use std::{cell::Cell, collections::HashMap};

/// Checks `property` on the subproblems of `count` random instances.
fn on_cases(count: u32, property: impl Fn(&Instance, &CostSums<'_>, &Subproblem) -> TestCaseResult) {
    on_cases_among(count, instance_of(6), property);
}

fn on_cases_among(
    count: u32,
    instances: impl Strategy<Value = Instance>,
    property: impl Fn(&Instance, &CostSums<'_>, &Subproblem) -> TestCaseResult,
) {
    for_all(count, &instances, |instance| on_cases_of(&instance, &property));
}

fn on_cases_of(
    instance: &Instance,
    property: &dyn Fn(&Instance, &CostSums<'_>, &Subproblem) -> TestCaseResult,
) -> TestCaseResult {
    let costs = CostSums::new(instance.context(), &crate::Options::default());
    for devices in device_orders::sequences(&costs, 1000, None).list {
        let has_cpu = devices.iter().any(|device| costs.devices[*device].is_cpu);
        for (index, schedule) in schedule_kinds(&crate::problem::SYSTEMS, has_cpu).into_iter().enumerate() {
            let case = Subproblem::new(&costs, &devices, schedule);
            property(instance, &costs, &case)?;
            let host_offloads = devices
                .iter()
                .map(|device| costs.host_offloads(*device))
                .max_by_key(|host_offloads| host_offloads.len());
            if let Some(host_offload) =
                host_offloads.and_then(|host_offloads| host_offloads.iter().skip(1).cycle().nth(index))
            {
                property(instance, &costs, &case.with_host_offload(&costs, Some(*host_offload)))?;
            }
        }
    }
    Ok(())
}

/// All partitions, whether they fit or not.
fn partitions(costs: &CostSums<'_>, case: &Subproblem) -> Vec<Partition> {
    let mut list = vec![Partition { ends: Vec::new(), recomputed: Vec::new() }];
    for stage in 0..case.stages() {
        let mut longer = Vec::new();
        for partition in &list {
            let from = partition.ends.last().copied().unwrap_or(0);
            let farthest = costs.layers + 1 + stage - case.stages();
            for to in if stage + 1 == case.stages() { costs.layers..=farthest } else { from + 1..=farthest } {
                for recomputed in 0..=if costs.training { to - from } else { 0 } {
                    let (mut ends, mut counts) = (partition.ends.clone(), partition.recomputed.clone());
                    ends.push(to);
                    counts.push(recomputed);
                    longer.push(Partition { ends, recomputed: counts });
                }
            }
        }
        list = longer;
    }
    list
}

/// Returns the values of all variables on which the memory of stages depends.
fn values(milp: &StageMilp<'_, '_>, unknowns: &Unknowns, partition: &Partition) -> HashMap<Variable, f64> {
    let mut values = HashMap::new();
    let overlap = |(first, count): (usize, usize), from: usize, to: usize| {
        (first + count).min(to).saturating_sub(first.max(from)) as f64
    };
    for (run, span) in milp.runs().iter().enumerate() {
        for (stage, done) in unknowns.done.iter().enumerate() {
            let layers = overlap(*span, 0, partition.ends[stage]);
            values.insert(done[run], layers);
            values.insert(unknowns.begun[stage][run], layers.min(1.0));
        }
        for (stage, recomputed) in unknowns.recomputed.iter().enumerate() {
            let (from, _) = partition.layers(stage);
            values.insert(recomputed[run], overlap(*span, from, from + partition.recomputed[stage]));
        }
    }
    for stage in 0..milp.stages() {
        let (from, to) = partition.layers(stage);
        let (device, recomputed) = (milp.device(stage), partition.recomputed[stage]);
        let kept: f64 = (from + recomputed..to).map(|layer| device.bytes[layer].saved.as_f64()).sum();
        let (input, returns) = (device.input(from) as f64, device.returns(to));
        let held = if recomputed > 0 { kept + input } else { kept.max(input) };
        let held = if returns || unknowns.once.is_empty() { held } else { 0.0 };
        if let (Some(once), Some(stays)) = (unknowns.once.get(stage), unknowns.stays.get(stage)) {
            let parameters: f64 = (from..to).map(|layer| device.bytes[layer].parameters.to_gib()).sum();
            values.insert(*once, if returns { 0.0 } else { input / GIB });
            values.insert(*stays, if returns { 0.0 } else { parameters });
        }
        let workspace = (from..to).map(|layer| device.bytes[layer].workspace).max().unwrap();
        values.insert(unknowns.held[stage], held / GIB);
        values.insert(unknowns.workspace[stage], workspace.to_gib());
    }
    values
}

#[test]
fn needs_are_what_the_checker_counts() {
    on_cases(40, needs_agree);
}

#[test]
fn needs_of_frozen_layers_are_what_the_checker_counts() {
    on_cases_among(40, frozen_instance_of(5), needs_agree);
}

#[test]
fn needs_of_either_socket_are_what_the_checker_counts() {
    on_cases_among(40, several_socket_instance_of(5, 1), needs_agree);
}

/// The head has a copy of the embedding's table if the embedding is on another device.
#[test]
fn needs_of_shared_tables_are_what_the_checker_counts() {
    let model = "format-version = 1\nkind = \"transformer\"\nname = \"tied\"\nvocabulary = 20000\nseq-len = 128\n\
                 hidden = 256\nlayers = 3\nheads = 4\nintermediate = 512\ntied = true\n";
    let machine = MachineText { gpus: vec![(4096, 20), (2048, 10)], root: 30, sockets: vec![16384] };
    for mode in [Mode::Train, Mode::Infer] {
        let instance = Instance::new(model, &machine_text(&machine), &workload(3, mode));
        if let Err(error) = on_cases_of(&instance, &needs_agree) {
            panic!("{error}");
        }
    }
}

fn needs_agree(instance: &Instance, costs: &CostSums<'_>, case: &Subproblem) -> TestCaseResult {
    let milp = StageMilp::new(costs, case, 1.0);
    let (unknowns, _) = milp.problem(f64::INFINITY);
    for partition in partitions(costs, case).iter().step_by(7) {
        let placement = case.placement(costs, partition);
        let values = values(&milp, &unknowns, partition);
        let mut needs: BTreeMap<MemoryId, f64> = BTreeMap::new();
        for (stage, stage_slot) in case.stage_slots.iter().enumerate() {
            let need = milp.need(&unknowns, stage).eval_with(&values);
            *needs.entry(milp.device(stage).memory).or_default() += need;
            if let Some(host) = milp.device(stage).host(case.host_offload(stage)) {
                let of_host = milp.need_of_host(&unknowns, stage).eval_with(&values);
                *needs.entry(host.memory).or_default() += of_host;
            }
            let (from, to) = partition.layers(stage);
            let fast = milp.device(stage).need(*stage_slot, (from, to), partition.recomputed[stage]);
            prop_assert!((need - Bytes::new(fast).to_gib()).abs() < 1e-9, "{need} GiB but {fast} B");
        }
        for (memory, stages) in footprint(&instance.context(), &placement) {
            let counted: Bytes = stages.values().map(StageFootprint::total).sum();
            let need = needs.remove(&memory).unwrap_or_default();
            prop_assert!((need - counted.to_gib()).abs() < 1e-9, "{need} GiB but {counted}");
        }
        prop_assert!(needs.values().all(|need| *need < 1e-9));
    }
    Ok(())
}

#[test]
fn valid_inequalities_and_critical_cycles_bound_every_partition() {
    on_cases(40, |_, costs, case| {
        let graph = EventGraph::new(costs, case);
        let mut cycles: BTreeSet<CriticalCycle> = families(costs, case).into_iter().collect();
        let all = partitions(costs, case);
        for partition in all.iter().step_by(5) {
            cycles.extend(graph.period(&case.times(costs, partition)).1);
        }
        for partition in all.iter().step_by(3) {
            let times = case.times(costs, partition);
            let (period, own) = graph.period(&times);
            let best = own.iter().map(|cycle| cycle.period(&times)).fold(0.0, f64::max);
            prop_assert!((best - period).abs() <= 1e-9 * period, "{best} but {period}");
            for cycle in &cycles {
                prop_assert!(cycle.period(&times) <= period * (1.0 + 1e-9), "{cycle:?}");
            }
        }
        Ok(())
    });
}

/// Returns the optimal period: solves and adds cuts until the period of the solution is the
/// objective.
fn least_period(costs: &CostSums<'_>, case: &Subproblem) -> Option<f64> {
    let graph = EventGraph::new(costs, case);
    let mut milp = StageMilp::new(costs, case, 1.0);
    loop {
        let (unknowns, problem) = milp.problem(f64::INFINITY);
        let Answer::Solved(solution) = solve(problem, &Settings::default()) else { return None };
        let (partition, objective) = milp.decode(&unknowns, &solution);
        let (period, cycles) = graph.period(&case.times(costs, &partition));
        let learned = cycles.into_iter().filter(|cycle| milp.learn(cycle.clone())).count();
        if learned == 0 || objective >= period * (1.0 - 1e-7) {
            return Some(objective);
        }
    }
}

#[test]
fn the_optimum_is_the_least_period_of_all_partitions_that_fit() {
    on_cases(20, optimum_is_least);
}

#[test]
fn the_optimum_with_frozen_layers_is_the_least_period_of_all_partitions_that_fit() {
    on_cases_among(10, frozen_instance_of(3), optimum_is_least);
}

#[test]
fn the_optimum_near_several_sockets_is_the_least_period_of_all_partitions_that_fit() {
    on_cases_among(10, several_socket_instance_of(3, 1), optimum_is_least);
}

fn optimum_is_least(instance: &Instance, costs: &CostSums<'_>, case: &Subproblem) -> TestCaseResult {
    let graph = EventGraph::new(costs, case);
    let link_bound = |partition: &Partition| {
        let mut loads: BTreeMap<LinkId, f64> = BTreeMap::new();
        let mut steps: BTreeMap<DeviceId, f64> = BTreeMap::new();
        let mut stream = 0.0_f64;
        for stage in 0..case.stages() {
            let (device, host_offload) = (case.device(costs, stage), case.host_offload(stage));
            let Some(host) = device.host(host_offload) else { continue };
            let ((from, to), cost) = (partition.layers(stage), costs.context.cost);
            let leaving = device.leaving((from, to), partition.recomputed[stage]) * costs.microbatches;
            let mut moved = if host_offload.activations { [leaving as f64; 2] } else { [0.0; 2] };
            stream = stream.max(moved[0] * (host.out + host.back));
            for layer in (from..to).filter(|_| host_offload.optimizer) {
                let bytes = &device.bytes[layer];
                let back = if bytes.gradients > Bytes::ZERO { bytes.parameters } else { Bytes::ZERO };
                moved = [moved[0] + bytes.gradients.as_f64(), moved[1] + back.as_f64()];
                let parameters = cost.trained_parameters(layer.into());
                *steps.entry(host.socket).or_default() += cost.optimizer_time(parameters, host.socket).to_ms();
            }
            let (here, there) = (case.devices[stage], host.socket.index());
            for (bytes, (from, to)) in moved.into_iter().zip([(here, there), (there, here)]) {
                for (link, per_byte) in &costs.p2p(from, to).unwrap().links {
                    *loads.entry(*link).or_default() += bytes * per_byte;
                }
            }
        }
        for stage in 0..case.stages() - 1 {
            let bytes = costs.crossing(partition.ends[stage] - 1, case.devices[stage], case.devices[stage + 1]);
            let (there, back) = case.p2p_both_ways(costs, stage).unwrap();
            let returns = costs.training && costs.devices[case.devices[stage]].returns(partition.ends[stage]);
            let back = if returns { &back.links[..] } else { &[] };
            for (link, per_byte) in there.links.iter().chain(back) {
                *loads.entry(*link).or_default() += bytes as f64 * per_byte * costs.microbatches as f64;
            }
        }
        loads.into_values().chain(steps.into_values()).fold(stream, f64::max)
    };
    let least = partitions(costs, case)
        .iter()
        .filter(|partition| spipe_plan::check(&instance.context(), &case.placement(costs, partition)).is_ok())
        .map(|partition| graph.period(&case.times(costs, partition)).0.max(link_bound(partition)))
        .fold(f64::INFINITY, f64::min);
    match least_period(costs, case) {
        Some(found) => prop_assert!((found - least).abs() <= 1e-5 * least, "{found} but {least}: {case:?}"),
        None => prop_assert!(least.is_infinite(), "{least} but nothing found: {case:?}"),
    }
    Ok(())
}

#[test]
fn an_excluded_partition_does_not_come_back() {
    let (checked, excluded) = (Cell::new(0), Cell::new(0));
    on_cases(30, |instance, costs, case| {
        if costs.layers > 4 || case.schedule != (ScheduleKind { system: System::Gpipe, head_start: 0 }) {
            return Ok(());
        }
        let mut milp = StageMilp::new(costs, case, 1.0);
        let mut seen = BTreeSet::new();
        loop {
            let (unknowns, problem) = milp.problem(f64::INFINITY);
            let Answer::Solved(solution) = solve(problem, &Settings::default()) else { break };
            let (partition, _) = milp.decode(&unknowns, &solution);
            prop_assert!(seen.insert(partition.clone()), "{partition:?} came back");
            milp.exclude(partition);
        }
        let fits =
            |partition: &&Partition| spipe_plan::check(&instance.context(), &case.placement(costs, partition)).is_ok();
        prop_assert_eq!(seen.len(), partitions(costs, case).iter().filter(fits).count());
        checked.set(checked.get() + 1);
        excluded.set(excluded.get() + seen.len());
        Ok(())
    });
    let (checked, excluded) = (checked.get(), excluded.get());
    assert!(checked >= 10 && excluded >= 10, "{excluded} partitions were excluded from {checked} subproblems");
}
