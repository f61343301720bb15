//! Pins: conditions that a plan must satisfy, read from words.
//!
//! ```text
//! layer=0..3:cpu0      layers 0 to 3 are on `cpu0`; `cpu` or `gpu`: on any device of that kind
//! stage=0:gpu1         the first stage is on `gpu1`
//! recompute=4..7       activations are recomputed; `save`: kept; `offload`: copied to the host
//! optimizer=0..3:cpu   the optimizer step runs on a socket; `cpu1`: on that one; `gpu`: on the
//!                      device of the layer
//! stream=0..3          parameters are streamed; `keep`: they stay on the device
//! host=0..3:cpu1       all that the stages of these layers hold on a host is on that socket
//! resident=4           a knob of the system, by its name in plan files
//! system=1f1b          as the system          microbatch=2   as the size of microbatches
//! ```

mod clashes;

use super::spelling::Spelling;
use crate::error::SearchError;
use spipe_base::{Diagnostic, Faults, LayerRange};
use spipe_cost::Mode;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Activations, Knob};
use spipe_planner::{Named, Pin, Pins};
use std::collections::BTreeSet;

/// Words that were read.
#[derive(Debug, Default)]
pub struct Pinned {
    /// The conditions.
    pub pins: Pins,
    /// The systems that are asked for, or the pin of them.
    pub system: String,
    /// The size of microbatches that is asked for, or the pin of it.
    pub microbatch: String,
}

/// The conditions of a request in words.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// The pins.
    pub pins: &'a [String],
    /// Systems by name, or `auto`.
    pub system: &'a str,
    /// A number of sequences, or `auto`.
    pub microbatch: &'a str,
}

/// Reads pins, beside one that another setting is. System and microbatch count as pins unless they are `auto`.
///
/// # Errors
/// The faults of all pins, and those that contradict each other.
pub fn read(
    beside: Option<Named>,
    words: Words<'_>,
    (model, hardware, mode): (&Model, &Hardware, Mode),
    spelling: Spelling,
) -> Result<Pinned, SearchError> {
    let mut faults = Faults::new();
    let mut named: Vec<Named> = beside.into_iter().collect();
    let Words { pins, system, microbatch } = words;
    let mut systems = vec![(spelling.bare("system", system), system.to_owned())];
    let mut microbatches = vec![(spelling.bare("microbatch", microbatch), microbatch.to_owned())];
    for word in pins {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let pin = match key {
            "system" => {
                systems.push((word.clone(), value.to_owned()));
                continue;
            }
            "microbatch" => {
                microbatches.push((word.clone(), value.to_owned()));
                continue;
            }
            "layer" => on_devices(value, hardware)
                .and_then(|(layers, devices)| Ok(Pin::Layers(range(&layers, model)?, devices))),
            "stage" => on_devices(value, hardware).and_then(|(stage, devices)| match stage.parse() {
                Ok(stage) => Ok(Pin::Stage(stage, devices)),
                Err(_) => {
                    Err(Diagnostic::error(format!("`{stage}` is not the number of a stage")).hint("count from 0"))
                }
            }),
            "recompute" => range(value, model).map(|layers| Pin::Activations(layers, Activations::Recomputed)),
            "save" => range(value, model).map(|layers| Pin::Activations(layers, Activations::Saved)),
            "offload" => range(value, model).map(|layers| Pin::Activations(layers, Activations::Offloaded)),
            "optimizer" => on_devices(value, hardware)
                .and_then(|(layers, devices)| Ok(Pin::Optimizer(range(&layers, model)?, devices))),
            "host" => {
                on_sockets(value, hardware).and_then(|(layers, sockets)| Ok(Pin::Host(range(&layers, model)?, sockets)))
            }
            "stream" => range(value, model).map(|layers| Pin::Streamed(layers, true)),
            "keep" => range(value, model).map(|layers| Pin::Streamed(layers, false)),
            _ => knob(key, value, word),
        };
        match pin {
            Ok(pin) => named.push(Named { words: word.clone(), pin }),
            Err(fault) => faults.push(fault),
        }
    }
    let system = agreed(systems, &mut faults);
    let microbatch = agreed(microbatches, &mut faults);
    let pins = Pins::new(&named).unwrap_or_else(|contradiction| {
        faults.push(Diagnostic::error(contradiction.to_string()).hint("drop one of the two"));
        Pins::default()
    });
    faults.extend(clashes::of(&named, (model, hardware, mode), spelling));
    if faults.is_empty() { Ok(Pinned { pins, system, microbatch }) } else { Err(SearchError::Request(faults)) }
}

/// A pin of a knob.
fn knob(key: &str, value: &str, word: &str) -> Result<Pin, Diagnostic> {
    let Some(knob) = Knob::TURNED.iter().copied().find(|knob| knob.name() == key) else {
        let knobs = Knob::TURNED.iter().map(|knob| knob.name()).collect::<Vec<_>>().join(", ");
        return Err(Diagnostic::error(format!("`{word}` is not a pin")).hint(format!(
            "write layer=0..3:cpu0, stage=0:gpu1, recompute=4..7, save=4..7, offload=4..7, optimizer=0..3:cpu, stream=0..3, \
             keep=0..3, host=0..3:cpu1, system=1f1b, microbatch=2 or a knob ({knobs}) such as head-start=1"
        )));
    };
    let number: u64 = value.parse().map_err(|_| Diagnostic::error(format!("`{value}` is not a number for `{key}`")))?;
    if knob.is_switch() && number > 1 {
        return Err(Diagnostic::error(format!("`{key}` cannot be {number}")).hint("write 1 for on and 0 for off"));
    }
    Ok(Pin::Knob(knob, number))
}

/// The value that is not `auto`; all such values must be equal.
fn agreed(all: Vec<(String, String)>, faults: &mut Faults) -> String {
    let mut given = all.into_iter().filter(|(_, value)| value != "auto");
    let Some((first, value)) = given.next() else { return "auto".into() };
    if let Some((second, _)) = given.find(|(_, other)| *other != value) {
        faults.push(
            Diagnostic::error(format!("`{first}` and `{second}` contradict each other")).hint("drop one of the two"),
        );
    }
    value
}

fn range(text: &str, model: &Model) -> Result<LayerRange, Diagnostic> {
    model.layer_range(text).ok_or_else(|| {
        let last = model.layers().len().saturating_sub(1);
        Diagnostic::error(format!("`{text}` names no layers of `{}`", model.name()))
            .hint(format!("write 0..{last}, or names such as `command model show` prints"))
    })
}

/// The text before the colon, and the devices after it: one by name, or all of a kind.
fn on_devices(value: &str, hardware: &Hardware) -> Result<(String, BTreeSet<usize>), Diagnostic> {
    let Some((what, name)) = value.rsplit_once(':') else {
        return Err(Diagnostic::error(format!("`{value}` names no device")).hint("write it after a colon: 0..3:cpu0"));
    };
    let devices: BTreeSet<usize> = hardware
        .devices()
        .enumerate()
        .filter(|(_, device)| match name {
            "gpu" => device.is_gpu(),
            "cpu" => !device.is_gpu(),
            _ => device.name == name,
        })
        .map(|(id, _)| id.index())
        .collect();
    if devices.is_empty() {
        let known: Vec<&str> = hardware.devices().iter().map(|device| device.name.as_str()).collect();
        return Err(Diagnostic::error(format!("`{}` has no device `{name}`", hardware.name()))
            .hint(format!("its devices are {}", known.join(", "))));
    }
    Ok((what.into(), devices))
}

/// The same for sockets.
fn on_sockets(value: &str, hardware: &Hardware) -> Result<(String, BTreeSet<usize>), Diagnostic> {
    let (what, devices) = on_devices(value, hardware)?;
    let gpu = hardware.devices().enumerate().find(|(id, device)| devices.contains(&id.index()) && device.is_gpu());
    match gpu {
        Some((_, gpu)) => {
            Err(Diagnostic::error(format!("`{}` is not a socket", gpu.name)).hint("write cpu0, or cpu for any"))
        }
        None => Ok((what, devices)),
    }
}
