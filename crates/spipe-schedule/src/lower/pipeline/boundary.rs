//! Boundaries: outputs and gradients pass from stage to stage, by double-buffered copies between
//! devices.

use super::{Done, PipelineLowering};
use crate::lower::flows::route;
use crate::{Access, Anchor, Content, Edge, Flow, Lifetime, NewAction};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, IdleCause, LaneId, LaneRole, LayerId, MemoryId, MicrobatchId,
    Payload, SimTime, StageId, Subject,
};

/// An input of a stage, or a gradient of its output.
#[derive(Clone, Copy)]
pub(super) struct Crossing {
    /// Its buffer on the device that uses it.
    pub here: BufferId,
    /// The copy from another memory, if there is one.
    pub copy: Option<ActionId>,
}

impl PipelineLowering<'_> {
    /// The buffer that a stage writes for its neighbour, in its own memory; `None` at the ends of
    /// the model.
    pub(super) fn out(&mut self, stage: StageId, microbatch: MicrobatchId, forward: bool) -> Option<BufferId> {
        let here = &self.stations[stage];
        let (content, bytes) = if forward {
            (!self.is_last(stage))
                .then_some((Content::Activation(here.stage.layers.last(), microbatch), here.output))?
        } else {
            let before = here.stage.layers.first().index().checked_sub(1).filter(|_| here.passes_gradient)?;
            (Content::Gradient(LayerId::from(before), microbatch), here.input)
        };
        Some(self.builder.buffer(content, here.memory, bytes, Lifetime::Transient))
    }

    /// Passes a stage's output, or the gradient of its input, to the neighbour, with a copy if that
    /// is in another memory.
    pub(super) fn hand_over(&mut self, stage: StageId, microbatch: MicrobatchId, output: BufferId, forward: bool) {
        let neighbour = neighbour(stage, forward);
        let crossing = if self.stations[stage].memory == self.stations[neighbour].memory {
            Crossing { here: output, copy: None }
        } else {
            self.copy(stage, microbatch, output, forward)
        };
        let arrivals = if forward { &mut self.activations } else { &mut self.gradients };
        arrivals[(neighbour, microbatch)] = Some(crossing);
    }

    fn copy(&mut self, stage: StageId, microbatch: MicrobatchId, output: BufferId, forward: bool) -> Crossing {
        let (from, to) = (&self.stations[stage], &self.stations[neighbour(stage, forward)]);
        let (content, payload, bytes, wire) = if forward {
            let content = Content::Activation(from.stage.layers.last(), microbatch);
            (content, Payload::Activation, to.input, from.output.min(to.input))
        } else {
            let content = Content::Gradient(to.stage.layers.last(), microbatch);
            (content, Payload::Gradient, to.output, from.input.min(to.output))
        };
        let (sender, receiver, memory) = (from.stage.lead(), to.stage.lead(), to.memory);
        let flow = self.flow((from.memory, memory), wire);
        let lane = self.copy_lane(sender, receiver);
        let here = self.builder.buffer(content, memory, bytes, Lifetime::Transient);
        let copy = self.builder.action(NewAction {
            lane,
            kind: ActionKind::Copy(payload),
            subject: Subject::work(stage, microbatch),
            reads: vec![Access::new(output, 1)],
            writes: vec![Access::new(here, 1)],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        });
        let done = if forward { &mut self.forwards } else { &mut self.backwards };
        done[stage.index()].copied_out.push(copy);
        Crossing { here, copy: Some(copy) }
    }

    /// The flow of `bytes` between two memories; `None`, and a fault, where no route joins them.
    fn flow(&mut self, (from, to): (MemoryId, MemoryId), bytes: Bytes) -> Option<Flow> {
        if let Some(known) = self.routes.get(&(from, to)) {
            return Some(Flow { bytes, ..known.clone() });
        }
        match route(self.context, from, to, bytes) {
            Ok(flow) => {
                self.routes.insert((from, to), flow.clone());
                Some(flow)
            }
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    /// The lane of copies from one device's memory to another's. Gradients and parameters of
    /// optimizer steps on a socket have other lanes, so that the first copies of an iteration do
    /// not wait for the write-backs of the one before.
    pub(super) fn copy_lane(&mut self, from: DeviceId, to: DeviceId) -> LaneId {
        let is_cpu = |device| self.context.is_cpu(device);
        let name = |device: DeviceId| &self.context.hardware.devices()[device].name;
        match (is_cpu(from), is_cpu(to)) {
            (true, false) => self.builder.lane(to, &format!("from-{}", name(from)), LaneRole::H2d),
            (false, true) => self.builder.lane(from, &format!("to-{}", name(to)), LaneRole::D2h),
            _ => self.builder.lane(from, &format!("to-{}", name(to)), LaneRole::Channel),
        }
    }

    /// Adds the precedences of n boundary slots: an input arrives only once the computation n − 1
    /// before its user has started, and a computation starts only once the output n before its own
    /// has left.
    pub(super) fn arrive_during(&mut self, stage: StageId, arrived: Option<Crossing>, user: ActionId, forward: bool) {
        let slots = self.slots;
        let done = if forward { &mut self.forwards } else { &mut self.backwards };
        let done = &mut done[stage.index()];
        done.arrived.extend(arrived.and_then(|crossing| crossing.copy));
        let mut edges = Vec::new();
        let before = done.computed.len().checked_sub(slots).map(|index| done.computed[index]);
        if let (Some(copy), Some(before)) = (arrived.and_then(|crossing| crossing.copy), before) {
            edges.push((before, copy, Anchor::StartToStart));
        }
        if let Some(out) = done.copied_out.len().checked_sub(slots).map(|index| done.copied_out[index]) {
            edges.push((out, user, Anchor::EndToStart));
        }
        for (from, to, anchor) in edges {
            self.builder.edge(Edge { from, to, anchor, distance: 0, lag: SimTime::ZERO, cause: IdleCause::Memory });
        }
    }

    /// Adds the precedences of boundary slots across iterations: the first input arrives once the
    /// last computation has started, and the first computations start once the last outputs have
    /// left.
    pub(super) fn join_iterations(&mut self) {
        let mut edges = Vec::new();
        for done in self.forwards.iter().chain(&self.backwards) {
            edges.extend(around(done, self.slots));
        }
        for (from, to, anchor) in edges {
            self.builder.edge(Edge { from, to, anchor, distance: 1, lag: SimTime::ZERO, cause: IdleCause::Memory });
        }
    }
}

fn around(done: &Done, slots: usize) -> Vec<(ActionId, ActionId, Anchor)> {
    let Some(last) = done.computed.last() else { return Vec::new() };
    let mut edges: Vec<_> = done.arrived.first().map(|copy| (*last, *copy, Anchor::StartToStart)).into_iter().collect();
    let waiting = done.computed.iter().take(slots.min(done.copied_out.len()));
    let leaving = done.copied_out.iter().skip(done.copied_out.len().saturating_sub(slots));
    edges.extend(leaving.zip(waiting).map(|(out, user)| (*out, *user, Anchor::EndToStart)));
    edges
}

/// The stage that receives the output of `stage`.
fn neighbour(stage: StageId, forward: bool) -> StageId {
    StageId::from(if forward { stage.index() + 1 } else { stage.index() - 1 })
}
