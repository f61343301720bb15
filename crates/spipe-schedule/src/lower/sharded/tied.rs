//! Tied parameters of layers in two stages. The stage that borrows them gathers them as well, and
//! the reduced gradients from its use are added to the owner's before the optimizer step.

use super::{
    ShardedLowering,
    collectives::{Reduction, Whole},
};
use crate::lower::flows::dram_flow;
use crate::{Access, Anchor, Content, Edge, Lifetime, NewAction};
use spipe_base::{ActionKind, BufferId, Bytes, DeviceId, IdleCause, LaneRole, LayerRange, SimTime, StageId, Subject};
use spipe_model::Tie;
use spipe_plan::{Context, Placement, Stage, shard};
use std::ops::Range;

/// The tied parameters that a stage borrows, on one device.
pub(super) struct Borrowed {
    tie: Tie,
    /// The stage of the owner.
    owner: usize,
    parameters: Bytes,
    gradients: Bytes,
    /// The device's shard of the reduced gradients, in the memory of the owner's.
    sum: Option<BufferId>,
    /// The number of microbatches per device in that sum.
    accumulated: u32,
}

impl Borrowed {
    /// The borrowed parameters of `stage`, if there are any.
    pub fn of(context: &Context<'_>, placement: &Placement, stage: &Stage) -> Option<Self> {
        let tie = context.model.borrows(stage.layers)?;
        let owner = placement.stages.iter().position(|owner| owner.layers.contains(tie.owner))?;
        let bytes = context.cost.memory(tie.user, stage.lead());
        let (parameters, gradients) = (bytes.tied_parameters, bytes.tied_gradients);
        Some(Self { tie, owner, parameters, gradients, sum: None, accumulated: 0 })
    }

    /// The parameters, or their gradients, as a tensor of the stage that borrows them.
    fn whole(&self, user: StageId, (content, whole): (Content, Bytes), devices: usize) -> Whole {
        let layers = LayerRange::new(self.tie.owner, self.tie.owner);
        Whole { subject: Subject { layers, ..Subject::stage(user) }, content, whole, shard: shard(whole, devices) }
    }
}

impl ShardedLowering<'_> {
    /// The borrowed parameters of a stage, with the stage of their owner.
    pub(super) fn borrowed_whole(&self, at: usize, stage: usize) -> Option<(usize, Whole)> {
        let part = &self.participants[at].parts[stage];
        let borrowed = part.borrowed.as_ref()?;
        let content = (Content::Shared(borrowed.tie.user), borrowed.parameters);
        Some((borrowed.owner, borrowed.whole(part.id, content, self.groups.size())))
    }

    /// Adds the gather of borrowed parameters.
    pub(super) fn gather_tied(&mut self, at: usize, stage: usize) -> Option<Access> {
        let (owner, what) = self.borrowed_whole(at, stage)?;
        Some(Access::new(self.gather_whole(at, owner, &what), 1))
    }

    /// The buffer of the gradients that a backward makes of borrowed parameters.
    pub(super) fn tied_gradients(&mut self, at: usize, stage: usize) -> Option<BufferId> {
        let here = &self.participants[at];
        let borrowed = here.parts[stage].borrowed.as_ref().filter(|borrowed| borrowed.gradients > Bytes::ZERO)?;
        let content = Content::SharedGradients(borrowed.tie.user);
        Some(self.builder.buffer(content, here.memory, borrowed.gradients, Lifetime::Transient))
    }

    /// Adds the reduction of the gradients of borrowed parameters on some devices.
    pub(super) fn reduce_tied(&mut self, devices: Range<usize>, stage: usize, gradients: &[BufferId]) {
        if gradients.is_empty() {
            return;
        }
        let all: Vec<Reduction> = devices.filter_map(|at| self.tied_reduction(at, stage)).collect();
        for (this, last) in all.iter().zip(self.reduce_whole(&all, gradients)) {
            let here = &mut self.participants[this.at];
            if let Some(borrowed) = here.parts[stage].borrowed.as_mut() {
                (borrowed.sum, borrowed.accumulated) = (Some(this.sum.buffer), this.sum.version + 1);
            }
            // The gradients of the stage are out after both reductions: the later one stands for the
            // two.
            if let Some(own) = here.reduced.last_mut() {
                let from = std::mem::replace(own, last);
                let (anchor, cause) = (Anchor::EndToStart, IdleCause::Order);
                self.builder.edge(Edge { from, to: last, anchor, distance: 0, lag: SimTime::ZERO, cause });
            }
        }
    }

    /// A device's part in the reduction of the gradients of borrowed parameters.
    fn tied_reduction(&mut self, at: usize, stage: usize) -> Option<Reduction> {
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let borrowed = part.borrowed.as_ref()?;
        let (content, home) = (Content::SharedGradients(borrowed.tie.user), here.parts[borrowed.owner].home);
        let (known, done) = (borrowed.sum, borrowed.accumulated);
        let what = borrowed.whole(part.id, (content, borrowed.gradients), self.groups.size());
        let share = self.share(at);
        let sum = known.unwrap_or_else(|| self.builder.part(share, content, home, (what.shard, Lifetime::Transient)));
        Some(Reduction { at, what, sum: Access::new(sum, done), home })
    }

    /// Adds the gradients from the use of another stage to the owner's, on `device`.
    pub(super) fn accumulate_tied(&mut self, (at, owner): (usize, usize), device: DeviceId, own: Access) -> Access {
        let here = &self.participants[at];
        let users = here.parts.iter().filter_map(|part| part.borrowed.as_ref());
        let Some(borrowed) = users.into_iter().find(|borrowed| borrowed.owner == owner) else { return own };
        let Some(arrived) = borrowed.sum.map(|sum| Access::new(sum, borrowed.accumulated)) else { return own };
        let content = (Content::SharedGradients(borrowed.tie.user), borrowed.gradients);
        let Whole { subject, shard: bytes, .. } = borrowed.whole(here.parts[owner].id, content, self.groups.size());
        let time = self.context.cost.accumulate_time(bytes, device);
        let role = if self.context.is_cpu(device) { LaneRole::Optimizer } else { LaneRole::Compute };
        let lane = self.builder.lane(device, role.name(), role);
        let sum = Access::new(own.buffer, own.version + 1);
        self.builder.action(NewAction {
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
