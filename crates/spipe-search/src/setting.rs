//! The setting of a plan: model, machine, workload, and their cost table.

use crate::evaluator::Evaluator;
use spipe_cost::{CostError, CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, Mesh, Placement};
use std::sync::Arc;

/// A model on a machine under a workload, with the time and memory of each layer on each device. Model and machine are
/// shared with other settings.
#[derive(Clone, Debug)]
pub struct Setting {
    model: Arc<Model>,
    hardware: Arc<Hardware>,
    table: CostTable,
}

impl Setting {
    /// The setting of a workload.
    ///
    /// # Errors
    /// The table cannot be made, as for a layer without a time on any device.
    pub fn new(model: &Arc<Model>, hardware: &Arc<Hardware>, workload: &Workload) -> Result<Self, CostError> {
        Self::on(model, hardware, workload, &Mesh::default())
    }

    /// The setting of a workload on the teams of a mesh.
    ///
    /// # Errors
    /// The same as for [`Setting::new`], and what the mesh does not divide.
    pub fn on(
        model: &Arc<Model>,
        hardware: &Arc<Hardware>,
        workload: &Workload,
        mesh: &Mesh,
    ) -> Result<Self, CostError> {
        Ok(Self::with_table(model, hardware, CostTable::on(model, hardware, workload, mesh)?))
    }

    /// The setting in which a placement is judged: on its own mesh.
    ///
    /// # Errors
    /// The same as for [`Setting::on`].
    pub fn of(
        model: &Arc<Model>,
        hardware: &Arc<Hardware>,
        workload: &Workload,
        placement: &Placement,
    ) -> Result<Self, CostError> {
        Self::on(model, hardware, workload, &placement.mesh_of_teams())
    }

    /// The setting of a table.
    pub(crate) fn with_table(model: &Arc<Model>, hardware: &Arc<Hardware>, table: CostTable) -> Self {
        Self { model: Arc::clone(model), hardware: Arc::clone(hardware), table }
    }

    /// The context of placements.
    pub fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.table }
    }

    /// The evaluator of placements.
    pub fn evaluator(&self) -> Evaluator<'_> {
        Evaluator::new(self.context())
    }

    /// The time and memory of each layer on each device.
    pub const fn table(&self) -> &CostTable {
        &self.table
    }

    /// The machine.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }
}
