//! The arguments of `spipe schema` and `spipe completions`.

use clap::Args as Group;

/// A file format.
#[derive(Debug, Group)]
pub struct Schema {
    /// model, hardware, runtime, catalogue, job, plan, program, trace or runs
    pub name: String,
}

/// A shell.
#[derive(Debug, Group)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}
