//! Bindings of a program's devices.

use crate::device::{Binding, Executor, assign_cores};
use spipe_base::{ActionKind, DeviceId, Diagnostic, Faults};
use spipe_hardware::{Device, DeviceKind};
use spipe_plan::Plan;
use spipe_schedule::Program;
use std::collections::BTreeMap;

/// The binding of every device that computes a stage or runs optimizer steps, with its cores.
pub(crate) fn bind(
    plan: &Plan,
    program: &Program,
    bindings: &[Binding],
) -> Result<BTreeMap<DeviceId, Binding>, Faults> {
    let mut faults = Faults::new();
    check_names(&plan.context().hardware.devices().iter().collect::<Vec<_>>(), bindings, &mut faults);
    empty_stage(program).into_iter().for_each(|fault| faults.push(fault));
    let mut bound = BTreeMap::new();
    for device in used(program) {
        let name = &program.devices()[device].name;
        match bindings.iter().find(|binding| binding.device == *name) {
            Some(binding) => {
                bound.insert(device, binding.clone());
            }
            None => faults.push(
                Diagnostic::error(format!("nothing executes `{name}`"))
                    .hint(format!("bind it, for example {name}=cpu:0")),
            ),
        }
    }
    faults.or(())?;
    let mut executors: Vec<Executor> = bound.values().map(|binding: &Binding| binding.executor.clone()).collect();
    let wanted: Vec<Option<usize>> = bound.keys().map(|device| threads(plan, *device)).collect();
    assign_cores(&mut executors, &wanted);
    for (binding, executor) in bound.values_mut().zip(executors) {
        binding.executor = executor;
    }
    Ok(bound)
}

/// The fault of a stage without layers, if there is one.
pub(crate) fn empty_stage(program: &Program) -> Option<Diagnostic> {
    let (id, _) = program.stages().enumerate().find(|(_, stage)| stage.layers.is_empty())?;
    let fault = Diagnostic::error(format!("stage `{id}` has no layers, and empty stages are simulated alone"));
    Some(fault.hint("plan with layers in every stage"))
}

/// The devices that compute a stage or run optimizer steps, in ascending order.
fn used(program: &Program) -> Vec<DeviceId> {
    let steps = program
        .actions()
        .iter()
        .filter(|action| matches!(action.kind, ActionKind::OptimizerStep | ActionKind::Check | ActionKind::Rollback));
    let stepping = steps.map(|action| program.lanes()[action.lane].device);
    let mut used: Vec<DeviceId> = program.stages().iter().map(|stage| stage.device).chain(stepping).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// Reports devices that the machine does not have or that are bound twice.
fn check_names(devices: &[&Device], bindings: &[Binding], faults: &mut Faults) {
    for binding in bindings {
        let known = devices.iter().any(|device| device.name == binding.device);
        let twice = bindings.iter().filter(|other| other.device == binding.device).count() > 1;
        if !known {
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            faults.push(
                Diagnostic::error(format!("`{binding}` binds a device that the plan does not have"))
                    .hint(format!("its devices are {}", names.join(", "))),
            );
        } else if twice {
            faults.push(Diagnostic::error(format!("`{}` is bound more than once", binding.device)));
        }
    }
}

/// The number of cores that the hardware profile gives to a device.
fn threads(plan: &Plan, device: DeviceId) -> Option<usize> {
    let device = &plan.context().hardware.devices()[device];
    match device.kind {
        DeviceKind::Socket { cores, .. } => Some(cores as usize),
        DeviceKind::Gpu => device.emulated_cores.map(|cores| cores as usize),
    }
}
