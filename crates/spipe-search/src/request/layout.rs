//! The stages of a pipeline in Megatron's notation, as a condition on the plan beside the pins.

use super::{
    pins::{self, Pinned, Words},
    spelling::Spelling,
    systems::{self, systems},
};
use crate::error::SearchError;
use spipe_base::{DeviceId, Diagnostic, LayerRange};
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Dealing, Layout, LayoutPart, System};
use spipe_planner::{Named, Pin};

/// The conditions of a request, in words.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// The stages in Megatron's notation.
    pub layout: Option<&'a str>,
    /// Pins, systems, and the size of microbatches.
    pub words: Words<'a>,
    /// The devices of the stages by name, in their order; the machine's GPUs if there are none.
    pub devices: &'a [String],
}

/// The conditions that were read, and the systems that they leave.
#[derive(Debug)]
pub struct Chosen {
    /// The conditions.
    pub pinned: Pinned,
    /// The systems.
    pub systems: Vec<System>,
    /// A warning about parts of a layout that are not planned.
    pub warning: Option<Diagnostic>,
}

/// Reads the conditions of a request for this model, machine and workload.
///
/// # Errors
/// The faults of the words, and conditions that no system satisfies.
pub fn conditions(
    asked: &Conditions<'_>,
    (model, hardware): (&Model, &Hardware),
    template: &Workload,
    spelling: Spelling,
) -> Result<Chosen, SearchError> {
    let whose = (model, hardware, template.mode);
    let Some(text) = asked.layout else {
        let pinned = pins::read(None, asked.words, whose, spelling)?;
        let auto = pinned.system.trim() == "auto";
        let systems = systems::that_run(systems(&pinned.system)?, template, auto, spelling)?;
        return Ok(Chosen { pinned, systems, warning: None });
    };
    let devices = devices(asked.devices, hardware, spelling)?;
    let layout =
        Layout::read(&spelling.bare("layout", ""), text).map_err(|fault| SearchError::Request(fault.into()))?;
    let layers = layout.layers(model, devices.len()).map_err(SearchError::Request)?;
    let on = |(stage, layers): (usize, LayerRange)| (devices[stage % devices.len()].index(), layers);
    let stages = layers.into_iter().enumerate().map(on).collect();
    let pin = Named { words: spelling.bare("layout", text), pin: Pin::Stages(stages) };
    let pinned = pins::read(Some(pin), asked.words, whose, spelling)?;
    let system = system(&pinned.system, layout.len() / devices.len(), spelling)?;
    let systems = systems::that_run(vec![system], template, false, spelling)?;
    let message = "modules that predict further tokens (`m`) are not planned: their stage has its other layers alone";
    let warning = (layout.count(LayoutPart::Prediction) > 0).then(|| Diagnostic::warning(message));
    Ok(Chosen { pinned, systems, warning })
}

/// The devices of the stages, in the order of their names, or the machine's GPUs.
fn devices(names: &[String], hardware: &Hardware, spelling: Spelling) -> Result<Vec<DeviceId>, SearchError> {
    let mut devices: Vec<DeviceId> = Vec::new();
    if names.is_empty() {
        devices.extend(hardware.gpus());
    }
    for device in names.iter().filter_map(|name| hardware.device(name)) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    if devices.is_empty() {
        let message = format!("`{}` has no GPU for the stages of the layout", hardware.name());
        let hint = format!("name the devices of the stages in {}", spelling.setting("devices"));
        return Err(SearchError::request(message, hint));
    }
    Ok(devices)
}

/// The system for this many stages per device: Megatron's own, unless another one is named.
fn system(given: &str, chunks: usize, spelling: Spelling) -> Result<System, SearchError> {
    let own = if chunks == 1 { System::OneForwardOneBackward } else { System::Interleaved };
    let system = match systems(given)?.as_slice() {
        _ if given.trim() == "auto" => own,
        [one] => *one,
        _ => {
            let message = format!("{} has the stages of one system", spelling.setting("layout"));
            return Err(SearchError::request(message, format!("name one in {}", spelling.setting("system"))));
        }
    };
    let offloads = matches!(system, System::PoH | System::PoF) || system.steps_on_host();
    let suits = match system.dealing() {
        _ if !system.is_pipeline() || offloads => false,
        Dealing::Single => chunks == 1,
        Dealing::RoundRobin => true,
        Dealing::Vee => false,
    };
    if suits {
        return Ok(system);
    }
    let message = format!(
        "the layout has {chunks} {} on each device, round-robin, which system `{system}` does not run",
        if chunks == 1 { "stage" } else { "stages" }
    );
    Err(SearchError::request(message, format!("use {}, or leave it out", spelling.value("system", own))))
}
