//! Parameters that layers of two stages use: the stage that lacks their owner gathers them as well, and the sum of their gradients
//! from its use is added to the owner's before the step.

use super::{Lowering, collectives::Whole};
use crate::lower::flows::dram_flow;
use crate::{Access, Action, Anchor, Content, Edge, Lifetime};
use spipe_base::{ActionKind, BufferId, Bytes, DeviceId, IdleCause, LaneRole, LayerRange, SimTime, StageId, Subject};
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

    /// Their parameters, or their gradients, for the stage that uses them.
    fn whole(&self, user: StageId, (content, whole): (Content, Bytes), devices: usize) -> Whole {
        let layers = LayerRange::new(self.tie.owner, self.tie.owner);
        Whole { subject: Subject { layers, ..Subject::stage(user) }, content, whole, shard: shard(whole, devices) }
    }
}

impl Lowering<'_> {
    /// Gathers what a stage uses of another one's parameters.
    pub(super) fn gather_shared(&mut self, at: usize, stage: usize) -> Option<Access> {
        let part = &self.participants[at].parts[stage];
        let shared = part.shared.as_ref()?;
        let content = (Content::Shared(shared.tie.user), shared.parameters);
        let (owner, what) = (shared.owner, shared.whole(part.id, content, self.participants.len()));
        Some(Access::new(self.gather_whole(at, owner, &what), 1))
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
        let (content, home) = (Content::SharedGradients(shared.tie.user), here.parts[shared.owner].home);
        let (known, done) = (shared.sum, shared.accumulated);
        let what = shared.whole(part.id, (content, shared.gradients), self.participants.len());
        let share = self.share(at);
        let sum = known.unwrap_or_else(|| self.builder.part(share, content, home, (what.shard, Lifetime::Transient)));
        let last = self.reduce_whole(at, &what, (Access::new(sum, done), home), gradients);
        let here = &mut self.participants[at];
        if let Some(shared) = here.parts[stage].shared.as_mut() {
            (shared.sum, shared.accumulated) = (Some(sum), done + 1);
        }
        // Both reductions are what the stage's gradients wait for: the latter stands for the two.
        if let Some(own) = here.reduced.last_mut() {
            let from = std::mem::replace(own, last);
            let (anchor, cause) = (Anchor::EndToStart, IdleCause::Order);
            self.builder.edge(Edge { from, to: last, anchor, distance: 0, lag: SimTime::ZERO, cause });
        }
    }

    /// Adds what other stages have made of a stage's gradients to its own, on the device that steps them or has them.
    pub(super) fn accumulate_shared(&mut self, (at, owner): (usize, usize), device: DeviceId, own: Access) -> Access {
        let here = &self.participants[at];
        let users = here.parts.iter().filter_map(|part| part.shared.as_ref());
        let Some(shared) = users.into_iter().find(|shared| shared.owner == owner) else { return own };
        let Some(arrived) = shared.sum.map(|sum| Access::new(sum, shared.accumulated)) else { return own };
        let content = (Content::SharedGradients(shared.tie.user), shared.gradients);
        let Whole { subject, shard: bytes, .. } = shared.whole(here.parts[owner].id, content, self.participants.len());
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
