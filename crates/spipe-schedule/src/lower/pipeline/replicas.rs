//! Replicas of a pipeline: their stages, and the collectives that keep their parameters alike.
//!
//! ```text
//! nothing divided       gradients ─► reduce-scatter ─► all-gather ─► step
//! divided optimizer     gradients ─► reduce-scatter ─► step of a part ─► all-gather ─► parameters
//! ```
//!
//! All devices with the same part of a stage take part, those that divide sequences too; experts that devices divide are
//! reduced among those that have the same ones. The gradients of a stage are reduced once, when the sums over all microbatches are complete (Narayanan et al. 2021,
//! arXiv 2104.04473, section 3.3.2). The first line is an all-reduce. A program has one replica that stands for all, or all
//! of them, and then a collective reads the parts of all replicas.

use super::{PipelineLowering, optimizer::Step};
use crate::lower::collectives::Hops;
use crate::{Access, Content, Lifetime, NewAction, Part};
use spipe_base::{ActionKind, Bytes, Collective, LaneRole, SimTime, StageId, Subject};
use spipe_cost::LayerMemory;
use spipe_hardware::CollectiveKind;
use spipe_plan::{Context, Placement, Stage};

/// The stages of the replicas that a program has, each under its id in a placement.
pub(super) fn stages(context: &Context<'_>, placement: &Placement) -> Vec<(StageId, Stage)> {
    let in_replica = |replica: usize| {
        placement.stages.enumerate().map(move |(id, stage)| {
            let lead = context.mesh().peers(stage.lead()).nth(replica).map_or(stage.lead(), |team| team[0]);
            (id, context.as_run_by(stage, lead))
        })
    };
    (0..context.shown_replicas()).flat_map(in_replica).collect()
}

impl PipelineLowering<'_> {
    /// The replica of a stage.
    pub(super) fn replica_of(&self, stage: StageId) -> usize {
        stage.index() / self.of_replica
    }

    /// The stages that are the same in all replicas that the program has, by the last of them first.
    fn alike(&self) -> Vec<Vec<StageId>> {
        let same = |at: usize| (at..self.stations.len()).step_by(self.of_replica).map(StageId::from).collect();
        (0..self.of_replica).rev().map(same).collect()
    }

    /// The part of the optimizer that a stage's replica has, if it is divided.
    pub(super) fn share(&self, stage: StageId) -> Option<Part> {
        (self.context.mesh().state_parts() > 1).then(|| self.held_part(stage))
    }

    /// The part of a stage of its replica, by its first device that holds the stage.
    fn held_part(&self, stage: StageId) -> Part {
        let mesh = self.context.mesh();
        Part { index: (self.replica_of(stage) as u64 * mesh.context) as u32, of: mesh.holders() as u32 }
    }

    /// The bytes of a stage's layers that a device with a part of the optimizer updates: a part, or all without one.
    pub(super) fn updated_bytes(&self, stage: StageId, part: fn(&LayerMemory) -> Bytes) -> Bytes {
        let of = self.context.by_holders(&self.stations[stage].stage, part);
        let mesh = self.context.mesh();
        if mesh.state_parts() > 1 { mesh.holders_part(of) } else { of.into_iter().sum() }
    }

    /// Adds the reductions of all gradients over the replicas, if there are several.
    pub(super) fn reduce_over_replicas(&mut self) {
        if self.context.mesh().holders() == 1 {
            return;
        }
        for stages in self.alike() {
            stages.iter().for_each(|stage| self.collect_tied_gradients(*stage));
            let sum = |stage: &StageId| {
                let version = self.accumulated[stage.index()];
                let sum = self.stations[*stage].gradients.map(|gradients| Access::new(gradients, version));
                sum.filter(|_| version > 0 && self.context.trains(self.stations[*stage].stage.layers))
            };
            let Some(sums) = stages.iter().map(sum).collect::<Option<Vec<Access>>>() else { continue };
            let new = |this: &mut Self, stage: StageId| {
                let here = &this.stations[stage];
                let (content, memory) = (Content::Gradients(here.stage.layers), here.memory);
                let of = this.context.by_holders(&here.stage, |memory| memory.gradients);
                let bytes = this.context.mesh().holders_part(of);
                let part = this.builder.part(this.held_part(stage), content, memory, (bytes, Lifetime::Transient));
                Access::new(part, 1)
            };
            let parts: Vec<Access> = stages.iter().map(|stage| new(self, *stage)).collect();
            let whole = |memory: &LayerMemory| memory.gradients;
            for (stage, part) in stages.iter().zip(&parts) {
                let kind = (CollectiveKind::ReduceScatter, Collective::ReduceScatter);
                self.collective((*stage, whole), kind, (&sums, *part));
            }
            for ((stage, part), sum) in stages.iter().zip(&parts).zip(&sums) {
                let complete = if self.share(*stage).is_some() {
                    *part
                } else {
                    let complete = Access::new(sum.buffer, sum.version + 1);
                    let kind = (CollectiveKind::AllGather, Collective::AllGather);
                    self.collective((*stage, whole), kind, (&parts, complete));
                    complete
                };
                self.reduced.insert(*stage, complete);
            }
        }
    }

    /// Where a step of a part leaves the parameters: in a buffer of their own on the device, to be gathered.
    pub(super) fn updated_part(&mut self, step: &Step, share: Part) -> Access {
        let (stage, memory) = (step.stage, self.stations[step.stage].memory);
        let bytes = self.updated_bytes(stage, |memory| memory.updated);
        let content = Content::Updated(self.stations[stage].stage.layers);
        let updated = Access::new(self.builder.part(share, content, memory, (bytes, Lifetime::Transient)), 1);
        self.updated.insert(stage, updated);
        updated
    }

    /// Adds the gathers of parameters of which each replica has updated a part, and the copies of tied ones behind them.
    pub(super) fn gather_over_replicas(&mut self) {
        for stages in self.alike() {
            let updated: Option<Vec<Access>> = stages.iter().map(|stage| self.updated.get(stage).copied()).collect();
            let Some(updated) = updated else { continue };
            for stage in &stages {
                let parameters = Access::new(self.stations[*stage].parameters, 1);
                let kind = (CollectiveKind::AllGather, Collective::AllGather);
                self.collective((*stage, |memory| memory.updated), kind, (&updated, parameters));
                self.return_tied_parameters(*stage);
            }
        }
    }

    /// Adds a stage's action of a collective of `part` of its layers, which reads what all replicas have and writes what
    /// this one keeps. Experts that devices divide are a collective of their own, at the same time.
    fn collective(
        &mut self,
        (stage, part): (StageId, fn(&LayerMemory) -> Bytes),
        (kind, collective): (CollectiveKind, Collective),
        (reads, write): (&[Access], Access),
    ) {
        let here = &self.stations[stage];
        let (device, layers, mesh) = (here.stage.lead(), here.stage.layers, self.context.mesh());
        let of = self.context.by_holders(&here.stage, part);
        let mut flows = Vec::new();
        for (groups, bytes) in [mesh.holders_of(device), mesh.expert_holders_of(device)].iter().zip(of) {
            let team = mesh.team(device).map_or(&[][..], Vec::as_slice);
            let hops = Hops::of(self.context, (groups, team)).map_err(|fault| self.faults.push(fault));
            flows.extend(hops.unwrap_or_default().flows(self.context.hardware, (kind, bytes)));
        }
        let lane = self.builder.lane(device, "collective", LaneRole::Channel);
        self.builder.action(NewAction {
            lane,
            kind: ActionKind::Collective(collective),
            subject: Subject { layers: Some(layers), ..Subject::stage(stage) },
            reads: reads.to_vec(),
            writes: vec![write],
            work: SimTime::ZERO,
            flows,
            guard: None,
        });
    }
}
