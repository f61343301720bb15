//! Gradients out, optimizer steps on CPU sockets, and on the devices of chunks that stay; the global check and what it undoes.

use super::{
    Rounds, Stepping, Transfer, Use,
    shared::Arrived,
    urgency::{Due, by_need, ends_of_backwards},
};
use crate::{Access, Action, Content, Guard, Lifetime, Outcome};
use spipe_base::{
    ActionId, ActionKind, BufferId, DeviceId, Faults, IdleCause, LaneId, LaneRole, MemoryId, Payload, SimTime, Subject,
};
use std::collections::BTreeMap;

/// Gradients on their way to the socket that steps them.
#[derive(Clone, Copy)]
struct Leaving {
    this: Use,
    subject: Subject,
    socket: DeviceId,
    /// Where they arrive.
    gradients: Access,
    home: MemoryId,
}

/// A step taken on trust.
struct Trusted {
    action: ActionId,
    chunk: usize,
    state: BufferId,
    /// What the step is undone from: a log of what was there, or the gradients.
    undo: Access,
}

impl Rounds<'_> {
    /// Every backward chunk's gradients leave after its last microbatch and are stepped on the socket; those of chunks that stay are
    /// stepped where they are.
    pub(super) fn step(&mut self) -> Result<(), Faults> {
        let (mut trusted, mut arrived) = (Vec::new(), None);
        let last_backwards: Vec<ActionId> = match self.spec.stepping {
            Stepping::Serial => self
                .computed
                .iter()
                .filter(|(this, _)| this.backward)
                .filter_map(|(_, all)| all.last().copied())
                .collect(),
            _ => Vec::new(),
        };
        let mut leaving: Vec<Leaving> = Vec::new();
        for chunk in (0..self.spec.backward.len()).rev() {
            let this = Use { backward: true, chunk };
            let Some(gradients) = self.gradients.get(&chunk).copied() else { continue };
            if self.chunk(this).stays {
                arrived = self.shared_gradients_to_owner(this)?.or(arrived);
                self.step_here(this, gradients, arrived);
                self.shared_parameters_from_owner(this)?;
                continue;
            }
            let (device, home, bytes, layers, socket) = {
                let chunk = self.chunk(this);
                (chunk.device, chunk.home, chunk.gradients, chunk.layers, chunk.socket)
            };
            let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(this)) };
            let memory = self.builder.memory_of(device);
            let last = Access::new(gradients, self.spec.microbatches as u32);
            let (Some(socket), true) = (socket, self.spec.stepping != Stepping::Never) else { continue };
            let there = self.builder.buffer(Content::Gradients(layers), home, bytes, Lifetime::Transient);
            let transfer = self.links.copy(memory, home, bytes)?;
            let lane = self.lane(device, LaneRole::D2h);
            let out = (lane, ActionKind::Copy(Payload::GradientsOut), subject);
            self.copy(out, transfer, (vec![last], vec![Access::new(there, 1)]));
            arrived = self.shared_gradients_out(this)?.or(arrived);
            leaving.push(Leaving { this, subject, socket, gradients: Access::new(there, 1), home });
        }
        for Leaving { this, subject, socket, gradients, home } in self.in_order(leaving) {
            let lane = self.lane(socket, LaneRole::Optimizer);
            let sum = self.accumulate_shared((this, lane), gradients, arrived);
            let step = self.step_chunk((this, subject, lane), (sum, home));
            for backward in &last_backwards {
                self.wait(*backward, step.action, (0, IdleCause::Order));
            }
            trusted.push(step);
        }
        if self.spec.speculates && !trusted.is_empty() {
            self.check(&trusted);
        }
        Ok(())
    }

    /// What leaves, in the order in which it is stepped.
    fn in_order(&self, leaving: Vec<Leaving>) -> Vec<Leaving> {
        if self.spec.stepping != Stepping::NeededFirst {
            return leaving;
        }
        let ends = ends_of_backwards(self.spec);
        let mut by_socket: BTreeMap<DeviceId, Vec<Due>> = BTreeMap::new();
        for Leaving { this, socket, .. } in &leaving {
            let (chunk, work) = (this.chunk, self.chunk(*this).step.work);
            by_socket.entry(*socket).or_default().push(Due { chunk, arrival: ends[chunk], work });
        }
        let order = by_socket.into_values().flat_map(by_need);
        order.filter_map(|chunk| leaving.iter().find(|one| one.this.chunk == chunk).copied()).collect()
    }

    fn step_here(&mut self, this: Use, gradients: BufferId, arrived: Option<Arrived>) {
        let chunk = self.chunk(this).clone();
        let last = Access::new(gradients, self.spec.microbatches as u32);
        let lane = self.lane(chunk.device, LaneRole::Compute);
        let sum = self.accumulate_shared((this, lane), last, arrived);
        let subject = Subject { layers: Some(chunk.layers), ..Subject::stage(self.stage(this)) };
        let content = Content::OptimizerState(chunk.layers);
        let state = self.builder.buffer(content, chunk.home, chunk.state, Lifetime::Resident);
        let (parameters, kind) = (self.weights[&this], ActionKind::OptimizerStep);
        let reads = vec![sum, Access::new(parameters, 0), Access::new(state, 0)];
        let writes = vec![Access::new(parameters, 1), Access::new(state, 1)];
        let Transfer { work, flows } = chunk.step;
        self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard: None });
    }

    fn step_chunk(
        &mut self,
        (this, subject, lane): (Use, Subject, LaneId),
        (gradients, home): (Access, MemoryId),
    ) -> Trusted {
        let (layers, bytes, Transfer { work, flows }) = {
            let chunk = self.chunk(this);
            (chunk.layers, chunk.state, chunk.step.clone())
        };
        let state = self.builder.buffer(Content::OptimizerState(layers), home, bytes, Lifetime::Resident);
        let mut reads = vec![gradients, Access::new(state, 0)];
        let mut writes = vec![Access::new(state, 1)];
        for (piece, _) in self.pieces(layers) {
            reads.push(Access::new(piece, 0));
            writes.push(Access::new(piece, 1));
        }
        let mut undo = gradients;
        if self.spec.speculates && !self.spec.arithmetic_undo {
            // Master copy and both moments, as they were.
            undo = Access::new(self.builder.buffer(Content::UndoLog(layers), home, bytes, Lifetime::Transient), 1);
            writes.push(undo);
        }
        let kind = ActionKind::OptimizerStep;
        let action = self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard: None });
        Trusted { action, chunk: this.chunk, state, undo }
    }

    /// All steps are checked together; where the check fails, each is undone. Nothing starts the next iteration before.
    fn check(&mut self, trusted: &[Trusted]) {
        let socket = self.chunk(Use { backward: true, chunk: trusted[0].chunk }).socket;
        let Some(socket) = socket else { return };
        let lane = self.lane(socket, LaneRole::Optimizer);
        let check = self.builder.action(Action {
            lane,
            kind: ActionKind::Check,
            subject: Subject::default(),
            reads: trusted.iter().map(|step| Access::new(step.state, 1)).collect(),
            writes: Vec::new(),
            work: SimTime::ZERO,
            flows: Vec::new(),
            guard: None,
        });
        for step in trusted {
            let this = Use { backward: true, chunk: step.chunk };
            let (layers, Transfer { work, flows }, socket) = {
                let chunk = self.chunk(this);
                (chunk.layers, chunk.step.clone(), chunk.socket.unwrap_or(socket))
            };
            let mut reads = vec![step.undo, Access::new(step.state, 1)];
            let mut writes = vec![Access::new(step.state, 2)];
            for (piece, _) in self.pieces(layers) {
                reads.push(Access::new(piece, 1));
                writes.push(Access::new(piece, 2));
            }
            let lane = self.lane(socket, LaneRole::Optimizer);
            let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(this)) };
            let guard = Some(Guard { check, outcome: Outcome::Fail });
            let kind = ActionKind::Rollback;
            self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard });
        }
    }
}
