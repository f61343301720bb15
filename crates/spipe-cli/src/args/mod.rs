//! The arguments: the command here, those of each subcommand in a file by topic.

mod compare_systems;
mod data;
mod devices;
mod export;
mod fit;
mod given;
mod help;
mod machine;
mod market;
mod mesh;
mod model;
mod pages;
mod plan;
mod reproduce;
mod run;
mod schedule;
mod simulate;
mod trace;
mod training;
mod whatif;

pub use compare_systems::CompareSystems;
pub use data::DataOptions;
pub use devices::Devices;
pub use export::{Export, ExportDeepspeed, ExportFolder, ExportPlan, ExportTorch};
pub use fit::Fit;
pub use given::Given;
pub use help::command;
pub use machine::{Calibrate, CalibratedRuntime, Hardware, HardwareImport, HardwareShow, HardwareTransfer};
pub use market::{
    Catalogue, CatalogueCheck, CatalogueCompose, CatalogueList, CataloguePrice, CatalogueShow,
    Source as CatalogueSource,
};
pub use mesh::{Mesh, network};
pub use model::{Model, ModelImport, ModelMerge, ModelShow};
pub use pages::{Completions, Schema};
pub use plan::{Baseline, Plan, RecomputeChoice, TensorData, Unknown};
pub use reproduce::{PredictionError, Reproduce};
pub use run::{Demo, Run};
pub use schedule::Schedule;
pub use simulate::{Compare, Simulate, Timeline};
pub use trace::{Trace, TraceImport};
pub use training::Training;
pub use whatif::{Goal, Whatif, WhatifCommand, WhatifMerge, WhatifOutput, WhatifSweep};

use clap::{FromArgMatches, Parser, Subcommand, ValueEnum};

/// Plans, predicts, draws and runs the training of models that do not fit in GPU memory.
#[derive(Debug, Parser)]
#[command(
    name = "spipe",
    version,
    max_term_width = 100,
    after_help = "`spipe COMMAND -h` describes a command.\n\nExit codes: 0 done; 1 bug; 2 wrong arguments; 3 unreadable or invalid input; 4 no feasible plan; 5 stopped without a plan; 6 a check or comparison failed; 7 no suitable device"
)]
pub struct Args {
    /// Format of the results on stdout
    #[arg(long, global = true, value_enum, default_value_t = Format::Human, help_heading = help::GLOBAL)]
    pub format: Format,
    /// More log messages on stderr; twice for all
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = help::GLOBAL)]
    pub verbose: u8,
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// Clap's message: a refusal, or the help or version that was asked for.
    pub fn read() -> Result<(Self, Given), clap::Error> {
        let matches = help::command().try_get_matches()?;
        Self::from_arg_matches(&matches).map(|args| (args, Given::of(&matches)))
    }
}

/// The format of results.
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
    /// Show a machine, or the end times of copies on it
    #[command(subcommand)]
    Hardware(Hardware),
    /// Parts and prices, and machines composed of them
    #[command(subcommand)]
    Catalogue(Catalogue),
    /// Measure this machine and write a hardware profile
    Calibrate(Calibrate),
    /// Find the best plan for a model on a machine
    Plan(Box<Plan>),
    /// Rank composed machines for a job: what to buy
    Whatif(Box<Whatif>),
    /// Simulate the baselines: equal stages on meshes, without a search
    #[command(subcommand)]
    Baseline(Baseline),
    /// Plan and predict every system on one model and machine, side by side
    CompareSystems(CompareSystems),
    /// Predict the iteration of a plan
    Simulate(Simulate),
    /// Draw one trace, or two on the same time axis
    Timeline(Timeline),
    /// Run a plan on this machine
    Run(Run),
    /// Compare a predicted and a measured trace
    Compare(Compare),
    /// Predict and measure the iteration of several systems on this machine
    PredictionError(PredictionError),
    /// Show the schedule of a system from stage times alone
    Schedule(Schedule),
    /// Fit constants of a machine on measured runs, and show the errors of predictions
    Fit(Fit),
    /// Write a plan as a folder that another engine runs
    #[command(subcommand)]
    Export(Export),
    /// Read the traces of other programs
    #[command(subcommand)]
    Trace(Trace),
    /// Compare published tables with predictions
    Reproduce(Reproduce),
    /// Print the JSON schema of a file format
    Schema(Schema),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}
