//! What passes between chunks: activations forward, gradients back, and checkpoints from the forward's device to the backward's.

use super::{Rounds, Visit};
use crate::{Access, Content};
use spipe_base::{
    ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, LayerId, MicrobatchId, Payload, Subject,
};

/// Something on its way from the device of one use to that of another.
struct Passed {
    content: Content,
    payload: Payload,
    bytes: Bytes,
    subject: Subject,
}

impl Rounds<'_> {
    /// Outputs of forward chunks become inputs of the next.
    pub(super) fn carry_forward(&mut self) -> Result<(), Faults> {
        for chunk in 1..self.spec.forward.len() {
            let (from, to) = (Visit { backward: false, chunk: chunk - 1 }, Visit { backward: false, chunk });
            for microbatch in 0..self.spec.microbatches {
                let id = MicrobatchId::from(microbatch);
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

    /// The input of every backward chunk but the first: what the forward passed there, or a copy of its own.
    pub(super) fn carry_checkpoints(&mut self) -> Result<(), Faults> {
        for chunk in (1..self.spec.backward.len()).filter(|chunk| self.spec.backward[*chunk].returns.is_some()) {
            let to = Visit { backward: true, chunk };
            let first = self.chunk(to).layers.first().index();
            // The forward chunk that computes the layer before it.
            let Some(maker) =
                self.spec.forward.iter().position(|chunk| chunk.layers.contains(LayerId::from(first - 1)))
            else {
                continue;
            };
            let from = Visit { backward: false, chunk: maker };
            let at_the_end = self.chunk(from).layers.last().index() + 1 == first;
            for microbatch in 0..self.spec.microbatches {
                let (id, bytes) = (MicrobatchId::from(microbatch), self.chunk(to).input);
                let content = Content::Checkpoint(LayerId::from(first - 1), id);
                let next = self.inputs.get(&(maker + 1, microbatch)).copied().filter(|_| at_the_end);
                let user = self.spec.forward.get(maker + 1).map(|next| next.device);
                let here = self.chunk(to).device;
                let buffer = match next {
                    // The forward's own input is on the right device already.
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

    /// Gradients of inputs go to the backward chunk before.
    pub(super) fn carry_backward(&mut self) -> Result<(), Faults> {
        for chunk in (1..self.spec.backward.len()).filter(|chunk| self.spec.backward[*chunk].passes_gradient) {
            let (from, to) = (Visit { backward: true, chunk }, Visit { backward: true, chunk: chunk - 1 });
            for microbatch in 0..self.spec.microbatches {
                let id = MicrobatchId::from(microbatch);
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

    /// The same buffer within a device; otherwise a copy on the other device.
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

    /// Checkpoints and shared parameters have channels of their own, so that they do not queue behind activations.
    pub(super) fn channel(&mut self, from: DeviceId, to: DeviceId, payload: Payload) -> LaneId {
        let other = self.builder.name_of(to).to_owned();
        let word = match payload {
            Payload::Checkpoint => format!("checkpoints-to-{other}"),
            Payload::WeightsIn | Payload::GradientsOut => format!("shared-to-{other}"),
            _ => format!("to-{other}"),
        };
        self.builder.lane(from, &word, LaneRole::Channel)
    }

    /// A copy of the next iteration overwrites what this one's forward has read, and the forward before it what the copy has:
    /// no device runs ahead of the one behind it.
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

    /// Checkpoints leave only in the timestep before the one that uses them.
    pub(super) fn delay_checkpoints(&mut self) {
        let mut edges = Vec::new();
        for ((chunk, microbatch), buffer) in &self.checkpoints {
            let Some(copy) = self.sent.get(buffer) else { continue };
            // What the forward is passed anyway comes when the forward needs it.
            if self.builder.get(*copy).kind != ActionKind::Copy(Payload::Checkpoint) {
                continue;
            }
            let device = self.spec.backward[*chunk].device;
            let before = self.timestep_before(device, (*chunk, *microbatch));
            edges.extend(before.map(|before| (before, *copy)));
        }
        for (from, to) in edges {
            let anchor = crate::Anchor::StartToStart;
            let lag = spipe_base::SimTime::ZERO;
            self.builder.edge(crate::Edge { from, to, anchor, distance: 0, lag, cause: IdleCause::Order });
        }
    }

    /// What a device computes just before a backward: the microbatch before, or the last one of the chunk before.
    fn timestep_before(&self, device: DeviceId, (chunk, microbatch): (usize, usize)) -> Option<spipe_base::ActionId> {
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
