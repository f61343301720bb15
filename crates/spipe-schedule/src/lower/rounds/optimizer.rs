//! Gradients out, optimizer steps on CPU sockets, and on the devices of chunks that stay; the global check and what it undoes.

use super::{
    Rounds, Stepping, Transfer, Visit,
    shared::Arrived,
    urgency::{Due, by_need, ends_of_backwards},
    weights::Piece,
};
use crate::lower::steps::{Norm, Summed};
use crate::{Access, Action, Content, Guard, Lifetime, Outcome};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, MemoryId, Payload, SimTime,
    Subject,
};
use spipe_plan::GRADIENT_SLOTS;
use std::collections::BTreeMap;

/// By device, chunks whose gradients leave it, each with the last copy.
type Sent = BTreeMap<DeviceId, Vec<(Visit, ActionId)>>;

/// Gradients on their way to the socket that steps them.
#[derive(Clone, Copy)]
struct Leaving {
    this: Visit,
    subject: Subject,
    socket: DeviceId,
    /// Where they arrive.
    gradients: Access,
    home: MemoryId,
}

/// Gradients that are complete where they are stepped.
#[derive(Clone, Copy)]
struct Complete {
    this: Visit,
    subject: Subject,
    lane: LaneId,
    gradients: Access,
    /// Where they are, and whether it is the chunk's own device that steps them.
    memory: MemoryId,
    here: bool,
}

/// A step taken on trust.
struct Trusted {
    action: ActionId,
    complete: Complete,
    state: BufferId,
    /// What the step is undone from: a log of what was there, or the gradients.
    undo: Access,
}

impl Rounds<'_> {
    /// Every backward chunk's gradients leave after its last microbatch and are stepped on the socket; those of chunks that stay are
    /// stepped where they are.
    pub(super) fn step(&mut self) -> Result<(), Faults> {
        let (mut norm, mut waiting) = (Norm::default(), Vec::new());
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
        let (mut leaving, mut sent) = (Vec::new(), Sent::new());
        for chunk in (0..self.spec.backward.len()).rev() {
            let this = Visit { backward: true, chunk };
            let Some(gradients) = self.gradients.get(&chunk).copied() else { continue };
            if self.chunk(this).stays {
                arrived = self.shared_gradients_to_owner(this)?.or(arrived);
                if !self.chunk(this).trains {
                    continue;
                }
                let complete = self.complete_here(this, gradients, arrived);
                if self.spec.waits_for_norm {
                    norm.add(self.builder, self.summed(&complete));
                    waiting.push(complete);
                } else {
                    self.take(&complete)?;
                }
                continue;
            }
            let (device, home, bytes, layers, socket) = {
                let chunk = self.chunk(this);
                (chunk.device, chunk.home, chunk.gradients, chunk.layers, chunk.socket)
            };
            let (Some(socket), true) = (socket, self.spec.stepping != Stepping::Never) else { continue };
            if !self.chunk(this).trains {
                if let Some((copy, shared)) = self.shared_gradients_out(this)? {
                    arrived = Some(shared);
                    sent.entry(device).or_default().push((this, copy));
                }
                continue;
            }
            let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(this)) };
            let memory = self.builder.memory_of(device);
            let last = Access::new(gradients, self.spec.microbatches as u32);
            let there = self.builder.buffer(Content::Gradients(layers), home, bytes, Lifetime::Transient);
            let transfer = self.links.copy(memory, home, bytes)?;
            let lane = self.lane(device, LaneRole::D2h);
            let out = (lane, ActionKind::Copy(Payload::GradientsOut), subject);
            let mut copy = self.copy(out, transfer, (vec![last], vec![Access::new(there, 1)]));
            if let Some((last, shared)) = self.shared_gradients_out(this)? {
                (copy, arrived) = (last, Some(shared));
            }
            sent.entry(device).or_default().push((this, copy));
            leaving.push(Leaving { this, subject, socket, gradients: Access::new(there, 1), home });
        }
        self.reuse_slots(&sent);
        for Leaving { this, subject, socket, gradients, home } in self.in_order(leaving) {
            let lane = self.lane(socket, LaneRole::Optimizer);
            let gradients = self.accumulate_shared((this, lane), gradients, arrived);
            let complete = Complete { this, subject, lane, gradients, memory: home, here: false };
            if self.spec.waits_for_norm {
                norm.add(self.builder, self.summed(&complete));
                waiting.push(complete);
                continue;
            }
            let step = self.step_chunk(&complete);
            for backward in &last_backwards {
                self.wait(*backward, step.action, (0, IdleCause::Order));
            }
            trusted.push(step);
        }
        if self.spec.speculates && !trusted.is_empty() {
            self.check(&trusted);
        }
        if self.spec.stepping == Stepping::NeededFirst {
            waiting.sort_by_key(|complete| complete.this.chunk);
        }
        self.step_once_known(norm, &waiting)
    }

    /// A device holds gradients of two chunks that leave, one that is computed and one that is copied out.
    fn reuse_slots(&mut self, sent: &Sent) {
        let mut edges = Vec::new();
        for sent in sent.values() {
            for ((_, copy), (this, _)) in sent.iter().zip(sent.iter().skip(GRADIENT_SLOTS as usize)) {
                let backward = |action: &&ActionId| self.builder.get(**action).kind == ActionKind::Backward;
                edges.extend(self.computed[this].iter().find(backward).map(|backward| (*copy, *backward)));
            }
        }
        for (copy, backward) in edges {
            self.wait(copy, backward, (0, IdleCause::Memory));
        }
    }

    /// Steps what has waited for the norm of all gradients.
    fn step_once_known(&mut self, norm: Norm, waiting: &[Complete]) -> Result<(), Faults> {
        let links = self.links;
        let latency = |from, to| match links.copy(from, to, Bytes::ZERO) {
            Ok(transfer) if from != to => transfer.latency(),
            _ => SimTime::ZERO,
        };
        let Some(at) = norm.memories().last() else { return Ok(()) };
        let lags: Vec<SimTime> = norm.memories().map(|from| latency(from, at)).collect();
        let Some(known) = norm.known(self.builder, lags) else { return Ok(()) };
        for complete in waiting {
            let action = self.take(complete)?;
            known.before(self.builder, action, latency(known.memory, complete.memory));
        }
        Ok(())
    }

    fn take(&mut self, complete: &Complete) -> Result<ActionId, Faults> {
        if !complete.here {
            return Ok(self.step_chunk(complete).action);
        }
        let action = self.step_here(complete);
        self.shared_parameters_from_owner(complete.this)?;
        Ok(action)
    }

    fn summed(&self, complete: &Complete) -> Summed {
        let chunk = self.chunk(complete.this);
        Summed {
            stage: self.stage(complete.this),
            layers: chunk.layers,
            lane: complete.lane,
            gradients: complete.gradients,
            memory: complete.memory,
            part: None,
            read: chunk.norm.clone(),
        }
    }

    /// What leaves, in the order in which it is stepped.
    fn in_order(&self, leaving: Vec<Leaving>) -> Vec<Leaving> {
        // Behind a check all have arrived: they are summed as they come.
        if self.spec.stepping != Stepping::NeededFirst || self.spec.waits_for_norm {
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

    /// The gradients of a chunk that stays, with those from other chunks' use of its parameters.
    fn complete_here(&mut self, this: Visit, gradients: BufferId, arrived: Option<Arrived>) -> Complete {
        let (device, layers) = (self.chunk(this).device, self.chunk(this).layers);
        let last = Access::new(gradients, self.spec.microbatches as u32);
        let lane = self.lane(device, LaneRole::Compute);
        let gradients = self.accumulate_shared((this, lane), last, arrived);
        let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(this)) };
        Complete { this, subject, lane, gradients, memory: self.builder.memory_of(device), here: true }
    }

    fn step_here(&mut self, complete: &Complete) -> ActionId {
        let Complete { this, subject, lane, gradients, .. } = *complete;
        let chunk = self.chunk(this).clone();
        let content = Content::OptimizerState(chunk.layers);
        let state = self.builder.buffer(content, chunk.home, chunk.state, Lifetime::Resident);
        let (parameters, kind) = (self.weights[&this], ActionKind::OptimizerStep);
        let reads = vec![gradients, Access::new(parameters, 0), Access::new(state, 0)];
        let writes = vec![Access::new(parameters, 1), Access::new(state, 1)];
        let Transfer { work, flows } = chunk.step;
        self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard: None })
    }

    fn step_chunk(&mut self, complete: &Complete) -> Trusted {
        let Complete { this, gradients, memory: home, .. } = *complete;
        let (layers, bytes) = (self.chunk(this).layers, self.chunk(this).state);
        let state = self.builder.buffer(Content::OptimizerState(layers), home, bytes, Lifetime::Resident);
        let (mut undo, mut log) = (gradients, None);
        if self.spec.speculates && !self.spec.arithmetic_undo {
            // Master copy and both moments, as they were.
            let bytes = self.chunk(this).undo;
            undo = Access::new(self.builder.buffer(Content::UndoLog(layers), home, bytes, Lifetime::Transient), 1);
            log = Some(undo);
        }
        let action = self.change(complete, ActionKind::OptimizerStep, (gradients, state, 0), (log, None));
        Trusted { action, complete: *complete, state, undo }
    }

    /// A step, or what undoes it, of version `version` of state and parameters, from what it reads beside them.
    fn change(
        &mut self,
        complete: &Complete,
        kind: ActionKind,
        (from, state, version): (Access, BufferId, u32),
        (log, guard): (Option<Access>, Option<Guard>),
    ) -> ActionId {
        let Complete { this, subject, lane, .. } = *complete;
        let (layers, Transfer { work, flows }) = (self.chunk(this).layers, self.chunk(this).step.clone());
        let mut reads = vec![from, Access::new(state, version)];
        let mut writes = vec![Access::new(state, version + 1)];
        for Piece { buffer: piece, .. } in self.pieces(layers) {
            reads.push(Access::new(piece, version));
            writes.push(Access::new(piece, version + 1));
        }
        writes.extend(log);
        self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard })
    }

    /// All steps are checked together; where the check fails, each is undone, and done again if that helps. Nothing starts the next
    /// iteration before.
    fn check(&mut self, trusted: &[Trusted]) {
        let check = self.builder.action(Action {
            lane: trusted[0].complete.lane,
            kind: ActionKind::Check,
            subject: Subject::default(),
            reads: trusted.iter().map(|step| Access::new(step.state, 1)).collect(),
            writes: Vec::new(),
            work: SimTime::ZERO,
            flows: Vec::new(),
            guard: None,
        });
        let guard = Some(Guard { check, outcome: Outcome::Fail });
        for step in trusted {
            self.change(&step.complete, ActionKind::Rollback, (step.undo, step.state, 1), (None, guard));
            if self.spec.redoes {
                let again = (step.complete.gradients, step.state, 2);
                self.change(&step.complete, ActionKind::OptimizerStep, again, (None, guard));
            }
        }
    }
}
