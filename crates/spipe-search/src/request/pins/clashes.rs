//! Pins that no plan can satisfy, alone or together.

use crate::request::spelling::Spelling;
use spipe_base::{DeviceId, Diagnostic, Faults, LayerRange};
use spipe_cost::Mode;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Activations, FEWEST_OFFLOAD_SLOTS, Knob, check_groups};
use spipe_planner::{LARGEST_HEAD_START, Named, Pin};
use std::collections::BTreeSet;

/// The faults of `named` for this model, machine and mode.
pub fn of(named: &[Named], (model, hardware, mode): (&Model, &Hardware, Mode), spelling: Spelling) -> Faults {
    let mut faults = Faults::new();
    named.iter().filter_map(|pin| alone(pin, (model, mode), spelling)).for_each(|fault| faults.push(fault));
    named.iter().filter_map(|pin| undivided(pin, (named, hardware))).for_each(|fault| faults.push(fault));
    let pairs = || named.iter().flat_map(|one| named.iter().map(move |other| (one, other)));
    for (one, other) in pairs() {
        if let Some(what) = together(&one.pin, &other.pin, hardware) {
            let fault = format!("`{}` and `{}` contradict each other: {what}", one.words, other.words);
            faults.push(Diagnostic::error(fault).hint("drop one of the two"));
        }
    }
    faults
}

/// The fault of one pin, if it has one.
fn alone(named: &Named, (model, mode): (&Model, Mode), spelling: Spelling) -> Option<Diagnostic> {
    let words = &named.words;
    let layers = model.layers().len();
    match named.pin {
        Pin::Activations(..) | Pin::Optimizer(..) if mode != Mode::Train => Some(
            Diagnostic::error(format!("`{words}` does nothing in inference, which has no backward and no optimizer"))
                .hint(format!("leave it out, or plan with {}", spelling.value("mode", "train"))),
        ),
        Pin::Stage(stage, _) if stage >= layers => Some(
            Diagnostic::error(format!("`{words}`: `{}` has {layers} layers, and no more stages", model.name()))
                .hint(format!("count from 0 to {}", layers - 1)),
        ),
        Pin::Knob(knob, value) => {
            let least = match knob {
                Knob::HeadStart | Knob::UrgentSteps | Knob::GradientsLeave | Knob::SynchronousOptimizer => 0,
                Knob::OffloadSlots => FEWEST_OFFLOAD_SLOTS,
                _ => 1,
            };
            let most = if knob == Knob::HeadStart { LARGEST_HEAD_START } else { Knob::LARGEST };
            let hint = if value < least { format!("use at least {least}") } else { format!("use {most} at most") };
            let fault = || Diagnostic::error(format!("`{words}`: {knob} cannot be {value}")).hint(hint);
            (!(least..=most).contains(&value)).then(fault)
        }
        _ => None,
    }
}

/// The fault of groups that do not divide the GPUs of a machine, or those that a pin says.
fn undivided(pin: &Named, (named, hardware): (&[Named], &Hardware)) -> Option<Diagnostic> {
    let Pin::Knob(Knob::ShardGroup, size @ 1..) = pin.pin else { return None };
    let shards = named.iter().find_map(|named| match named.pin {
        Pin::Knob(Knob::Shards, shards) => Some(shards as usize),
        _ => None,
    });
    let gpus: Vec<DeviceId> = hardware.gpus().take(shards.unwrap_or(usize::MAX)).collect();
    check_groups(hardware, &gpus, size).err()
}

/// Why no plan satisfies both pins, if none does.
fn together(one: &Pin, other: &Pin, hardware: &Hardware) -> Option<String> {
    let is_socket = |index: &usize| !hardware.devices()[DeviceId::from(*index)].is_gpu();
    let on_sockets = |devices: &BTreeSet<usize>| devices.iter().all(is_socket);
    let common = |one: &LayerRange, other: &LayerRange| one.iter().find(|layer| other.contains(*layer));
    match (one, other) {
        (Pin::Layers(here, devices), Pin::Streamed(layers, true)) if on_sockets(devices) => {
            common(here, layers).map(|layer| format!("layer {layer} is on a CPU, from which nothing is streamed"))
        }
        (Pin::Layers(here, devices), Pin::Activations(layers, Activations::Offloaded)) if on_sockets(devices) => {
            common(here, layers).map(|layer| format!("layer {layer} is on a CPU, from which nothing is offloaded"))
        }
        // The optimizer step of a layer runs on its own device, or for a layer of a GPU on a
        // socket.
        (Pin::Layers(here, devices), Pin::Optimizer(layers, steps))
            if devices.is_disjoint(steps) && (on_sockets(devices) || !steps.iter().any(is_socket)) =>
        {
            common(here, layers).map(|layer| {
                format!("the optimizer step of layer {layer} runs on its own device, or for a GPU on a socket")
            })
        }
        (Pin::Optimizer(here, steps), Pin::Streamed(layers, true)) if !steps.iter().any(is_socket) => {
            common(here, layers).map(|layer| {
                format!("layer {layer} is streamed, and its optimizer step runs on the socket that it comes from")
            })
        }
        (Pin::Stage(0, on), Pin::Layers(layers, devices)) if layers.first().index() == 0 && on.is_disjoint(devices) => {
            Some("the first stage has layer 0".into())
        }
        (Pin::Knob(Knob::Swap, swap), Pin::Knob(Knob::Resident, resident)) if swap > resident => {
            Some(format!("no more than the {resident} resident layers can be exchanged at a time"))
        }
        _ => None,
    }
}
