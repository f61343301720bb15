//! Tied parameters of layers in two stages, such as the table of an embedding and its head.
//!
//! ```text
//! owner's stage   parameters ──────────────────────────► accumulate ─► step ─► parameters
//!                     ╎ same memory: read there              ▲                     │ weights in
//! user's stage    copy or owner's ► backward ─► gradients ───┘ gradients out        ▼ copy
//! ```
//!
//! Only the owner's stage updates them, so that the copies never differ. Megatron-LM updates both
//! copies alike after an all-reduce of their gradients (Shoeybi et al., 2019), which moves as many
//! bytes and holds the optimizer state twice.

use super::PipelineLowering;
use crate::lower::flows::{dram_flow, route};
use crate::{Access, Content, Lifetime, NewAction};
use spipe_base::{ActionKind, BufferId, Bytes, DeviceId, LayerRange, MemoryId, Payload, SimTime, StageId, Subject};
use spipe_model::Tie;
use spipe_plan::Context;
use std::collections::BTreeMap;

/// The tied parameters that a stage borrows.
pub(super) struct Borrowed {
    tie: Tie,
    owner: StageId,
    /// The parameters that it reads: a copy, or the owner's if they are in the same memory.
    pub parameters: BufferId,
    copied: bool,
    /// The gradients from this stage's use, if they are trained.
    pub gradients: Option<BufferId>,
    /// The number of microbatches in these gradients.
    pub accumulated: u32,
}

impl Borrowed {
    /// The borrowed gradients of all stages.
    pub fn all(lowering: &mut PipelineLowering<'_>) -> BTreeMap<StageId, Self> {
        let stages: Vec<StageId> = lowering.stations.ids().collect();
        stages.into_iter().filter_map(|stage| Some((stage, Self::of(lowering, stage)?))).collect()
    }

    fn of(lowering: &mut PipelineLowering<'_>, stage: StageId) -> Option<Self> {
        let here = &lowering.stations[stage];
        let tie = lowering.context.model.borrows(here.stage.layers)?;
        let replica = lowering.replica_of(stage);
        let own = |other: StageId| lowering.replica_of(other) == replica;
        let mut stations = lowering.stations.enumerate();
        let (owner, there) = stations.find(|(id, other)| own(*id) && other.stage.layers.contains(tie.owner))?;
        let bytes = lowering.context.cost.memory(tie.user, here.stage.lead());
        let copied = here.memory != there.memory;
        let (memory, owners) = (here.memory, there.parameters);
        let mut new = |content, bytes, lifetime| lowering.builder.buffer(content, memory, bytes, lifetime);
        let parameters = match copied {
            true => new(Content::Shared(tie.user), bytes.tied_parameters, Lifetime::Resident),
            false => owners,
        };
        let gradients = Some(bytes.tied_gradients).filter(|bytes| *bytes > Bytes::ZERO);
        let gradients = gradients.map(|bytes| new(Content::SharedGradients(tie.user), bytes, Lifetime::Transient));
        Some(Self { tie, owner, parameters, copied, gradients, accumulated: 0 })
    }
}

/// The bytes of a copy between two devices: in the narrower of their types.
fn wire(context: &Context<'_>, tie: Tie, devices: [DeviceId; 2]) -> Bytes {
    let of = |device| context.cost.memory(tie.user, device).tied_parameters;
    of(devices[0]).min(of(devices[1]))
}

impl PipelineLowering<'_> {
    /// The tied parameters that a stage borrows.
    pub(super) fn tied_parameters(&self, stage: StageId) -> Option<Access> {
        self.borrowed.get(&stage).map(|borrowed| Access::new(borrowed.parameters, 0))
    }

    /// Adds the accesses of a backward to the gradients of borrowed parameters.
    pub(super) fn tied_gradients(&mut self, stage: StageId, reads: &mut Vec<Access>, writes: &mut Vec<Access>) {
        let Some(borrowed) = self.borrowed.get_mut(&stage) else { return };
        let Some(gradients) = borrowed.gradients else { return };
        let done = borrowed.accumulated;
        reads.extend((done > 0).then_some(Access::new(gradients, done)));
        writes.push(Access::new(gradients, done + 1));
        borrowed.accumulated += 1;
    }

    /// Adds the gradients from the uses of other stages to those of the owner.
    pub(super) fn collect_tied_gradients(&mut self, owner: StageId) {
        let users: Vec<StageId> =
            self.borrowed.iter().filter(|(_, borrowed)| borrowed.owner == owner).map(|(stage, _)| *stage).collect();
        for user in users {
            let borrowed = &self.borrowed[&user];
            let (tie, copied) = (borrowed.tie, borrowed.copied);
            let Some(gradients) = borrowed.gradients.filter(|_| borrowed.accumulated > 0) else { continue };
            let sum = Access::new(gradients, borrowed.accumulated);
            let arrived = if copied { self.bring_gradients((user, owner), tie, sum) } else { sum };
            self.accumulate(owner, tie, arrived);
        }
    }

    fn bring_gradients(&mut self, (user, owner): (StageId, StageId), tie: Tie, sum: Access) -> Access {
        let (from, to) = (&self.stations[user], &self.stations[owner]);
        let bytes = self.context.cost.memory(tie.user, to.stage.lead()).tied_gradients;
        let content = Content::SharedGradients(tie.user);
        let arrived = Access::new(self.builder.buffer(content, to.memory, bytes, Lifetime::Transient), 1);
        let ends = ((user, from.memory), (owner, to.memory));
        self.copy_tied(ActionKind::Copy(Payload::GradientsOut), ends, (tie, sum, arrived));
        arrived
    }

    fn accumulate(&mut self, owner: StageId, tie: Tie, arrived: Access) {
        let here = &self.stations[owner];
        let Some(gradients) = here.gradients else { return };
        let (device, lane, done) = (here.stage.lead(), here.lane, self.accumulated[owner.index()]);
        let bytes = self.context.cost.memory(tie.user, device).tied_gradients;
        let time = self.context.cost.accumulate_time(bytes, device);
        self.builder.action(NewAction {
            lane,
            kind: ActionKind::Accumulate,
            subject: Subject { layers: LayerRange::new(tie.owner, tie.owner), ..Subject::stage(owner) },
            reads: vec![arrived, Access::new(gradients, done)],
            writes: vec![Access::new(gradients, done + 1)],
            work: SimTime::from_seconds(time),
            flows: dram_flow(self.context, device, time, bytes * 3),
            guard: None,
        });
        self.accumulated[owner.index()] += 1;
    }

    /// Copies the updated parameters of `owner` to the stages that borrow them.
    pub(super) fn return_tied_parameters(&mut self, owner: StageId) {
        let users: Vec<(StageId, Tie, BufferId)> = self
            .borrowed
            .iter()
            .filter(|(_, borrowed)| borrowed.owner == owner && borrowed.copied && borrowed.gradients.is_some())
            .map(|(stage, borrowed)| (*stage, borrowed.tie, borrowed.parameters))
            .collect();
        for (user, tie, copy) in users {
            let (from, to) = (&self.stations[owner], &self.stations[user]);
            let (stepped, copy) = (Access::new(from.parameters, 1), Access::new(copy, 1));
            let ends = ((owner, from.memory), (user, to.memory));
            self.copy_tied(ActionKind::Copy(Payload::WeightsIn), ends, (tie, stepped, copy));
        }
    }

    fn copy_tied(
        &mut self,
        kind: ActionKind,
        ((from, source), (to, target)): ((StageId, MemoryId), (StageId, MemoryId)),
        (tie, read, write): (Tie, Access, Access),
    ) {
        let devices = [from, to].map(|stage| self.stations[stage].stage.lead());
        let bytes = wire(self.context, tie, devices);
        let flow = route(self.context, source, target, bytes).map_err(|fault| self.faults.push(fault));
        let lane = self.copy_lane(devices[0], devices[1]);
        self.builder.action(NewAction {
            lane,
            kind,
            subject: Subject { layers: LayerRange::new(tie.owner, tie.owner), ..Subject::stage(from) },
            reads: vec![read],
            writes: vec![write],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        });
    }
}
