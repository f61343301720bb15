//! `spipe reproduce`: published tables beside our predictions.
//!
//! ```text
//! rows (TOML: fit, predict) ─► fit ─► simulate ─► table (JSON, Markdown) ─► pictures (SVG, PNG)
//! ```

mod article;
mod bench;
mod fit;
mod offloading;
mod pipeoffload;
mod pipeoffload_peaks;
mod pipeoffload_runs;
mod pipeoffload_tensor;
mod planner;
mod plots;
mod rates;
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
use plots::Picture;
use spipe_base::Diagnostic;
use spipe_timeline::{DrawError, plot_png, plot_svg};
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
    "pipeoffload" "pipeoffload-tensor" pipeoffload_tensor::make;
    "spipe" "spipe-figure-14" spipe::make;
    "spipe" "spipe-figure-9" spipe::make;
    "spipe" "spipe-figure-10" spipe::make;
    "spipe" "spipe-figure-12" spipe::make;
    "spipe" "spipe-tails" tails::make;
    "superpipeline" "superpipeline" superpipeline::make;
    "superpipeline" "superpipeline-training" superpipeline_training::make;
    "spipe-article" "spipe-article" article::make;
};

/// Makes the tables that were asked for and writes them.
pub fn run(what: &args::Reproduce, format: Format) -> Result<(), Failure> {
    if what.name == "planner" {
        return planner::run(what, format);
    }
    let folder = Path::new(&what.output);
    let mut made = Vec::new();
    let mut index = String::from(INDEX);
    for (known, file, rows) in chosen(what)? {
        let mut reproduction = (known.make)(&file, &rows)?;
        reproduction.table = known.table.into();
        let pictures = plots::of(&reproduction);
        write(folder, &reproduction, &pictures)?;
        index += &format!("\n{}", reproduction.section(&pictures));
        made.push(reproduction);
    }
    if what.name == "all" {
        Target::in_folder(folder, "index.md")?.write(index.as_bytes())?;
    }
    let human: Vec<String> = made.iter().map(Reproduction::human).collect();
    output::report(format, &(human.join("\n\n") + "\n"), &made)
}

/// How an index begins.
const INDEX: &str = "# Published tables beside our figures\n\nMade by `spipe reproduce all`. Errors are of what was predicted; what was \
                     fitted on what stands in each table.\n";

fn write(folder: &Path, reproduction: &Reproduction, pictures: &[Picture]) -> Result<(), Failure> {
    let json = output::to_json(reproduction)? + "\n";
    let markdown = reproduction.markdown(pictures);
    Target::in_folder(folder, &format!("{}.json", reproduction.table))?.write(json.as_bytes())?;
    Target::in_folder(folder, &format!("{}.md", reproduction.table))?.write(markdown.as_bytes())?;
    for Picture { name, plot } in pictures {
        // A figure of a user's rows that has no place, such as none on a logarithmic axis.
        let failed = |error: DrawError| Failure::from(Diagnostic::error(format!("cannot draw `{name}`: {error}")));
        Target::in_folder(folder, &format!("{name}.svg"))?.write(plot_svg(plot).map_err(failed)?.as_bytes())?;
        Target::in_folder(folder, &format!("{name}.png"))?.write(&plot_png(plot).map_err(failed)?)?;
    }
    Ok(())
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
