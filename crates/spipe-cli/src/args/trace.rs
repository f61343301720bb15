//! The arguments of `spipe trace`.

use clap::{Args as Group, Subcommand};

/// Traces of other programs.
#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Read traces of PyTorch's profiler, one per process, as one trace
    Import(TraceImport),
}

/// Traces to read.
#[derive(Debug, Group)]
pub struct TraceImport {
    /// The profiler's JSON, one file per process, or a folder of them
    #[arg(required = true)]
    pub profiles: Vec<String>,
    /// The plan that was exported: its actions are checked, and the trace has its name and tokens
    #[arg(long)]
    pub plan: Option<String>,
    /// The trace to write
    #[arg(short, long)]
    pub output: String,
}
