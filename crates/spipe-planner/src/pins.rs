//! What a plan must hold, whatever is faster: pins.

use crate::refine::on;
use spipe_base::{DeviceId, LayerRange};
use spipe_cost::Mode;
use spipe_plan::{Context, Family, Placement, Stage};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// One thing that a plan must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// These layers are on one of these devices.
    Layers(LayerRange, BTreeSet<usize>),
    /// These layers are recomputed, or are not.
    Recompute(LayerRange, bool),
    /// The stage of that number is on one of these devices.
    Stage(usize, BTreeSet<usize>),
}

/// A pin with the words that it was given in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The words.
    pub words: String,
    /// What they say.
    pub pin: Pin,
}

/// Pins that do not contradict each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    layers: BTreeMap<usize, BTreeSet<usize>>,
    recompute: BTreeMap<usize, bool>,
    stages: BTreeMap<usize, BTreeSet<usize>>,
    /// The list that they are from.
    named: Vec<Named>,
}

/// Two pins of which a plan can hold only one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{first}` and `{second}` contradict each other: {what}")]
pub struct Contradiction {
    /// The words of the one.
    pub first: String,
    /// The words of the other.
    pub second: String,
    what: String,
}

impl Pins {
    /// The pins of a list, or the first pair that contradicts itself.
    ///
    /// # Errors
    /// Both pins of a pair that leaves a layer or a stage no device, or that recomputes a layer and does not.
    pub fn new(named: &[Named]) -> Result<Self, Contradiction> {
        let mut pins = Self { named: named.to_vec(), ..Self::default() };
        let mut by: BTreeMap<(&str, usize), &str> = BTreeMap::new();
        for Named { words, pin } in named {
            let clash =
                |first: &str, what: String| Err(Contradiction { first: first.into(), second: words.clone(), what });
            match pin {
                Pin::Layers(layers, devices) => {
                    for layer in layers.iter().map(|layer| layer.index()) {
                        let left = narrow(&mut pins.layers, layer, devices);
                        let before = by.insert(("layer", layer), words);
                        if let (true, Some(first)) = (left, before) {
                            return clash(first, format!("layer {layer} is left no device"));
                        }
                    }
                }
                Pin::Recompute(layers, wanted) => {
                    for layer in layers.iter().map(|layer| layer.index()) {
                        let before = pins.recompute.insert(layer, *wanted);
                        let first = by.insert(("recompute", layer), words);
                        if let (Some(first), true) = (first, before.is_some_and(|before| before != *wanted)) {
                            return clash(first, format!("layer {layer} cannot be both saved and recomputed"));
                        }
                    }
                }
                Pin::Stage(stage, devices) => {
                    let left = narrow(&mut pins.stages, *stage, devices);
                    if let (true, Some(first)) = (left, by.insert(("stage", *stage), words)) {
                        return clash(first, format!("stage {stage} is left no device"));
                    }
                }
            }
        }
        Ok(pins)
    }

    /// Each pin's words, with all pins but that one.
    pub fn without_one(&self) -> impl Iterator<Item = (&str, Self)> {
        self.named.iter().enumerate().filter_map(|(index, pin)| {
            let others = [&self.named[..index], &self.named[index + 1..]].concat();
            Some((pin.words.as_str(), Self::new(&others).ok()?))
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.recompute.is_empty() && self.stages.is_empty()
    }

    /// Whether layer `layer` may be on a device.
    pub(crate) fn allows_layer(&self, layer: usize, device: usize) -> bool {
        self.layers.get(&layer).is_none_or(|devices| devices.contains(&device))
    }

    /// Whether stage `stage` may be on a device.
    pub(crate) fn allows_stage(&self, stage: usize, device: usize) -> bool {
        self.stages.get(&stage).is_none_or(|devices| devices.contains(&device))
    }

    /// By pinned stage: whether it may be on a device.
    pub(crate) fn allows_stages(&self, device: usize) -> Vec<bool> {
        self.stages.values().map(|devices| devices.contains(&device)).collect()
    }

    /// `placement` with devices exchanged for others of their kind, so that pinned layers and stages are where they may be.
    pub(crate) fn hold(&self, context: &Context<'_>, placement: &Placement) -> Placement {
        let mut held = placement.clone();
        let layers = self.layers.iter().map(|(layer, devices)| (Err(*layer), devices));
        for (pinned, devices) in layers.chain(self.stages.iter().map(|(stage, devices)| (Ok(*stage), devices))) {
            let is = |(index, stage): &(usize, &Stage)| match pinned {
                Ok(pinned) => *index == pinned,
                Err(layer) => stage.layers.contains(layer.into()),
            };
            let Some((_, stage)) = held.stages.iter().enumerate().find(is) else { continue };
            let here = stage.device;
            let alike = |device: &DeviceId| context.is_cpu(*device) == context.is_cpu(here);
            let there = devices.iter().map(|device| DeviceId::from(*device)).find(alike);
            if let Some(there) = there.filter(|_| !devices.contains(&here.index())) {
                for stage in held.stages.iter_mut().chain(held.backward.iter_mut()) {
                    *stage = match stage.device {
                        device if device == here => on(context, stage, there),
                        device if device == there => on(context, stage, here),
                        _ => *stage,
                    };
                }
            }
        }
        held
    }

    /// Whether every pinned stage is one of `stages`, each on a device that it may be on.
    pub(crate) fn allows_devices(&self, devices: &[usize]) -> bool {
        self.stages.keys().all(|stage| *stage < devices.len())
            && devices.iter().enumerate().all(|(stage, device)| self.allows_stage(stage, *device))
    }

    /// Whether layer `layer` must be recomputed, or must not.
    pub(crate) fn recompute(&self, layer: usize) -> Option<bool> {
        self.recompute.get(&layer).copied()
    }

    /// What the planner may not tell apart: layers between which a pin ends cost differently.
    pub(crate) fn same(&self, one: usize, other: usize) -> bool {
        self.layers.get(&one) == self.layers.get(&other) && self.recompute(one) == self.recompute(other)
    }

    /// Whether `placement` holds them all. Devices that share everything have all layers.
    pub fn allow(&self, context: &Context<'_>, placement: &Placement) -> bool {
        if self.is_empty() {
            return true;
        }
        let shared: Vec<usize> = match placement.system.family() {
            Family::Sharded => placement.participants(context.hardware).into_iter().map(|id| id.index()).collect(),
            _ => Vec::new(),
        };
        let on = |layer: usize, device: usize| {
            self.allows_layer(layer, device) && shared.iter().all(|device| self.allows_layer(layer, *device))
        };
        let training = context.workload().mode == Mode::Train;
        let layers = placement
            .all_stages()
            .all(|stage| stage.layers.iter().all(|layer| on(layer.index(), stage.device.index())));
        let recomputed = placement.backward_stages().iter().all(|stage| {
            let first = stage.layers.first().index();
            stage.layers.iter().enumerate().all(|(offset, _)| {
                !training || self.recompute(first + offset).is_none_or(|wanted| wanted == (offset < stage.recomputed))
            })
        });
        let devices: Vec<usize> = placement.stages.iter().map(|stage| stage.device.index()).collect();
        layers && recomputed && self.allows_devices(&devices)
    }
}

/// Leaves a key only `devices`; whether nothing is left.
fn narrow(all: &mut BTreeMap<usize, BTreeSet<usize>>, key: usize, devices: &BTreeSet<usize>) -> bool {
    let left = all.entry(key).or_insert_with(|| devices.clone());
    *left = &*left & devices;
    left.is_empty()
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(first: usize, last: usize, devices: &[usize]) -> Pin {
        let range = LayerRange::new(first.into(), last.into()).unwrap();
        Pin::Layers(range, devices.iter().copied().collect())
    }

    fn pins(list: &[Pin]) -> Result<Pins, Contradiction> {
        let named = |(index, pin): (usize, &Pin)| Named { words: format!("p{index}"), pin: pin.clone() };
        Pins::new(&list.iter().enumerate().map(named).collect::<Vec<_>>())
    }

    #[test]
    fn pins_narrow_each_other_until_nothing_is_left() {
        let both = pins(&[layers(0, 3, &[0, 1]), layers(2, 5, &[1, 2])]).unwrap();
        assert!(both.allows_layer(0, 0) && both.allows_layer(2, 1) && !both.allows_layer(2, 0));
        assert!(!both.same(1, 2) && both.same(2, 3) && both.allows_layer(9, 7));
        let alone: Vec<(&str, bool)> =
            both.without_one().map(|(words, others)| (words, others.allows_layer(2, 0))).collect();
        assert_eq!(alone, [("p0", false), ("p1", true)]);
        let none = pins(&[layers(0, 3, &[0]), layers(7, 8, &[0]), layers(3, 5, &[1])]).unwrap_err();
        assert_eq!(none.to_string(), "`p0` and `p2` contradict each other: layer 3 is left no device");
    }

    #[test]
    fn a_layer_is_saved_or_recomputed() {
        let range = |first: usize, last: usize| LayerRange::new(first.into(), last.into()).unwrap();
        let clash = pins(&[Pin::Recompute(range(0, 3), true), Pin::Recompute(range(3, 4), false)]).unwrap_err();
        assert_eq!((clash.first.as_str(), clash.second.as_str()), ("p0", "p1"));
        assert_eq!(pins(&[Pin::Recompute(range(0, 3), true)]).unwrap().recompute(2), Some(true));
    }

    #[test]
    fn a_pinned_stage_must_be_there() {
        let pinned = pins(&[Pin::Stage(1, BTreeSet::from([2]))]).unwrap();
        assert!(pinned.allows_devices(&[0, 2]) && !pinned.allows_devices(&[0, 1]) && !pinned.allows_devices(&[2]));
    }
}
