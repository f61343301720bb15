//! An estimate of the iteration time of a placement that streams parameters: the load of its busiest
//! resource, and the time until all devices are at work.

use crate::costs::{back_through, bytes_of, ms_of};
use crate::score::lane::{Lane, link_times};
use spipe_base::{Bytes, DeviceId, MemoryId};
use spipe_cost::LayerMemory;
use spipe_plan::{Context, Knob, Placement, Stage, Weights};
use std::collections::BTreeMap;

/// Estimates the iteration time of `placement`, in ms: the time for which its busiest resource works, a
/// device with passes and steps or a link with copies of parameters and gradients, and for each device
/// but one the time of a microbatch on the slowest stage.
///
/// A streamed stage is copied to its device for its forward and for its backward, unless the device
/// still holds it between the two; its gradients are copied out once.
pub(crate) fn estimate(context: &Context<'_>, placement: &Placement) -> f64 {
    let mut busy = Busy { context, lanes: BTreeMap::new() };
    let mut slowest = [0.0_f64; 2];
    let (back, same) = (placement.backward_stages(), placement.backward.is_empty());
    let held = Knob::Resident.of(placement).unwrap_or(1) as usize;
    let rounds = context.workload().microbatches as f64;
    // Of each device, the streamed stages that its last forwards have left there.
    let mut left: BTreeMap<DeviceId, usize> = BTreeMap::new();
    for stage in placement.stages.iter() {
        let time = ms_of(context, (stage.layers, stage.lead()), |time| time.forward);
        slowest[0] = slowest[0].max(time);
        busy.add(Lane::Compute(stage.lead()), rounds * time);
        busy.parameters(stage);
    }
    for stage in back.iter().rev().filter(|stage| context.backward_of(stage.layers).is_some()) {
        let time = back_through(context, stage);
        slowest[1] = slowest[1].max(time);
        busy.add(Lane::Compute(stage.lead()), rounds * time);
        let seen = left.entry(stage.lead()).or_default();
        if matches!(stage.weights, Weights::Streamed(_)) {
            if !same || *seen >= held {
                busy.parameters(stage);
            }
            *seen += 1;
        }
        busy.step(stage);
    }
    let others = placement.devices().len().saturating_sub(1) as f64;
    busy.lanes.into_values().fold(0.0, f64::max) + others * slowest.iter().sum::<f64>()
}

struct Busy<'b, 'a> {
    context: &'b Context<'a>,
    lanes: BTreeMap<Lane, f64>,
}

impl Busy<'_, '_> {
    fn add(&mut self, lane: Lane, ms: f64) {
        *self.lanes.entry(lane).or_default() += ms;
    }

    /// Adds the copies of a streamed stage's parameters to its device.
    fn parameters(&mut self, stage: &Stage) {
        if let Weights::Streamed(host) = stage.weights {
            let bytes = bytes_of(self.context, (stage.layers, stage.lead()), |memory| memory.streamed);
            self.moves((host, self.memory_of(stage.lead())), bytes);
        }
    }

    /// Adds the optimizer step of a stage, and the copies of its gradients and of what it changes.
    fn step(&mut self, stage: &Stage) {
        let trained: u64 = stage.layers.iter().map(|layer| self.context.cost.trained_parameters(layer)).sum();
        let steps = stage.optimizer.unwrap_or(stage.lead());
        self.add(Lane::Compute(steps), self.context.cost.optimizer_time(trained, steps).to_ms());
        if steps == stage.lead() {
            return;
        }
        let (here, host) = (self.memory_of(stage.lead()), self.memory_of(steps));
        let bytes = |part: fn(&LayerMemory) -> Bytes| bytes_of(self.context, (stage.layers, stage.lead()), part);
        let (gradients, updated) = (bytes(|memory| memory.gradients), bytes(|memory| memory.updated));
        self.moves((here, host), gradients);
        if stage.weights == Weights::Resident {
            self.moves((host, here), updated);
        }
    }

    fn memory_of(&self, device: DeviceId) -> MemoryId {
        self.context.hardware.devices()[device].memory
    }

    fn moves(&mut self, ends: (MemoryId, MemoryId), bytes: Bytes) {
        for (link, time) in link_times(self.context.hardware, ends, bytes.as_f64()) {
            self.add(Lane::Link(link), time);
        }
    }
}
