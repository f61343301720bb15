//! The arguments of `spipe catalogue`.

use clap::{Args as Group, Subcommand};
use spipe_market::{Condition, Date};

/// The commands on parts and prices.
#[derive(Debug, Subcommand)]
pub enum Catalogue {
    /// List the parts with their prices
    List(CatalogueList),
    /// Show every figure of a part, with source, date and age
    Show(CatalogueShow),
    /// Check figures, prices and fitting of catalogue files; of the shipped ones if none is given
    Check(CatalogueCheck),
    /// Compose a machine of parts and write its hardware profile
    Compose(Box<CatalogueCompose>),
    /// Print a price as a line for a catalogue file
    Price(CataloguePrice),
}

/// The files and the day.
#[derive(Debug, Group)]
pub struct Source {
    /// A catalogue file whose parts are added to the shipped ones, or replace them; may be repeated
    #[arg(long = "catalogue", value_name = "FILE")]
    pub catalogues: Vec<String>,
    /// The day up to which ages of prices count; today if not given
    #[arg(long, value_name = "DATE")]
    pub as_of: Option<Date>,
}

/// A list.
#[derive(Debug, Group)]
pub struct CatalogueList {
    /// Only parts of this kind: gpu, platform, dram, drive, board, bridge, supply, network-card, network-switch, cable or rent
    #[arg(long)]
    pub kind: Option<String>,
    /// The files and the day
    #[command(flatten)]
    pub source: Source,
}

/// A part.
#[derive(Debug, Group)]
pub struct CatalogueShow {
    /// The name of a part
    pub part: String,
    /// The files and the day
    #[command(flatten)]
    pub source: Source,
}

/// Files to check.
#[derive(Debug, Group)]
pub struct CatalogueCheck {
    /// The catalogue files
    pub files: Vec<String>,
    /// The day up to which ages of prices count; today if not given
    #[arg(long, value_name = "DATE")]
    pub as_of: Option<Date>,
}

/// Parts of a machine.
#[derive(Debug, Group)]
pub struct CatalogueCompose {
    /// The GPU; none if not given
    #[arg(long)]
    pub gpu: Option<String>,
    /// The number of GPUs
    #[arg(long, default_value_t = 1)]
    pub gpus: u32,
    /// The CPU
    #[arg(long)]
    pub platform: String,
    /// The memory modules of the whole machine, such as 8xddr4-rdimm-32g
    #[arg(long)]
    pub dram: Option<String>,
    /// A drive, or several as 2xnvme4-4tb; may be repeated
    #[arg(long)]
    pub nvme: Vec<String>,
    /// The bridge between cards
    #[arg(long)]
    pub bridge: Option<String>,
    /// The board; the smallest one that fits if not given
    #[arg(long)]
    pub board: Option<String>,
    /// The supplies, such as 2xpsu-1600; the fewest that suffice if not given
    #[arg(long)]
    pub supply: Option<String>,
    /// The number of equal computers that a network joins
    #[arg(long, default_value_t = 1, requires = "network")]
    pub nodes: u32,
    /// The network card, such as connectx7-400g, one for each GPU or as many as fit; 4xconnectx7-400g gives each computer four
    #[arg(long, requires = "nodes")]
    pub network: Option<String>,
    /// Buy parts new or used, where they are sold so
    #[arg(long, default_value = "new")]
    pub condition: Condition,
    /// The files and the day
    #[command(flatten)]
    pub source: Source,
    /// The hardware profile to write, - for stdout
    #[arg(short, long)]
    pub output: Option<String>,
}

/// A price.
#[derive(Debug, Group)]
pub struct CataloguePrice {
    /// The price as PART=LOW..HIGHCURRENCY@DATE[,new|used], such as rtx3090=650..900EUR@2026-11-20,used; the
    /// typical price may stand between the two
    pub price: String,
    /// Where the price was seen
    #[arg(long, default_value = "stated on the command line")]
    pub source: String,
}
