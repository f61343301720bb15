//! `--layout`: the stages of a pipeline in Megatron's notation, as a condition on the plan.

use super::{
    pins::{self, Pinned},
    systems,
    task::Task,
    training,
};
use crate::{Failure, args, output};
use spipe_base::{DeviceId, Diagnostic, LayerRange};
use spipe_plan::{Dealing, Family, Layout, LayoutPart, System};
use spipe_planner::{Named, Pin};

/// The name of the option in messages.
const OPTION: &str = "--layout";

/// The conditions of a command line, and the systems that they leave.
pub fn conditions(what: &args::Plan, task: &Task) -> Result<(Pinned, Vec<System>), Failure> {
    let whose = (&task.model, &task.hardware, task.template.mode);
    let Some(text) = &what.layout else {
        let pinned = pins::read(&what.pin, (&what.system, &what.microbatch), whose)?;
        let systems = systems(&pinned.system)?;
        let systems = training::systems(systems, &task.template, pinned.system.trim() == "auto")?;
        return Ok((pinned, systems));
    };
    let devices = devices(what, task)?;
    let layout = Layout::read(OPTION, text).map_err(|fault| Failure::Arguments(fault.into()))?;
    let layers = layout.layers(&task.model, devices.len()).map_err(Failure::Arguments)?;
    let on = |(stage, layers): (usize, LayerRange)| (devices[stage % devices.len()].index(), layers);
    let stages = layers.into_iter().enumerate().map(on).collect();
    let pin = Named { words: format!("{OPTION} {text}"), pin: Pin::Stages(stages) };
    let pinned = pins::read_beside(Some(pin), &what.pin, (&what.system, &what.microbatch), whose)?;
    let system = system(&pinned.system, layout.len() / devices.len())?;
    let systems = training::systems(vec![system], &task.template, false)?;
    if layout.count(LayoutPart::Prediction) > 0 {
        let message =
            "modules that predict further tokens (`m`) are not planned: their stage has its other layers alone";
        output::talk(&Diagnostic::warning(message).to_string());
    }
    Ok((pinned, systems))
}

/// The devices of the stages, in the order of `--devices`, or the machine's GPUs.
fn devices(what: &args::Plan, task: &Task) -> Result<Vec<DeviceId>, Failure> {
    let all = task.hardware.devices();
    let mut devices: Vec<DeviceId> = Vec::new();
    if what.devices.is_empty() {
        devices.extend(all.enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id));
    }
    for device in args::Devices::names(&what.devices).iter().filter_map(|name| task.hardware.device(name)) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    if devices.is_empty() {
        let message = format!("`{}` has no GPU for the stages of the layout", task.hardware.name());
        return Err(Failure::argument(message, "name the devices of the stages in `--devices`"));
    }
    Ok(devices)
}

/// The system for this many stages per device: Megatron's own, unless another one is named.
fn system(given: &str, chunks: usize) -> Result<System, Failure> {
    let own = if chunks == 1 { System::OneForwardOneBackward } else { System::Interleaved };
    let system = match systems(given)?.as_slice() {
        _ if given.trim() == "auto" => own,
        [one] => *one,
        _ => return Err(Failure::argument("`--layout` has the stages of one system", "name one in `--system`")),
    };
    let offloads = matches!(system, System::PoH | System::PoF) || system.steps_on_host();
    let suits = match system.dealing() {
        _ if system.family() != Family::Pipeline || offloads => false,
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
    Err(Failure::argument(message, format!("use `--system {own}`, or leave it out")))
}
