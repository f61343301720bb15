//! Optimizer steps of shards, on each device or on its socket.

use super::{ShardedLowering, participant::State};
use crate::lower::drives::{DriveState, Read};
use crate::lower::flows::{lifetime_of_updated, read_for_norm};
use crate::lower::steps::{Gradients, Phase, Update, Updates, add_step};
use crate::{Access, Content, Lifetime, ProgramBuilder};
use spipe_base::{ActionId, ActionKind, Bytes, DeviceId, LaneId, LaneRole, MemoryId, Payload, Subject};
use spipe_plan::Context;

/// A stage's shard on a device whose gradients are complete.
pub(in crate::lower) struct Step {
    pub(super) at: usize,
    pub(super) stage: usize,
    pub(super) subject: Subject,
    gradients: Access,
    state: State,
    /// The memory, device and lane of the optimizer step.
    memory: MemoryId,
    device: DeviceId,
    lane: LaneId,
}

impl Updates for ShardedLowering<'_> {
    type Key = (usize, usize);
    type Step = Step;

    fn keys(&self) -> Vec<(usize, usize)> {
        let stages = self.first_with_backward()..self.stages();
        (0..self.participants.len()).flat_map(|at| stages.clone().rev().map(move |stage| (at, stage))).collect()
    }

    fn context(&self) -> &Context<'_> {
        self.context
    }

    fn builder(&mut self) -> &mut ProgramBuilder {
        self.builder
    }

    fn phase(&self) -> Option<Phase> {
        let here = || self.participants.iter();
        self.synchronous_optimizer.then(|| Phase {
            backwards: here().filter_map(|here| here.computed.last().copied()).collect(),
            firsts: here().flat_map(|here| here.gathered_first.iter().copied()).collect(),
        })
    }

    fn prepare(&mut self, (at, stage): (usize, usize)) -> Option<Step> {
        let part = &self.participants[at].parts[stage];
        let (gradients, (state, memory)) = (part.gradients?, part.state?);
        let (layers, home, bytes) = (part.stage.layers, part.home, part.bytes.gradient_shard);
        let subject = Subject { layers: Some(layers), ..Subject::stage(part.id) };
        let sum = Access::new(gradients, part.accumulated);
        let holder = self.steps(at, home);
        let complete = part.complete;
        let mut gradients = complete.unwrap_or_else(|| self.accumulate_tied((at, stage), holder, sum));
        let (device, here) = (self.steps(at, memory), self.participants[at].memory);
        if memory != here && memory != home {
            // Only the optimizer state is on the host.
            let (content, held) = (Content::Gradients(layers), (bytes, Lifetime::Transient));
            let there = Access::new(self.builder.part(self.share(at), content, memory, held), 1);
            let out = (ActionKind::Copy(Payload::GradientsOut), subject);
            self.copy(at, out, (here, memory, bytes), (vec![gradients], vec![there]));
            gradients = there;
        }
        let role = if self.context.is_cpu(device) { LaneRole::Optimizer } else { LaneRole::Compute };
        let lane = self.builder.lane(device, role.name(), role);
        if self.urgent_steps && role == LaneRole::Optimizer {
            self.builder.as_needed(lane);
        }
        Some(Step { at, stage, subject, gradients, state, memory, device, lane })
    }

    fn gradients(&self, step: &Step) -> Gradients {
        let part = &self.participants[step.at].parts[step.stage];
        Gradients {
            stage: part.id,
            layers: part.stage.layers,
            lane: step.lane,
            gradients: step.gradients,
            memory: step.memory,
            part: Some(self.share(step.at)),
            norm: read_for_norm(self.context, step.device, part.bytes.gradient_shard),
        }
    }

    fn counts(&self, step: &Step) -> bool {
        // Other groups have the same gradients.
        self.groups.group_of(0).contains(&step.at)
    }

    fn update(&mut self, step: &Step) -> Update {
        match step.state {
            State::Here(state) => self.update_with(step, (Access::new(state, 0), Access::new(state, 1))),
            State::OnDrive(drive, bytes) => {
                let read = self.read_state(step, (drive, bytes));
                let update = self.update_with(step, read.versions());
                let transfer = read.state.over_routes(self.context, Payload::StateOut, &mut self.faults);
                self.drives.write(self.builder, &read, transfer);
                update
            }
        }
    }
}

impl ShardedLowering<'_> {
    /// Adds a step that reads the first of two versions of the state and writes the second.
    fn update_with(&mut self, step: &Step, state: (Access, Access)) -> Update {
        let Step { at, stage, subject, gradients, memory, .. } = *step;
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let (on_device, layers, bytes) = (here.memory, part.stage.layers, part.bytes.updated_shard);
        let kept = Access::new(part.parameters, 1);
        if memory == on_device || memory == part.home {
            let (before, read) = self.parameters_of_step(step);
            let after = Access::new(before.buffer, before.version + 1);
            let action = self.step(step, (vec![gradients, before, state.0], vec![after, state.1]));
            let written = read.and_then(|read| self.shelve(step, (after, read)));
            return Update { step: action, end: written.unwrap_or(action) };
        }
        let lifetime = lifetime_of_updated(self.context, here.device);
        let updated = self.builder.part(self.share(at), Content::Updated(layers), memory, (bytes, lifetime));
        let mut reads = vec![gradients, state.0];
        reads.extend((lifetime == Lifetime::Resident).then_some(Access::new(updated, 0)));
        let updated = Access::new(updated, 1);
        let action = self.step(step, (reads, vec![updated, state.1]));
        let back = (ActionKind::Copy(Payload::WriteBack), subject);
        let end = self.copy(at, back, (memory, on_device, bytes), (vec![updated], vec![kept]));
        Update { step: action, end }
    }

    /// Adds the read of a state of `bytes` from its drive.
    fn read_state(&mut self, step: &Step, (drive, bytes): (MemoryId, Bytes)) -> Read {
        let here = &self.participants[step.at];
        let state = DriveState {
            subject: step.subject,
            content: Content::OptimizerState(here.parts[step.stage].stage.layers),
            part: Some(self.share(step.at)),
            bytes,
            drive,
            host: step.memory,
            queue: here.device,
        };
        let transfer = state.over_routes(self.context, Payload::StateIn, &mut self.faults);
        self.drives.read(self.builder, state, transfer)
    }

    fn step(&mut self, step: &Step, accesses: (Vec<Access>, Vec<Access>)) -> ActionId {
        let layers = self.participants[step.at].parts[step.stage].stage.layers;
        let count = self.groups.size() as u64;
        let sharers = self.context.steps_on_one_host(self.participants[step.at].device, step.device);
        let parameters = layers.iter().map(|layer| self.context.cost.trained_parameters(layer)).sum::<u64>();
        add_step(self, (step.device, step.lane, step.subject), parameters.div_ceil(count) * sharers, accesses)
    }
}
