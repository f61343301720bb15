//! The host memory of a run: its plan, before anything is allocated, and its arenas.

use crate::{
    actions::arenas::{Arenas, Place, Planned, planned},
    device::{
        Binding, DeviceContext, Executor,
        arena::Arena,
        pinning::{Pin, pin_for},
    },
    error::RunError,
    runtime::{hooks::Hooks, job::Job},
};
use rayon::ThreadPoolBuilder;
use spipe_base::{BufferId, Bytes, DeviceId, Diagnostic, IdVec, MemoryId};
use spipe_cost::GradientFormat;
use spipe_model::Precision;
use spipe_schedule::{Content, Program};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
};

/// The arenas of a run.
///
/// # Errors
/// More than the host has free, with the bytes by part.
pub(crate) fn room(
    job: &Job<'_>,
    bound: &BTreeMap<DeviceId, Binding>,
    computed_on: &IdVec<BufferId, Option<DeviceId>>,
) -> Result<BTreeMap<MemoryId, Planned>, RunError> {
    let Job { plan, program, hooks, .. } = *job;
    let context = plan.context();
    let hardware = context.hardware;
    let peaks: BTreeMap<&str, Bytes> =
        plan.peaks().into_iter().map(|(memory, bytes)| (hardware.memories()[memory].name.as_str(), bytes)).collect();
    let peak = |memory: MemoryId| peaks.get(program.memories()[memory].name.as_str()).copied();
    let is_gpu = |binding: &Binding| matches!(binding.executor, Executor::Cuda { .. } | Executor::Wgpu { .. });
    let host = if bound.values().any(is_gpu) { Place::BesideGpu } else { Place::Host };
    let place = |memory: MemoryId| {
        let mut here = program.devices().enumerate().filter(|(_, device)| device.memory == memory);
        let executor = here.find_map(|(id, _)| bound.get(&id).map(|binding| &binding.executor));
        let space = &program.memories()[memory].name;
        let is_drive = hardware.memory(space).is_none_or(|memory| context.is_drive(memory));
        match executor {
            Some(Executor::Emulated { .. }) if hooks.discrete_memory => Place::Elsewhere,
            Some(Executor::Emulated { .. }) => Place::Emulated,
            Some(Executor::Cpu { .. }) => host,
            Some(Executor::Cuda { .. } | Executor::Wgpu { .. }) => Place::Elsewhere,
            None if is_drive => Place::Elsewhere,
            None => host,
        }
    };
    let wide_gradients = context.workload().formats.gradients == Some(GradientFormat::F32);
    let narrow = |device: DeviceId, content: &Content| {
        let is_wide = wide_gradients && matches!(content, Content::Gradients(_) | Content::SharedGradients(_));
        context.cost.storage(device) != Precision::Fp32 && !is_wide
    };
    let planned = planned(program, computed_on, (place, peak), narrow);
    let needed: Bytes = planned.values().map(|planned| planned.bytes).sum();
    match (hooks.available_memory)() {
        Some(available) if needed > available => Err(no_room(program, &planned, (needed, available))),
        _ => Ok(planned),
    }
}

fn no_room(program: &Program, planned: &BTreeMap<MemoryId, Planned>, (needed, available): (Bytes, Bytes)) -> RunError {
    let of = |(memory, planned): (&MemoryId, &Planned)| {
        let parts: Vec<String> = planned.parts.iter().map(|(part, bytes)| format!("{part} {bytes}")).collect();
        format!("`{}` {} ({})", program.memories()[*memory].name, planned.bytes, parts.join(", "))
    };
    let parts: Vec<String> = planned.iter().map(of).collect();
    let fault = Diagnostic::error(format!(
        "the run keeps {needed} in host memory, of which {available} are free: {}",
        parts.join("; ")
    ));
    RunError::Unsupported(fault.hint("end other programs, or plan with a smaller `capacity` of that memory").into())
}

/// The arenas, touched by the cores next to them and pinned if the devices' driver does that; what it says if it
/// refuses.
///
/// # Errors
/// A system that has no addresses left.
pub(crate) fn build(
    program: &Program,
    contexts: &BTreeMap<DeviceId, DeviceContext>,
    planned: &BTreeMap<MemoryId, Planned>,
    (bound, hooks): (&BTreeMap<DeviceId, Binding>, &Hooks<'_>),
) -> Result<(Arenas, Option<String>), RunError> {
    let driver = pin_for(bound.values().map(|binding| &binding.executor));
    let pin = hooks.pin.or(driver.as_deref());
    let refused = Mutex::new(None);
    let touch = |memory: MemoryId, bytes: usize| -> io::Result<Arc<Arena>> {
        let own = contexts.iter().find(|(device, _)| program.devices()[**device].memory == memory);
        let most = contexts.values().max_by_key(|context| context.cores());
        let near = own.map(|(_, context)| context).filter(|context| context.cores().is_some());
        let near = near.or(most).filter(|context| context.cores().is_some());
        let arena = || arena(bytes, pin, &refused);
        match near {
            Some(context) => context.on_cores(arena),
            None => ThreadPoolBuilder::new().build().map_err(io::Error::other)?.install(arena),
        }
    };
    let arenas = Arenas::new(planned, touch).map_err(|error| {
        let needed: Bytes = planned.values().map(|planned| planned.bytes).sum();
        let fault = Diagnostic::error(format!("the system has no addresses for {needed} of host memory: {error}"));
        RunError::Unsupported(fault.hint("raise the limit of the address space (`ulimit -v`)").into())
    })?;
    let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
    let warning = refused.map(|why| format!("host memory is not pinned, copies to the devices are slower: {why}"));
    Ok((arenas, warning))
}

fn arena(bytes: usize, pin: Option<&Pin<'_>>, refused: &Mutex<Option<String>>) -> io::Result<Arc<Arena>> {
    let Some(pin) = pin else { return Arena::new(bytes) };
    let (arena, why) = Arena::pinned(bytes, pin)?;
    if let Some(why) = why {
        refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }
    Ok(arena)
}
