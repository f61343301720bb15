//! What one device holds while it goes from chunk to chunk.

use super::{Exchanges, Exchanging, Visit, boundaries_in_passing};
use crate::{
    Boundary, Context, Footprint, InFlight, Placement, Stage, StageFootprint, Weights,
    footprint::{add, input_bytes, shared_state},
    stage_footprint,
};
use spipe_base::{Bytes, DeviceId, LayerId, StageId};
use spipe_cost::{LayerMemory, Mode};

/// Adds what one device holds: all of what chunks that keep their parameters have; what its chunks keep for the backward, on every
/// microbatch; and the most that is there besides while it makes one of its visits.
pub(super) fn on_device(context: &Context<'_>, (placement, device): (&Placement, DeviceId), memories: &mut Footprint) {
    let memory = context.hardware.devices()[device].memory;
    let (training, coupled) = (context.workload().mode == Mode::Train, placement.backward.is_empty());
    let devices = placement.devices().len();
    let here = Here {
        context,
        placement,
        device,
        training,
        coupled,
        alone: training && coupled && devices == 1,
        passing: boundaries_in_passing(context, devices),
    };
    for (index, stage) in placement.all_stages().enumerate().filter(|(_, stage)| stage.device == device) {
        let backward = index >= placement.stages.len();
        let kept = StageFootprint {
            state: if backward { Bytes::ZERO } else { here.state(stage) },
            per_microbatch: here.kept((index, stage), backward),
            in_flight: context.workload().microbatches,
            ..StageFootprint::default()
        };
        add(memories, memory, (StageId::from(index), kept));
    }
    let visits = here.visits();
    let (weights, gradients) = (here.weights(&visits), here.gradients(&visits));
    let moving = weights.into_iter().zip(gradients).map(|(weights, gradients)| weights + gradients);
    let passing = here.passing_at_most();
    let during = visits.iter().zip(moving).map(|((visit, stage), moving)| StageFootprint {
        slots: moving + passing + here.handed_on((*visit, stage)),
        transient: here.transient((*visit, stage)),
        ..StageFootprint::default()
    });
    let most = during.max_by_key(StageFootprint::total).unwrap_or_default();
    add(memories, memory, (StageId::new(0), most));
}

struct Here<'a> {
    context: &'a Context<'a>,
    placement: &'a Placement,
    device: DeviceId,
    training: bool,
    /// Whether both passes have the same chunks.
    coupled: bool,
    /// Whether nothing passes between devices, and both passes have the same chunks.
    alone: bool,
    passing: Option<u64>,
}

impl Here<'_> {
    /// The visits of the device in the order in which it makes them, with their chunks.
    fn visits(&self) -> Vec<(Visit, Stage)> {
        let here = |(_, stage): &(usize, &Stage)| stage.device == self.device;
        let forward = self.placement.stages.iter().enumerate().filter(here);
        let forward = forward.map(|(chunk, stage)| (Visit { backward: false, chunk }, *stage));
        let returns = |(_, stage): &(usize, &Stage)| self.training && self.returns(stage);
        let backward = self.placement.backward_stages().iter().enumerate().rev().filter(here).filter(returns);
        forward.chain(backward.map(|(chunk, stage)| (Visit { backward: true, chunk }, *stage))).collect()
    }

    fn returns(&self, stage: &Stage) -> bool {
        self.context.backward_of(stage.layers).is_some()
    }

    fn streams(stage: &Stage) -> bool {
        matches!(stage.weights, Weights::Streamed(_))
    }

    fn memory(&self, layer: LayerId) -> &LayerMemory {
        self.context.cost.memory(layer, self.device)
    }

    /// Σ over its layers, and the same of another chunk's parameters that one of them uses as well: they come and go with its own.
    fn sum(&self, stage: &Stage, [own, tied]: [fn(&LayerMemory) -> Bytes; 2]) -> Bytes {
        let own: Bytes = stage.layers.iter().map(|layer| own(self.memory(layer))).sum();
        own + self.context.model.borrows(stage.layers).map_or(Bytes::ZERO, |tie| tied(self.memory(tie.user)))
    }

    /// Throughout.
    fn state(&self, stage: &Stage) -> Bytes {
        let sum = |part: fn(&LayerMemory) -> Bytes| stage.layers.iter().map(|layer| part(self.memory(layer))).sum();
        if Self::streams(stage) {
            return sum(|memory| memory.cache);
        }
        let state: Bytes = sum(LayerMemory::state);
        state + shared_state(self.context, self.placement, stage)
    }

    /// What a chunk keeps of one microbatch: its input until its backward, and what it saves beside that. Where backwards have chunks of their
    /// own, inputs of these, and those that are made here on their way to other devices. Where iterations may follow each other closely, what
    /// comes in and leaves for other devices, too.
    fn kept(&self, (index, stage): (usize, &Stage), backward: bool) -> Bytes {
        let input = input_bytes(self.context, stage);
        let returns = self.training && self.returns(stage);
        let closely = self.passing.is_none() && !backward;
        let inputs = if closely || (returns && (backward || self.coupled)) { input } else { Bytes::ZERO };
        let next = self.placement.stages.get(StageId::from(index + 1)).filter(|_| closely);
        let leaves = next.is_some_and(|next| next.device != self.device);
        let output = if leaves { self.memory(stage.layers.last()).boundary } else { Bytes::ZERO };
        let saved = if self.coupled && returns { self.need(stage).per_microbatch } else { Bytes::ZERO };
        let made = if self.coupled || backward { Bytes::ZERO } else { self.made_in((index, stage)) };
        inputs + output + saved.saturating_sub(input) + made
    }

    /// Inputs of backward chunks on other devices that a forward chunk makes, other than those that its next chunk's device gets in any case.
    fn made_in(&self, (index, stage): (usize, &Stage)) -> Bytes {
        let next = self.placement.stages.get(StageId::from(index + 1)).map(|next| next.device);
        let made = self.placement.backward.iter().filter(|back| {
            let before = back.layers.first().index().checked_sub(1).map(LayerId::from);
            let goes_on = before == Some(stage.layers.last()) && next == Some(back.device);
            before.is_some_and(|before| stage.layers.contains(before))
                && back.device != self.device
                && self.returns(back)
                && !goes_on
        });
        made.map(|back| input_bytes(self.context, &Stage { device: self.device, ..*back })).sum()
    }

    fn need(&self, stage: &Stage) -> StageFootprint {
        let plain = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..*stage };
        stage_footprint(self.context, &plain, InFlight(1), [Boundary::End; 2])
    }

    /// By visit, parameters that come and go.
    fn weights(&self, visits: &[(Visit, Stage)]) -> Vec<Bytes> {
        let exchanging = Exchanging::of(self.placement);
        let streamed = visits.iter().enumerate().filter(|(_, (_, stage))| Self::streams(stage));
        let bytes = |stage: &Stage| self.sum(stage, [|memory| memory.parameters, |memory| memory.tied_parameters]);
        let sizes: Vec<(usize, Bytes)> = streamed.clone().map(|(at, (_, stage))| (at, bytes(stage))).collect();
        let most = sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
        if self.placement.knobs.write_back {
            // Where parameters are copied back, they are gone only then.
            return vec![most * exchanging.capacity() as u64; visits.len()];
        }
        let on = |device| self.placement.stages.iter().filter(|stage| stage.device == device).count();
        if !self.training && self.placement.devices().into_iter().all(|device| on(device) <= exchanging.resident) {
            // All are there, and nothing steps them.
            return vec![sizes.iter().map(|(_, bytes)| *bytes).sum(); visits.len()];
        }
        let of_streamed: Vec<Visit> = streamed.map(|(_, (visit, _))| *visit).collect();
        // What the next iteration begins with is stepped once its own backward has ended.
        let first = sizes.first().map(|(at, _)| visits[*at].1);
        let trains = |layer: &LayerId| self.context.cost.trained_parameters(*layer) > 0;
        let renewed = |visit: usize| {
            let (Visit { backward, .. }, stage) = visits[visit];
            let waits = |first: Stage| first.layers.iter().filter(trains).any(|layer| layer <= stage.layers.last());
            !backward || !first.is_some_and(waits)
        };
        Exchanges::new(&of_streamed, &exchanging).there(visits.len(), &sizes, &renewed)
    }

    /// By visit, gradients of the chunk that it computes and of the one on its way out ([`crate::GRADIENT_SLOTS`]). The last ones have left
    /// when a chunk with their layers comes in for the next forward.
    fn gradients(&self, visits: &[(Visit, Stage)]) -> Vec<Bytes> {
        let of = |stage: &Stage| self.sum(stage, [|memory| memory.gradients, |memory| memory.tied_gradients]);
        let leave =
            |(visit, stage): &&(Visit, Stage)| visit.backward && Self::streams(stage) && of(stage) > Bytes::ZERO;
        let leaving: Vec<(Visit, Stage)> = visits.iter().filter(leave).copied().collect();
        let two = |last: usize| {
            let own = leaving.get(last).map_or(Bytes::ZERO, |(_, stage)| of(stage));
            own + last.checked_sub(1).map_or(Bytes::ZERO, |before| of(&leaving[before].1))
        };
        let mut next = 0_usize;
        let of_visit = |(visit, stage): &(Visit, Stage)| {
            if visit.backward {
                let before = next.checked_sub(1).map_or(Bytes::ZERO, two);
                if leaving.get(next).is_none_or(|(other, _)| other != visit) {
                    return before;
                }
                next += 1;
                // What is recomputed waits for no gradient to leave.
                let again = if stage.recomputed > 0 { before } else { Bytes::ZERO };
                return two(next - 1).max(again);
            }
            let Some((_, last)) = leaving.last() else { return Bytes::ZERO };
            let trains = last.layers.iter().any(|layer| self.context.cost.trained_parameters(layer) > 0);
            let out = trains && last.layers.first() <= stage.layers.last();
            if out { Bytes::ZERO } else { two(leaving.len() - 1) }
        };
        visits.iter().map(of_visit).collect()
    }

    /// What a recompute makes, and what a forward or backward needs for itself.
    fn transient(&self, (visit, stage): (Visit, &Stage)) -> Bytes {
        let saved = |layer: LayerId| self.memory(layer).saved;
        let again: Bytes = stage.recomputed_layers().iter().flat_map(|layers| layers.iter()).map(saved).sum();
        let all = self.need(stage).transient;
        if visit.backward { all } else { all - again }
    }

    /// What passes between chunks at most where it does not depend on the visit.
    fn passing_at_most(&self) -> Bytes {
        let microbatches = self.context.workload().microbatches;
        let (mut boundary, mut ends) = (Bytes::ZERO, Bytes::ZERO);
        for (index, stage) in self.placement.all_stages().enumerate().filter(|(_, stage)| stage.device == self.device) {
            let (input, output) = (input_bytes(self.context, stage), self.memory(stage.layers.last()).boundary);
            boundary = boundary.max(input).max(output);
            let next = self.placement.stages.get(StageId::from(index + 1));
            let leaves = if next.is_some_and(|next| next.device != self.device) { output } else { Bytes::ZERO };
            ends += (input + leaves) * microbatches;
        }
        match self.passing {
            Some(_) if self.alone => Bytes::ZERO,
            Some(count) if self.training => boundary * count,
            Some(count) => ends.min(boundary * count),
            // Gradients of the boundary that comes in, of the one that goes out, and of one on its way.
            None => boundary * if self.training { 3 * microbatches } else { 0 },
        }
    }

    /// Where the device is alone, what a visit hands on: the forward's outputs are inputs that are kept, but for chunks that have no
    /// backward. For each gradient that the backward makes or reads, an input of the chunk behind has been left, but for one.
    fn handed_on(&self, (visit, stage): (Visit, &Stage)) -> Bytes {
        if !self.alone {
            return Bytes::ZERO;
        }
        let input = input_bytes(self.context, stage);
        if visit.backward {
            return if self.context.passes_gradient(stage.layers) { input } else { Bytes::ZERO };
        }
        let microbatches = self.context.workload().microbatches;
        let next = self.placement.stages.get(StageId::from(visit.chunk + 1));
        let output = next.filter(|next| !self.returns(next)).map(|_| self.memory(stage.layers.last()).boundary);
        let kept = self.returns(stage);
        match (kept, output) {
            (true, _) => Bytes::ZERO,
            (false, None) => input * microbatches,
            (false, Some(output)) => input.max(output) * microbatches + input.min(output),
        }
    }
}
