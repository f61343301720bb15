//! Optimizer steps on CPU sockets, or on the devices of chunks that stay; the check of speculative
//! steps and their undo.

use super::{
    StreamedLowering, Transfer, UpdateOrder, Visit,
    priority::{Pending, by_need, ends_of_backwards},
    tied::Arrived,
};
use crate::lower::drives::{DriveState, Read};
use crate::lower::steps::{Gradients, Norm};
use crate::{Access, Content, Guard, Lifetime, NewAction, Outcome, ProgramBuilder};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, MemoryId, Payload, SimTime,
    Subject,
};
use spipe_plan::GRADIENT_SLOTS;
use std::collections::BTreeMap;

/// By device, the chunks whose gradients leave it, each with the last copy.
type Sent = BTreeMap<DeviceId, Vec<(Visit, ActionId)>>;

/// Gradients that are copied to the socket of their optimizer step.
#[derive(Clone, Copy)]
struct Leaving {
    this: Visit,
    subject: Subject,
    socket: DeviceId,
    /// The gradients on the host.
    gradients: Access,
    home: MemoryId,
}

/// Complete gradients where their optimizer step runs.
#[derive(Clone, Copy)]
pub(super) struct Complete {
    pub this: Visit,
    pub subject: Subject,
    lane: LaneId,
    gradients: Access,
    memory: MemoryId,
    /// Whether the step runs on the chunk's own device.
    on_device: bool,
}

/// A speculative optimizer step.
struct Speculative {
    action: ActionId,
    complete: Complete,
    state: BufferId,
    /// The undo log, or the gradients for arithmetic undo.
    undo: Access,
}

/// The updates of an iteration so far.
#[derive(Default)]
struct Progress {
    leaving: Vec<Leaving>,
    sent: Sent,
    /// The gradients of borrowed parameters, once they are where the owner's step runs.
    arrived: Option<Arrived>,
    norm: Norm,
    /// The gradients whose steps wait for the norm.
    waiting: Vec<Complete>,
    /// The steps that run on sockets without waiting.
    steps: Vec<Speculative>,
}

/// Adds all optimizer steps of all replicas. Those of a socket are in the order of chunks, for each chunk all replicas.
pub(super) fn update_all(replicas: &mut [StreamedLowering<'_>], builder: &mut ProgramBuilder) -> Result<(), Faults> {
    let mut all = Vec::new();
    for this in replicas.iter_mut() {
        let mut progress = this.adding(builder, StreamedLowering::leave_devices)?;
        let leaving = this.in_order(std::mem::take(&mut progress.leaving));
        all.push((this.last_backwards(), leaving, progress));
    }
    let most = all.iter().map(|(_, leaving, _)| leaving.len()).max().unwrap_or(0);
    for index in 0..most {
        for (this, (backwards, leaving, progress)) in replicas.iter_mut().zip(&mut all) {
            if let Some(leaving) = leaving.get(index).copied() {
                this.adding(builder, |this| this.update_on_socket(leaving, backwards, progress))?;
            }
        }
    }
    for (this, (.., progress)) in replicas.iter_mut().zip(all) {
        this.adding(builder, |this| this.check_or_step(progress))?;
    }
    Ok(())
}

impl StreamedLowering<'_> {
    /// Adds the copies of gradients to hosts after their last microbatch, and the optimizer steps of chunks that stay, which
    /// run on their devices.
    fn leave_devices(&mut self) -> Result<Progress, Faults> {
        let mut progress = Progress::default();
        for chunk in (0..self.spec.backward.len()).rev() {
            let this = Visit { backward: true, chunk };
            let Some(gradients) = self.gradients.get(&chunk).copied() else { continue };
            if self.chunk(this).stays {
                self.update_on_device(this, gradients, &mut progress)?;
            } else {
                self.send_gradients(this, gradients, &mut progress)?;
            }
        }
        self.reuse_slots(&progress.sent);
        Ok(progress)
    }

    /// Adds the check of speculative steps, or the steps that wait for a check.
    fn check_or_step(&mut self, progress: Progress) -> Result<(), Faults> {
        if self.spec.speculates && !progress.steps.is_empty() {
            self.check(&progress.steps);
        }
        let Progress { norm, mut waiting, .. } = progress;
        if self.spec.updates == UpdateOrder::NeededFirst {
            waiting.sort_by_key(|complete| complete.this.chunk);
        }
        self.step_after_check(norm, &waiting)
    }

    /// Adds the optimizer step of a chunk that stays, or lets it wait for the norm.
    fn update_on_device(&mut self, this: Visit, gradients: BufferId, progress: &mut Progress) -> Result<(), Faults> {
        progress.arrived = self.tied_gradients_to_owner(this)?.or(progress.arrived);
        if !self.chunk(this).trains {
            return Ok(());
        }
        let complete = self.complete_on_device(this, gradients, progress.arrived);
        if self.spec.waits_for_norm {
            let gradients = self.gradients_of(&complete);
            progress.norm.add(&mut self.builder, gradients);
            progress.waiting.push(complete);
        } else {
            self.step(&complete)?;
        }
        Ok(())
    }

    /// Adds the copy of a streamed chunk's gradients to the host, with those of borrowed
    /// parameters.
    fn send_gradients(&mut self, this: Visit, gradients: BufferId, progress: &mut Progress) -> Result<(), Faults> {
        let (device, home, bytes, layers, socket) = {
            let chunk = self.chunk(this);
            (chunk.device, chunk.home, chunk.gradients, chunk.layers, chunk.socket)
        };
        let (Some(socket), true) = (socket, self.spec.updates != UpdateOrder::Never) else { return Ok(()) };
        if !self.chunk(this).trains {
            if let Some((copy, tied)) = self.tied_gradients_out(this)? {
                progress.arrived = Some(tied);
                progress.sent.entry(device).or_default().push((this, copy));
            }
            return Ok(());
        }
        let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(this)) };
        let memory = self.builder.memory_of(device);
        let last = self.complete(gradients);
        let there = self.builder.buffer(Content::Gradients(layers), home, bytes, Lifetime::Transient);
        let transfer = self.links.copy(memory, home, bytes)?;
        let lane = self.lane(device, LaneRole::D2h);
        let out = (lane, ActionKind::Copy(Payload::GradientsOut), subject);
        let mut copy = self.copy(out, transfer, (vec![last], vec![Access::new(there, 1)]));
        if let Some((last, tied)) = self.tied_gradients_out(this)? {
            (copy, progress.arrived) = (last, Some(tied));
        }
        progress.sent.entry(device).or_default().push((this, copy));
        progress.leaving.push(Leaving { this, subject, socket, gradients: Access::new(there, 1), home });
        Ok(())
    }

    /// Adds the optimizer step of a streamed chunk after `backwards`, or lets it wait for the norm.
    fn update_on_socket(
        &mut self,
        leaving: Leaving,
        backwards: &[ActionId],
        progress: &mut Progress,
    ) -> Result<(), Faults> {
        let Leaving { this, subject, socket, gradients, home } = leaving;
        let lane = self.lane(socket, LaneRole::Optimizer);
        let gradients = self.accumulate_tied((this, lane), gradients, progress.arrived);
        let complete = Complete { this, subject, lane, gradients, memory: home, on_device: false };
        if self.spec.waits_for_norm {
            let gradients = self.gradients_of(&complete);
            progress.norm.add(&mut self.builder, gradients);
            progress.waiting.push(complete);
            return Ok(());
        }
        let step = self.step_on_socket(&complete)?;
        for backward in backwards {
            self.wait(*backward, step.action, (0, IdleCause::Order));
        }
        progress.steps.push(step);
        Ok(())
    }

    /// The backwards that all steps wait for: the last of each chunk if steps come after the whole
    /// backward, otherwise none.
    fn last_backwards(&self) -> Vec<ActionId> {
        let backwards = self.computed.iter().filter(|(this, _)| this.backward);
        match self.spec.updates {
            UpdateOrder::Serial => backwards.filter_map(|(_, all)| all.last().copied()).collect(),
            _ => Vec::new(),
        }
    }

    /// Adds the precedences of gradient slots: a device holds the gradients of two chunks that
    /// leave, one in computation and one being copied.
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

    /// Adds the check of the norm, and the optimizer steps that wait for it.
    fn step_after_check(&mut self, norm: Norm, waiting: &[Complete]) -> Result<(), Faults> {
        let links = self.links;
        let latency = |from, to| match links.copy(from, to, Bytes::ZERO) {
            Ok(transfer) if from != to => transfer.latency(),
            _ => SimTime::ZERO,
        };
        let Some(at) = norm.memories().last() else { return Ok(()) };
        let lags: Vec<SimTime> = norm.memories().map(|from| latency(from, at)).collect();
        let Some(gate) = norm.check(&mut self.builder, lags) else { return Ok(()) };
        for complete in waiting {
            let action = self.step(complete)?;
            gate.before(&mut self.builder, action, latency(gate.memory, complete.memory));
        }
        Ok(())
    }

    /// Adds an optimizer step that is not speculative.
    fn step(&mut self, complete: &Complete) -> Result<ActionId, Faults> {
        if !complete.on_device {
            return Ok(self.step_on_socket(complete)?.action);
        }
        let action = self.step_on_device(complete);
        self.return_tied_parameters(complete.this)?;
        Ok(action)
    }

    fn gradients_of(&self, complete: &Complete) -> Gradients {
        let chunk = self.chunk(complete.this);
        Gradients {
            stage: self.stage(complete.this),
            layers: chunk.layers,
            lane: complete.lane,
            gradients: complete.gradients,
            memory: complete.memory,
            part: None,
            norm: chunk.norm.clone(),
        }
    }

    /// The leaving gradients in the order of their optimizer steps.
    fn in_order(&self, leaving: Vec<Leaving>) -> Vec<Leaving> {
        // With a check, steps run after all gradients have arrived.
        if self.spec.updates != UpdateOrder::NeededFirst || self.spec.waits_for_norm {
            return leaving;
        }
        let ends = ends_of_backwards(self.spec);
        let mut by_socket: BTreeMap<DeviceId, Vec<Pending>> = BTreeMap::new();
        for Leaving { this, socket, .. } in &leaving {
            let (chunk, work) = (this.chunk, self.chunk(*this).step.work);
            by_socket.entry(*socket).or_default().push(Pending { chunk, arrival: ends[chunk], work });
        }
        let order = by_socket.into_values().flat_map(by_need);
        order.filter_map(|chunk| leaving.iter().find(|one| one.this.chunk == chunk).copied()).collect()
    }

    /// The complete gradients of a chunk that stays, with those from other chunks' use of its
    /// parameters.
    fn complete_on_device(&mut self, this: Visit, gradients: BufferId, arrived: Option<Arrived>) -> Complete {
        let (device, layers) = (self.chunk(this).device, self.chunk(this).layers);
        let last = self.complete(gradients);
        let lane = self.lane(device, LaneRole::Compute);
        let gradients = self.accumulate_tied((this, lane), last, arrived);
        let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(this)) };
        Complete { this, subject, lane, gradients, memory: self.builder.memory_of(device), on_device: true }
    }

    fn step_on_device(&mut self, complete: &Complete) -> ActionId {
        let Complete { this, subject, lane, gradients, .. } = *complete;
        let chunk = self.chunk(this).clone();
        let content = Content::OptimizerState(chunk.layers);
        let state = self.builder.buffer(content, chunk.home, chunk.state, Lifetime::Resident);
        let (parameters, kind) = (self.weights[&this], ActionKind::OptimizerStep);
        let reads = vec![gradients, Access::new(parameters, 0), Access::new(state, 0)];
        let writes = vec![Access::new(parameters, 1), Access::new(state, 1)];
        let Transfer { work, flows } = chunk.step;
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work, flows, guard: None })
    }

    fn step_on_socket(&mut self, complete: &Complete) -> Result<Speculative, Faults> {
        let Complete { this, gradients, memory: home, .. } = *complete;
        let (layers, bytes) = (self.chunk(this).layers, self.chunk(this).state);
        let read = self.read_state(complete)?;
        let state = read.as_ref().map_or_else(
            || {
                let content = Content::OptimizerState(layers);
                Access::new(self.builder.buffer(content, home, bytes, Lifetime::Resident), 0)
            },
            |read| read.versions().0,
        );
        let (mut undo, mut log) = (gradients, None);
        if self.spec.speculates && !self.spec.arithmetic_undo {
            // The master copy and both moments before the step.
            let bytes = self.chunk(this).undo;
            undo = Access::new(self.builder.buffer(Content::UndoLog(layers), home, bytes, Lifetime::Transient), 1);
            log = Some(undo);
        }
        let (parameters, fetched) = self.parameters_of_step(complete)?;
        let action = self.change(complete, ActionKind::OptimizerStep, (gradients, state, &parameters), (log, None));
        if let Some(fetched) = fetched {
            self.shelve(complete, (&parameters, fetched))?;
        }
        if let Some(read) = read {
            let DriveState { host, drive, bytes, .. } = read.state;
            let transfer = self.links.copy(host, drive, bytes)?;
            self.drives.write(&mut self.builder, &read, transfer);
        }
        Ok(Speculative { action, complete: *complete, state: state.buffer, undo })
    }

    /// Adds the read of the state of a chunk that names a drive.
    fn read_state(&mut self, complete: &Complete) -> Result<Option<Read>, Faults> {
        let chunk = self.chunk(complete.this);
        let (Some(drive), Some(queue), true) = (chunk.drive, chunk.socket, chunk.state > Bytes::ZERO) else {
            return Ok(None);
        };
        let (content, bytes, host) = (Content::OptimizerState(chunk.layers), chunk.state, complete.memory);
        let state = DriveState { subject: complete.subject, content, part: None, bytes, drive, host, queue };
        let transfer = self.links.copy(drive, host, bytes)?;
        Ok(Some(self.drives.read(&mut self.builder, state, transfer)))
    }

    /// Adds an optimizer step or its undo, which reads `from`, a version of the state, and a version
    /// of the parameters.
    fn change(
        &mut self,
        complete: &Complete,
        kind: ActionKind,
        (from, state, parameters): (Access, Access, &[Access]),
        (log, guard): (Option<Access>, Option<Guard>),
    ) -> ActionId {
        let Complete { this, subject, lane, .. } = *complete;
        let Transfer { work, flows } = self.chunk(this).step.clone();
        let mut reads = vec![from, state];
        let mut writes = vec![Access::new(state.buffer, state.version + 1)];
        for parameters in parameters {
            reads.push(*parameters);
            writes.push(Access::new(parameters.buffer, parameters.version + 1));
        }
        writes.extend(log);
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work, flows, guard })
    }

    /// Adds the check of all speculative steps. If it fails, each step is undone, and repeated if
    /// clipping is enough. The next iteration waits for that.
    fn check(&mut self, steps: &[Speculative]) {
        let check = self.builder.action(NewAction {
            lane: steps[0].complete.lane,
            kind: ActionKind::Check,
            subject: Subject::default(),
            reads: steps.iter().map(|step| Access::new(step.state, 1)).collect(),
            writes: Vec::new(),
            work: SimTime::ZERO,
            flows: Vec::new(),
            guard: None,
        });
        let guard = Some(Guard { check, outcome: Outcome::Fail });
        for step in steps {
            let state = |version| Access::new(step.state, version);
            let parameters = |version| self.parameters_at(&step.complete, version);
            let [stepped, undone] = [parameters(1), parameters(2)];
            self.change(&step.complete, ActionKind::Rollback, (step.undo, state(1), &stepped), (None, guard));
            if self.spec.redoes {
                let again = (step.complete.gradients, state(2), &undone[..]);
                self.change(&step.complete, ActionKind::OptimizerStep, again, (None, guard));
            }
        }
    }
}
