//! Optimizer steps on the stage's own device, or on a CPU socket that receives the gradients and
//! returns the parameters.

use super::{Done, PipelineLowering, gradients::on_host};
use crate::lower::drives::{DriveState, Read};
use crate::lower::flows::{copying, lifetime_of_updated, read_for_norm};
use crate::lower::steps::{Gradients, Phase, Update, Updates, add_step};
use crate::{Access, Anchor, Content, Edge, Lifetime, NewAction, ProgramBuilder};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, IdleCause, LaneId, LaneRole, MemoryId, Payload, SimTime, StageId,
    Subject,
};
use spipe_cost::LayerMemory;
use spipe_plan::Context;

/// A stage whose gradients are complete.
pub(in crate::lower) struct Step {
    pub(super) stage: StageId,
    subject: Subject,
    parameters: BufferId,
    device: DeviceId,
    memory: MemoryId,
    /// The device, lane and memory of the optimizer step.
    steps_on: DeviceId,
    lane: LaneId,
    home: MemoryId,
    /// The gradients in that memory.
    gradients: Access,
}

impl Updates for PipelineLowering<'_> {
    type Key = StageId;
    type Step = Step;

    fn keys(&self) -> Vec<StageId> {
        (0..self.stations.len()).rev().map(StageId::from).collect()
    }

    fn context(&self) -> &Context<'_> {
        self.context
    }

    fn builder(&mut self) -> &mut ProgramBuilder {
        self.builder
    }

    fn phase(&self) -> Option<Phase> {
        let last = |done: &Done| done.computed.last().copied();
        let first = |(stage, done): (usize, &Done)| {
            done.computed.first().copied().filter(|_| self.is_first(StageId::from(stage)))
        };
        self.synchronous_optimizer.then(|| Phase {
            backwards: self.backwards.iter().filter_map(last).collect(),
            firsts: self.forwards.iter().enumerate().filter_map(first).collect(),
        })
    }

    fn prepare(&mut self, stage: StageId) -> Option<Step> {
        if self.context.mesh().holders() == 1 {
            self.collect_tied_gradients(stage);
        }
        let here = &self.stations[stage];
        let (gradients, last) = (here.gradients?, self.accumulated[stage.index()]);
        if last == 0 || !self.context.trains(here.stage.layers) {
            return None;
        }
        let sum = self.reduced.get(&stage).copied().unwrap_or(Access::new(gradients, last));
        let (device, memory) = (here.stage.lead(), here.memory);
        let elsewhere = here.stage.optimizer.filter(|socket| *socket != device);
        let mut step = Step {
            stage,
            subject: Subject { layers: Some(here.stage.layers), ..Subject::stage(stage) },
            parameters: here.parameters,
            device,
            memory,
            steps_on: device,
            lane: here.lane,
            home: memory,
            gradients: sum,
        };
        let Some(socket) = elsewhere else { return Some(step) };
        step.steps_on = socket;
        step.home = self.context.hardware.devices()[socket].memory;
        let left = here.leaving.map(|left| left.before.map_or(step.gradients, |before| Access::new(before, 0)));
        step.gradients = left.unwrap_or_else(|| self.gradients_out(&step));
        step.lane = self.builder.lane(socket, LaneRole::Optimizer.name(), LaneRole::Optimizer);
        Some(step)
    }

    fn gradients(&self, step: &Step) -> Gradients {
        let layers = self.stations[step.stage].stage.layers;
        let bytes = self.updated_bytes(step.stage, |memory| memory.gradients);
        Gradients {
            stage: step.stage,
            layers,
            lane: step.lane,
            gradients: step.gradients,
            memory: step.home,
            part: self.share(step.stage),
            norm: read_for_norm(self.context, step.steps_on, bytes),
        }
    }

    fn counts(&self, step: &Step) -> bool {
        self.replica_of(step.stage) == 0 || self.share(step.stage).is_some()
    }

    fn update(&mut self, step: &Step) -> Update {
        let update = if step.steps_on == step.device { self.step_on_device(step) } else { self.step_on_socket(step) };
        if self.share(step.stage).is_none() {
            self.return_tied_parameters(step.stage);
        }
        update
    }
}

impl PipelineLowering<'_> {
    /// The sum of `part` over the layers of a stage, in the precision of its device.
    fn bytes(&self, step: &Step, part: fn(&LayerMemory) -> Bytes) -> Bytes {
        let layers = self.stations[step.stage].stage.layers;
        layers.iter().map(|layer| part(self.context.cost.memory(layer, step.device))).sum()
    }

    fn step_on_device(&mut self, step: &Step) -> Update {
        let state = self.optimizer_state(step);
        let reads = vec![step.gradients, Access::new(step.parameters, 0), Access::new(state, 0)];
        let updated = match self.share(step.stage) {
            Some(share) => self.updated_part(step, share),
            None => Access::new(step.parameters, 1),
        };
        let writes = vec![updated, Access::new(state, 1)];
        let action = self.step(step, (reads, writes));
        Update { step: action, end: action }
    }

    /// Adds a step on a socket, and the copy of the parameters back.
    fn step_on_socket(&mut self, step: &Step) -> Update {
        let layers = self.stations[step.stage].stage.layers;
        let parameter_bytes = self.updated_bytes(step.stage, |memory| memory.updated);
        let read = self.read_state(step);
        let (before, after) = match &read {
            Some(read) => read.versions(),
            None => {
                let state = self.optimizer_state(step);
                (Access::new(state, 0), Access::new(state, 1))
            }
        };
        let lifetime = lifetime_of_updated(self.context, step.device);
        let updated = self.held((Content::Updated(layers), step), step.home, (parameter_bytes, lifetime));
        let mut reads = vec![step.gradients, before];
        reads.extend((lifetime == Lifetime::Resident).then_some(Access::new(updated, 0)));
        let action = self.step(step, (reads, vec![Access::new(updated, 1), after]));
        if let Some(read) = read {
            let transfer = read.state.over_routes(self.context, Payload::StateOut, &mut self.faults);
            self.drives.write(self.builder, &read, transfer);
        }
        // By default, steps run in the order in which backwards end, whenever their gradients
        // arrive.
        if self.urgent_steps {
            self.builder.as_needed(step.lane);
        } else if let Some(before) = self.last_steps.insert(step.steps_on, action) {
            let (anchor, cause) = (Anchor::EndToStart, IdleCause::Optimizer);
            self.builder.edge(Edge { from: before, to: action, anchor, distance: 0, lag: SimTime::ZERO, cause });
        }
        let back = (ActionKind::Copy(Payload::WriteBack), step.home, step.memory);
        let arrived = match self.share(step.stage) {
            Some(share) => self.updated_part(step, share),
            None => Access::new(step.parameters, 1),
        };
        let copied = (vec![Access::new(updated, 1)], arrived);
        let end = self.exchange((step.device, step.subject), back, parameter_bytes, copied);
        Update { step: action, end }
    }

    /// Adds the read of the state of a stage that names a drive.
    fn read_state(&mut self, step: &Step) -> Option<Read> {
        let (layers, drive) = (self.stations[step.stage].stage.layers, self.stations[step.stage].stage.state?);
        let bytes = self.bytes(step, |memory| memory.optimizer);
        let (content, host, queue) = (Content::OptimizerState(layers), step.home, step.steps_on);
        let state = DriveState { subject: step.subject, content, part: None, bytes, drive, host, queue };
        if bytes == Bytes::ZERO {
            return None;
        }
        let transfer = state.over_routes(self.context, Payload::StateIn, &mut self.faults);
        Some(self.drives.read(self.builder, state, transfer))
    }

    /// Adds the copy of a stage's gradients to the host. Returns the gradients for its step: with a
    /// delayed optimizer those of the iteration before.
    fn gradients_out(&mut self, step: &Step) -> Access {
        let (content, bytes) = (
            Content::Gradients(self.stations[step.stage].stage.layers),
            self.updated_bytes(step.stage, |memory| memory.gradients),
        );
        let (gradients, before) = match self.share(step.stage) {
            Some(_) => (self.held((content, step), step.home, (bytes, Lifetime::Transient)), None),
            None => on_host(self.builder, (content, step.home, bytes), self.delayed),
        };
        let out = (ActionKind::Copy(Payload::GradientsOut), step.memory, step.home);
        let copied = (vec![step.gradients], Access::new(gradients, 1));
        self.exchange((step.device, step.subject), out, bytes, copied);
        before.map_or(Access::new(gradients, 1), |before| Access::new(before, 0))
    }

    fn optimizer_state(&mut self, step: &Step) -> BufferId {
        let layers = self.stations[step.stage].stage.layers;
        let bytes = self.bytes(step, |memory| memory.optimizer);
        self.held((Content::OptimizerState(layers), step), step.home, (bytes, Lifetime::Resident))
    }

    /// Adds a buffer of a step, of the part that its replica has if the optimizer is divided.
    fn held(
        &mut self,
        (content, step): (Content, &Step),
        memory: MemoryId,
        (bytes, lifetime): (Bytes, Lifetime),
    ) -> BufferId {
        match self.share(step.stage) {
            Some(share) => self.builder.part(share, content, memory, (bytes, lifetime)),
            None => self.builder.buffer(content, memory, bytes, lifetime),
        }
    }

    fn step(&mut self, step: &Step, accesses: (Vec<Access>, Vec<Access>)) -> ActionId {
        let layers = self.stations[step.stage].stage.layers;
        let parameters: u64 = layers.iter().map(|layer| self.context.cost.trained_parameters(layer)).sum();
        let sharers = self.context.steps_on_one_host(step.device, step.steps_on);
        add_step(self, (step.steps_on, step.lane, step.subject), parameters * sharers, accesses)
    }

    /// Adds a copy between device and host on the device's copy engine.
    pub(super) fn exchange(
        &mut self,
        (device, subject): (DeviceId, Subject),
        (kind, from, to): (ActionKind, MemoryId, MemoryId),
        bytes: Bytes,
        (reads, write): (Vec<Access>, Access),
    ) -> ActionId {
        let role = if from == self.builder.memory_of(device) { LaneRole::D2h } else { LaneRole::H2d };
        let flow =
            copying(self.context, (from, to, bytes), (&reads, &[write])).map_err(|fault| self.faults.push(fault));
        let lane = self.builder.lane(device, role.name(), role);
        self.builder.action(NewAction {
            lane,
            kind,
            subject,
            reads,
            writes: vec![write],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        })
    }
}
