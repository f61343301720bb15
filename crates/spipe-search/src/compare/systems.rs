//! One system with its plan and figures.

use super::figures::Compared;
use crate::{
    error::SearchError,
    evaluator::program,
    request::{
        Request,
        meshes::{Degrees, Meshes},
    },
    search::search,
};
use spipe_plan::System;
use spipe_sim::{Options, simulate};

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
