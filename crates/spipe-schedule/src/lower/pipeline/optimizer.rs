//! Optimizer steps: on the stage's own device, or on a CPU socket that gets the gradients and returns the parameters.

use super::{Done, Lowering, gradients::on_host};
use crate::lower::flows::{Transfer, copying, kept_by_its_step, read_for_norm, stepping};
use crate::lower::steps::{Phase, Stepper, Summed, Taken, step_all};
use crate::{Access, Action, Anchor, Content, Edge, Lifetime, ProgramBuilder};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, IdleCause, LaneId, LaneRole, MemoryId, Payload, SimTime, StageId,
    Subject,
};
use spipe_cost::LayerMemory;
use spipe_plan::Context;

/// One stage's state at the end of its backwards.
pub(in crate::lower) struct Step {
    stage: StageId,
    subject: Subject,
    parameters: BufferId,
    device: DeviceId,
    memory: MemoryId,
    /// Who steps it, on which of its lanes and in which memory.
    stepper: DeviceId,
    lane: LaneId,
    home: MemoryId,
    /// What it is stepped with: there, or on the way there.
    gradients: Access,
}

impl Lowering<'_> {
    /// Steps the parameters of all stages, last one first; `delayed` steps with the gradients of the iteration before, while this one
    /// computes.
    pub(super) fn optimizer(&mut self, delayed: bool) {
        let stages = (0..self.stations.len()).rev().map(|stage| (StageId::from(stage), delayed));
        step_all(self, stages);
    }
}

impl Stepper for Lowering<'_> {
    type Key = (StageId, bool);
    type Step = Step;

    fn context(&self) -> &Context<'_> {
        self.context
    }

    fn builder(&mut self) -> &mut ProgramBuilder {
        self.builder
    }

    fn phase(&self) -> Option<Phase> {
        let last = |done: &Done| done.computed.last().copied();
        let first = |done: &Done| done.computed.first().copied();
        self.synchronous_optimizer.then(|| Phase {
            backwards: self.backwards.iter().filter_map(last).collect(),
            firsts: self.forwards.first().and_then(first).into_iter().collect(),
        })
    }

    /// Brings the gradients of a stage to where they are stepped.
    fn prepare(&mut self, (stage, delayed): (StageId, bool)) -> Option<Step> {
        self.collect_shared(stage);
        let here = &self.stations[stage];
        let (gradients, last) = (here.gradients?, self.accumulated[stage.index()]);
        if last == 0 || !self.context.trains(here.stage.layers) {
            return None;
        }
        let (device, memory) = (here.stage.device, here.memory);
        let elsewhere = here.stage.optimizer.filter(|socket| *socket != device);
        let mut step = Step {
            stage,
            subject: Subject { layers: Some(here.stage.layers), ..Subject::stage(stage) },
            parameters: here.parameters,
            device,
            memory,
            stepper: device,
            lane: here.lane,
            home: memory,
            gradients: Access::new(gradients, last),
        };
        let Some(socket) = elsewhere else { return Some(step) };
        step.stepper = socket;
        step.home = self.context.hardware.devices()[socket].memory;
        let left = here.leaving.map(|left| left.before.map_or(step.gradients, |before| Access::new(before, 0)));
        step.gradients = left.unwrap_or_else(|| self.gradients_out(&step, delayed));
        step.lane = self.builder.lane(socket, LaneRole::Optimizer.name(), LaneRole::Optimizer);
        Some(step)
    }

    fn summed(&self, step: &Step) -> Summed {
        let layers = self.stations[step.stage].stage.layers;
        let bytes = self.bytes(step, |memory| memory.gradients);
        Summed {
            stage: step.stage,
            layers,
            lane: step.lane,
            gradients: step.gradients,
            memory: step.home,
            part: None,
            read: read_for_norm(self.context, step.stepper, bytes),
        }
    }

    fn take(&mut self, step: &Step) -> Taken {
        let taken = if step.stepper == step.device { self.step_here(step) } else { self.step_there(step) };
        self.return_shared(step.stage);
        taken
    }
}

impl Lowering<'_> {
    fn bytes(&self, step: &Step, part: fn(&LayerMemory) -> Bytes) -> Bytes {
        let layers = self.stations[step.stage].stage.layers;
        layers.iter().map(|layer| part(self.context.cost.memory(layer, step.device))).sum()
    }

    fn step_here(&mut self, step: &Step) -> Taken {
        let state = self.optimizer_state(step);
        let reads = vec![step.gradients, Access::new(step.parameters, 0), Access::new(state, 0)];
        let writes = vec![Access::new(step.parameters, 1), Access::new(state, 1)];
        let action = self.step(step, (reads, writes));
        Taken { step: action, end: action }
    }

    /// Step on the socket's workers, parameters back.
    fn step_there(&mut self, step: &Step) -> Taken {
        let layers = self.stations[step.stage].stage.layers;
        let parameter_bytes = self.bytes(step, |memory| memory.parameters);
        let state = self.optimizer_state(step);
        let lifetime = kept_by_its_step(self.context, step.device);
        let updated = self.builder.buffer(Content::Parameters(layers), step.home, parameter_bytes, lifetime);
        let mut reads = vec![step.gradients, Access::new(state, 0)];
        reads.extend((lifetime == Lifetime::Resident).then_some(Access::new(updated, 0)));
        let action = self.step(step, (reads, vec![Access::new(updated, 1), Access::new(state, 1)]));
        // Otherwise the stage that ends its backwards first is stepped first, whatever its gradients take to arrive.
        if self.urgent_steps {
            self.builder.as_needed(step.lane);
        } else if let Some(before) = self.stepped.insert(step.stepper, action) {
            let (anchor, cause) = (Anchor::EndToStart, IdleCause::Optimizer);
            self.builder.edge(Edge { from: before, to: action, anchor, distance: 0, lag: SimTime::ZERO, cause });
        }
        let back = (ActionKind::Copy(Payload::WriteBack), step.home, step.memory);
        let copied = (vec![Access::new(updated, 1)], Access::new(step.parameters, 1));
        let end = self.exchange((step.device, step.subject), back, parameter_bytes, copied);
        Taken { step: action, end }
    }

    /// Copies a stage's gradients to the host; those that its step waits for.
    fn gradients_out(&mut self, step: &Step, delayed: bool) -> Access {
        let (content, bytes) =
            (Content::Gradients(self.stations[step.stage].stage.layers), self.bytes(step, |memory| memory.gradients));
        let (gradients, before) = on_host(self.builder, (content, step.home, bytes), delayed);
        let out = (ActionKind::Copy(Payload::GradientsOut), step.memory, step.home);
        let copied = (vec![step.gradients], Access::new(gradients, 1));
        self.exchange((step.device, step.subject), out, bytes, copied);
        before.map_or(Access::new(gradients, 1), |before| Access::new(before, 0))
    }

    fn optimizer_state(&mut self, step: &Step) -> BufferId {
        let layers = self.stations[step.stage].stage.layers;
        let bytes = self.bytes(step, |memory| memory.optimizer);
        self.builder.buffer(Content::OptimizerState(layers), step.home, bytes, Lifetime::Resident)
    }

    fn step(&mut self, step: &Step, (reads, writes): (Vec<Access>, Vec<Access>)) -> ActionId {
        let layers = self.stations[step.stage].stage.layers;
        let parameters = layers.iter().map(|layer| self.context.cost.trained_parameters(layer)).sum();
        let Transfer { work, flows } = stepping(self.context, step.stepper, parameters);
        let (lane, kind, subject) = (step.lane, ActionKind::OptimizerStep, step.subject);
        self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard: None })
    }

    /// A copy between device and host on the device's copy engine.
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
        self.builder.action(Action {
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
