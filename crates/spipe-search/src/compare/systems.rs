//! One system with its plan and figures.

use super::figures::Compared;
use crate::{error::SearchError, evaluator::program, request::Request, search::search};
use spipe_plan::System;
use spipe_sim::{Options, simulate};

/// The figures of one system, or why it has none.
///
/// # Errors
/// A failure that is no answer, such as a bug.
pub fn compared(system: System, request: &Request) -> Result<Compared, SearchError> {
    let found = match search(&Request { systems: vec![system], ..request.clone() }) {
        Ok(found) => found,
        Err(error) => return Compared::refused(system.name(), error),
    };
    let program = program(&found.plan)?;
    let simulation = simulate(&program, &Options::default());
    Ok(Compared::of(system.name(), &found.plan, &program, simulation.trace))
}
