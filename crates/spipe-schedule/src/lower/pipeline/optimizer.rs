//! Optimizer steps: on the stage's own device, or on a CPU socket that gets the gradients and returns the parameters.

use super::{Lowering, gradients::on_host};
use crate::lower::flows::{dram_flow, kept_by_its_step, route};
use crate::{Access, Action, Anchor, Content, Edge, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, IdleCause, LaneId, LaneRole, MemoryId, Payload, SimTime, StageId,
    Subject,
};

/// One stage's state at the end of its backwards.
struct Step {
    stage: StageId,
    subject: Subject,
    parameters: BufferId,
    /// The last version of its gradients on the device.
    gradients: Access,
    device: DeviceId,
    memory: MemoryId,
}

impl Lowering<'_> {
    /// Steps the parameters of a stage; `delayed` steps with the gradients of the iteration before, while this one computes.
    pub(super) fn optimizer(&mut self, stage: StageId, delayed: bool) {
        self.collect_shared(stage);
        let here = &self.stations[stage];
        let Some(gradients) = here.gradients else { return };
        let last = self.accumulated[stage.index()];
        if last == 0 {
            return;
        }
        let step = Step {
            stage,
            subject: Subject { layers: Some(here.stage.layers), ..Subject::stage(stage) },
            parameters: here.parameters,
            gradients: Access::new(gradients, last),
            device: here.stage.device,
            memory: here.memory,
        };
        match here.stage.optimizer.filter(|socket| *socket != here.stage.device) {
            None => self.step_here(&step),
            Some(socket) => self.step_on(socket, &step, delayed),
        }
        self.return_shared(stage);
    }

    fn step_here(&mut self, step: &Step) {
        let state = self.optimizer_state(step, step.memory);
        let lane = self.stations[step.stage].lane;
        let reads = vec![step.gradients, Access::new(step.parameters, 0), Access::new(state, 0)];
        let writes = vec![Access::new(step.parameters, 1), Access::new(state, 1)];
        self.step(step, (lane, step.device), (reads, writes));
    }

    /// Gradients out, step on the socket's workers, parameters back.
    fn step_on(&mut self, socket: DeviceId, step: &Step, delayed: bool) {
        let host = self.context.hardware.devices()[socket].memory;
        let layers = self.stations[step.stage].stage.layers;
        let bytes = |part: fn(&spipe_cost::LayerMemory) -> Bytes| {
            layers.iter().map(|layer| part(self.context.cost.memory(layer, step.device))).sum::<Bytes>()
        };
        let (gradient_bytes, parameter_bytes) = (bytes(|memory| memory.gradients), bytes(|memory| memory.parameters));
        let state = self.optimizer_state(step, host);
        let content = Content::Gradients(layers);
        let left = self.stations[step.stage]
            .leaving
            .map(|left| left.before.map_or(step.gradients, |before| Access::new(before, 0)));
        let awaited = left.unwrap_or_else(|| self.gradients_out((step, host), (content, gradient_bytes), delayed));
        let lifetime = kept_by_its_step(self.context, step.device);
        let updated = self.builder.buffer(Content::Parameters(layers), host, parameter_bytes, lifetime);
        let lane = self.builder.lane(socket, LaneRole::Optimizer.name(), LaneRole::Optimizer);
        let mut reads = vec![awaited, Access::new(state, 0)];
        reads.extend((lifetime == Lifetime::Resident).then_some(Access::new(updated, 0)));
        let action = self.step(step, (lane, socket), (reads, vec![Access::new(updated, 1), Access::new(state, 1)]));
        // Otherwise the stage that ends its backwards first is stepped first, whatever its gradients take to arrive.
        if self.urgent_steps {
            self.builder.as_needed(lane);
        } else if let Some(before) = self.stepped.insert(socket, action) {
            let (anchor, cause) = (Anchor::EndToStart, IdleCause::Optimizer);
            self.builder.edge(Edge { from: before, to: action, anchor, distance: 0, lag: SimTime::ZERO, cause });
        }
        let back = (ActionKind::Copy(Payload::WriteBack), host, step.memory);
        let copied = (vec![Access::new(updated, 1)], Access::new(step.parameters, 1));
        self.exchange((step.device, step.subject), back, parameter_bytes, copied);
    }

    /// Copies a stage's gradients to the host; those that its step waits for.
    fn gradients_out(
        &mut self,
        (step, host): (&Step, MemoryId),
        (content, bytes): (Content, Bytes),
        delayed: bool,
    ) -> Access {
        let (gradients, before) = on_host(self.builder, (content, host, bytes), delayed);
        let out = (ActionKind::Copy(Payload::GradientsOut), step.memory, host);
        let copied = (vec![step.gradients], Access::new(gradients, 1));
        self.exchange((step.device, step.subject), out, bytes, copied);
        before.map_or(Access::new(gradients, 1), |before| Access::new(before, 0))
    }

    fn optimizer_state(&mut self, step: &Step, memory: MemoryId) -> BufferId {
        let layers = self.stations[step.stage].stage.layers;
        let bytes = layers.iter().map(|layer| self.context.cost.memory(layer, step.device).optimizer).sum();
        self.builder.buffer(Content::OptimizerState(layers), memory, bytes, Lifetime::Resident)
    }

    fn step(
        &mut self,
        step: &Step,
        (lane, device): (LaneId, DeviceId),
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let layers = self.stations[step.stage].stage.layers;
        let parameters = layers.iter().map(|layer| self.context.cost.trained_parameters(layer)).sum();
        let time = self.context.cost.optimizer_time(parameters, device);
        let traffic = self.context.cost.optimizer_traffic(parameters, device);
        self.builder.action(Action {
            lane,
            kind: ActionKind::OptimizerStep,
            subject: step.subject,
            reads,
            writes,
            work: SimTime::from_seconds(time),
            flows: dram_flow(self.context, device, time, traffic),
            guard: None,
        })
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
        let flow = route(self.context, from, to, bytes).map_err(|fault| self.faults.push(fault));
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
