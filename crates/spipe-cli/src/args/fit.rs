//! The arguments of `spipe fit`.

use clap::Args as Group;

/// Measured runs to fit constants on.
#[derive(Debug, Group)]
pub struct Fit {
    /// A file of measured runs; `spipe schema runs` prints its format
    #[arg(required_unless_present = "trace")]
    pub runs: Option<String>,
    /// A hardware profile, or the name of a shipped one: the machine of runs that name none, and the
    /// one that is written
    #[arg(long, required_unless_present = "trace")]
    pub hardware: Option<String>,
    /// Show the kernel times by layer in a trace of torch.profiler
    #[arg(long, conflicts_with_all = ["runs", "hardware", "output", "plot"])]
    pub trace: Option<String>,
    /// Draw measured and predicted times with a band of 10 %, as SVG
    #[arg(long)]
    pub plot: Option<String>,
    /// The fitted profile to write, - for stdout
    #[arg(short, long)]
    pub output: Option<String>,
}
