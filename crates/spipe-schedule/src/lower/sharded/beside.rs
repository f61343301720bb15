//! Computation beside collectives, and when a backward gathers the parameters of the next one.
//!
//! Kernels of collectives take multiprocessors and memory bandwidth. A pass of w seconds beside collectives of t seconds,
//! during which it runs at a share f of its rate, takes
//!
//! ```text
//! w + min(w · (1/f − 1), t · (1 − f))
//! ```
//!
//! f is a constant of the runtime ([`Runtime::beside_collectives`](spipe_hardware::Runtime::beside_collectives)).

use super::ShardedLowering;
use spipe_base::{ActionId, Bytes, Seconds};
use spipe_hardware::{BackwardPrefetch, CollectiveKind};

impl ShardedLowering<'_> {
    /// The time by which the collectives beside the forward of a stage lengthen `work`: the gather of the next stage.
    pub(super) fn beside_forward(&mut self, at: usize, stage: usize, work: Seconds) -> Seconds {
        let next = (stage + 1 < self.stages()).then_some((stage + 1, CollectiveKind::AllGather));
        self.lengthened(at, &[next], work)
    }

    /// The same for a backward with its recompute: the reduction of the stage behind it, and the gather of the one before
    /// it unless that waits.
    pub(super) fn beside_backward(&mut self, at: usize, stage: usize, work: Seconds) -> Seconds {
        let behind = (stage + 1 < self.stages()).then_some((stage + 1, CollectiveKind::ReduceScatter));
        let before = stage.checked_sub(1).filter(|before| !self.waits() && self.returns(*before));
        self.lengthened(at, &[behind, before.map(|before| (before, CollectiveKind::AllGather))], work)
    }

    fn lengthened(&mut self, at: usize, beside: &[Option<(usize, CollectiveKind)>], work: Seconds) -> Seconds {
        let share = self.context.hardware.runtime().beside_collectives();
        if share >= 1.0 {
            return Seconds::ZERO;
        }
        let times = beside.iter().flatten().map(|(stage, kind)| self.collective_time(at, *stage, *kind));
        let collectives: Seconds = times.collect::<Vec<_>>().into_iter().sum();
        (work * (1.0 / share - 1.0)).min(collectives * (1.0 - share))
    }

    /// The time of a collective of a stage's parameters or gradients by itself.
    fn collective_time(&mut self, at: usize, stage: usize, kind: CollectiveKind) -> Seconds {
        let bytes = self.participants[at].parts[stage].bytes;
        let bytes = if kind == CollectiveKind::AllGather { bytes.parameters } else { bytes.gradients };
        let flows = if bytes == Bytes::ZERO { Vec::new() } else { self.ring(at, (kind, bytes)) };
        let links = self.context.hardware.links();
        let time = |flow: &crate::Flow| {
            let often = |link| flow.route.iter().filter(|other| **other == link).count() as f64;
            let rates = flow.route.iter().map(|link| links[*link].bandwidth.get() / often(*link));
            let rate = rates.chain(flow.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min);
            flow.latency.to_seconds() + Seconds::s(flow.bytes.as_f64() / rate)
        };
        flows.iter().map(time).fold(Seconds::ZERO, Seconds::max)
    }

    /// Whether gathers of a backward wait for the gradients of the stage behind.
    fn waits(&self) -> bool {
        self.context.hardware.runtime().backward_prefetch() == BackwardPrefetch::Post
    }

    /// Adds the gather for the backward before `stage` behind `backward`, where the runtime gathers then.
    pub(super) fn gather_after(&mut self, at: usize, stage: usize, backward: ActionId) {
        let before = stage.checked_sub(1).filter(|before| self.waits() && self.returns(*before));
        let on_drive = |before: &usize| self.participants[at].parts[*before].shelf.is_some();
        if let Some(before) = before.filter(|before| !on_drive(before)) {
            self.after = Some(backward);
            self.gather(at, before);
            self.after = None;
        }
    }
}
