//! Sums over groups that have a copy of all shards each (hybrid sharding).
//!
//! ```text
//! group 0, gpu1   reduce-scatter ─► reduce-scatter ─► all-gather ─► step, or gradients out
//! group 1, gpu5   reduce-scatter ─► reduce-scatter ─► all-gather ─► step, or gradients out
//!                 in the group      of gpu1 and gpu5, an all-reduce
//! ```
//!
//! A sum on devices is complete after the last microbatch, and added up once. Gradients that leave for the host are
//! added up before, after each microbatch: the host has no way to other groups.

use super::{ShardedLowering, collectives::Whole};
use crate::{Access, Content, Lifetime, Part};
use spipe_base::{Collective, Subject};
use spipe_hardware::CollectiveKind;
use spipe_plan::shard;

impl ShardedLowering<'_> {
    /// The numbers of the devices in the program that are in the group of number `at`.
    pub(super) fn group_of(&self, at: usize) -> std::ops::Range<usize> {
        let group = self.groups.group_of(at);
        group.start..group.end.min(self.participants.len())
    }

    /// Adds the sums over groups of the gradients that stay on devices, stage by stage in the order of the backward.
    pub(super) fn add_up_groups(&mut self) {
        if self.groups.count() == 1 {
            return;
        }
        for stage in (self.first_with_backward()..self.stages()).rev() {
            let all = 0..self.participants.len();
            let shards: Option<Vec<Access>> = all.map(|at| self.shard_of_gradients(at, stage)).collect();
            let Some(shards) = shards else { continue };
            let part = &self.participants[0].parts[stage];
            let (layers, bytes) = (part.stage.layers, part.bytes);
            let subject = Subject { layers: Some(layers), ..Subject::stage(part.id) };
            let (whole, shard) = (bytes.gradients, bytes.gradient_shard);
            let what = Whole { subject, content: Content::Gradients(layers), whole, shard };
            let sums = self.sum_over_groups(&what, shards);
            for (here, sum) in self.participants.iter_mut().zip(sums) {
                here.parts[stage].complete = Some(sum);
            }
        }
    }

    /// The complete gradients of a device's shard of a stage, with those of its other uses; `None` if they are not there.
    fn shard_of_gradients(&mut self, at: usize, stage: usize) -> Option<Access> {
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let (gradients, device) = (part.gradients.filter(|_| part.home == here.memory)?, here.device);
        let sum = Access::new(gradients, part.accumulated);
        Some(self.accumulate_tied((at, stage), device, sum))
    }

    /// Adds the all-reduce of what each device has of a shard over the groups. Returns the sums.
    pub(super) fn sum_over_groups(&mut self, what: &Whole, shards: Vec<Access>) -> Vec<Access> {
        let groups = self.groups.count();
        if groups == 1 {
            return shards;
        }
        let held = (shard(what.shard, groups), Lifetime::Transient);
        let part = |this: &mut Self, at: usize| {
            let index = this.groups.shard_of(at) * groups + at / this.groups.size();
            let part = Part { index: index as u32, of: (groups * this.groups.size()) as u32 };
            Access::new(this.builder.part(part, what.content, this.participants[at].memory, held), 1)
        };
        let parts: Vec<Access> = (0..shards.len()).map(|at| part(self, at)).collect();
        let sums: Vec<Access> = shards.iter().map(|held| Access::new(held.buffer, held.version + 1)).collect();
        let steps = [
            (CollectiveKind::ReduceScatter, Collective::ReduceScatter, &shards, &parts),
            (CollectiveKind::AllGather, Collective::AllGather, &parts, &sums),
        ];
        for (kind, collective, from, to) in steps {
            for (at, sum) in to.iter().enumerate() {
                let peers = from.iter().skip(self.groups.shard_of(at)).step_by(self.groups.size());
                let here = &self.participants[at];
                let lane = here.sums.unwrap_or(here.collective);
                let flows = self.sums.get(at).map(|hops| hops.flows(self.context.hardware, (kind, what.shard)));
                let accesses = (peers.copied().collect(), vec![*sum]);
                self.collective(lane, (collective, what.subject), flows.unwrap_or_default(), accesses);
            }
        }
        sums
    }
}
