//! Steps that wait for the norm of all gradients, because longer ones are clipped to it.
//!
//! ```text
//! gradients of a stage ─► norm ─┐                      ┌─► step
//! gradients of a stage ─► norm ─┴─► check, a latency ──┴─► step
//! ```
//!
//! Every part is summed where its stage is stepped. What travels is one number: it takes the latency of its way and no more.

use super::flows::Transfer;
use crate::{Access, Action, Anchor, Content, Edge, Lifetime, ProgramBuilder};
use spipe_base::{ActionId, ActionKind, Bytes, IdleCause, LaneId, LayerRange, MemoryId, SimTime, StageId, Subject};

/// The time that a number takes from one memory to another.
pub(super) type Latency<'a> = dyn Fn(MemoryId, MemoryId) -> SimTime + 'a;

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

    /// Joins the parts where the last one was added; what steps wait for.
    pub fn known(self, builder: &mut ProgramBuilder, latency: &Latency<'_>) -> Option<Known> {
        let (_, _, lane, memory) = *self.parts.last()?;
        let check = builder.action(Action {
            lane,
            kind: ActionKind::Check,
            subject: Subject::default(),
            reads: self.parts.iter().map(|(_, sum, ..)| *sum).collect(),
            writes: Vec::new(),
            work: SimTime::ZERO,
            flows: Vec::new(),
            guard: None,
        });
        for (part, _, _, from) in &self.parts {
            wait(builder, (*part, check), latency(*from, memory));
        }
        Some(Known { check, memory })
    }
}

/// A norm that is known once its check has ended.
#[derive(Clone, Copy)]
pub(super) struct Known {
    check: ActionId,
    memory: MemoryId,
}

impl Known {
    /// Lets a step in some memory wait for it.
    pub fn before(self, builder: &mut ProgramBuilder, (step, memory): (ActionId, MemoryId), latency: &Latency<'_>) {
        wait(builder, (self.check, step), latency(self.memory, memory));
    }
}

fn wait(builder: &mut ProgramBuilder, (from, to): (ActionId, ActionId), lag: SimTime) {
    builder.edge(Edge { from, to, anchor: Anchor::EndToStart, distance: 0, lag, cause: IdleCause::Check });
}
