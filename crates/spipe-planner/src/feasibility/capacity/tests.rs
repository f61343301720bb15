//! Many hosts as interchangeable bins, against the same hosts distinguished.

use super::*;
use crate::{
    common::{Instance, LayerText, layer, model_text, workload},
    problem::{Options, PlanError, Problem},
    runner::for_all,
};
use proptest::prelude::*;
use spipe_cost::Mode;
use spipe_plan::System;
use std::{cell::Cell, fmt::Write, sync::atomic::AtomicBool, time::Duration};

/// Nodes with a socket and GPUs each, given by their memories in MiB. Each node is below a root of
/// its own, and network cards connect them.
fn nodes(nodes: &[(u64, Vec<u64>)]) -> String {
    let mut text = "format-version = 1\nname = \"nodes\"\n".to_string();
    let mut links = String::new();
    let mut link = |name: String, from: String, to: String| {
        let ends =
            format!("between = [\"{from}\", \"{to}\"]\nup = \"20 GB/s\"\ndown = \"20 GB/s\"\nlatency = \"8 us\"");
        writeln!(links, "[[link]]\nname = \"{name}\"\n{ends}").unwrap_or_default();
    };
    for (node, (dram, gpus)) in nodes.iter().enumerate() {
        let memory = format!("{{ name = \"dram{node}\", capacity = \"{dram} MiB\", bandwidth = \"80 GB/s\" }}");
        let rates = "cores = 16\npeak = { f32 = \"1.5 TFLOP/s\" }\noptimizer-rate = \"2 Gparam/s\"";
        let socket = format!("[[socket]]\nname = \"cpu{node}\"\n{rates}\ndram = {memory}\nsource = \"test\"\n");
        text.push_str(&socket);
        link(format!("root{node}-dram{node}"), format!("root{node}"), format!("dram{node}"));
        if node > 0 {
            text.push_str(&format!("[[nic]]\nname = \"nic{node}\"\n"));
            link(format!("port{node}"), format!("root{node}"), format!("nic{node}"));
            link(format!("between{node}"), format!("nic{node}"), "root0".into());
        }
        for (index, memory) in gpus.iter().enumerate() {
            let name = format!("gpu{node}{index}");
            let rates = "memory-bandwidth = \"1000 GB/s\"\npeak = { bf16 = \"165 TFLOP/s\", f32 = \"82 TFLOP/s\" }";
            let gpu =
                format!("[[gpu]]\nname = \"{name}\"\nmemory = \"{memory} MiB\"\n{rates}\nlaunch-floor = \"6 us\"\n");
            writeln!(text, "{gpu}source = \"test\"").unwrap_or_default();
            link(format!("pcie{node}{index}"), name, format!("root{node}"));
        }
    }
    text + &links
}

/// Up to eight layers on three or four nodes, mostly alike, with memories of a few layers.
fn tight() -> impl Strategy<Value = Instance> {
    let layers = prop::collection::vec((layer(6), 1u64..4), 1..=2);
    let machine = (3usize..=4, 1usize..=2, 60u64..500, 40u64..400, prop::bool::weighted(0.2));
    (layers, machine, 1u64..9).prop_map(|(layers, (count, gpus, memory, dram, differs), microbatches)| {
        let layers: Vec<LayerText> = layers
            .into_iter()
            .map(|(layer, heavier)| LayerText { parameters: (layer.parameters + 1_000_000) * heavier, ..layer })
            .collect();
        let node = |index: usize| (if differs && index == 0 { 2 * dram } else { dram }, vec![memory; gpus]);
        let machine: Vec<(u64, Vec<u64>)> = (0..count).map(node).collect();
        Instance::new(&model_text(&layers), &nodes(&machine), &workload(microbatches, Mode::Train))
    })
}

#[test]
fn interchangeable_hosts_hold_the_same_as_distinct_ones() {
    let (fitting, refused, between, unspread) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
    let add = |count: &Cell<u32>| count.set(count.get() + 1);
    for_all(3000, &tight(), |instance| {
        let costs = CostSums::new(instance.context(), &Options::default());
        let schedule = ScheduleKind { system: System::OneForwardOneBackward, head_start: 0 };
        let pins = Pins::default();
        let with = |apart: usize| capacity_with(&costs, (schedule, f64::INFINITY), (&pins, apart), None);
        let (apart, alike) = (with(HOSTS), with(0));
        match (&apart, &alike) {
            (Capacity::Fits(_), Capacity::Fits(placement)) => {
                prop_assert!(check(&instance.context(), placement).is_ok());
                add(&fitting);
            }
            (Capacity::Never, Capacity::Never) => add(&refused),
            (_, Capacity::Unfound) => add(&unspread),
            _ => return Err(TestCaseError::fail(format!("{apart:?} but {alike:?}"))),
        }
        // Some stages fit all hosts together but cannot be packed onto them: bounds of the packing
        // matter there.
        let bounds = Holds::whole(&costs, (schedule, f64::INFINITY));
        let question =
            Question { costs: &costs, schedule, pins: &pins, few: false, holds: &bounds, sure: true, apart: false };
        if matches!(apart, Capacity::Never) && matches!(question.with(&Hosts::Together), CapacityAnswer::Perhaps) {
            add(&between);
        }
        Ok(())
    });
    let seen = [&fitting, &refused, &between].map(Cell::get);
    assert!(seen.iter().all(|count| *count >= 20), "too few feasible, infeasible or unpackable cases: {seen:?}");
    assert!(unspread.get() <= 150, "{} cases are undecided", unspread.get());
}

/// A hundred unlike layers of at least `parameters` million parameters each, on fifteen GPUs beside
/// a socket. Memory is so scarce that the optimizer state of most layers has to be in DRAM.
fn scarce(parameters: usize) -> Instance {
    let from = |least: usize, steps: usize, step: usize, index: usize| least + index * step % steps;
    let layer = |index: usize| LayerText {
        count: 1,
        times: [7, 11, 3].map(|step| from(50, 260, step, index) as u32),
        slowdown: from(8, 12, 5, index) as u32,
        parameters: from(parameters, 1000, 37, index) as u64 * 1_000_000,
        boundary: from(8, 9, 4, index) as u64,
        saved: from(600, 3400, 89, index) as u64,
        workspace: 0,
    };
    let layers: Vec<LayerText> = (0..100).map(layer).collect();
    let memory = 40 << 10;
    let machine = nodes(&[(1 << 20, vec![memory; 15])]);
    Instance::new(&model_text(&layers), &machine, &workload(32, Mode::Train))
}

#[test]
fn with_scarce_memory_the_stages_found_balance_the_devices() {
    let instance = scarce(340);
    let costs = CostSums::new(instance.context(), &Options::default());
    let schedule = ScheduleKind { system: System::OneForwardOneBackward, head_start: 0 };
    let fitting = |most: f64| match capacity_with(&costs, (schedule, most), (&Pins::default(), HOSTS), None) {
        Capacity::Fits(placement) => Some(placement),
        _ => None,
    };
    let within = |placement: &Placement| {
        let mut busy = vec![0.0; costs.devices.len()];
        for stage in &placement.stages {
            let layers = (stage.layers.first().index(), stage.layers.last().index() + 1);
            let device = stage.device.index();
            busy[device] += costs.microbatches as f64 * costs.devices[device].pass(layers, true);
        }
        busy.into_iter().fold(0.0, f64::max)
    };
    let (least, any) = (crate::formulation::assignment::compute_bound::floor(&costs), fitting(f64::INFINITY).unwrap());
    let quick = fitting(1.2 * least).unwrap();
    for placement in [&any, &quick] {
        assert!(check(&instance.context(), placement).is_ok());
    }
    assert!(within(&any) > 10.0 * least, "memory is not scarce: {} of {least} ms", within(&any));
    assert!(within(&quick) <= 1.2 * least, "{} of {least} ms", within(&quick));
    assert!(fitting(0.99 * least).is_none());
}

#[test]
fn an_undecided_problem_is_not_called_infeasible() {
    let instance = scarce(500);
    let (context, stop) = (instance.context(), AtomicBool::new(false));
    let plan = |time_limit: Duration| {
        let options = Options { time_limit, ..Options::default() };
        let systems = vec![System::OneForwardOneBackward];
        let problem = Problem { context, systems, options, evaluator: &|_: &Placement| None, stop: &stop };
        crate::plan_all(&problem, crate::search::planner("ilp").unwrap().as_ref())
    };
    // The memory bound of several stages on a device takes seconds.
    let late = plan(Duration::from_millis(40));
    assert!(matches!(late, Err(PlanError::StoppedWithoutPlan { .. })), "{late:?}");
    let refused = plan(Duration::from_secs(600));
    assert!(matches!(refused, Err(PlanError::Infeasible { .. })), "{refused:?}");
}
