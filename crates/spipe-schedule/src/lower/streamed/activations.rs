//! Tensors between chunks: activations forward, gradients backward, and checkpoints from forward to
//! backward chunks.

use super::{StreamedLowering, Visit};
use crate::{Access, Anchor, Content, Edge};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, LayerId, Payload, SimTime,
    Subject,
};

/// A tensor that passes from one chunk to another.
struct Passed {
    content: Content,
    payload: Payload,
    bytes: Bytes,
    subject: Subject,
}

impl StreamedLowering<'_> {
    /// Passes the output of each forward chunk to the next one.
    pub(super) fn carry_forward(&mut self) -> Result<(), Faults> {
        for chunk in 1..self.spec.forward.len() {
            let (from, to) = (Visit { backward: false, chunk: chunk - 1 }, Visit { backward: false, chunk });
            for microbatch in 0..self.spec.microbatches {
                let id = self.id(microbatch);
                let content = Content::Activation(self.chunk(from).layers.last(), id);
                let bytes = self.chunk(from).output;
                let output = self.on_device(from, content, bytes);
                self.outputs.insert((chunk - 1, microbatch), output);
                let subject = Subject::work(self.stage(from), id);
                let input =
                    self.pass((from, to), output, Passed { content, payload: Payload::Activation, bytes, subject })?;
                self.inputs.insert((chunk, microbatch), input);
            }
        }
        Ok(())
    }

    /// Passes the input of every backward chunk but the first: the forward's own input on the same
    /// device, or a checkpoint.
    pub(super) fn carry_checkpoints(&mut self) -> Result<(), Faults> {
        for chunk in (1..self.spec.backward.len()).filter(|chunk| self.spec.backward[*chunk].returns.is_some()) {
            let to = Visit { backward: true, chunk };
            let first = self.chunk(to).layers.first().index();
            // The forward chunk that computes the layer before.
            let Some(maker) =
                self.spec.forward.iter().position(|chunk| chunk.layers.contains(LayerId::from(first - 1)))
            else {
                continue;
            };
            let from = Visit { backward: false, chunk: maker };
            let at_the_end = self.chunk(from).layers.last().index() + 1 == first;
            for microbatch in 0..self.spec.microbatches {
                let (id, bytes) = (self.id(microbatch), self.chunk(to).input);
                let content = Content::Checkpoint(LayerId::from(first - 1), id);
                let next = self.inputs.get(&(maker + 1, microbatch)).copied().filter(|_| at_the_end);
                let user = self.spec.forward.get(maker + 1).map(|next| next.device);
                let here = self.chunk(to).device;
                let buffer = match next {
                    // The input of the next forward chunk is on the same device.
                    Some(input) if user == Some(here) => input,
                    _ => {
                        let made = match self.outputs.get(&(maker, microbatch)).copied().filter(|_| at_the_end) {
                            Some(output) => output,
                            None => {
                                let made = self.on_device(from, content, bytes);
                                self.made_by_forward.entry((maker, microbatch)).or_default().push(made);
                                made
                            }
                        };
                        let subject = Subject::work(self.stage(from), id);
                        self.pass((from, to), made, Passed { content, payload: Payload::Checkpoint, bytes, subject })?
                    }
                };
                self.checkpoints.insert((chunk, microbatch), buffer);
            }
        }
        Ok(())
    }

    /// Passes the gradient of each backward chunk's input to the backward chunk before it.
    pub(super) fn carry_backward(&mut self) -> Result<(), Faults> {
        for chunk in (1..self.spec.backward.len()).filter(|chunk| self.spec.backward[*chunk].passes_gradient) {
            let (from, to) = (Visit { backward: true, chunk }, Visit { backward: true, chunk: chunk - 1 });
            for microbatch in 0..self.spec.microbatches {
                let id = self.id(microbatch);
                let content = Content::Gradient(self.chunk(to).layers.last(), id);
                let bytes = self.chunk(from).input;
                let outgoing = self.on_device(from, content, bytes);
                self.outgoing.insert((chunk, microbatch), outgoing);
                let subject = Subject::work(self.stage(from), id);
                let passed = Passed { content, payload: Payload::Gradient, bytes, subject };
                let incoming = self.pass((from, to), outgoing, passed)?;
                self.incoming.insert((chunk - 1, microbatch), incoming);
            }
        }
        Ok(())
    }

    /// Passes a tensor: the same buffer within a device, or a copy on the other device.
    fn pass(&mut self, (from, to): (Visit, Visit), made: BufferId, passed: Passed) -> Result<BufferId, Faults> {
        let (sender, receiver) = (self.chunk(from).device, self.chunk(to).device);
        if sender == receiver {
            return Ok(made);
        }
        let there = self.on_device(to, passed.content, passed.bytes);
        let (source, target) = (self.builder.memory_of(sender), self.builder.memory_of(receiver));
        let transfer = self.links.copy(source, target, passed.bytes)?;
        let lane = self.channel(sender, receiver, passed.payload);
        let what = (lane, ActionKind::Copy(passed.payload), passed.subject);
        let copy = self.copy(what, transfer, (vec![Access::new(made, 1)], vec![Access::new(there, 1)]));
        self.sent.insert(there, copy);
        Ok(there)
    }

    /// The lane of copies between two devices. Checkpoints and tied parameters have their own, so
    /// that they do not queue behind activations.
    pub(super) fn channel(&mut self, from: DeviceId, to: DeviceId, payload: Payload) -> LaneId {
        let other = self.builder.name_of(to).to_owned();
        let word = match payload {
            Payload::Checkpoint => format!("checkpoints-to-{other}"),
            Payload::WeightsIn | Payload::GradientsOut => format!("shared-to-{other}"),
            _ => format!("to-{other}"),
        };
        self.builder.lane(from, &word, LaneRole::Channel)
    }

    /// Adds the precedences between iterations: an input is overwritten only after its forward, and
    /// an output only after its copy. Hence no device runs ahead of the next one.
    pub(super) fn reuse_inputs(&mut self) {
        let forward = |chunk: usize, microbatch: usize| self.computed[&Visit { backward: false, chunk }][microbatch];
        let copies = self.inputs.iter().filter_map(|(key, buffer)| Some((*key, *self.sent.get(buffer)?)));
        let edges: Vec<_> = copies
            .flat_map(|((chunk, microbatch), copy)| {
                [(forward(chunk, microbatch), copy), (copy, forward(chunk - 1, microbatch))]
            })
            .collect();
        for (from, to) in edges {
            self.wait(from, to, (1, IdleCause::Memory));
        }
    }

    /// Delays each checkpoint's copy to the computation before its use.
    pub(super) fn delay_checkpoints(&mut self) {
        let mut edges = Vec::new();
        for ((chunk, microbatch), buffer) in &self.checkpoints {
            let Some(copy) = self.sent.get(buffer) else { continue };
            // Inputs of the next forward chunk cannot be delayed.
            if self.builder.get(*copy).kind != ActionKind::Copy(Payload::Checkpoint) {
                continue;
            }
            let device = self.spec.backward[*chunk].device;
            let before = self.timestep_before(device, (*chunk, *microbatch));
            edges.extend(before.map(|before| (before, *copy)));
        }
        for (from, to) in edges {
            let (anchor, lag) = (Anchor::StartToStart, SimTime::ZERO);
            self.builder.edge(Edge { from, to, anchor, distance: 0, lag, cause: IdleCause::Order });
        }
    }

    /// The computation of a device just before a backward: that of the microbatch before, or the
    /// last one of the visit before.
    fn timestep_before(&self, device: DeviceId, (chunk, microbatch): (usize, usize)) -> Option<ActionId> {
        let here = Visit { backward: true, chunk };
        if let Some(before) = microbatch.checked_sub(1) {
            let per_microbatch = self.computed[&here].len() / self.spec.microbatches;
            return self.computed[&here].get((before + 1) * per_microbatch - 1).copied();
        }
        let mine = |index: &usize| self.spec.backward[*index].device == device;
        let before = (chunk + 1..self.spec.backward.len()).find(mine).map(|chunk| Visit { backward: true, chunk });
        let forward = || self.spec.forward.iter().rposition(|chunk| chunk.device == device);
        let before = before.or_else(|| forward().map(|chunk| Visit { backward: false, chunk }))?;
        self.computed[&before].last().copied()
    }
}
