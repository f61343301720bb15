//! Reproductions: published tables beside our predictions, and our planner beside its baselines.
//!
//! ```text
//! rows (TOML: fit, predict) ─► constants ─► simulation ─► Reproduction (JSON, Markdown) ─► Picture
//! shipped models × machines ─► a plan of each planner ─► matrix::Row ─► matrix::markdown
//! ```
//!
//! Everything is a function of its arguments: rows are handed over as text, models and machines
//! come from a [`Library`], plans from a function. Reading files, measuring time and writing
//! results are left to the caller.
//!
//! ```
//! use spipe_reproduce::{Library, Source, TABLES};
//!
//! let table = TABLES.iter().find(|table| table.name == "pipeoffload").ok_or("no such table")?;
//! let unknown = |name: &str| spipe_base::Diagnostic::error(format!("there is no `{name}`"));
//! let model = |name: &str| Err(unknown(name).into());
//! let hardware = |name: &str| Err(unknown(name).into());
//! let library = Library { model: &model, hardware: &hardware };
//! let made = table.make(&Source { file: "pipeoffload.toml", text: table.rows, library })?;
//! assert!(made.cells.iter().all(|cell| cell.published.is_some() && cell.ours.is_some()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod article;
mod bench;
mod fit;
pub mod matrix;
mod pipeoffload;
mod plots;
mod reproduction;
mod rows;
pub mod runs;
mod source;
mod spipe;
mod superpipeline;
mod zero_bubble;

pub use plots::pictures;
pub use reproduction::{Cell, FigurePlace, Picture, Reproduction};
pub use rows::table_of;
pub use source::{Library, Source};

use spipe_base::Faults;

/// A published table that can be made anew.
pub struct Table {
    /// The paper or article, by which all its tables are asked for.
    pub group: &'static str,
    /// The name of this table and of its files.
    pub name: &'static str,
    /// The rows that are built in, as TOML.
    pub rows: &'static str,
    make: fn(&Source<'_>) -> Result<Reproduction, Faults>,
}

impl Table {
    /// Fits constants on the rows marked so, predicts the others, and puts the figures beside the
    /// published ones.
    ///
    /// # Errors
    /// Everything that is wrong with the rows, each fault with its place.
    pub fn make(&self, source: &Source<'_>) -> Result<Reproduction, Faults> {
        Ok(Reproduction { table: self.name.into(), ..(self.make)(source)? })
    }
}

macro_rules! tables {
    ($($group:literal $name:literal $make:path;)+) => {
        [$(Table { group: $group, name: $name, rows: include_str!(concat!("../data/", $name, ".toml")), make: $make }),+]
    };
}

/// All tables, by group. Rows that name no table belong to the first table of the group that is
/// asked for.
pub const TABLES: &[Table] = &tables! {
    "zero-bubble" "zero-bubble" zero_bubble::make;
    "pipeoffload" "pipeoffload" pipeoffload::make;
    "pipeoffload" "pipeoffload-peaks" pipeoffload::peaks::make;
    "pipeoffload" "pipeoffload-runs" pipeoffload::runs::make;
    "pipeoffload" "pipeoffload-tensor" pipeoffload::tensor::make;
    "spipe" "spipe-figure-14" spipe::make;
    "spipe" "spipe-figure-9" spipe::make;
    "spipe" "spipe-figure-10" spipe::make;
    "spipe" "spipe-figure-12" spipe::make;
    "spipe" "spipe-tails" spipe::tails::make;
    "superpipeline" "superpipeline" superpipeline::make;
    "superpipeline" "superpipeline-training" superpipeline::training::make;
    "spipe-article" "spipe-article" article::make;
};
