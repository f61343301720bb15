//! One system with its plan and figures.

use super::{
    DATA_PARALLEL,
    equal_stages::data_parallel,
    figures::{Compared, Status},
};
use crate::{
    error::SearchError,
    evaluator::program,
    request::{
        Request,
        meshes::{Degrees, Meshes},
    },
    search::search,
};
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::System;
use spipe_sim::{Options, simulate};
use std::sync::Arc;

/// The figures of one system on meshes of these degrees, or why it has none.
///
/// # Errors
/// A failure that is no answer, such as a bug.
pub fn compared(system: System, request: &Request, degrees: &Degrees) -> Result<Compared, SearchError> {
    let inputs = (request.model.as_ref(), request.machine.hardware().as_ref());
    let meshes = match degrees.chosen(inputs, &request.workloads, (&[system], request.spelling)) {
        Ok(meshes) => meshes,
        Err(error) => return Compared::refused(system.name(), error),
    };
    let Meshes { all: meshes, systems, all_teams } = meshes;
    let found = match search(&Request { systems, meshes, all_teams, ..request.clone() }) {
        Ok(found) => found,
        Err(error) => return Compared::refused(system.name(), error),
    };
    let program = program(&found.plan)?;
    let simulation = simulate(&program, &Options::default());
    Ok(Compared::of(system.name(), &found.plan, &program, simulation.trace))
}

/// The figures of the baseline beside systems, plain data parallelism: the fastest that fits, over all sizes of microbatches
/// and choices of recompute.
///
/// # Errors
/// A failure that is no answer, such as a bug.
pub fn baseline(model: &Arc<Model>, hardware: &Arc<Hardware>, workloads: &[Workload]) -> Result<Compared, SearchError> {
    let found = match data_parallel((model, hardware), workloads) {
        Ok(found) => found,
        Err(error) => return Ok(Compared { baseline: true, ..Compared::refused(DATA_PARALLEL, error)? }),
    };
    if let Err(fault) = &found.times {
        let reason = Some(fault.message.clone());
        return Ok(Compared { baseline: true, ..Compared::bare(DATA_PARALLEL, Status::Infeasible, reason) });
    }
    let plan = found.plan((model, hardware))?;
    let program = program(&plan)?;
    let simulation = simulate(&program, &Options::default());
    Ok(Compared { baseline: true, ..Compared::of(DATA_PARALLEL, &plan, &program, simulation.trace) })
}
