//! `spipe reproduce`: published tables beside our predictions.
//!
//! ```text
//! rows (TOML: fit, predict) ─► fit ─► simulate ─► table (JSON, Markdown)
//! ```

mod article;
mod bench;
mod fit;
mod offloading;
mod pipeoffload;
mod pipeoffload_peaks;
mod pipeoffload_runs;
mod rows;
mod spipe;
mod superpipeline;
mod superpipeline_training;
mod table;
mod tails;
mod zero_bubble;

use crate::{
    Failure, args,
    args::Format,
    output::{self, Target},
};
use std::path::Path;
use table::Reproduction;

/// A table that can be made anew.
struct Known {
    /// What it is asked for by, together with others.
    name: &'static str,
    /// What it is asked for by alone, and what its files are called.
    table: &'static str,
    rows: &'static str,
    make: fn(&str, &str) -> Result<Reproduction, Failure>,
}

macro_rules! known {
    ($($name:literal $table:literal $make:path;)+) => {
        [$(Known {
            name: $name,
            table: $table,
            rows: include_str!(concat!("../../../data/", $table, ".toml")),
            make: $make,
        }),+]
    };
}

/// Where tables share a name, rows that do not say which they are for are for the first.
const TABLES: &[Known] = &known! {
    "zero-bubble" "zero-bubble" zero_bubble::make;
    "pipeoffload" "pipeoffload" pipeoffload::make;
    "pipeoffload" "pipeoffload-peaks" pipeoffload_peaks::make;
    "pipeoffload" "pipeoffload-runs" pipeoffload_runs::make;
    "spipe" "spipe-figure-14" spipe::make;
    "spipe" "spipe-figure-9" spipe::make;
    "spipe" "spipe-figure-10" spipe::make;
    "spipe" "spipe-tails" tails::make;
    "superpipeline" "superpipeline" superpipeline::make;
    "superpipeline" "superpipeline-training" superpipeline_training::make;
    "spipe-article" "spipe-article" article::make;
};

/// Makes the tables that were asked for and writes them.
pub fn run(what: &args::Reproduce, format: Format) -> Result<(), Failure> {
    let mut made = Vec::new();
    for (known, file, rows) in chosen(what)? {
        let mut reproduction = (known.make)(&file, &rows)?;
        reproduction.table = known.table.into();
        write(Path::new(&what.output), &reproduction)?;
        made.push(reproduction);
    }
    let human: Vec<String> = made.iter().map(Reproduction::human).collect();
    output::report(format, &(human.join("\n\n") + "\n"), &made)
}

fn write(folder: &Path, reproduction: &Reproduction) -> Result<(), Failure> {
    let json = output::to_json(reproduction)? + "\n";
    Target::in_folder(folder, &format!("{}.json", reproduction.table))?.write(json.as_bytes())?;
    Target::in_folder(folder, &format!("{}.md", reproduction.table))?.write(reproduction.markdown().as_bytes())
}

/// Tables, the names of their row files and the rows.
fn chosen(what: &args::Reproduce) -> Result<Vec<(&'static Known, String, String)>, Failure> {
    let asked = |known: &&Known| what.name == "all" || known.name == what.name || known.table == what.name;
    let tables: Vec<&Known> = TABLES.iter().filter(asked).collect();
    if tables.is_empty() {
        let mut names: Vec<&str> = TABLES.iter().map(|known| known.name).collect();
        names.dedup();
        return Err(Failure::argument(
            format!("`{}` is no published table", what.name),
            format!("use one of {}, or all", names.join(", ")),
        ));
    }
    let Some(path) = &what.rows else {
        let shipped = |known: &'static Known| (known, format!("{}.toml", known.table), known.rows.to_owned());
        return Ok(tables.into_iter().map(shipped).collect());
    };
    if what.name == "all" {
        return Err(Failure::argument("rows belong to one table", "name it instead of `all`"));
    }
    let text = crate::input::text(path)?;
    let named = rows::table_of(path, &text)?;
    let table = match &named {
        Some((name, fault)) => tables.iter().find(|known| known.table == name).ok_or_else(|| {
            let names: Vec<&str> = tables.iter().map(|known| known.table).collect();
            Failure::from(fault.clone().hint(format!("write one of {}", names.join(", "))))
        })?,
        None => &tables[0],
    };
    Ok(vec![(*table, path.clone(), text)])
}
