//! The executors of devices: by name, for a machine to measure, and for the devices of a plan.

use crate::Failure;
use spipe_exec::{Backend, Binding, Executor};
use spipe_hardware::DeviceKind;
use spipe_plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// The backend of this name.
pub fn backend(name: &str) -> Result<Backend, Failure> {
    name.parse().map_err(|error: spipe_base::UnknownWord| {
        Failure::argument(error.to_string(), "leave out --backend, and that of --bind: ndarray is the default")
    })
}

/// Executors by names such as `cpu:0` or `emulated:0`, accelerators first. They run on `backend`
/// unless their name has one.
pub fn named(names: &[String], backend: Backend) -> Result<Vec<Executor>, Failure> {
    let mut executors = Vec::new();
    for name in names {
        executors.push(on_backend(name.parse().map_err(Failure::Arguments)?, name, backend));
    }
    executors.sort_by_key(|executor| matches!(executor, Executor::Cpu { .. }));
    match executors.iter().filter(|executor| matches!(executor, Executor::Cpu { .. })).count() {
        1 => Ok(executors),
        count => Err(Failure::argument(
            format!("{count} CPU devices are named, and a measured profile has exactly one socket"),
            "name one, such as --devices emulated:0,cpu:0",
        )),
    }
}

/// `executor` on `backend`, unless its `name` has a backend.
fn on_backend(executor: Executor, name: &str, backend: Backend) -> Executor {
    let names_one = Backend::ALL.iter().any(|backend| name.contains(backend.name()));
    if names_one { executor } else { executor.with_backend(backend) }
}

/// An executor for each device of the plan's machine: the one in `given`; otherwise CPU cores for a
/// socket, an emulated accelerator for a GPU that the profile calls emulated, and a CUDA device for
/// any other GPU.
pub fn bindings(plan: &Plan, given: &[String], backend: Backend) -> Result<Vec<Binding>, Failure> {
    let mut asked = asked(plan, given, backend)?;
    let own: BTreeSet<String> = asked.keys().cloned().collect();
    let (mut cpus, mut emulated) = (0, 0);
    let mut bindings = Vec::new();
    for device in plan.context().hardware.devices() {
        let executor = match &device.kind {
            DeviceKind::Socket { .. } => Executor::Cpu { index: next(&mut cpus), backend, cores: Vec::new() },
            DeviceKind::Gpu if device.emulated => {
                Executor::Emulated { index: next(&mut emulated), backend, cores: Vec::new() }
            }
            DeviceKind::Gpu => Executor::Cuda { index: device.index },
        };
        let standard = Binding { device: device.name.clone(), executor };
        bindings.push(asked.remove(&device.name).unwrap_or(standard));
    }
    check_numbers(&bindings, &own)?;
    Ok(bindings)
}

/// Refuses numbers of CPU devices and emulated accelerators beyond their count, for the devices in
/// `own`: such a number does nothing.
fn check_numbers(bindings: &[Binding], own: &BTreeSet<String>) -> Result<(), Failure> {
    let number = |binding: &Binding| match binding.executor {
        Executor::Cpu { index, .. } => Some(("CPU device", index)),
        Executor::Emulated { index, .. } => Some(("emulated accelerator", index)),
        _ => None,
    };
    for binding in bindings.iter().filter(|binding| own.contains(&binding.device)) {
        let Some((kind, index)) = number(binding) else { continue };
        let count = bindings.iter().filter_map(number).filter(|(other, _)| *other == kind).count();
        if index as usize >= count {
            let plural = if count == 1 { "" } else { "s" };
            let message = format!("`{binding}` has number {index}, and the run has {count} {kind}{plural}");
            return Err(Failure::argument(message, format!("count from 0 to {}", count - 1)));
        }
    }
    Ok(())
}

/// The bindings that `--bind` gives, by device.
fn asked(plan: &Plan, given: &[String], backend: Backend) -> Result<BTreeMap<String, Binding>, Failure> {
    let hardware = plan.context().hardware;
    let mut asked = BTreeMap::new();
    for text in given {
        let binding: Binding = text.parse().map_err(Failure::Arguments)?;
        if hardware.device(&binding.device).is_none() {
            let names: Vec<&str> = hardware.devices().iter().map(|device| device.name.as_str()).collect();
            return Err(Failure::argument(
                format!("`{}` has no device `{}`", hardware.name(), binding.device),
                format!("its devices are {}", names.join(", ")),
            ));
        }
        let binding = Binding { executor: on_backend(binding.executor, text, backend), ..binding };
        if let Some(other) = asked.insert(binding.device.clone(), binding) {
            let message = format!("`{}` is bound twice", other.device);
            return Err(Failure::argument(message, "leave out one of its two `--bind`"));
        }
    }
    Ok(asked)
}

/// The value of `counter`, which then goes up by one.
fn next(counter: &mut u32) -> u32 {
    *counter += 1;
    *counter - 1
}
