//! The job of a run.

use crate::{data::Data, options::Options, runtime::hooks::Hooks};
use spipe_plan::Plan;
use spipe_schedule::Program;

/// A program, and everything that it takes to run it.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub data: &'a Data,
    pub options: &'a Options,
    pub hooks: &'a Hooks<'a>,
}
