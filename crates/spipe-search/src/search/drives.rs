//! Plans whose parameters, optimizer state or activations are on drives: for machines whose DRAM is too small.
//!
//! ```text
//! machine whose DRAM also has the room of the drives ─► search ─► placements
//!                      the evaluator moves them to drives of the real machine, and simulates that
//! ```
//!
//! The bound of the search holds: a plan is no faster for what is on a drive.

use super::refusal::missing;
use crate::{
    request::{Request, drives::DriveFor, machine::Machine},
    setting::Setting,
};
use spipe_base::{Bytes, MemoryId};
use spipe_cost::{LayerMemory, Mode};
use spipe_hardware::{Hardware, MemoryKind};
use spipe_plan::{
    Context, Placement, check, with_activations_on, with_all_states_on_drives, with_parameters_on,
    with_states_on_drives,
};
use spipe_planner::{PlanError, refusal_of};
use std::sync::{Arc, Mutex, PoisonError};

/// The machine of a search for plans with state or activations on drives.
#[derive(Clone, Copy)]
pub struct OnDrives<'a> {
    /// The machine as it is.
    pub machine: &'a Machine,
    /// The drives that are named.
    pub named: DriveFor,
    /// The refusals of placements that use them.
    pub refused: &'a RefusedOnDrives,
}

/// Why the placements of a search that use drives are no plans: the refusal of the one that lacks least.
#[derive(Debug, Default)]
pub struct RefusedOnDrives(Mutex<Option<PlanError>>);

impl RefusedOnDrives {
    /// The refusal of the placement that lacks least.
    pub fn closest(&self) -> Option<PlanError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, error: PlanError) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads report in any order: of two that lack as much, one is kept by its text.
        let key = |error: &PlanError| (missing(error), error.to_string());
        if known.as_ref().is_none_or(|known| key(&error) < key(known)) {
            *known = Some(error);
        }
    }
}

/// The machine with the room of its drives in its DRAMs, as far as optimizer state, and parameters and
/// activations for which a drive is named, can fill it. `None` without drives that may be used, and in inference.
pub fn roomy(request: &Request) -> Option<Machine> {
    let with_room = |hardware: &Hardware| with_room(request, hardware).ok_or(());
    request.machine.changed(with_room).ok()
}

fn with_room(request: &Request, hardware: &Hardware) -> Option<Hardware> {
    let (named, workload) = (request.drive_for, request.workloads.first()?);
    let of_kind = |kind| hardware.memories().enumerate().filter(move |(_, memory)| memory.kind == kind);
    let more = [named.parameters, named.activations];
    let allowed = |id: MemoryId| named.state.is_none_or(|on| on == id) || more.contains(&Some(id));
    let drives = of_kind(MemoryKind::Nvme).filter(|(id, _)| allowed(*id));
    let room: Bytes = drives.map(|(_, drive)| drive.usable()).sum();
    let idle = workload.mode != Mode::Train && named.parameters.is_none();
    if !request.drives || idle || room == Bytes::ZERO {
        return None;
    }
    let setting = Setting::new(&request.model, &Arc::new(hardware.clone()), workload).ok()?;
    let cost = setting.table();
    let devices: Vec<_> = cost.devices().collect();
    let microbatches = if named.activations.is_some() { workload.microbatches } else { 0 };
    let streamed = u64::from(named.parameters.is_some());
    let fills = |memory: &LayerMemory| memory.optimizer + memory.saved * microbatches + memory.parameters * streamed;
    let most = |layer| devices.iter().map(|device| fills(cost.memory(layer, *device))).max().unwrap_or_default();
    let room = room.min(cost.layers().map(most).sum());
    let drams: Vec<_> = of_kind(MemoryKind::Dram).filter(|(_, memory)| memory.pageable_view_of.is_none()).collect();
    let usable: Bytes = drams.iter().map(|(_, memory)| memory.usable()).sum();
    let mut roomy = hardware.clone();
    for (id, dram) in drams.iter().filter(|(_, dram)| dram.usable() > Bytes::ZERO) {
        // Runtime and head-room take a share of what is added, too.
        let share = room.as_f64() * dram.capacity.as_f64() / usable.as_f64().max(1.0);
        roomy = roomy.with_capacity(*id, dram.capacity + Bytes::new(share as u64)).ok()?;
    }
    Some(roomy)
}

/// A move of states and activations to drives.
pub struct Moved<'a> {
    /// The machine as it is.
    pub context: Context<'a>,
    pub named: DriveFor,
    pub refused: &'a RefusedOnDrives,
}

impl Moved<'_> {
    /// The placement with states and activations on drives, if it fits the machine as it is.
    pub fn placement(&self, placement: &Placement) -> Option<Placement> {
        let context = self.context;
        let mut moved = placement.clone();
        if let Some(drive) = self.named.parameters {
            moved = with_parameters_on(&moved, drive)?;
        }
        if let Some(drive) = self.named.activations {
            moved = with_activations_on(&context, &moved, drive)?;
        }
        let on_drives = with_states_on_drives(&context, &moved, self.named.state);
        if let Some(found) = on_drives.as_ref().filter(|found| check(&context, found).is_ok()) {
            return Some(found.clone());
        }
        if !self.named.is_none() {
            let tried = on_drives.or_else(|| with_all_states_on_drives(&context, &moved, self.named.state))?;
            refusal_of(&context, &tried).into_iter().for_each(|error| self.refused.note(error));
        }
        None
    }
}
