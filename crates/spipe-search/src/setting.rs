//! The setting of a plan: model, machine, workload, and their cost table.

use crate::evaluator::Evaluator;
use spipe_cost::{CostError, CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::Context;
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
        let table = CostTable::new(model, hardware, workload)?;
        Ok(Self { model: Arc::clone(model), hardware: Arc::clone(hardware), table })
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
