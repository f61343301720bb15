//! Gradients that are copied to the host after each microbatch and accumulated there (Ren et al.,
//! ZeRO-Offload, 2021, section 4.1). A device holds those of two stages: one in computation, and
//! one being copied.

use super::PipelineLowering;
use crate::{Access, Anchor, Content, Edge, Lifetime, ProgramBuilder};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, IdleCause, MemoryId, MicrobatchId, Payload, SimTime, StageId, Subject,
};
use spipe_plan::GRADIENT_SLOTS;

const SLOTS: usize = GRADIENT_SLOTS as usize;

/// The buffer of gradients on the host; for a delayed optimizer also that of the iteration before.
pub(super) fn on_host(
    builder: &mut ProgramBuilder,
    (content, host, bytes): (Content, MemoryId, Bytes),
    delayed: bool,
) -> (BufferId, Option<BufferId>) {
    let before = delayed.then(|| builder.buffer(content, host, bytes, Lifetime::Arrives));
    let lifetime = before.map_or(Lifetime::Transient, |before| Lifetime::Leaves { into: before });
    (builder.buffer(content, host, bytes, lifetime), before)
}

impl PipelineLowering<'_> {
    /// The buffer for the gradients of one microbatch, if they are copied to the host at once.
    pub(super) fn leaving_gradients(&mut self, stage: StageId) -> Option<BufferId> {
        let here = &self.stations[stage];
        let bytes = here.leaving?.bytes;
        let content = Content::Gradients(here.stage.layers);
        Some(self.builder.buffer(content, here.memory, bytes, Lifetime::Transient))
    }

    /// Copies the gradients of one microbatch to the host, where they are added to the sum.
    pub(super) fn send_gradients(
        &mut self,
        (stage, microbatch): (StageId, MicrobatchId),
        (from, backward): (BufferId, ActionId),
    ) {
        let here = &self.stations[stage];
        let (Some(leaving), Some(sum)) = (here.leaving, here.gradients) else { return };
        let (device, memory, layers) = (here.stage.lead(), here.memory, here.stage.layers);
        let done = self.accumulated[stage.index()];
        let mut reads = vec![Access::new(from, 1)];
        reads.extend((done > 0).then_some(Access::new(sum, done)));
        let subject = Subject { layers: Some(layers), ..Subject::work(stage, microbatch) };
        let out = (ActionKind::Copy(Payload::GradientsOut), memory, leaving.host);
        let copy = self.exchange((device, subject), out, leaving.bytes, (reads, Access::new(sum, done + 1)));
        self.accumulated[stage.index()] += 1;
        let sent = self.sent.entry(device).or_default();
        let before = sent.len().checked_sub(SLOTS).map(|index| sent[index].1);
        sent.push((backward, copy));
        if let Some(before) = before {
            self.gradient_slot(before, backward, 0);
        }
    }

    /// Adds the precedences of gradient slots across iterations.
    pub(super) fn join_gradients(&mut self) {
        let mut edges = Vec::new();
        for sent in self.sent.values() {
            let last = sent.iter().skip(sent.len().saturating_sub(SLOTS));
            edges.extend(last.zip(sent).map(|((_, copy), (backward, _))| (*copy, *backward)));
        }
        for (copy, backward) in edges {
            self.gradient_slot(copy, backward, 1);
        }
    }

    fn gradient_slot(&mut self, from: ActionId, to: ActionId, distance: u8) {
        let (anchor, cause) = (Anchor::EndToStart, IdleCause::Memory);
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause });
    }
}
