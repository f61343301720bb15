//! How much room stages need that all share: those of a division, and of any at least.

use crate::costs::CostSums;
use crate::{
    formulation::sharded::Program,
    space::sharded::{Choice, Home, Length, gathered, units},
};
use spipe_base::{Bytes, DeviceId, LayerId, LayerRange};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Stage, held_while_computing, sharded_footprint};

/// Of how many stages at the end of a run it is counted what is held while they compute.
const NEAR_THE_END: usize = 3;

/// What is known of stages in whole.
pub(crate) enum Whole {
    Divided {
        divided: Vec<LayerRange>,
        /// How often each is gathered in an iteration.
        gathers: Vec<u64>,
        /// By participant, what is there while each computes, if all save and if all recompute.
        held: Vec<[Vec<Bytes>; 2]>,
    },
    Any {
        recomputed: usize,
    },
}

/// Bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Need {
    /// Shards that stay.
    pub on_device: f64,
    pub on_host: f64,
    /// For the backward.
    pub kept: f64,
    /// Beside these while the last stage of the run computes, if it makes the choice.
    pub computing: f64,
}

/// What holds of any division, in bytes of a device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Any {
    /// What a stage that recomputes so many layers has beside shards at least.
    pub again: f64,
    /// What the layers of the stage that begins the model are charged too much for inputs.
    pub beginning: f64,
    /// Gradients of the last layer.
    pub gradients: f64,
}

impl Program<'_, '_> {
    /// All layers in stages, of which as many are there in whole as are resident.
    pub(crate) fn divided(&self, costs: &CostSums<'_>, (length, resident): (Length, usize), home: Home) -> Whole {
        let divided: Vec<LayerRange> = costs.runs.iter().flat_map(|run| units(*run, length)).collect();
        let gathers = gathered(self.context, &divided, (self.rounds(), resident));
        let held = |device: &DeviceId| {
            [false, true].map(|recomputed| self.held(*device, (Choice { home, recomputed }, resident), &divided))
        };
        let held = self.devices.iter().map(held).collect();
        Whole::Divided { divided, gathers, held }
    }

    /// What a stage needs that is one of so many; `held` is what there is while those up to the last of these compute.
    pub(crate) fn need_of(&self, device: DeviceId, stage: &Stage, (count, held): (usize, &[Bytes])) -> Need {
        let need = sharded_footprint(self.context, (device, self.devices.len()), stage);
        // Of those before the last one more may be held at a time than what the ones behind keep.
        let near = held.iter().rev().take(count.min(NEAR_THE_END)).enumerate();
        let computing = near.map(|(back, held)| held.saturating_sub(need.kept * back as u64)).max();
        Need {
            on_device: need.on_device.as_f64(),
            on_host: need.on_host.as_f64(),
            kept: need.kept.as_f64(),
            computing: computing.unwrap_or_default().as_f64(),
        }
    }

    /// What is there while each stage computes, where all come from the host that may.
    fn held(&self, device: DeviceId, (choice, resident): (Choice, usize), divided: &[LayerRange]) -> Vec<Bytes> {
        let footprint = |layers: &LayerRange| {
            let stage = choice.stage(self.context, *layers)?;
            Some(sharded_footprint(self.context, (device, self.devices.len()), &stage))
        };
        held_while_computing(&divided.iter().filter_map(footprint).collect::<Vec<_>>(), resident)
    }

    /// What any of `units`, which are single layers, needs in whatever stage it is.
    pub(crate) fn least_need(
        &self,
        device: DeviceId,
        choice: Choice,
        (units, recomputed): (&[LayerRange], usize),
    ) -> Need {
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Need::default() };
        let memory: &LayerMemory = self.context.cost.memory(first.first(), device);
        let training = self.context.workload().mode == Mode::Train;
        let part = |bytes: Bytes| bytes.as_f64() / self.devices.len() as f64;
        let (weights, steps) = (part(memory.parameters + memory.gradients), part(memory.optimizer));
        let (on_device, on_host) = match choice.home {
            Home::Device => (weights + steps, 0.0),
            Home::Stepped => (weights, weights + steps),
            Home::Host => (0.0, weights + steps),
        };
        // The input of its stage is that of some layer before it; one that begins the model has less.
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

    /// What a device has, beside shards and what is kept, while it computes whatever stage has a layer: its neighbours are of the same stage
    /// or of the one that comes next. In the backward its gradients are there and those of the layer behind it, and what is recomputed. The
    /// layer before it finds no less, but for what that one saves.
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

    /// Bytes of the input of a stage that begins with a layer.
    fn input(&self, device: DeviceId, layer: usize) -> f64 {
        let memory = |layer: usize| self.context.cost.memory(layer.into(), device);
        layer.checked_sub(1).map_or(memory(0).input, |before| memory(before).boundary).as_f64()
    }

    /// What a stage that recomputes so many neighbouring layers has at least, if they are several: these as saved and in whole.
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

    /// What the last layer has of gradients while it computes its backward.
    pub(crate) fn gradients(&self, device: DeviceId) -> f64 {
        let last = self.context.cost.layers().last().filter(|last| self.context.cost.needs_backward(*last));
        last.map_or(0.0, |last| self.context.cost.memory(last, device).gradients.as_f64())
    }

    /// What is charged too much for the layers of the stage that begins the model.
    pub(crate) fn beginning(&self, device: DeviceId, recomputed: usize) -> f64 {
        let inputs = (0..self.context.cost.layers().len()).map(|layer| self.input(device, layer));
        let (others, all) = ((2 * recomputed - 2) as f64, (2 * recomputed - 1) as f64);
        inputs.fold(0.0, f64::max) * others / all
    }
}
