//! The event graph of a subproblem: the iteration time of a partition without contention, as the
//! period of the order that its system prescribes.
//!
//! ```text
//! stage 0   F0 F1 F2 ── B0 F3 ── B1 ── … B3 O ─► F0'    the next iteration's first forward waits
//!              ↘a     ↗g                                for the optimizer step O,
//! stage 1      F0 B0 F1 B1 … G ╌► S ╌► P ─► F0'         or for gradients out (G), the step on a
//!                                                       socket (S) and parameters back (P)
//! ```
//!
//! A system prescribes for each device a fixed sequence of forwards and backwards. These actions
//! are the nodes of the graph, weighted by their durations. Edges are the lane order and the
//! transfers between neighbouring stages; an edge from each stage's optimizer step to its first
//! forward joins iterations. A recompute is on the lane before its backward and does not wait for
//! the gradient. A socket runs the optimizer steps of its stages one after the other, the last
//! stage first.
//!
//! A simulated schedule honours all these edges, and contention for links and memory only delays
//! it. So its period is at least the weight of any cycle divided by the number of iterations that
//! the cycle spans; the largest such ratio is the period without contention (Baccelli et al.,
//! Synchronization and Linearity, 1992, theorem 2.28).

use crate::problem::tolerances::{LONGER, TIE};
use crate::space::subproblem::Times;
use crate::{costs::CostSums, space::subproblem::Subproblem};
use spipe_base::DeviceId;
use spipe_plan::System;
use spipe_schedule::{Pass, Token, gpipe, one_forward_one_backward};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Forward,
    Recompute,
    Backward,
    Optimizer,
    Out,
    Step,
    Back,
}

#[derive(Clone, Copy, Debug)]
enum Wire {
    Activation(usize),
    Gradient(usize),
    /// No transfer.
    Here,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    stage: usize,
    part: Part,
    /// The action before it on its lane.
    lane: Option<usize>,
    /// The action whose output it needs, and the boundary between them.
    data: Option<(usize, Wire)>,
}

/// The actions of one iteration of a subproblem, each after those for which it waits.
pub(crate) struct EventGraph {
    stages: usize,
    nodes: Vec<Node>,
    /// The first and the last action of each stage.
    ends: Vec<(usize, usize)>,
}

/// Returns the actions of each stage in the order that its system prescribes: a recompute before
/// every backward, and in inference forwards alone.
fn lane_orders(case: &Subproblem, microbatches: usize, training: bool) -> Vec<Vec<(Part, usize)>> {
    let stages = case.stages();
    let head_start = |stage: usize| (case.stage_slots[stage].in_flight as usize).saturating_sub(stages - stage);
    let head_starts: Vec<usize> = (0..stages).map(head_start).collect();
    let order = match case.schedule.system {
        System::Gpipe => gpipe(stages, microbatches),
        System::Hybrid => one_forward_one_backward(stages, microbatches, &head_starts),
        _ => one_forward_one_backward(stages, microbatches, &[]),
    };
    let lane = |(stage, tokens): (usize, &Vec<Token>)| {
        let mut lane = Vec::new();
        for token in tokens {
            let microbatch = token.microbatch.index();
            match token.pass {
                Pass::Forward => lane.push((Part::Forward, microbatch)),
                _ if training => lane.extend([(Part::Recompute, microbatch), (Part::Backward, microbatch)]),
                _ => {}
            }
        }
        lane.extend((training && !case.host_offload(stage).optimizer).then_some((Part::Optimizer, 0)));
        lane
    };
    order.devices().iter().enumerate().map(lane).collect()
}

impl EventGraph {
    pub fn new(costs: &CostSums<'_>, case: &Subproblem) -> Self {
        let (microbatches, training) = (costs.microbatches, costs.training);
        let (stages, count) = (case.stages(), microbatches as usize);
        let orders = lane_orders(case, count, training);
        let mut graph = Self { stages, nodes: Vec::new(), ends: vec![(0, 0); stages] };
        let mut next = vec![0; stages];
        // By stage and microbatch: the nodes of the forward and of the backward.
        let mut forward = vec![vec![None; count]; stages];
        let mut backward = vec![vec![None; count]; stages];
        let mut lane: Vec<Option<usize>> = vec![None; stages];
        let total: usize = orders.iter().map(Vec::len).sum();
        while graph.nodes.len() < total {
            let before = graph.nodes.len();
            for stage in 0..stages {
                while let Some((part, microbatch)) = orders[stage].get(next[stage]).copied() {
                    let data = match part {
                        Part::Forward if stage > 0 => {
                            Some((forward[stage - 1][microbatch], Wire::Activation(stage - 1)))
                        }
                        // A stage of frozen layers alone gets no gradient.
                        Part::Backward if stage + 1 < stages && stage >= case.frozen => {
                            Some((backward[stage + 1][microbatch], Wire::Gradient(stage)))
                        }
                        _ => None,
                    };
                    if matches!(data, Some((None, _))) {
                        break;
                    }
                    let data = data.and_then(|(from, wire)| Some((from?, wire)));
                    let index = graph.nodes.len();
                    graph.nodes.push(Node { stage, part, lane: lane[stage], data });
                    match part {
                        Part::Forward => forward[stage][microbatch] = Some(index),
                        Part::Backward => backward[stage][microbatch] = Some(index),
                        _ => {}
                    }
                    if lane[stage].is_none() {
                        graph.ends[stage].0 = index;
                    }
                    graph.ends[stage].1 = index;
                    lane[stage] = Some(index);
                    next[stage] += 1;
                }
            }
            assert!(graph.nodes.len() > before, "the order of `{}` is circular", case.schedule.system);
        }
        graph.steps_on_sockets(costs, case);
        graph
    }

    /// Adds the optimizer steps on sockets, one after the other on each socket.
    fn steps_on_sockets(&mut self, costs: &CostSums<'_>, case: &Subproblem) {
        let mut steps: BTreeMap<DeviceId, usize> = BTreeMap::new();
        for stage in (0..self.stages).rev().filter(|stage| costs.training && case.host_offload(*stage).optimizer) {
            let Some(host) = case.device(costs, stage).host(case.host_offload(stage)) else { continue };
            let add = |nodes: &mut Vec<Node>, part: Part, lane: Option<usize>, after: Option<usize>| {
                nodes.push(Node { stage, part, lane, data: after.map(|after| (after, Wire::Here)) });
                nodes.len() - 1
            };
            // A stage of frozen layers alone has no optimizer step for which others could wait.
            let before = if stage < case.frozen { None } else { steps.get(&host.socket).copied() };
            let out = add(&mut self.nodes, Part::Out, Some(self.ends[stage].1), None);
            let step = add(&mut self.nodes, Part::Step, before, Some(out));
            let back = add(&mut self.nodes, Part::Back, None, Some(step));
            if stage >= case.frozen {
                steps.insert(host.socket, step);
            }
            self.ends[stage].1 = back;
        }
    }

    fn duration(&self, node: usize, times: &Times) -> f64 {
        let Node { stage, part, .. } = self.nodes[node];
        let times = &times.stages[stage];
        match part {
            Part::Forward => times.forward,
            Part::Recompute => times.recompute,
            Part::Backward => times.backward,
            Part::Optimizer => times.optimizer,
            Part::Out => times.out,
            Part::Step => times.step,
            Part::Back => times.back,
        }
    }

    /// Returns the end of each action, in ms, on the longest path from `source`, if `source` starts
    /// at 0 and nothing else delays it. Actions that do not depend on `source` end at −∞.
    fn longest(&self, source: usize, times: &Times) -> Vec<f64> {
        let mut ends: Vec<f64> = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            let first = if index == source { 0.0 } else { f64::NEG_INFINITY };
            let lane = node.lane.map_or(f64::NEG_INFINITY, |lane| ends[lane]);
            let data = node.data.map_or(f64::NEG_INFINITY, |(from, wire)| {
                ends[from]
                    + match wire {
                        Wire::Activation(boundary) => times.activations[boundary],
                        Wire::Gradient(boundary) => times.gradients[boundary],
                        Wire::Here => 0.0,
                    }
            });
            ends.push(first.max(lane).max(data) + self.duration(index, times));
        }
        ends
    }

    /// Returns the steady period in ms.
    ///
    /// It starts as the longest path of a stage within one iteration, from its first action to its
    /// last, and grows to the mean weight of a cycle of stages that exceeds it, until there is none.
    pub fn period(&self, times: &Times) -> f64 {
        let paths: Vec<_> = self.ends.iter().map(|(first, _)| self.longest(*first, times)).collect();
        let length = |from: usize, to: usize| paths[from][self.ends[to].1];
        let mut period = (0..self.stages).map(|stage| length(stage, stage)).fold(0.0, f64::max);
        while let Some(nodes) = positive_cycle(self.stages, |from, to| length(from, to) - period) {
            let next = |node: usize| nodes[(node + 1) % nodes.len()];
            let total: f64 = (0..nodes.len()).map(|node| length(nodes[node], next(node))).sum();
            let mean = total / nodes.len() as f64;
            if mean <= period * (1.0 + TIE) {
                break;
            }
            period = mean;
        }
        period
    }
}

/// Finds a cycle of positive weight in the complete graph of `count` nodes (Bellman–Ford).
fn positive_cycle(count: usize, weight: impl Fn(usize, usize) -> f64) -> Option<Vec<usize>> {
    let mut distance = vec![0.0; count];
    let mut before = vec![None; count];
    let mut changed = None;
    for _ in 0..=count {
        changed = None;
        for from in 0..count {
            for to in 0..count {
                let through = distance[from] + weight(from, to);
                if through > distance[to] + LONGER {
                    (distance[to], before[to], changed) = (through, Some(from), Some(to));
                }
            }
        }
        changed?;
    }
    let mut at = changed?;
    for _ in 0..count {
        at = before[at]?;
    }
    let (start, mut cycle) = (at, vec![at]);
    at = before[at]?;
    while at != start {
        cycle.push(at);
        at = before[at]?;
    }
    cycle.reverse();
    Some(cycle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::StageTimes;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        space::subproblem::ScheduleKind,
    };
    use spipe_cost::Mode;
    use spipe_plan::System;

    fn period(system: System, (stages, microbatches): (usize, u64), mode: Mode) -> f64 {
        let layer = LayerText {
            count: stages,
            times: [10, 10, 10],
            slowdown: 2,
            parameters: 0,
            boundary: 1,
            saved: 0,
            workspace: 0,
        };
        let machine = MachineText { gpus: vec![(8000, 20); stages], root: 20, sockets: vec![100] };
        let workload = workload(microbatches, mode);
        let instance = Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload);
        let costs = CostSums::new(instance.context(), &crate::Options::default());
        let devices: Vec<usize> = (0..stages).collect();
        let case = Subproblem::new(&costs, &devices, ScheduleKind { system, head_start: 0 });
        let stage = StageTimes { forward: 1.0, backward: 2.0, optimizer: 0.5, ..StageTimes::default() };
        let wires = vec![0.0; stages - 1];
        let times = Times { stages: vec![stage; stages], activations: wires.clone(), gradients: wires };
        EventGraph::new(&costs, &case).period(&times)
    }

    /// (m + p − 1)(F + B) for both systems (Narayanan et al., PipeDream-Flush, 2021, section 2.2),
    /// and the optimizer step.
    #[test]
    fn equal_stages_take_what_the_closed_forms_say() {
        for (stages, microbatches) in [(1, 1), (2, 4), (4, 8), (4, 3)] {
            let expected = 3.0 * (microbatches + stages - 1) as f64 + 0.5;
            for system in [System::Gpipe, System::OneForwardOneBackward] {
                let period = period(system, (stages as usize, microbatches), Mode::Train);
                assert!((period - expected).abs() < 1e-9, "{system} on {stages}: {period} but {expected}");
            }
        }
    }

    #[test]
    fn inference_never_drains() {
        assert!((period(System::OneForwardOneBackward, (4, 8), Mode::Infer) - 8.0).abs() < 1e-9);
    }
}
