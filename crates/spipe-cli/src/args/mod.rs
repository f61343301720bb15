//! The arguments, and nothing else: the command here, what each subcommand takes in a file by topic.

mod machine;
mod model;
mod pages;
mod plan;
mod reproduce;
mod run;
mod schedule;
mod simulate;

pub use machine::{Calibrate, Hardware, HardwareShow, HardwareTransfer};
pub use model::{Model, ModelImport, ModelShow};
pub use pages::{Completions, Schema};
pub use plan::{Again, Baseline, Plan, TensorData};
pub use reproduce::{PredictionError, Reproduce};
pub use run::{Demo, Run};
pub use schedule::Schedule;
pub use simulate::{Compare, Simulate, Timeline};

use clap::{Parser, Subcommand, ValueEnum};

/// Plans, predicts, draws and runs the training of models that do not fit in GPU memory.
#[derive(Debug, Parser)]
#[command(
    name = "spipe",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 bug; 2 wrong arguments; 3 unreadable or invalid input; 4 no feasible plan; 5 stopped at the limit with nothing feasible; 6 a check or comparison failed; 7 no suitable device"
)]
pub struct Args {
    /// What to print on stdout
    #[arg(long, global = true, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    /// Say more on stderr; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Human,
    /// For programs
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure, plan, simulate, train and compare on this machine, in one go
    Demo(Demo),
    /// Show or import a model
    #[command(subcommand)]
    Model(Model),
    /// Show a machine, or when copies on it finish
    #[command(subcommand)]
    Hardware(Hardware),
    /// Measure this machine and write a hardware profile
    Calibrate(Calibrate),
    /// Find the best plan for a model on a machine
    Plan(Plan),
    /// Price a model without a pipeline, in closed form
    #[command(subcommand)]
    Baseline(Baseline),
    /// Predict the iteration of a plan
    Simulate(Simulate),
    /// Draw one trace, or two above each other
    Timeline(Timeline),
    /// Run a plan for real
    Run(Run),
    /// Compare a predicted with a measured trace
    Compare(Compare),
    /// Predict and measure the iteration of several systems on this machine
    PredictionError(PredictionError),
    /// Show the schedule of a system from stage times alone
    Schedule(Schedule),
    /// Compare published measurements with what this program predicts
    Reproduce(Reproduce),
    /// Print the JSON schema of a file format
    Schema(Schema),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}
