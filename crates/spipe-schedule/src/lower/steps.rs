//! Steps that wait for the norm of all gradients: longer ones are clipped to it, and where a loss was scaled too much it is not finite.
//!
//! ```text
//! gradients of a stage ─► norm ─┐                      ┌─► step
//! gradients of a stage ─► norm ─┴─► check, a latency ──┴─► step
//! ```
//!
//! Every part is summed where its stage is stepped. What travels is one number: it takes the latency of its way and no more. Where
//! nothing is checked steps may still be a phase of their own, between all backwards of an iteration and all forwards of the next.

use super::flows::{Transfer, latency};
use crate::{Access, Action, Anchor, Content, Edge, Lifetime, ProgramBuilder};
use spipe_base::{ActionId, ActionKind, Bytes, IdleCause, LaneId, LayerRange, MemoryId, SimTime, StageId, Subject};
use spipe_plan::Context;

/// One stage's gradients on the lane that steps them.
pub(super) struct Summed {
    pub stage: StageId,
    pub layers: LayerRange,
    pub lane: LaneId,
    pub gradients: Access,
    /// The memory of that lane's device.
    pub memory: MemoryId,
    /// Which of equal parts of them it is.
    pub part: Option<crate::Part>,
    /// What reading them takes.
    pub read: Transfer,
}

/// A step, and what ends with the new parameters where they are needed.
pub(super) struct Taken {
    pub step: ActionId,
    pub end: ActionId,
}

/// Between what steps are a phase of their own: the last backwards before it, and what comes first after it.
pub(super) struct Phase {
    pub backwards: Vec<ActionId>,
    pub firsts: Vec<ActionId>,
}

/// Steps stages, or shards of them, one by one.
pub(super) trait Stepper {
    /// What is to be stepped, and that with its gradients where they are stepped.
    type Key;
    type Step;

    fn context(&self) -> &Context<'_>;
    fn builder(&mut self) -> &mut ProgramBuilder;
    /// None of what is not trained.
    fn prepare(&mut self, key: Self::Key) -> Option<Self::Step>;
    fn summed(&self, step: &Self::Step) -> Summed;
    fn take(&mut self, step: &Self::Step) -> Taken;
    /// None where each may be stepped once it is complete.
    fn phase(&self) -> Option<Phase>;
}

/// Steps all of them: each as soon as it can be, or once the norm is known, or in a phase of their own.
pub(super) fn step_all<S: Stepper>(stepper: &mut S, keys: impl IntoIterator<Item = S::Key>) {
    let (checks, phase) = (stepper.context().workload().checks_gradients(), stepper.phase());
    let (mut norm, mut waiting) = (Norm::default(), Vec::new());
    for key in keys {
        let Some(step) = stepper.prepare(key) else { continue };
        let summed = stepper.summed(&step);
        let at = (summed.lane, summed.memory);
        if checks {
            norm.add(stepper.builder(), summed);
        }
        if checks || phase.is_some() {
            waiting.push((step, at));
        } else {
            stepper.take(&step);
        }
    }
    let Some((lane, memory)) = waiting.last().map(|(_, at)| *at) else { return };
    let between = |stepper: &S, from, to| latency(stepper.context(), from, to);
    let lags: Vec<SimTime> = norm.memories().map(|from| between(stepper, from, memory)).collect();
    let known = norm.known(stepper.builder(), lags).unwrap_or_else(|| {
        let backwards = phase.iter().flat_map(|phase| phase.backwards.iter().copied());
        Known { gate: barrier(stepper.builder(), lane, backwards), memory, cause: IdleCause::Order }
    });
    let mut ends = Vec::new();
    for (step, (_, memory)) in &waiting {
        let Taken { step, end } = stepper.take(step);
        let lag = between(stepper, known.memory, *memory);
        known.before(stepper.builder(), step, lag);
        ends.push(end);
    }
    if let Some(phase) = phase {
        let over = barrier(stepper.builder(), lane, ends);
        for first in phase.firsts {
            let (anchor, cause) = (Anchor::EndToStart, IdleCause::Optimizer);
            stepper.builder().edge(Edge { from: over, to: first, anchor, distance: 1, lag: SimTime::ZERO, cause });
        }
    }
}

/// What takes no time and comes after all of these.
fn barrier(builder: &mut ProgramBuilder, lane: LaneId, before: impl IntoIterator<Item = ActionId>) -> ActionId {
    let gate = builder.action(Action {
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
    /// Sums the squares of some gradients.
    pub fn add(&mut self, builder: &mut ProgramBuilder, summed: Summed) {
        let Summed { stage, layers, lane, gradients, memory, part, read } = summed;
        let (content, held) = (Content::Norm(layers), (Bytes::ZERO, Lifetime::Transient));
        let sum = match part {
            Some(part) => builder.part(part, content, memory, held),
            None => builder.buffer(content, memory, held.0, held.1),
        };
        let sum = Access::new(sum, 1);
        let Transfer { work, flows } = read;
        let action = builder.action(Action {
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

    /// The memories of all parts.
    pub fn memories(&self) -> impl Iterator<Item = MemoryId> {
        self.parts.iter().map(|(_, _, _, memory)| *memory)
    }

    /// Joins the parts where the last one was added, to which each takes so long; what steps wait for.
    pub fn known(self, builder: &mut ProgramBuilder, lags: impl IntoIterator<Item = SimTime>) -> Option<Known> {
        let (_, _, lane, memory) = *self.parts.last()?;
        let gate = builder.action(Action {
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
            wait(builder, (*part, gate), (lag, IdleCause::Check));
        }
        Some(Known { gate, memory, cause: IdleCause::Check })
    }
}

/// What steps wait for.
#[derive(Clone, Copy)]
pub(super) struct Known {
    gate: ActionId,
    /// Where it is known.
    pub memory: MemoryId,
    cause: IdleCause,
}

impl Known {
    /// Lets a step wait for it, and for its way there.
    pub fn before(self, builder: &mut ProgramBuilder, step: ActionId, lag: SimTime) {
        wait(builder, (self.gate, step), (lag, self.cause));
    }
}

fn wait(builder: &mut ProgramBuilder, (from, to): (ActionId, ActionId), (lag, cause): (SimTime, IdleCause)) {
    builder.edge(Edge { from, to, anchor: Anchor::EndToStart, distance: 0, lag, cause });
}
