//! Parameters that layers of two stages use: the stage that lacks their owner gathers them as well, and the sum of their gradients
//! from its use is added to the owner's before the step.

use super::Lowering;
use crate::lower::flows::dram_flow;
use crate::{Access, Action, Anchor, Content, Lifetime};
use spipe_base::{
    ActionKind, BufferId, Bytes, Collective, DeviceId, IdleCause, LaneRole, LayerRange, Payload, SimTime, Subject,
};
use spipe_model::Tie;
use spipe_plan::{Context, Placement, Stage, shard};

/// What a stage uses of another one's parameters on one device.
pub(super) struct Shared {
    tie: Tie,
    /// The stage that has their owner.
    owner: usize,
    parameters: Bytes,
    gradients: Bytes,
    /// The device's part of the sum of their gradients, where the owner's is, and how often it has been added to.
    sum: Option<BufferId>,
    accumulated: u32,
}

impl Shared {
    /// That of `stage`, if there is any.
    pub fn of(context: &Context<'_>, placement: &Placement, stage: &Stage) -> Option<Self> {
        let tie = context.model.borrows(stage.layers)?;
        let owner = placement.stages.iter().position(|owner| owner.layers.contains(tie.owner))?;
        let bytes = context.cost.memory(tie.user, stage.device);
        let (parameters, gradients) = (bytes.tied_parameters, bytes.tied_gradients);
        Some(Self { tie, owner, parameters, gradients, sum: None, accumulated: 0 })
    }

    fn about(&self, of: Subject) -> Subject {
        Subject { layers: LayerRange::new(self.tie.owner, self.tie.owner), ..of }
    }
}

impl Lowering<'_> {
    /// Gathers what a stage uses of another one's parameters.
    pub(super) fn gather_shared(&mut self, at: usize, stage: usize) -> Option<Access> {
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let shared = part.shared.as_ref()?;
        let (owner, user, bytes) = (shared.owner, shared.tie.user, shared.parameters);
        let (memory, lane, subject) = (here.memory, here.collective, shared.about(Subject::stage(part.id)));
        let home = here.parts[owner].home;
        let mut own = Access::new(here.parts[owner].parameters, 0);
        let mut first = None;
        if home != memory {
            let size = shard(bytes, self.participants.len());
            let arrived = self.builder.part(self.share(at), Content::Shared(user), memory, (size, Lifetime::Transient));
            let what = (ActionKind::Copy(Payload::WeightsIn), subject);
            first = Some(self.copy(at, what, (home, memory, size), (vec![own], vec![Access::new(arrived, 1)])));
            own = Access::new(arrived, 1);
        }
        let whole = self.builder.buffer(Content::Shared(user), memory, bytes, Lifetime::Transient);
        let others = self.participants.iter().enumerate().filter(|(other, _)| *other != at);
        let reads = std::iter::once(own).chain(others.map(|(_, other)| Access::new(other.parts[owner].parameters, 0)));
        let reads = reads.collect();
        let flows = self.ring(at, bytes);
        let gather = self.builder.action(Action {
            lane,
            kind: ActionKind::Collective(Collective::AllGather),
            subject,
            reads,
            writes: vec![Access::new(whole, 1)],
            work: SimTime::ZERO,
            flows,
            guard: None,
        });
        self.make_room(at, first.unwrap_or(gather));
        Some(Access::new(whole, 1))
    }

    /// The gradients of shared parameters that a backward makes.
    pub(super) fn shared_gradients(&mut self, at: usize, stage: usize) -> Option<BufferId> {
        let here = &self.participants[at];
        let shared = here.parts[stage].shared.as_ref().filter(|shared| shared.gradients > Bytes::ZERO)?;
        let content = Content::SharedGradients(shared.tie.user);
        Some(self.builder.buffer(content, here.memory, shared.gradients, Lifetime::Transient))
    }

    /// Every device ends with the sum of its part of them.
    pub(super) fn reduce_shared(&mut self, at: usize, stage: usize, gradients: &[BufferId]) {
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let Some(shared) = part.shared.as_ref().filter(|_| !gradients.is_empty()) else { return };
        let (memory, lane, home) = (here.memory, here.collective, here.parts[shared.owner].home);
        let (subject, whole, done) = (shared.about(Subject::stage(part.id)), shared.gradients, shared.accumulated);
        let (content, known) = (Content::SharedGradients(shared.tie.user), shared.sum);
        let size = shard(whole, self.participants.len());
        let share = self.share(at);
        let mut new = |memory| self.builder.part(share, content, memory, (size, Lifetime::Transient));
        let sum = known.unwrap_or_else(|| new(home));
        let mut reads: Vec<Access> = gradients.iter().map(|gradients| Access::new(*gradients, 1)).collect();
        let added = (done > 0).then_some(Access::new(sum, done));
        let mut target = Access::new(sum, done + 1);
        if home == memory {
            reads.extend(added);
        } else {
            target = Access::new(new(memory), 1);
        }
        let flows = self.ring(at, whole);
        let mut last = self.builder.action(Action {
            lane,
            kind: ActionKind::Collective(Collective::ReduceScatter),
            subject,
            reads,
            writes: vec![target],
            work: SimTime::ZERO,
            flows,
            guard: None,
        });
        if home != memory {
            let reads = std::iter::once(target).chain(added).collect();
            let what = (ActionKind::Copy(Payload::GradientsOut), subject);
            last = self.copy(at, what, (memory, home, size), (reads, vec![Access::new(sum, done + 1)]));
        }
        let here = &mut self.participants[at];
        if let Some(before) = here.reduced.last().copied() {
            // The two together are what a stage's gradients wait for.
            let edge = (before, last, Anchor::EndToStart);
            self.after(edge, IdleCause::Order);
        }
        let here = &mut self.participants[at];
        here.reduced.pop();
        here.reduced.push(last);
        if let Some(shared) = here.parts[stage].shared.as_mut() {
            (shared.sum, shared.accumulated) = (Some(sum), done + 1);
        }
    }

    fn after(&mut self, (from, to, anchor): (spipe_base::ActionId, spipe_base::ActionId, Anchor), cause: IdleCause) {
        self.builder.edge(crate::Edge { from, to, anchor, distance: 0, lag: SimTime::ZERO, cause });
    }

    /// Adds what other stages have made of a stage's gradients to its own, on the device that steps them or has them.
    pub(super) fn accumulate_shared(&mut self, (at, owner): (usize, usize), device: DeviceId, own: Access) -> Access {
        let here = &self.participants[at];
        let users = here.parts.iter().filter_map(|part| part.shared.as_ref());
        let Some(shared) = users.into_iter().find(|shared| shared.owner == owner) else { return own };
        let Some(arrived) = shared.sum.map(|sum| Access::new(sum, shared.accumulated)) else { return own };
        let (subject, whole) = (shared.about(Subject::stage(here.parts[owner].id)), shared.gradients);
        let bytes = shard(whole, self.participants.len());
        let time = self.context.cost.accumulate_time(bytes, device);
        let role = if self.context.is_cpu(device) { LaneRole::Optimizer } else { LaneRole::Compute };
        let lane = self.builder.lane(device, role.name(), role);
        let sum = Access::new(own.buffer, own.version + 1);
        self.builder.action(Action {
            lane,
            kind: ActionKind::Accumulate,
            subject,
            reads: vec![arrived, own],
            writes: vec![sum],
            work: SimTime::from_seconds(time),
            flows: dram_flow(self.context, device, time, bytes * 3),
            guard: None,
        });
        sum
    }
}
