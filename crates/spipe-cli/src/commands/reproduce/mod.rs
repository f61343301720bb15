//! `spipe reproduce`: published tables beside our predictions.

mod pipeoffload;
mod spipe;
mod tails;
mod zero_bubble;

use crate::{
    Failure, args,
    args::Format,
    output::{self, Target},
    tables::{percent, table},
};
use serde::{Serialize, de::DeserializeOwned};
use spipe_base::{Diagnostic, Faults, position_of};
use std::path::Path;

/// The version of row files and results.
const FORMAT_VERSION: u32 = 1;

/// One figure of a table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cell {
    /// What the row is about.
    row: String,
    /// The column.
    column: String,
    published: f64,
    ours: f64,
    /// (ours − published) ÷ published for times and ratios; ours − published for rates.
    error: f64,
    /// What was fitted on this figure, if anything was.
    #[serde(skip_serializing_if = "Option::is_none")]
    fitted: Option<String>,
}

/// A table with where it comes from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Reproduction {
    format_version: u32,
    table: &'static str,
    source: String,
    /// What figures and errors are.
    unit: &'static str,
    cells: Vec<Cell>,
}

/// A table that can be made anew.
struct Known {
    /// What it is asked for by.
    name: &'static str,
    /// What its files are called.
    table: &'static str,
    rows: &'static str,
    make: fn(&str, &str) -> Result<Reproduction, Failure>,
}

const TABLES: [Known; 6] = [
    Known {
        name: "zero-bubble",
        table: "zero-bubble",
        rows: include_str!("../../../data/zero-bubble.toml"),
        make: zero_bubble::make,
    },
    Known {
        name: "pipeoffload",
        table: "pipeoffload",
        rows: include_str!("../../../data/pipeoffload.toml"),
        make: pipeoffload::make,
    },
    Known {
        name: "spipe",
        table: "spipe-figure-14",
        rows: include_str!("../../../data/spipe-figure-14.toml"),
        make: spipe::make,
    },
    Known {
        name: "spipe",
        table: "spipe-figure-9",
        rows: include_str!("../../../data/spipe-figure-9.toml"),
        make: spipe::make,
    },
    Known {
        name: "spipe",
        table: "spipe-figure-10",
        rows: include_str!("../../../data/spipe-figure-10.toml"),
        make: spipe::make,
    },
    Known {
        name: "spipe",
        table: "spipe-tails",
        rows: include_str!("../../../data/spipe-tails.toml"),
        make: tails::make,
    },
];

/// Makes the tables that were asked for and writes them.
pub fn run(what: &args::Reproduce, format: Format) -> Result<(), Failure> {
    let chosen: Vec<&Known> = TABLES.iter().filter(|known| what.name == "all" || known.name == what.name).collect();
    if chosen.is_empty() {
        let mut known: Vec<&str> = TABLES.iter().map(|known| known.name).collect();
        known.dedup();
        return Err(Failure::argument(
            format!("`{}` is no published table", what.name),
            format!("use one of {}, or all", known.join(", ")),
        ));
    }
    // Tables of one name have one format.
    let chosen: Vec<&Known> = if what.rows.is_some() && what.name != "all" { chosen[..1].to_vec() } else { chosen };
    if what.rows.is_some() && chosen.len() > 1 {
        return Err(Failure::argument("rows belong to one table", "name it instead of `all`"));
    }
    let mut made = Vec::new();
    for known in chosen {
        let given = what.rows.as_deref().map(crate::input::text).transpose()?;
        let (file, rows) = match (&what.rows, &given) {
            (Some(path), Some(text)) => (path.as_str(), text.as_str()),
            _ => (known.table, known.rows),
        };
        let mut reproduction = (known.make)(file, rows)?;
        reproduction.table = if what.rows.is_some() { known.name } else { known.table };
        let folder = Path::new(&what.output);
        let json = output::to_json(&reproduction)? + "\n";
        Target::in_folder(folder, &format!("{}.json", reproduction.table))?.write(json.as_bytes())?;
        Target::in_folder(folder, &format!("{}.md", reproduction.table))?.write(markdown(&reproduction).as_bytes())?;
        made.push(reproduction);
    }
    let human: Vec<String> = made.iter().map(human).collect();
    output::report(format, &(human.join("\n\n") + "\n"), &made)
}

/// Reads rows; a fault has its place in the file.
fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, Faults> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let fault = Diagnostic::error(error.message().to_owned()).at(position_of(file, text, at));
        fault.hint("crates/spipe-cli/data has the rows that are built in, in the same format").into()
    })
}

/// The largest error of what was predicted, and the mean; of what was fitted, where nothing was predicted.
fn largest(reproduction: &Reproduction) -> (f64, f64) {
    let predicts = reproduction.cells.iter().any(|cell| cell.fitted.is_none());
    let judged = reproduction.cells.iter().filter(|cell| !predicts || cell.fitted.is_none());
    let errors: Vec<f64> = judged.map(|cell| cell.error.abs()).collect();
    (errors.iter().copied().fold(0.0, f64::max), errors.iter().sum::<f64>() / errors.len().max(1) as f64)
}

fn human(reproduction: &Reproduction) -> String {
    let mut rows = table(&["row", "column", "published", "ours", "error", "fitted"], &[2, 3, 4]);
    for cell in &reproduction.cells {
        rows.add_row(vec![
            cell.row.clone(),
            cell.column.clone(),
            figure(cell.published),
            figure(cell.ours),
            format!("{:+.2} %", 100.0 * cell.error),
            cell.fitted.clone().unwrap_or_default(),
        ]);
    }
    let (most, mean) = largest(reproduction);
    format!(
        "{}: {}\n{}\n\n{rows}\n\nLargest error {}, mean {}",
        reproduction.table,
        reproduction.source,
        reproduction.unit,
        percent(most),
        percent(mean)
    )
}

fn markdown(reproduction: &Reproduction) -> String {
    let (most, mean) = largest(reproduction);
    let mut text = format!(
        "# {}\n\n{}\n\n{} Largest error of what was predicted (of what was fitted, if nothing was): {:.2} %; mean {:.2} %.\n\n\
         | row | column | published | ours | error | fitted |\n|---|---|---|---|---|---|\n",
        reproduction.table,
        reproduction.source,
        reproduction.unit,
        100.0 * most,
        100.0 * mean
    );
    for cell in &reproduction.cells {
        text += &format!(
            "| {} | {} | {} | {} | {:+.2} % | {} |\n",
            cell.row,
            cell.column,
            figure(cell.published),
            figure(cell.ours),
            100.0 * cell.error,
            cell.fitted.as_deref().unwrap_or("")
        );
    }
    text
}

fn figure(number: f64) -> String {
    if number.abs() < 10.0 { format!("{number:.4}") } else { format!("{number:.0}") }
}
