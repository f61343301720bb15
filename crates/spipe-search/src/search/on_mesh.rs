//! A search on the teams of a mesh: a team is a virtual device.
//!
//! ```text
//! machine of the first replica's leads, each with the times and bytes of a member ─► search ─► placements
//!                                       the evaluator puts them on all teams of the real machine, and simulates that
//! ```
//!
//! The bound of the search holds: on the real machine, the same copies share links with those of other teams, and
//! gradients are reduced over replicas.

use crate::setting::Setting;
use spipe_base::{Bytes, DeviceId, IdVec, MemoryId};
use spipe_cost::{CostError, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Mesh, Placement, Stage, check};
use spipe_planner::Pins;
use std::{collections::BTreeMap, sync::Arc};

/// The machine of the leads, and the real one.
pub struct OnMesh {
    /// The leads, as if they were alone.
    pub leads: Setting,
    /// The machine.
    pub real: Setting,
    /// By device of the leads' machine, that of the real one.
    devices: IdVec<DeviceId, DeviceId>,
    memories: IdVec<MemoryId, MemoryId>,
    /// Whether each lead has a stage.
    all: bool,
}

impl OnMesh {
    /// The setting of `workload` on the teams of `mesh`, whose [leads](leading) are `part`. With `all`, plans use all of them.
    ///
    /// # Errors
    /// A model or a batch that the mesh does not divide.
    pub fn new(
        (model, hardware, part): (&Arc<Model>, &Arc<Hardware>, &Arc<Hardware>),
        workload: &Workload,
        (mesh, all): (&Mesh, bool),
    ) -> Result<Self, CostError> {
        let real = Setting::on(model, hardware, workload, mesh)?;
        let devices: IdVec<DeviceId, DeviceId> =
            part.devices().iter().filter_map(|device| hardware.device(&device.name)).collect();
        let memories = part.memories().iter().filter_map(|memory| hardware.memory(&memory.name)).collect();
        let order: Vec<DeviceId> = devices.iter().copied().collect();
        let leads = Setting::with_table(model, part, real.table().restricted_to(&order));
        Ok(Self { leads, real, devices, memories, all })
    }

    /// The placement on the teams of the real machine.
    pub fn placement(&self, placement: &Placement) -> Placement {
        let stage = |stage: &Stage| {
            stage.moved(self.devices[stage.lead()], |socket| self.devices[socket], |memory| self.memories[memory])
        };
        Placement {
            stages: placement.stages.iter().map(stage).collect(),
            backward: placement.backward.iter().map(stage).collect(),
            mesh: self.real.table().mesh().clone(),
            ..placement.clone()
        }
    }

    /// The pins on the machine of the leads, where only leads compute; `None` where a pin leaves none.
    pub fn pins(&self, pins: &Pins) -> Option<Pins> {
        let here = |real: usize| self.devices.iter().position(|device| device.index() == real);
        let hardware = self.leads.hardware();
        let leads = hardware.gpus().map(DeviceId::index);
        pins.renumbered(here)?.on_devices(leads.collect(), self.leads.context().model.layers().len())
    }

    /// The placement on the real machine, if the checker accepts it there.
    pub fn accepted(&self, placement: &Placement) -> Option<Placement> {
        let real = self.placement(placement);
        let teams = self.real.table().mesh().leads().count();
        let complete = !self.all || real.devices().len() == teams;
        (complete && check(&self.real.context(), &real).is_ok()).then_some(real)
    }
}

/// The machine with the leads of the first replica as its GPUs. A host memory has the room that is left for each of them
/// when all members of all replicas have as much. `None` if they are no machine.
pub fn leading(hardware: &Hardware, mesh: &Mesh) -> Option<Hardware> {
    let devices = hardware.devices();
    let leads: Vec<DeviceId> = mesh.leads().collect();
    let sockets = devices.enumerate().filter(|(_, device)| !device.is_gpu()).map(|(id, _)| id);
    let names: Vec<String> = leads.iter().copied().chain(sockets).map(|id| devices[id].name.clone()).collect();
    let near = |devices: &mut dyn Iterator<Item = DeviceId>| {
        let mut count: BTreeMap<&str, u64> = BTreeMap::new();
        for host in devices.filter_map(|device| hardware.host_memory(device)) {
            *count.entry(hardware.memories()[host].name.as_str()).or_default() += 1;
        }
        count
    };
    let (all, here) = (near(&mut mesh.devices()), near(&mut leads.iter().copied()));
    let part = hardware.restricted_to(&names).ok()?;
    let room = |memory: MemoryId, capacity: Bytes| {
        let name = part.memories()[memory].name.as_str();
        let shares = here.get(name).zip(all.get(name));
        shares.map_or(capacity, |(here, all)| Bytes::new(capacity.get() / all * here))
    };
    Some(part.with_capacities(room).ok()?.with_gpu_memory_of(hardware))
}
