//! The optimizer steps of an iteration: when each of them may run.
//!
//! Without gradient checks, a step runs as soon as its gradients are complete. With checks, all
//! steps wait for the global norm:
//!
//! ```text
//! gradients of a stage ─► norm ─┐                      ┌─► step
//! gradients of a stage ─► norm ─┴─► check, a latency ──┴─► step
//! ```
//!
//! A norm above the limit clips the gradients; one that is not finite tells that the loss scale was
//! too large. Each part of the norm is computed where its step runs. Only one number moves, so that
//! it costs the latency of its route and nothing else.
//!
//! A synchronous optimizer is a phase of its own, between all backwards of an iteration and all
//! forwards of the next.

use super::flows::{Transfer, latency, optimizer_step};
use crate::{Access, Anchor, Content, Edge, Lifetime, NewAction, Part, ProgramBuilder};
use spipe_base::{
    ActionId, ActionKind, Bytes, DeviceId, IdleCause, LaneId, LayerRange, MemoryId, SimTime, StageId, Subject,
};
use spipe_plan::Context;

/// Complete gradients where their step runs.
pub(super) struct Gradients {
    pub stage: StageId,
    pub layers: LayerRange,
    /// The lane of the step.
    pub lane: LaneId,
    pub gradients: Access,
    /// The memory of that lane's device.
    pub memory: MemoryId,
    /// The part of the gradients, if they are sharded.
    pub part: Option<Part>,
    /// The computation of their norm.
    pub norm: Transfer,
}

/// The first and the last action of an update: the step, and the arrival of the new parameters
/// where they are used.
pub(super) struct Update {
    pub step: ActionId,
    pub end: ActionId,
}

/// The neighbours of a phase of optimizer steps: the last backwards before it, and the first
/// actions after it.
pub(super) struct Phase {
    pub backwards: Vec<ActionId>,
    pub firsts: Vec<ActionId>,
}

/// The updates of a lowering.
pub(super) trait Updates {
    /// The name of parameters that are updated together.
    type Key;
    /// Such parameters, with their complete gradients.
    type Step;

    fn context(&self) -> &Context<'_>;
    fn builder(&mut self) -> &mut ProgramBuilder;
    /// All of them, those of a device in the order in which their backwards end.
    fn keys(&self) -> Vec<Self::Key>;
    /// Brings gradients to where their step runs; `None` if nothing is trained.
    fn prepare(&mut self, key: Self::Key) -> Option<Self::Step>;
    fn gradients(&self, step: &Self::Step) -> Gradients;
    /// Whether the norm counts these gradients: no other replica has the same.
    fn counts(&self, _: &Self::Step) -> bool {
        true
    }
    fn update(&mut self, step: &Self::Step) -> Update;
    /// The phase of a synchronous optimizer; `None` if each step runs once its gradients are
    /// complete.
    fn phase(&self) -> Option<Phase>;
}

/// Adds all updates, with the gate that they wait for, if there is one.
pub(super) fn update_all<U: Updates>(updates: &mut U) {
    let (checks, phase) = (updates.context().workload().checks_gradients(), updates.phase());
    let (mut norm, mut waiting) = (Norm::default(), Vec::new());
    for key in updates.keys() {
        let Some(step) = updates.prepare(key) else { continue };
        let gradients = updates.gradients(&step);
        let at = (gradients.lane, gradients.memory);
        if checks && updates.counts(&step) {
            norm.add(updates.builder(), gradients);
        }
        if checks || phase.is_some() {
            waiting.push((step, at));
        } else {
            updates.update(&step);
        }
    }
    let Some((lane, memory)) = waiting.last().map(|(_, at)| *at) else { return };
    let between = |updates: &U, from, to| latency(updates.context(), from, to);
    let lags: Vec<SimTime> = norm.memories().map(|from| between(updates, from, memory)).collect();
    let gate = norm.check(updates.builder(), lags).unwrap_or_else(|| {
        let backwards = phase.iter().flat_map(|phase| phase.backwards.iter().copied());
        Gate { action: barrier(updates.builder(), lane, backwards), memory, cause: IdleCause::Order }
    });
    let mut ends = Vec::new();
    for (step, (_, memory)) in &waiting {
        let Update { step, end } = updates.update(step);
        let lag = between(updates, gate.memory, *memory);
        gate.before(updates.builder(), step, lag);
        ends.push(end);
    }
    if let Some(phase) = phase {
        let over = barrier(updates.builder(), lane, ends);
        for first in phase.firsts {
            let (anchor, cause) = (Anchor::EndToStart, IdleCause::Optimizer);
            updates.builder().edge(Edge { from: over, to: first, anchor, distance: 1, lag: SimTime::ZERO, cause });
        }
    }
}

/// Adds an optimizer step of `parameters` parameters on a lane of `device`.
pub(super) fn add_step<U: Updates>(
    updates: &mut U,
    (device, lane, subject): (DeviceId, LaneId, Subject),
    parameters: u64,
    (reads, writes): (Vec<Access>, Vec<Access>),
) -> ActionId {
    let Transfer { work, flows } = optimizer_step(updates.context(), device, parameters);
    let kind = ActionKind::OptimizerStep;
    updates.builder().action(NewAction { lane, kind, subject, reads, writes, work, flows, guard: None })
}

/// Adds an action without duration that waits for all of `before`.
fn barrier(builder: &mut ProgramBuilder, lane: LaneId, before: impl IntoIterator<Item = ActionId>) -> ActionId {
    let gate = builder.action(NewAction {
        lane,
        kind: ActionKind::Barrier,
        subject: Subject::default(),
        reads: Vec::new(),
        writes: Vec::new(),
        work: SimTime::ZERO,
        flows: Vec::new(),
        guard: None,
    });
    for action in before {
        wait(builder, (action, gate), (SimTime::ZERO, IdleCause::Order));
    }
    gate
}

/// The norm of all gradients, part by part.
#[derive(Default)]
pub(super) struct Norm {
    parts: Vec<(ActionId, Access, LaneId, MemoryId)>,
}

impl Norm {
    /// Adds the sum of squares of some gradients.
    pub fn add(&mut self, builder: &mut ProgramBuilder, gradients: Gradients) {
        let Gradients { stage, layers, lane, gradients, memory, part, norm } = gradients;
        let (content, held) = (Content::Norm(layers), (Bytes::ZERO, Lifetime::Transient));
        let sum = match part {
            Some(part) => builder.part(part, content, memory, held),
            None => builder.buffer(content, memory, held.0, held.1),
        };
        let sum = Access::new(sum, 1);
        let Transfer { work, flows } = norm;
        let action = builder.action(NewAction {
            lane,
            kind: ActionKind::Norm,
            subject: Subject { layers: Some(layers), ..Subject::stage(stage) },
            reads: vec![gradients],
            writes: vec![sum],
            work,
            flows,
            guard: None,
        });
        self.parts.push((action, sum, lane, memory));
    }

    /// The memory of each part.
    pub fn memories(&self) -> impl Iterator<Item = MemoryId> {
        self.parts.iter().map(|(_, _, _, memory)| *memory)
    }

    /// Adds the check, on the lane of the last part. `lags` are the latencies of the parts on their
    /// way there.
    pub fn check(self, builder: &mut ProgramBuilder, lags: impl IntoIterator<Item = SimTime>) -> Option<Gate> {
        let (_, _, lane, memory) = *self.parts.last()?;
        let check = builder.action(NewAction {
            lane,
            kind: ActionKind::Check,
            subject: Subject::default(),
            reads: self.parts.iter().map(|(_, sum, ..)| *sum).collect(),
            writes: Vec::new(),
            work: SimTime::ZERO,
            flows: Vec::new(),
            guard: None,
        });
        for ((part, ..), lag) in self.parts.iter().zip(lags) {
            wait(builder, (*part, check), (lag, IdleCause::Check));
        }
        Some(Gate { action: check, memory, cause: IdleCause::Check })
    }
}

/// The action that steps wait for.
#[derive(Clone, Copy)]
pub(super) struct Gate {
    action: ActionId,
    /// The memory in which its result is.
    pub memory: MemoryId,
    cause: IdleCause,
}

impl Gate {
    /// Lets a step wait for the gate, with the latency of its result on the way to the step.
    pub fn before(self, builder: &mut ProgramBuilder, step: ActionId, lag: SimTime) {
        wait(builder, (self.action, step), (lag, self.cause));
    }
}

fn wait(builder: &mut ProgramBuilder, (from, to): (ActionId, ActionId), (lag, cause): (SimTime, IdleCause)) {
    builder.edge(Edge { from, to, anchor: Anchor::EndToStart, distance: 0, lag, cause });
}
