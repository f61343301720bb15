//! Scarce memory on large problems.

use super::*;
use crate::{
    common::{Instance, LayerText, model_text, workload},
    problem::{Options, PlanError, Problem},
};
use spipe_cost::Mode;
use spipe_plan::System;
use std::{fmt::Write, sync::atomic::AtomicBool, time::Duration};

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
fn stages_are_found_where_memory_is_scarce() {
    let instance = scarce(340);
    let costs = CostSums::new(instance.context(), &Options::default());
    let stop = AtomicBool::new(false);
    let evaluator = &|_: &Placement| None;
    let problem = Problem {
        context: instance.context(),
        systems: Vec::new(),
        options: Options::default(),
        evaluator,
        stop: &stop,
    };
    let schedule = ScheduleKind { system: System::OneForwardOneBackward, head_start: 0 };
    let found = capacity(&costs, schedule, (&Pins::default(), &Deadline::new(&problem)));
    assert!(matches!(&found, Capacity::Fits(placement) if check(&instance.context(), placement).is_ok()), "{found:?}");
}

#[test]
fn an_undecided_problem_is_not_called_infeasible() {
    let instance = scarce(500);
    let (context, stop) = (instance.context(), AtomicBool::new(false));
    let plan = |time_limit: Duration| {
        let options = Options { time_limit, ..Options::default() };
        let systems = vec![System::OneForwardOneBackward];
        let problem = Problem { context, systems, options, evaluator: &|_: &Placement| None, stop: &stop };
        crate::plan_all(&problem, crate::search::planner("ilp").unwrap())
    };
    // The memory bound of several stages on a device takes seconds.
    let late = plan(Duration::from_millis(40));
    assert!(matches!(late, Err(PlanError::StoppedWithoutPlan { .. })), "{late:?}");
    let refused = plan(Duration::from_secs(600));
    assert!(matches!(refused, Err(PlanError::Infeasible { .. })), "{refused:?}");
}
