//! The footprint of one device that streams chunks.

use crate::{
    Context, ExchangePolicy, Exchanges, InFlight, Knob, Placement, Stage, Visit, Weights,
    footprint::stage::{
        Boundary, Footprint, StageFootprint, add, input_bytes, recomputed_bytes, shard, stage_footprint, tied_state,
    },
};
use spipe_base::{Bytes, DeviceId, LayerId, StageId};
use spipe_cost::{LayerMemory, Mode};

/// The most boundary tensors of one microbatch between chunks that a device holds at a time, beside
/// the inputs of chunks that have a backward. `None` if it depends on the number of chunks.
///
/// - In training it is m + 1 for m microbatches. A microbatch is at one place at a time: its output
///   is held until the next device has it, and its gradient until it has been used; the microbatch
///   in computation has both. This needs iterations not to overlap, which holds if the first layer
///   is trained or there is only one device.
/// - In inference it is 3m + 1, inputs included: one iteration may leave the device while the next
///   is on it and a third arrives.
pub fn transient_boundaries(context: &Context<'_>, devices: usize) -> Option<u64> {
    let microbatches = context.workload().microbatches;
    let in_turn = || devices == 1 || context.cost.trained_parameters(LayerId::new(0)) > 0;
    match context.workload().mode {
        Mode::Train => in_turn().then_some(microbatches + 1),
        Mode::Infer | Mode::Generate => Some(3 * microbatches + 1),
    }
}

/// Adds the bytes that one device holds:
///
/// - the state of the chunks whose parameters stay;
/// - the saved activations of its chunks, for all microbatches;
/// - the most that it holds beside these during any of its visits.
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
        boundaries: transient_boundaries(context, devices),
    };
    for (index, stage) in placement.all_stages().enumerate().filter(|(_, stage)| stage.lead() == device) {
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
    let boundaries = here.boundary_bytes();
    let during = visits.iter().zip(moving).map(|((visit, stage), moving)| StageFootprint {
        slots: moving + boundaries + here.passed_on((*visit, stage)),
        transient: here.transient((*visit, stage)),
        ..StageFootprint::default()
    });
    let most = during.max_by_key(StageFootprint::total).unwrap_or_default();
    add(memories, memory, (StageId::new(0), most));
}

/// One device of a streamed placement.
struct Here<'a> {
    context: &'a Context<'a>,
    placement: &'a Placement,
    device: DeviceId,
    training: bool,
    /// Whether both passes have the same chunks.
    coupled: bool,
    /// Whether it is the only device, in training with the same chunks in both passes.
    alone: bool,
    /// See [`transient_boundaries`].
    boundaries: Option<u64>,
}

impl Here<'_> {
    /// The visits of the device in execution order, with their chunks.
    fn visits(&self) -> Vec<(Visit, Stage)> {
        let here = |(_, stage): &(usize, &Stage)| stage.lead() == self.device;
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

    /// The sum over the layers of a chunk, with tied parameters of another chunk, which are
    /// streamed with its own.
    fn sum(&self, stage: &Stage, [own, tied]: [fn(&LayerMemory) -> Bytes; 2]) -> Bytes {
        let own: Bytes = stage.layers.iter().map(|layer| own(self.memory(layer))).sum();
        own + self.context.model.borrows(stage.layers).map_or(Bytes::ZERO, |tie| tied(self.memory(tie.user)))
    }

    /// The part of gradients that a device has beside them while replicas sum them.
    fn summed(&self, gradients: Bytes) -> Bytes {
        let holders = self.context.mesh().holders();
        if holders > 1 { shard(gradients, holders as usize) } else { Bytes::ZERO }
    }

    /// The bytes of a chunk that are held throughout.
    fn state(&self, stage: &Stage) -> Bytes {
        let sum = |part: fn(&LayerMemory) -> Bytes| stage.layers.iter().map(|layer| part(self.memory(layer))).sum();
        if Self::streams(stage) {
            return sum(|memory| memory.cache);
        }
        let state: Bytes = sum(LayerMemory::state);
        let summed = if self.training { self.summed(sum(|memory| memory.gradients)) } else { Bytes::ZERO };
        state + summed + tied_state(self.context, self.placement, stage)
    }

    /// The bytes that a chunk holds for each microbatch: its input until its backward, and its
    /// saved activations.
    ///
    /// If the backward has its own chunks, these are the inputs of backward chunks, and the
    /// checkpoints made here for other devices. If iterations may overlap, the incoming input and
    /// the outgoing output are held as well.
    fn kept(&self, (index, stage): (usize, &Stage), backward: bool) -> Bytes {
        let input = input_bytes(self.context, stage);
        let returns = self.training && self.returns(stage);
        let overlaps = self.boundaries.is_none() && !backward;
        let inputs = if overlaps || (returns && (backward || self.coupled)) { input } else { Bytes::ZERO };
        let next = self.placement.stages.get(StageId::from(index + 1)).filter(|_| overlaps);
        let leaves = next.is_some_and(|next| next.lead() != self.device);
        let output = if leaves { self.memory(stage.layers.last()).boundary } else { Bytes::ZERO };
        let saved = if self.coupled && returns { self.need(stage).per_microbatch } else { Bytes::ZERO };
        let made = if self.coupled || backward { Bytes::ZERO } else { self.checkpoints_made((index, stage)) };
        inputs + output + saved.saturating_sub(input) + made
    }

    /// The inputs of backward chunks on other devices that a forward chunk makes, except those that
    /// the device of the next forward chunk receives in any case.
    fn checkpoints_made(&self, (index, stage): (usize, &Stage)) -> Bytes {
        let next = self.placement.stages.get(StageId::from(index + 1)).map(|next| next.lead());
        let made = self.placement.backward.iter().filter(|back| {
            let before = back.layers.first().index().checked_sub(1).map(LayerId::from);
            let goes_on = before == Some(stage.layers.last()) && next == Some(back.lead());
            before.is_some_and(|before| stage.layers.contains(before))
                && back.lead() != self.device
                && self.returns(back)
                && !goes_on
        });
        made.map(|back| input_bytes(self.context, &back.on(self.device))).sum()
    }

    fn need(&self, stage: &Stage) -> StageFootprint {
        let plain = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..*stage };
        stage_footprint(self.context, &plain, InFlight(1), [Boundary::End; 2])
    }

    /// The streamed parameters on the device during each visit.
    fn weights(&self, visits: &[(Visit, Stage)]) -> Vec<Bytes> {
        let policy = ExchangePolicy::of(self.placement);
        let streamed = visits.iter().enumerate().filter(|(_, (_, stage))| Self::streams(stage));
        let bytes = |stage: &Stage| self.sum(stage, [|memory| memory.parameters, |memory| memory.tied_parameters]);
        let sizes: Vec<(usize, Bytes)> = streamed.clone().map(|(at, (_, stage))| (at, bytes(stage))).collect();
        let most = sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
        if Knob::WriteBack.of(self.placement) == Some(1) {
            // Parameters that are copied back hold their memory until the copy has ended.
            return vec![most * policy.capacity() as u64; visits.len()];
        }
        let on = |device| self.placement.stages.iter().filter(|stage| stage.lead() == device).count();
        if !self.training && self.placement.devices().into_iter().all(|device| on(device) <= policy.resident) {
            // All parameters fit at once, and no optimizer step changes them.
            return vec![sizes.iter().map(|(_, bytes)| *bytes).sum(); visits.len()];
        }
        let of_streamed: Vec<Visit> = streamed.map(|(_, (visit, _))| *visit).collect();
        // The first parameters of the next iteration are updated once their own backward has ended.
        let first = sizes.first().map(|(at, _)| visits[*at].1);
        let trains = |layer: &LayerId| self.context.cost.trained_parameters(*layer) > 0;
        let updated = |visit: usize| {
            let (Visit { backward, .. }, stage) = visits[visit];
            let waits = |first: Stage| first.layers.iter().filter(trains).any(|layer| layer <= stage.layers.last());
            !backward || !first.is_some_and(waits)
        };
        Exchanges::new(&of_streamed, &policy).bytes_held(visits.len(), &sizes, &updated)
    }

    /// The gradients on the device during each visit: those of the chunk in computation, and those
    /// of the chunk being copied out ([`crate::GRADIENT_SLOTS`]). The last ones have left when a
    /// chunk with their layers arrives for the next forward.
    fn gradients(&self, visits: &[(Visit, Stage)]) -> Vec<Bytes> {
        let of = |stage: &Stage| {
            let all = self.sum(stage, [|memory| memory.gradients, |memory| memory.tied_gradients]);
            all + self.summed(all)
        };
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
                // A recompute does not wait until gradients have left.
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

    /// Recomputed activations and workspace.
    fn transient(&self, (visit, stage): (Visit, &Stage)) -> Bytes {
        let again = recomputed_bytes(self.context, stage);
        let all = self.need(stage).transient;
        if visit.backward { all } else { all - again }
    }

    /// The bytes of boundary tensors between chunks, where they do not depend on the visit.
    fn boundary_bytes(&self) -> Bytes {
        let microbatches = self.context.workload().microbatches;
        let (mut boundary, mut ends) = (Bytes::ZERO, Bytes::ZERO);
        for (index, stage) in self.placement.all_stages().enumerate().filter(|(_, stage)| stage.lead() == self.device) {
            let (input, output) = (input_bytes(self.context, stage), self.memory(stage.layers.last()).boundary);
            boundary = boundary.max(input).max(output);
            let next = self.placement.stages.get(StageId::from(index + 1));
            let leaves = if next.is_some_and(|next| next.lead() != self.device) { output } else { Bytes::ZERO };
            ends += (input + leaves) * microbatches;
        }
        match self.boundaries {
            Some(_) if self.alone => Bytes::ZERO,
            Some(count) if self.training => boundary * count,
            Some(count) => ends.min(boundary * count),
            // The incoming gradient, the outgoing one, and one being copied.
            None => boundary * if self.training { 3 * microbatches } else { 0 },
        }
    }

    /// The bytes of boundary tensors of a visit, where the device is the only one.
    ///
    /// Outputs of the forward are saved as inputs of the next chunk, unless that has no backward.
    /// Each gradient of the backward takes the place of a saved input of the chunk after it, except
    /// one.
    fn passed_on(&self, (visit, stage): (Visit, &Stage)) -> Bytes {
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
