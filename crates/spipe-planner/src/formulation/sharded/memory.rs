//! Memory of sharded stages: of a given division, and lower bounds for any division.

use crate::{
    costs::CostSums,
    formulation::sharded::ShardedProgram,
    space::sharded::{Home, Length, ShardedMode, gathered, units},
};
use spipe_base::{Bytes, DeviceId, LayerId, LayerRange};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Stage, held_while_computing, sharded_footprint};

/// Number of stages at the end of a run for which memory during compute is counted.
const NEAR_THE_END: usize = 3;

/// Gathered stages.
pub(crate) enum StageDivision {
    Divided {
        divided: Vec<LayerRange>,
        /// Gathers of each stage per iteration.
        gathers: Vec<u64>,
        /// By participant, bytes held while each stage computes, if all save and if all recompute.
        held: Vec<[Vec<Bytes>; 2]>,
    },
    Any {
        recomputed: usize,
    },
}

/// Memory of a stage, in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Need {
    /// Shards that stay.
    pub on_device: f64,
    pub on_host: f64,
    /// Activations kept for the backward.
    pub kept: f64,
    /// Further bytes while the last stage of the run computes, if it has this choice.
    pub computing: f64,
}

/// Bounds for any division, in bytes of a device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Any {
    /// Least bytes besides shards of a stage that recomputes the given number of layers.
    pub again: f64,
    /// Excess of the input that the layers of the model's first stage are charged.
    pub beginning: f64,
    /// Gradients of the last layer.
    pub gradients: f64,
}

impl ShardedProgram<'_, '_> {
    /// Divides all layers into stages, at most `resident` of which are gathered at a time.
    pub(crate) fn divided(
        &self,
        costs: &CostSums<'_>,
        (length, resident): (Length, usize),
        home: Home,
    ) -> StageDivision {
        let divided: Vec<LayerRange> = costs.runs.iter().flat_map(|run| units(*run, length)).collect();
        let gathers = gathered(self.context, &divided, (self.rounds(), resident));
        let held = |device: &DeviceId| {
            [false, true].map(|recomputed| self.held(*device, (ShardedMode { home, recomputed }, resident), &divided))
        };
        let held = self.groups.devices().iter().map(held).collect();
        StageDivision::Divided { divided, gathers, held }
    }

    /// Returns the memory of one of `count` equal stages. `held` has the bytes while each stage
    /// computes, up to the last of these.
    pub(crate) fn need_of(&self, device: DeviceId, stage: &Stage, (count, held): (usize, &[Bytes])) -> Need {
        let need = sharded_footprint(self.context, (device, &self.groups), stage);
        // Stages before the last one may hold more at a time than the ones behind them keep.
        let near = held.iter().rev().take(count.min(NEAR_THE_END)).enumerate();
        let computing = near.map(|(back, held)| held.saturating_sub(need.kept * back as u64)).max();
        Need {
            on_device: need.on_device.as_f64(),
            on_host: need.on_host.as_f64(),
            kept: need.kept.as_f64(),
            computing: computing.unwrap_or_default().as_f64(),
        }
    }

    /// Returns the bytes held while each stage computes, where all stages are streamed that may be.
    fn held(&self, device: DeviceId, (choice, resident): (ShardedMode, usize), divided: &[LayerRange]) -> Vec<Bytes> {
        let footprint = |layers: &LayerRange| {
            let stage = choice.stage(self.context, *layers)?;
            Some(sharded_footprint(self.context, (device, &self.groups), &stage))
        };
        held_while_computing(&divided.iter().filter_map(footprint).collect::<Vec<_>>(), resident)
    }

    /// Returns the least memory of any of `units`, which are single layers, in whatever stage it
    /// is.
    pub(crate) fn least_need(
        &self,
        device: DeviceId,
        choice: ShardedMode,
        (units, recomputed): (&[LayerRange], usize),
    ) -> Need {
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Need::default() };
        let memory: &LayerMemory = self.context.cost.memory(first.first(), device);
        let training = self.context.workload().mode == Mode::Train;
        let part = |bytes: Bytes| bytes.as_f64() / self.groups.size() as f64;
        let (weights, steps) = (part(memory.parameters + memory.gradients), part(memory.optimizer));
        let (on_device, on_host) = match choice.home {
            Home::Device => (weights + steps, 0.0),
            Home::Stepped => (weights, part(memory.updated + memory.gradients) + steps),
            Home::Host => (0.0, weights + steps),
        };
        // The input of its stage is that of some layer before it; the model's first stage has less.
        let (first, last) = (first.first().index(), last.first().index());
        let begin = if first == 0 { 0 } else { first.saturating_sub(2 * recomputed - 2).max(1) };
        let input = (begin..=last).map(|layer| self.input(device, layer)).fold(f64::INFINITY, f64::min);
        let kept = match (training && self.context.cost.needs_backward(last.into()), choice.recomputed) {
            (false, _) => 0.0,
            (true, true) => input / (2 * recomputed - 1) as f64,
            (true, false) => memory.saved.as_f64(),
        };
        let again = if choice.recomputed { memory.saved.as_f64() } else { 0.0 };
        Need {
            on_device: part(memory.cache) + on_device,
            on_host,
            kept,
            computing: self.least_computing(device, last, again),
        }
    }

    /// Returns the least bytes, besides shards and saved activations, while the stage of a layer
    /// computes. The layer's neighbours are in the same stage or in the next one. During the
    /// backward, its gradients, those of the layer behind it, and its recomputed activations are
    /// present. The layer before it has at least as much, except for the activations that that
    /// layer saves.
    fn least_computing(&self, device: DeviceId, layer: usize, again: f64) -> f64 {
        let here = self.least_at(device, layer, again);
        let saved = self.context.cost.memory(layer.into(), device).saved.as_f64();
        layer.checked_sub(1).map_or(here, |before| here.max(self.least_at(device, before, 0.0) - saved))
    }

    fn least_at(&self, device: DeviceId, layer: usize, again: f64) -> f64 {
        let count = self.context.cost.layers().len();
        let of = |layer: usize, part: fn(&LayerMemory) -> Bytes| {
            if layer < count { part(self.context.cost.memory(layer.into(), device)).as_f64() } else { 0.0 }
        };
        let returns = |layer: usize| self.context.cost.needs_backward(layer.into());
        let before = layer.checked_sub(1).filter(|before| returns(*before));
        let forward = of(layer + 1, |memory| memory.parameters);
        let backward = before.map_or(0.0, |before| of(before, |memory| memory.parameters))
            + of(layer, |memory| memory.gradients)
            + of(layer + 1, |memory| memory.gradients)
            + again;
        of(layer, |memory| memory.workspace + memory.parameters)
            + forward.max(if returns(layer) { backward } else { 0.0 })
    }

    /// Returns the bytes of the input of a stage that begins with `layer`.
    fn input(&self, device: DeviceId, layer: usize) -> f64 {
        let memory = |layer: usize| self.context.cost.memory(layer.into(), device);
        layer.checked_sub(1).map_or(memory(0).input, |before| memory(before).boundary).as_f64()
    }

    /// Returns the least bytes of a stage that recomputes `count` consecutive layers, if there are
    /// several: their saved activations, parameters and gradients.
    pub(crate) fn again(&self, device: DeviceId, count: usize) -> f64 {
        let there = |layer| {
            let memory = self.context.cost.memory(layer, device);
            (memory.saved + memory.parameters + memory.gradients).as_f64()
        };
        let there: Vec<f64> = self.context.cost.layers().map(there).collect();
        let least = there.windows(count).map(|layers| layers.iter().sum()).fold(f64::INFINITY, f64::min);
        if count > 1 && least.is_finite() { least } else { 0.0 }
    }

    pub(crate) fn parameters(&self, device: DeviceId, layer: LayerId) -> f64 {
        self.context.cost.memory(layer, device).parameters.as_f64()
    }

    /// Returns the bytes of the last layer's gradients during its backward.
    pub(crate) fn gradients(&self, device: DeviceId) -> f64 {
        let last = self.context.cost.layers().last().filter(|last| self.context.cost.needs_backward(*last));
        last.map_or(0.0, |last| self.context.cost.memory(last, device).gradients.as_f64())
    }

    /// Returns the bytes of input that the layers of the model's first stage are charged in excess.
    pub(crate) fn beginning(&self, device: DeviceId, recomputed: usize) -> f64 {
        let inputs = (0..self.context.cost.layers().len()).map(|layer| self.input(device, layer));
        let (others, all) = ((2 * recomputed - 2) as f64, (2 * recomputed - 1) as f64);
        inputs.fold(0.0, f64::max) * others / all
    }
}
