//! The work of a stage on one microbatch.

use spipe_base::{Bytes, LayerId, LayerRange, Seconds};
use spipe_cost::LayerTime;
use spipe_model::Recompute;
use spipe_plan::{Context, Stage};

/// A computation: its time on the device, and the bytes that it moves through the device's memory.
pub(crate) type Work = (Seconds, Bytes);

/// The computations of a stage on one microbatch.
#[derive(Clone, Copy)]
pub(crate) struct StageWork {
    pub forward: Work,
    pub recompute: Work,
    pub backward_input: Work,
    pub backward_weight: Work,
    /// The additional time of a backward whose second part comes later.
    pub split: Seconds,
}

impl StageWork {
    /// The computations of `stage`.
    pub fn of(context: &Context<'_>, stage: &Stage) -> Self {
        let sum = |layers: Vec<LayerId>, part: &dyn Fn(&LayerTime) -> Work| {
            layers
                .into_iter()
                .filter_map(|layer| context.cost.time(layer, stage.lead()))
                .map(part)
                .fold((Seconds::ZERO, Bytes::ZERO), |(time, bytes), (more, moved)| (time + more, bytes + moved))
        };
        let all: Vec<LayerId> = stage.layers.iter().collect();
        let again: Vec<LayerId> = stage.recomputed_layers().into_iter().flat_map(|layers| layers.iter()).collect();
        let recompute_time =
            again.iter().filter_map(|layer| context.cost.recompute_time(*layer, stage.lead(), Recompute::Full)).sum();
        let (_, recompute_traffic) = sum(again, &|time| (time.forward, time.forward_traffic));
        // Each half of a backward reads the incoming gradient and about as much again.
        let half = |time: &LayerTime| Bytes::new(time.backward_traffic.get() / 2);
        let offloaded = stage.layers.iter().skip(if stage.offload.is_some() { stage.recomputed } else { all.len() });
        let (replay, _) = sum(offloaded.collect(), &|time| (time.replay, Bytes::ZERO));
        let (input_time, input_traffic) =
            sum(all.clone(), &|time| (time.backward_input, time.backward_traffic - half(time)));
        Self {
            forward: sum(all.clone(), &|time| (time.forward, time.forward_traffic)),
            recompute: (recompute_time, recompute_traffic),
            backward_input: (input_time + replay, input_traffic),
            backward_weight: sum(all.clone(), &|time| (time.backward_weight, half(time))),
            split: sum(all, &|time| (time.split, Bytes::ZERO)).0,
        }
    }

    /// The computations of `stage` where its host waits for copies at some of its two ends: the device's queue is empty
    /// there, and until it has filled, during one layer, the times of host and device add up.
    pub fn after_copies(context: &Context<'_>, stage: &Stage, [before, behind]: [bool; 2]) -> Self {
        let mut work = Self::of(context, stage);
        let at_end = |layers: LayerRange, layer: LayerId| {
            (before && layer == layers.first()) || (behind && layer == layers.last())
        };
        let queueing = |layers: LayerRange, pass: usize| -> Seconds {
            let filling = layers.iter().filter(|layer| at_end(layers, *layer));
            let times = filling.filter_map(|layer| context.cost.time(layer, stage.lead()));
            times.map(|time| time.queueing[pass]).sum()
        };
        work.forward.0 = work.forward.0 + queueing(stage.layers, 0);
        if let Some(again) = stage.recomputed_layers() {
            work.recompute.0 = work.recompute.0 + queueing(again, 0);
        }
        work.backward_input.0 = work.backward_input.0 + queueing(stage.layers, 1);
        work.backward_weight.0 = work.backward_weight.0 + queueing(stage.layers, 2);
        work
    }

    /// The second part of a backward, where it comes later than the first.
    pub fn later_weight(&self) -> Work {
        (self.backward_weight.0 + self.split, self.backward_weight.1)
    }

    /// The fused backward.
    pub fn backward(&self) -> Work {
        (self.backward_input.0 + self.backward_weight.0, self.backward_input.1 + self.backward_weight.1)
    }
}
