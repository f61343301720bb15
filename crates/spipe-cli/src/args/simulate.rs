//! The arguments of `spipe simulate`, `spipe timeline` and `spipe compare`.

use clap::Args as Group;

/// A plan to predict.
#[derive(Debug, Group)]
pub struct Simulate {
    /// The plan
    pub plan: String,
    /// Runtime that executes the plan, instead of the one that it names: spipe, pytorch,
    /// pytorch-compiled, megatron, deepspeed or a file
    #[arg(long)]
    pub runtime: Option<String>,
    /// Simulate a single iteration that begins and ends with idle devices, as a run of prompts
    /// does, not the steady state
    #[arg(long)]
    pub once: bool,
    /// Explain the iteration: what lanes wait for and why, the critical path, changes that help, and
    /// pitfalls. With `--output`, the explanation is in the trace
    #[arg(long, conflicts_with = "once")]
    pub explain: bool,
    /// The folder to write the plan of each change that helps into
    #[arg(long, requires = "explain")]
    pub changes: Option<String>,
    /// The trace to write, or its picture if this ends in .svg, .png, .html, .txt or .perfetto.json
    #[arg(short, long)]
    pub output: Option<String>,
}

/// Traces to draw.
#[derive(Debug, Group)]
pub struct Timeline {
    /// The trace
    pub trace: String,
    /// Another trace, drawn below it on the same time axis
    pub second: Option<String>,
    /// The picture to write: .svg, .png, .html, .txt or .perfetto.json; - for text on stdout. Without
    /// it, a chart that fits the terminal is printed, in colour unless NO_COLOR is set
    #[arg(short, long)]
    pub output: Option<String>,
}

/// Two traces.
#[derive(Debug, Group)]
pub struct Compare {
    /// The prediction
    pub predicted: String,
    /// The measurement
    pub measured: String,
    /// Fail with exit code 6 if the error of the iteration is larger than this, such as 10%
    #[arg(long)]
    pub tolerance: Option<String>,
}
