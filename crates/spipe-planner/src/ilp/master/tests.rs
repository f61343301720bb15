//! The program against what it stands for: the memory count, the order graph, and all divisions one by one.

use super::*;
use crate::{
    case::{Discipline, disciplines},
    common::{
        Instance, MachineText, frozen_instance_of, instance_of, machine_text, several_socket_instance_of, workload,
    },
    ilp::solve::{Answer, Settings, solve},
    order::OrderGraph,
    sequence,
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner},
};
use spipe_base::DeviceId;
use spipe_cost::Mode;
use spipe_plan::{StageFootprint, System, footprint};
use std::collections::HashMap;

/// Runs `property` on the cases of `count` random instances, always the same.
fn on_cases(count: u32, property: impl Fn(&Instance, &Figures<'_>, &Case) -> TestCaseResult) {
    on_cases_among(count, instance_of(6), property);
}

fn on_cases_among(
    count: u32,
    instances: impl Strategy<Value = Instance>,
    property: impl Fn(&Instance, &Figures<'_>, &Case) -> TestCaseResult,
) {
    let config = Config { cases: count, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    if let Err(error) = runner.run(&instances, |instance| on_cases_of(&instance, &property)) {
        panic!("{error}");
    }
}

fn on_cases_of(
    instance: &Instance,
    property: &dyn Fn(&Instance, &Figures<'_>, &Case) -> TestCaseResult,
) -> TestCaseResult {
    let figures = Figures::new(instance.context(), &crate::Options::default());
    for devices in sequence::sequences(&figures, 1000, None).list {
        let has_cpu = devices.iter().any(|device| figures.devices[*device].is_cpu);
        for (index, discipline) in disciplines(&crate::SYSTEMS, has_cpu).into_iter().enumerate() {
            let case = Case::new(&figures, &devices, discipline);
            property(instance, &figures, &case)?;
            let helps = devices.iter().map(|device| figures.helps(*device)).max_by_key(|helps| helps.len());
            if let Some(help) = helps.and_then(|helps| helps.iter().skip(1).cycle().nth(index)) {
                property(instance, &figures, &case.with_help(&figures, Some(*help)))?;
            }
        }
    }
    Ok(())
}

/// All divisions, whether they fit or not.
fn divisions(figures: &Figures<'_>, case: &Case) -> Vec<Division> {
    let mut list = vec![Division { ends: Vec::new(), recomputed: Vec::new() }];
    for stage in 0..case.stages() {
        let mut longer = Vec::new();
        for division in &list {
            let from = division.ends.last().copied().unwrap_or(0);
            let farthest = figures.layers + 1 + stage - case.stages();
            for to in if stage + 1 == case.stages() { figures.layers..=farthest } else { from + 1..=farthest } {
                for recomputed in 0..=if figures.training { to - from } else { 0 } {
                    let (mut ends, mut counts) = (division.ends.clone(), division.recomputed.clone());
                    ends.push(to);
                    counts.push(recomputed);
                    longer.push(Division { ends, recomputed: counts });
                }
            }
        }
        list = longer;
    }
    list
}

/// The values of all variables that matter for the need of the stages.
fn values(master: &Master<'_, '_>, unknowns: &Unknowns, division: &Division) -> HashMap<Variable, f64> {
    let mut values = HashMap::new();
    let overlap = |(first, count): (usize, usize), from: usize, to: usize| {
        (first + count).min(to).saturating_sub(first.max(from)) as f64
    };
    for (run, span) in master.runs().iter().enumerate() {
        for (stage, done) in unknowns.done.iter().enumerate() {
            let layers = overlap(*span, 0, division.ends[stage]);
            values.insert(done[run], layers);
            values.insert(unknowns.begun[stage][run], layers.min(1.0));
        }
        for (stage, recomputed) in unknowns.recomputed.iter().enumerate() {
            let (from, _) = division.layers(stage);
            values.insert(recomputed[run], overlap(*span, from, from + division.recomputed[stage]));
        }
    }
    for stage in 0..master.stages() {
        let (from, to) = division.layers(stage);
        let (device, recomputed) = (master.device(stage), division.recomputed[stage]);
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

/// The head has a copy of the embedding's table wherever the embedding is elsewhere.
#[test]
fn needs_of_either_socket_are_what_the_checker_counts() {
    on_cases_among(40, several_socket_instance_of(5, 1), needs_agree);
}

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

fn needs_agree(instance: &Instance, figures: &Figures<'_>, case: &Case) -> TestCaseResult {
    let master = Master::new(figures, case, 1.0);
    let (unknowns, _) = master.problem(f64::INFINITY);
    for division in divisions(figures, case).iter().step_by(7) {
        let placement = case.placement(figures, division);
        let values = values(&master, &unknowns, division);
        let mut needs: BTreeMap<MemoryId, f64> = BTreeMap::new();
        for (stage, seat) in case.seats.iter().enumerate() {
            let need = master.need(&unknowns, stage).eval_with(&values);
            *needs.entry(master.device(stage).memory).or_default() += need;
            if let Some(host) = master.device(stage).host(case.help(stage)) {
                let of_host = master.need_of_host(&unknowns, stage).eval_with(&values);
                *needs.entry(host.memory).or_default() += of_host;
            }
            let (from, to) = division.layers(stage);
            let fast = master.device(stage).need(*seat, (from, to), division.recomputed[stage]);
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
fn families_and_critical_cycles_are_bounds_of_every_division() {
    on_cases(40, |_, figures, case| {
        let graph = OrderGraph::new(figures, case);
        let mut cycles: BTreeSet<Cycle> = families(figures, case).into_iter().collect();
        let all = divisions(figures, case);
        for division in all.iter().step_by(5) {
            cycles.extend(graph.period(&case.times(figures, division)).1);
        }
        for division in all.iter().step_by(3) {
            let times = case.times(figures, division);
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

/// Solves and learns until the solution's period is what the program says.
fn least_period(figures: &Figures<'_>, case: &Case) -> Option<f64> {
    let graph = OrderGraph::new(figures, case);
    let mut master = Master::new(figures, case, 1.0);
    loop {
        let (unknowns, problem) = master.problem(f64::INFINITY);
        let Answer::Solved(solution) = solve(problem, &Settings::default()) else { return None };
        let (division, objective) = master.decode(&unknowns, &solution);
        let (period, cycles) = graph.period(&case.times(figures, &division));
        let learned = cycles.into_iter().filter(|cycle| master.learn(cycle.clone())).count();
        if learned == 0 || objective >= period * (1.0 - 1e-7) {
            return Some(objective);
        }
    }
}

#[test]
fn the_optimum_is_the_least_period_of_all_divisions_that_fit() {
    on_cases(20, optimum_is_least);
}

#[test]
fn the_optimum_with_frozen_layers_is_the_least_period_of_all_divisions_that_fit() {
    on_cases_among(10, frozen_instance_of(3), optimum_is_least);
}

#[test]
fn the_optimum_near_several_sockets_is_the_least_period_of_all_divisions_that_fit() {
    on_cases_among(10, several_socket_instance_of(3, 1), optimum_is_least);
}

fn optimum_is_least(instance: &Instance, figures: &Figures<'_>, case: &Case) -> TestCaseResult {
    let graph = OrderGraph::new(figures, case);
    let link_bound = |division: &Division| {
        let mut loads: BTreeMap<LinkId, f64> = BTreeMap::new();
        let mut steps: BTreeMap<DeviceId, f64> = BTreeMap::new();
        let mut stream = 0.0_f64;
        for stage in 0..case.stages() {
            let (device, help) = (case.device(figures, stage), case.help(stage));
            let Some(host) = device.host(help) else { continue };
            let ((from, to), cost) = (division.layers(stage), figures.context.cost);
            let leaving = device.leaving((from, to), division.recomputed[stage]) * figures.microbatches;
            let mut moved = if help.activations { [leaving as f64; 2] } else { [0.0; 2] };
            stream = stream.max(moved[0] * (host.out + host.back));
            for layer in (from..to).filter(|_| help.optimizer) {
                let bytes = &device.bytes[layer];
                let back = if bytes.gradients > Bytes::ZERO { bytes.parameters } else { Bytes::ZERO };
                moved = [moved[0] + bytes.gradients.as_f64(), moved[1] + back.as_f64()];
                let parameters = cost.trained_parameters(layer.into());
                *steps.entry(host.socket).or_default() += cost.optimizer_time(parameters, host.socket).to_ms();
            }
            let (here, there) = (case.devices[stage], host.socket.index());
            for (bytes, (from, to)) in moved.into_iter().zip([(here, there), (there, here)]) {
                for (link, per_byte) in &figures.hop(from, to).unwrap().links {
                    *loads.entry(*link).or_default() += bytes * per_byte;
                }
            }
        }
        for stage in 0..case.stages() - 1 {
            let bytes = figures.crossing(division.ends[stage] - 1, case.devices[stage], case.devices[stage + 1]);
            let (there, back) = case.hops(figures, stage).unwrap();
            let returns = figures.training && figures.devices[case.devices[stage]].returns(division.ends[stage]);
            let back = if returns { &back.links[..] } else { &[] };
            for (link, per_byte) in there.links.iter().chain(back) {
                *loads.entry(*link).or_default() += bytes as f64 * per_byte * figures.microbatches as f64;
            }
        }
        loads.into_values().chain(steps.into_values()).fold(stream, f64::max)
    };
    let least = divisions(figures, case)
        .iter()
        .filter(|division| spipe_plan::check(&instance.context(), &case.placement(figures, division)).is_ok())
        .map(|division| graph.period(&case.times(figures, division)).0.max(link_bound(division)))
        .fold(f64::INFINITY, f64::min);
    match least_period(figures, case) {
        Some(found) => prop_assert!((found - least).abs() <= 1e-5 * least, "{found} but {least}: {case:?}"),
        None => prop_assert!(least.is_infinite(), "{least} but nothing found: {case:?}"),
    }
    Ok(())
}

#[test]
fn an_excluded_division_does_not_come_back() {
    on_cases(6, |instance, figures, case| {
        if figures.layers > 4 || case.discipline != (Discipline { system: System::Gpipe, head_start: 0 }) {
            return Ok(());
        }
        let mut master = Master::new(figures, case, 1.0);
        let mut seen = BTreeSet::new();
        loop {
            let (unknowns, problem) = master.problem(f64::INFINITY);
            let Answer::Solved(solution) = solve(problem, &Settings::default()) else { break };
            let (division, _) = master.decode(&unknowns, &solution);
            prop_assert!(seen.insert(division.clone()), "{division:?} came back");
            master.exclude(division);
        }
        let fits =
            |division: &&Division| spipe_plan::check(&instance.context(), &case.placement(figures, division)).is_ok();
        prop_assert_eq!(seen.len(), divisions(figures, case).iter().filter(fits).count());
        Ok(())
    });
}
