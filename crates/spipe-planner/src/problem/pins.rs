//! Pins: constraints that the user sets on the plan. Every device set below holds indices of
//! devices of the machine.

use crate::hosts::{on_device, socket_of};
use spipe_base::{DeviceId, LayerRange};
use spipe_cost::Mode;
use spipe_plan::{Activations, Context, Knob, Placement, Stage, System, Weights};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A constraint on the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The layers run on one of these devices.
    Layers(LayerRange, BTreeSet<usize>),
    /// The activations of the layers are saved, recomputed or offloaded.
    Activations(LayerRange, Activations),
    /// The optimizer steps of the layers run on one of these devices: their own, or a socket.
    Optimizer(LayerRange, BTreeSet<usize>),
    /// The parameters of the layers are streamed, or stay on their device.
    Streamed(LayerRange, bool),
    /// The host data of the layers' stages is on one of these sockets.
    Host(LayerRange, BTreeSet<usize>),
    /// The stage with this index is on one of these devices.
    Stage(usize, BTreeSet<usize>),
    /// The stages are these, each with its device and its layers, in this order.
    Stages(Vec<(usize, LayerRange)>),
    /// The system has this knob, at this value.
    Knob(Knob, u64),
}

/// A pin with the words in which it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The words.
    pub words: String,
    /// Their meaning.
    pub pin: Pin,
}

/// Pins that do not contradict each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    pub(crate) layers: BTreeMap<usize, BTreeSet<usize>>,
    activations: BTreeMap<usize, Activations>,
    optimizers: BTreeMap<usize, BTreeSet<usize>>,
    streamed: BTreeMap<usize, bool>,
    hosts: BTreeMap<usize, BTreeSet<usize>>,
    pub(crate) stages: BTreeMap<usize, BTreeSet<usize>>,
    pub(crate) knobs: BTreeMap<Knob, u64>,
    /// All stages, if they are given.
    given: Option<Vec<(usize, LayerRange)>>,
    /// The list from which the pins were made.
    named: Vec<Named>,
}

/// Two pins that no plan satisfies together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{first}` and `{second}` contradict each other: {what}")]
pub struct Contradiction {
    /// The words of the first pin.
    pub first: String,
    /// The words of the second pin.
    pub second: String,
    what: String,
}

/// The words of the last pin, by kind and by layer, stage or knob.
type By<'n> = BTreeMap<(&'static str, usize), &'n str>;

impl Pins {
    /// The pins of a list.
    ///
    /// # Errors
    /// The first pair of pins that leaves a layer or a stage no device, no socket or no optimizer
    /// device, or that demands two values for a choice of a layer or for a knob.
    pub fn new(named: &[Named]) -> Result<Self, Contradiction> {
        let mut pins = Self { named: named.to_vec(), ..Self::default() };
        let mut by = By::new();
        for Named { words, pin } in named {
            let each = |layers: &LayerRange| layers.iter().map(|layer| layer.index());
            match pin {
                Pin::Layers(layers, devices) => {
                    let left = |layer| format!("layer {layer} is left no device");
                    narrow(("layer", &mut pins.layers), each(layers), (devices, words, &mut by), left)?;
                }
                Pin::Optimizer(layers, devices) => {
                    let left = |layer| format!("layer {layer} is left nothing to step it");
                    narrow(("optimizer", &mut pins.optimizers), each(layers), (devices, words, &mut by), left)?;
                }
                Pin::Host(layers, sockets) => {
                    let left = |layer| format!("layer {layer} is left no socket");
                    narrow(("host", &mut pins.hosts), each(layers), (sockets, words, &mut by), left)?;
                }
                Pin::Stage(stage, devices) => {
                    let left = |stage| format!("stage {stage} is left no device");
                    let one = std::iter::once(*stage);
                    narrow(("stage", &mut pins.stages), one, (devices, words, &mut by), left)?;
                }
                Pin::Stages(stages) => {
                    for (device, layers) in stages {
                        let (left, one) =
                            (|layer| format!("layer {layer} is left no device"), BTreeSet::from([*device]));
                        narrow(("layer", &mut pins.layers), each(layers), (&one, words, &mut by), left)?;
                    }
                    pins.given = Some(stages.clone());
                }
                Pin::Activations(layers, wanted) => {
                    let both =
                        |layer, one, other| format!("layer {layer} cannot be both {} and {}", verb(one), verb(other));
                    agree(("activations", &mut pins.activations), each(layers), (*wanted, words, &mut by), both)?;
                }
                Pin::Streamed(layers, wanted) => {
                    let both = |layer, _, _| format!("layer {layer} cannot be both streamed and kept");
                    agree(("streamed", &mut pins.streamed), each(layers), (*wanted, words, &mut by), both)?;
                }
                Pin::Knob(knob, value) => {
                    let mut of_knob: BTreeMap<usize, u64> =
                        pins.knobs.get(knob).map(|value| (0, *value)).into_iter().collect();
                    let both = |_, one, other| format!("{knob} cannot be both {one} and {other}");
                    let kind = (knob.name(), &mut of_knob);
                    agree(kind, std::iter::once(0), (*value, words, &mut by), both)?;
                    pins.knobs.insert(*knob, *value);
                }
            }
        }
        Ok(pins)
    }

    /// The same pins where devices have other numbers; devices without a number are left out. `None` where a pin is left
    /// no device.
    pub fn renumbered(&self, number: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let set = |devices: &BTreeSet<usize>| {
            let left: BTreeSet<usize> = devices.iter().filter_map(|device| number(*device)).collect();
            (!left.is_empty()).then_some(left)
        };
        let pin = |pin: &Pin| {
            Some(match pin {
                Pin::Layers(layers, devices) => Pin::Layers(*layers, set(devices)?),
                Pin::Optimizer(layers, devices) => Pin::Optimizer(*layers, set(devices)?),
                Pin::Host(layers, sockets) => Pin::Host(*layers, set(sockets)?),
                Pin::Stage(stage, devices) => Pin::Stage(*stage, set(devices)?),
                Pin::Stages(stages) => {
                    let stage = |(device, layers): &(usize, LayerRange)| Some((number(*device)?, *layers));
                    Pin::Stages(stages.iter().map(stage).collect::<Option<_>>()?)
                }
                Pin::Activations(..) | Pin::Streamed(..) | Pin::Knob(..) => pin.clone(),
            })
        };
        let named = |named: &Named| Some(Named { words: named.words.clone(), pin: pin(&named.pin)? });
        Self::new(&self.named.iter().map(named).collect::<Option<Vec<_>>>()?).ok()
    }

    /// The same pins where all of `layers` layers are on `devices`; `None` where a pin forbids it.
    pub fn on_devices(&self, devices: BTreeSet<usize>, layers: usize) -> Option<Self> {
        let all = LayerRange::new(0.into(), layers.checked_sub(1)?.into())?;
        let own = Named { words: "the leads of teams".into(), pin: Pin::Layers(all, devices) };
        Self::new(&[self.named.as_slice(), &[own]].concat()).ok()
    }

    /// Returns, for each pin, its words and all pins except it.
    pub fn without_one(&self) -> impl Iterator<Item = (&str, Self)> {
        self.named.iter().enumerate().filter_map(|(index, pin)| {
            let others = [&self.named[..index], &self.named[index + 1..]].concat();
            Some((pin.words.as_str(), Self::new(&others).ok()?))
        })
    }

    /// Whether there are no pins.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// The words of the first pin that offloads activations.
    pub fn offloading(&self) -> Option<&str> {
        let offloads = |named: &&Named| matches!(named.pin, Pin::Activations(_, Activations::Offloaded));
        self.named.iter().find(offloads).map(|named| named.words.as_str())
    }

    /// Whether some pin names a layer.
    pub fn count_layers(&self) -> bool {
        self.named.iter().any(|named| !matches!(named.pin, Pin::Stage(..) | Pin::Knob(..)))
    }

    /// All stages with their devices, if the pins give them.
    pub fn given_stages(&self) -> Option<&[(usize, LayerRange)]> {
        self.given.as_deref()
    }

    /// Whether `placement` has the given stages.
    fn allows_given(&self, placement: &Placement) -> bool {
        let stages = placement.stages.iter().map(|stage| (stage.lead().index(), stage.layers));
        self.given.as_ref().is_none_or(|given| given.iter().copied().eq(stages))
    }

    /// Whether layer `layer` may be on a device.
    pub(crate) fn allows_layer(&self, layer: usize, device: usize) -> bool {
        self.layers.get(&layer).is_none_or(|devices| devices.contains(&device))
    }

    /// Whether stage `stage` may be on a device.
    pub(crate) fn allows_stage(&self, stage: usize, device: usize) -> bool {
        self.stages.get(&stage).is_none_or(|devices| devices.contains(&device))
    }

    /// Returns, by pinned stage, whether it may be on `device`.
    pub(crate) fn allows_stages(&self, device: usize) -> Vec<bool> {
        self.stages.values().map(|devices| devices.contains(&device)).collect()
    }

    /// Whether stages on `devices`, in stage order, include every pinned one, each on an allowed
    /// device.
    pub(crate) fn allows_devices(&self, devices: &[usize]) -> bool {
        self.stages.keys().all(|stage| *stage < devices.len())
            && devices.iter().enumerate().all(|(stage, device)| self.allows_stage(stage, *device))
    }

    /// Whether layer `layer` must be recomputed (`true`) or must not (`false`); `None` without a
    /// pin.
    pub(crate) fn recompute(&self, layer: usize) -> Option<bool> {
        self.activations.get(&layer).map(|wanted| *wanted == Activations::Recomputed)
    }

    /// Whether the activations of layer `layer` must be offloaded (`true`) or must not (`false`);
    /// `None` without a pin, and where the layer is recomputed.
    pub(crate) fn offload(&self, layer: usize) -> Option<bool> {
        match self.activations.get(&layer)? {
            Activations::Recomputed => None,
            wanted => Some(*wanted == Activations::Offloaded),
        }
    }

    /// Whether the parameters of layer `layer` must be streamed (`true`) or must stay (`false`);
    /// `None` without a pin.
    pub(crate) fn streamed(&self, layer: usize) -> Option<bool> {
        self.streamed.get(&layer).copied()
    }

    /// The same with the parameters of `layers` layers kept on their devices, but for those pinned otherwise.
    pub(crate) fn with_all_kept(&self, layers: usize) -> Self {
        let mut pins = self.clone();
        (0..layers).for_each(|layer| {
            pins.streamed.entry(layer).or_insert(false);
        });
        pins
    }

    /// Whether the optimizer step of layer `layer` may run on a device.
    pub(crate) fn allows_step(&self, layer: usize, device: usize) -> bool {
        self.optimizers.get(&layer).is_none_or(|devices| devices.contains(&device))
    }

    /// Whether the stage of layer `layer` may have data on a socket.
    pub(crate) fn allows_host(&self, layer: usize, socket: usize) -> bool {
        self.hosts.get(&layer).is_none_or(|sockets| sockets.contains(&socket))
    }

    /// Whether two layers have the same pins. Layers with different pins belong to different runs.
    pub(crate) fn same(&self, one: usize, other: usize) -> bool {
        self.layers.get(&one) == self.layers.get(&other)
            && self.activations.get(&one) == self.activations.get(&other)
            && self.optimizers.get(&one) == self.optimizers.get(&other)
            && self.streamed.get(&one) == self.streamed.get(&other)
            && self.hosts.get(&one) == self.hosts.get(&other)
    }

    /// Whether `placement` satisfies all pins. In sharded systems, every participating device
    /// counts as having all layers.
    pub fn allow(&self, context: &Context<'_>, placement: &Placement) -> bool {
        if self.is_empty() {
            return true;
        }
        let shared: Vec<usize> = if placement.shards_parameters() {
            placement.replicas().into_iter().map(|id| id.index()).collect()
        } else {
            Vec::new()
        };
        let on = |layer: usize, device: usize| {
            self.allows_layer(layer, device) && shared.iter().all(|device| self.allows_layer(layer, *device))
        };
        let training = context.workload().mode == Mode::Train;
        let layers = placement
            .all_stages()
            .all(|stage| stage.layers.iter().all(|layer| on(layer.index(), stage.lead().index())));
        let kept = placement.backward_stages().iter().all(|stage| {
            if placement.shards_parameters() {
                self.allow_shared(context, placement.replicas(), stage)
            } else {
                self.allow_stage(context, stage, training)
            }
        });
        let devices: Vec<usize> = placement.stages.iter().map(|stage| stage.lead().index()).collect();
        layers && kept && self.allows_given(placement) && self.allows_devices(&devices) && self.allows_knobs(placement)
    }

    /// Whether `system` has all pinned knobs.
    pub fn suit(&self, system: System) -> bool {
        self.knobs.keys().all(|knob| knob.is_of(system))
    }

    /// Whether the system of `placement` has the pinned knobs, and `placement` their values.
    pub(crate) fn allows_knobs(&self, placement: &Placement) -> bool {
        let held = |(knob, value): (&Knob, &u64)| knob.is_of(placement.system) && knob.of(placement) == Some(*value);
        self.knobs.iter().all(held)
    }

    /// The pinned value of a knob.
    pub fn knob(&self, knob: Knob) -> Option<u64> {
        self.knobs.get(&knob).copied()
    }

    /// `placement` with the pinned size of groups that have a copy of everything.
    pub(crate) fn grouped(&self, placement: Placement) -> Placement {
        match self.knob(Knob::ShardGroup) {
            Some(size) => placement.with(Knob::ShardGroup, size),
            None => placement,
        }
    }

    /// `placement` with the pinned values of the knobs that do not depend on its stages. Offload slots that
    /// are set keep their value.
    pub(crate) fn with_common_knobs(&self, placement: Placement) -> Placement {
        let pinned = |knob: Knob| self.knob(knob).filter(|_| knob.is_of(placement.system));
        let slots = placement.offload.slots.or(pinned(Knob::OffloadSlots));
        let switches = [Knob::UrgentSteps, Knob::GradientsLeave, Knob::SynchronousOptimizer];
        let on = switches.into_iter().filter(|knob| pinned(*knob) == Some(1));
        on.fold(placement.clone(), |held, knob| held.with(knob, 1)).with_option(Knob::OffloadSlots, slots)
    }

    /// Whether the choices of a sharded stage satisfy the pins on each participating device; each
    /// has its shard of host data on the host near it.
    pub(crate) fn allow_shared(
        &self,
        context: &Context<'_>,
        devices: impl IntoIterator<Item = DeviceId>,
        stage: &Stage,
    ) -> bool {
        let training = context.workload().mode == Mode::Train;
        devices.into_iter().all(|device| self.allow_stage(context, &on_device(context, stage, device), training))
    }

    /// Whether the choices of a stage satisfy the pins of its layers.
    fn allow_stage(&self, context: &Context<'_>, stage: &Stage, training: bool) -> bool {
        let host = socket_of(context, stage);
        let streams = matches!(stage.weights, Weights::Streamed(_));
        let steps = context.steps(stage).index();
        stage.layers.iter().map(|layer| layer.index()).enumerate().all(|(offset, layer)| {
            let again = self.recompute(layer).is_none_or(|wanted| wanted == (offset < stage.recomputed));
            let leaves = self.offload(layer).is_none_or(|wanted| wanted == stage.offload.is_some());
            let stepped = self.allows_step(layer, steps);
            let hosted = host.is_none_or(|socket| self.allows_host(layer, socket.index()));
            let streamed = self.streamed(layer).is_none_or(|wanted| wanted == streams);
            (!training || (again && leaves && stepped)) && hosted && streamed
        })
    }
}

/// The participle that messages use.
const fn verb(activations: Activations) -> &'static str {
    match activations {
        Activations::Saved => "saved",
        Activations::Recomputed => "recomputed",
        Activations::Offloaded => "offloaded",
    }
}

/// Intersects the set of each of `keys` with `devices`.
fn narrow<'n>(
    (kind, all): (&'static str, &mut BTreeMap<usize, BTreeSet<usize>>),
    keys: impl Iterator<Item = usize>,
    (devices, words, by): (&BTreeSet<usize>, &'n str, &mut By<'n>),
    what: impl Fn(usize) -> String,
) -> Result<(), Contradiction> {
    for key in keys {
        let left = all.entry(key).or_insert_with(|| devices.clone());
        *left = &*left & devices;
        let before = by.insert((kind, key), words);
        if let (true, Some(first)) = (left.is_empty(), before) {
            return Err(Contradiction { first: first.into(), second: words.into(), what: what(key) });
        }
    }
    Ok(())
}

/// Sets each of `keys` to `wanted`.
fn agree<'n, V: Copy + PartialEq>(
    (kind, all): (&'static str, &mut BTreeMap<usize, V>),
    keys: impl Iterator<Item = usize>,
    (wanted, words, by): (V, &'n str, &mut By<'n>),
    what: impl Fn(usize, V, V) -> String,
) -> Result<(), Contradiction> {
    for key in keys {
        let before = all.insert(key, wanted);
        let first = by.insert((kind, key), words);
        if let (Some(before), Some(first)) = (before.filter(|before| *before != wanted), first) {
            return Err(Contradiction { first: first.into(), second: words.into(), what: what(key, before, wanted) });
        }
    }
    Ok(())
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
        let of = |first: usize, last: usize, wanted: Activations| Pin::Activations(range(first, last), wanted);
        let clash = pins(&[of(0, 3, Activations::Recomputed), of(3, 4, Activations::Saved)]).unwrap_err();
        assert_eq!(
            clash.to_string(),
            "`p0` and `p1` contradict each other: layer 3 cannot be both recomputed and saved"
        );
        let both = pins(&[of(0, 3, Activations::Recomputed), of(4, 4, Activations::Offloaded)]).unwrap();
        assert_eq!([both.recompute(2), both.recompute(4), both.recompute(5)], [Some(true), Some(false), None]);
        assert_eq!([both.offload(2), both.offload(4), both.offload(5)], [None, Some(true), None]);
        assert!(both.same(1, 3) && !both.same(3, 4));
    }

    #[test]
    fn other_choices_contradict_each_other_too() {
        let range = LayerRange::new(0.into(), 3.into()).unwrap();
        let one = |device: usize| BTreeSet::from([device]);
        for (first, second, what) in [
            (Pin::Optimizer(range, one(0)), Pin::Optimizer(range, one(1)), "layer 0 is left nothing to step it"),
            (Pin::Host(range, one(0)), Pin::Host(range, one(1)), "layer 0 is left no socket"),
            (Pin::Streamed(range, true), Pin::Streamed(range, false), "layer 0 cannot be both streamed and kept"),
            (Pin::Knob(Knob::Resident, 2), Pin::Knob(Knob::Resident, 3), "resident cannot be both 2 and 3"),
        ] {
            let clash = pins(&[first.clone(), second]).unwrap_err();
            assert_eq!(clash.to_string(), format!("`p0` and `p1` contradict each other: {what}"));
            assert!(pins(&[first.clone(), first, Pin::Knob(Knob::Swap, 1)]).is_ok());
        }
    }

    #[test]
    fn a_pinned_stage_must_be_there() {
        let pinned = pins(&[Pin::Stage(1, BTreeSet::from([2]))]).unwrap();
        assert!(pinned.allows_devices(&[0, 2]) && !pinned.allows_devices(&[0, 1]) && !pinned.allows_devices(&[2]));
    }
}
