//! The arguments of `spipe whatif`.

use super::CatalogueSource;
use clap::{Args as Group, Subcommand, ValueEnum};
use spipe_base::Seconds;
use spipe_market::{Currency, Money, Watts};
use spipe_model::Precision;
use spipe_whatif::{
    Objective,
    amount::{EnergyPrice, Hours, Tokens},
};

/// A job, or the parts of a sweep.
#[derive(Debug, Group)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Whatif {
    /// Joins the parts of a sweep
    #[command(subcommand)]
    pub merge: Option<WhatifCommand>,
    /// The sweep
    #[command(flatten)]
    pub sweep: WhatifSweep,
}

/// Joining.
#[derive(Debug, Subcommand)]
pub enum WhatifCommand {
    /// Join the parts that --shard has written, and answer
    Merge(WhatifMerge),
}

/// Parts of a sweep.
#[derive(Debug, Group)]
pub struct WhatifMerge {
    /// The files that --shard has written
    #[arg(required = true)]
    pub parts: Vec<String>,
    /// Where the answer goes
    #[command(flatten)]
    pub output: WhatifOutput,
}

/// Where the answer goes.
#[derive(Debug, Group)]
pub struct WhatifOutput {
    /// The answer as .html, .csv, .json or .svg; - for JSON on stdout. With --shard, the part's plans as .json
    #[arg(short, long)]
    pub output: Option<String>,
    /// A folder for each plot as SVG
    #[arg(long)]
    pub plots: Option<String>,
}

/// A job as a file or as flags; flags override the file.
#[derive(Debug, Group)]
pub struct WhatifSweep {
    /// A job file
    pub job: Option<String>,
    /// A model file, or the name of a shipped model
    #[arg(long, conflicts_with = "job")]
    pub model: Option<String>,
    /// Tokens to train on, such as 2G
    #[arg(long)]
    pub tokens: Option<Tokens>,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences (or images) per iteration; 64 if not given
    #[arg(long)]
    pub global_batch: Option<u64>,
    /// How often the job runs in a year; once if not given
    #[arg(long)]
    pub jobs_per_year: Option<f64>,
    /// The order of machines: cost, or time where there is a budget and no deadline
    #[arg(long, value_enum)]
    pub objective: Option<Goal>,
    /// The longest time of a job, such as 14d
    #[arg(long)]
    pub deadline: Option<Hours>,
    /// The most that a machine may cost, such as "12000 EUR"
    #[arg(long)]
    pub budget: Option<Money>,
    /// The most power at the wall, such as 3kW
    #[arg(long)]
    pub wall_power: Option<Watts>,
    /// Data type of parameters and activations; bf16 if not given
    #[arg(long)]
    pub precision: Option<Precision>,
    /// The shape of the data, and what is recomputed
    #[command(flatten)]
    pub data: super::DataOptions,
    /// Parts that vary, as KEY=VALUE,VALUE with the keys gpu, gpus, platform, dram, nvme, bridge, nodes, network and condition; may be
    /// repeated
    #[arg(long)]
    pub vary: Vec<String>,
    /// Combinations to skip, such as "gpus = 4 and platform = ryzen-9950x"; may be repeated
    #[arg(long)]
    pub skip: Vec<String>,
    /// A machine file with parts to add to, as `spipe catalogue compose` writes it
    #[arg(long, conflicts_with_all = ["vary", "skip", "shard"])]
    pub own: Option<String>,
    /// Rented machines beside the owned ones: all, list, spot, marketplace, or a name; may be repeated
    #[arg(long)]
    pub rent: Vec<String>,
    /// The files and the day
    #[command(flatten)]
    pub source: CatalogueSource,
    /// The engine that executes it: a runtime file or the name of a shipped one; by default, for each system,
    /// the one that trains it there
    #[arg(long)]
    pub runtime: Option<String>,
    /// The currency of results; that of the budget if not given
    #[arg(long)]
    pub currency: Option<Currency>,
    /// A rate into it, such as USD=0.90; may be repeated
    #[arg(long = "rate")]
    pub rates: Vec<String>,
    /// The tax on prices, such as 21%
    #[arg(long)]
    pub tax: Option<String>,
    /// The years until the machine is sold; 3 if not given
    #[arg(long)]
    pub years: Option<f64>,
    /// The share of the hours in which it computes; 0.5 if not given
    #[arg(long = "use")]
    pub utilisation: Option<String>,
    /// The price of energy, such as "0.30 EUR/kWh"; 0.20 if not given
    #[arg(long)]
    pub electricity: Option<EnergyPrice>,
    /// The power of the building over that of its machines; 1 if not given
    #[arg(long)]
    pub pue: Option<f64>,
    /// The time for the whole sweep; what is not planned by then is left out. 30s if no job file is given, unlimited with one
    #[arg(long)]
    pub time_limit: Option<Seconds>,
    /// A file with the plans so far, which is read if it exists, and written at the end
    #[arg(long)]
    pub resume: Option<String>,
    /// Plan only one part of the sweep, such as 3/16, and write its plans with -o
    #[arg(long, requires = "output")]
    pub shard: Option<String>,
    /// Machines that are planned at once; all cores if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// The rows of the table; machines of the front are added
    #[arg(long, default_value_t = 10)]
    pub top: usize,
    /// Where the answer goes
    #[command(flatten)]
    pub output: WhatifOutput,
}

/// The order of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// The typical cost of the job
    Cost,
    /// The time of the job
    Time,
    /// The energy of the job
    Energy,
    /// Tokens per unit of money
    TokensPerEuro,
}

impl From<Goal> for Objective {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Cost => Self::Cost,
            Goal::Time => Self::Time,
            Goal::Energy => Self::Energy,
            Goal::TokensPerEuro => Self::TokensPerEuro,
        }
    }
}
