//! `spipe reproduce`: published tables beside our predictions, and our plans beside the baselines'.

use crate::{
    Failure, args,
    args::{Format, Given},
    idle::Idle,
    input,
    output::{self, Target},
    planning::measured,
    tables::table,
};
use rayon::prelude::*;
use spipe_base::{Diagnostic, Faults};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::Model;
use spipe_reproduce::{
    Library, Picture, Reproduction, Source, TABLES, Table,
    matrix::{self, Answer, MatrixRow, Question},
    pictures, runs, table_of,
};
use spipe_search::{Found, Request, SearchError, search};
use spipe_timeline::{DrawError, plot_png, plot_svg};
use std::path::Path;

/// Makes the tables that were asked for and writes them.
pub fn run(what: &args::Reproduce, given: &Given, format: Format) -> Result<(), Failure> {
    if what.name == "planner" {
        Idle::among(given).options(&["rows"], "to the planner's table", "leave it out").refuse()?;
        return planner(what, format);
    }
    if what.name == "runs" || runs::GROUPS.iter().any(|group| group.name == what.name) {
        Idle::among(given)
            .options(&["rows"], "to the measured runs", "use `spipe fit` on a file of other runs")
            .refuse()?;
        return runs(what, format);
    }
    let folder = Path::new(&what.output);
    let mut made = Vec::new();
    let mut index = String::from(INDEX);
    let library = Library {
        model: &|name| input::model(name).map_err(faults),
        hardware: &|name| input::hardware(name).map_err(faults),
    };
    for (table, file, rows) in chosen(what)? {
        let reproduction = table.make(&Source { file: &file, text: &rows, library })?;
        let pictures = pictures(&reproduction);
        write(folder, &reproduction, &pictures)?;
        index += &format!("\n{}", reproduction.section(&pictures));
        made.push(reproduction);
    }
    if what.name == "all" {
        Target::in_folder(folder, "index.md")?.write(index.as_bytes())?;
    }
    let human: Vec<String> = made.iter().map(human).collect();
    output::report(format, &(human.join("\n\n") + "\n"), &made)
}

/// The beginning of an index.
const INDEX: &str = "# Published tables beside our figures\n\nMade by `spipe reproduce all`. Errors are of what was predicted; what was \
                     fitted on what stands in each table.\n";

/// The faults of a model or a machine that a row names.
fn faults(failure: Failure) -> Faults {
    match failure {
        Failure::Input(faults) | Failure::Arguments(faults) => faults,
        other => Diagnostic::error(other.to_string()).into(),
    }
}

fn human(made: &Reproduction) -> String {
    let mut rows = table(&Reproduction::HEADINGS, &[2, 3, 4]);
    for cell in &made.cells {
        rows.add_row(cell.columns());
    }
    format!("{}: {}\n{}\n\n{rows}\n\n{}", made.table, made.source, made.unit, made.conclusions().join("\n"))
}

fn write(folder: &Path, reproduction: &Reproduction, pictures: &[Picture]) -> Result<(), Failure> {
    let json = output::to_json(reproduction)? + "\n";
    let markdown = reproduction.markdown(pictures);
    Target::in_folder(folder, &format!("{}.json", reproduction.table))?.write(json.as_bytes())?;
    Target::in_folder(folder, &format!("{}.md", reproduction.table))?.write(markdown.as_bytes())?;
    for Picture { name, plot } in pictures {
        // A figure from a user's rows may have no position, such as zero on a logarithmic axis.
        let failed = |error: DrawError| Failure::input(Diagnostic::error(format!("cannot draw `{name}`: {error}")));
        Target::in_folder(folder, &format!("{name}.svg"))?.write(plot_svg(plot).map_err(failed)?.as_bytes())?;
        Target::in_folder(folder, &format!("{name}.png"))?.write(&plot_png(plot).map_err(failed)?)?;
    }
    Ok(())
}

/// The tables that were asked for, each with the name of its file of rows and the rows.
fn chosen(what: &args::Reproduce) -> Result<Vec<(&'static Table, String, String)>, Failure> {
    let asked = |table: &&Table| what.name == "all" || table.group == what.name || table.name == what.name;
    let tables: Vec<&Table> = TABLES.iter().filter(asked).collect();
    if tables.is_empty() {
        let mut names: Vec<&str> = TABLES.iter().map(|table| table.group).collect();
        names.dedup();
        return Err(Failure::argument(
            format!("`{}` is not a published table", what.name),
            format!("use one of {}, planner, runs, or all", names.join(", ")),
        ));
    }
    let Some(path) = &what.rows else {
        let shipped = |table: &'static Table| (table, format!("{}.toml", table.name), table.rows.to_owned());
        return Ok(tables.into_iter().map(shipped).collect());
    };
    if what.name == "all" {
        return Err(Failure::argument("rows belong to one table", "name it instead of `all`"));
    }
    let text = input::text(path)?;
    let named = table_of(path, &text)?;
    let table = match &named {
        Some((name, fault)) => tables.iter().find(|table| table.name == name).ok_or_else(|| {
            let names: Vec<&str> = tables.iter().map(|table| table.name).collect();
            Failure::input(fault.clone().hint(format!("write one of {}", names.join(", "))))
        })?,
        None => &tables[0],
    };
    Ok(vec![(*table, path.clone(), text)])
}

/// Predicts the committed measured runs, or those of one group, and writes their page and plots.
fn runs(what: &args::Reproduce, format: Format) -> Result<(), Failure> {
    let folder = Path::new(&what.output);
    let reader = measured::Reader {
        model: &|name| match runs::MODELS.iter().find(|(known, _)| *known == name) {
            Some((known, text)) => Ok(Model::from_toml(&format!("{known}.toml"), text)?),
            None => input::model(name),
        },
        hardware: &|name| match runs::MACHINES.iter().find(|(known, _)| Some(*known) == name) {
            Some((known, text)) => Ok(Hardware::from_toml(&format!("{known}.toml"), text)?),
            None => input::hardware(name.unwrap_or_default()),
        },
        runtime: &|name| match runs::RUNTIMES.iter().find(|(known, _)| *known == name) {
            Some((known, text)) => Ok(Runtime::from_toml(&format!("{known}.toml"), text)?),
            None => input::runtime(name),
        },
    };
    let mut made = Vec::new();
    for group in runs::GROUPS.iter().filter(|group| what.name == "runs" || group.name == what.name) {
        made.push(runs::make(group, &|run| measured::prepare(run, &reader))?);
        output::talk(&format!("{}: done", group.name));
    }
    for one in &made {
        let failed = |error: DrawError| Failure::Bug(format!("cannot draw `{}`: {error}", one.name));
        let plot = plot_svg(&runs::scatter(one.title, &one.fitted)).map_err(failed)?;
        Target::in_folder(folder, &format!("runs-{}.svg", one.name))?.write(plot.as_bytes())?;
    }
    let reports: Vec<spipe_fit::Report> = made.iter().map(|one| spipe_fit::report(&one.fitted, &one.runtime)).collect();
    let page = runs::markdown(&made);
    let file = if what.name == "runs" { "runs".to_owned() } else { format!("runs-{}", what.name) };
    Target::in_folder(folder, &format!("{file}.json"))?.write(output::to_json(&reports)?.as_bytes())?;
    Target::in_folder(folder, &format!("{file}.md"))?.write(page.as_bytes())?;
    output::report(format, &page, &reports)
}

/// Plans every shipped model on every shipped machine and writes the table of the plans.
fn planner(what: &args::Reproduce, format: Format) -> Result<(), Failure> {
    let folder = Path::new(&what.output);
    let (mut rows, mut text) = (Vec::new(), String::new());
    // Written anew after every machine, so that an early end leaves a table of the machines before
    // it.
    for (machine, _) in spipe_hardware::shipped() {
        let hardware = input::hardware(machine)?;
        let models = spipe_model::shipped().par_iter();
        let more: Result<Vec<MatrixRow>, Failure> =
            models.map(|(model, _)| matrix::row(&input::model(model)?, (machine, &hardware), answer)).collect();
        rows.extend(more?);
        text = matrix::markdown(&rows);
        Target::in_folder(folder, "planner.json")?.write((output::to_json(&rows)? + "\n").as_bytes())?;
        Target::in_folder(folder, "planner.md")?.write(text.as_bytes())?;
        output::talk(&format!("{machine}: done"));
    }
    output::report(format, &text, &rows)?;
    match rows.iter().find_map(MatrixRow::beaten) {
        None => Ok(()),
        Some((model, machine)) => {
            Err(Failure::Check(Diagnostic::error(format!("a baseline beats the plan of `{model}` on `{machine}`"))))
        }
    }
}

/// The plan of one planner, if it finds one.
fn answer(question: &Question<'_>) -> Result<Option<Answer>, Failure> {
    let found = search(&Request {
        systems: question.systems.clone(),
        planner: question.planner.into(),
        time_limit: question.time_limit,
        gap: question.gap,
        ..Request::new(question.model.clone(), question.hardware.clone(), vec![question.workload])
    });
    match found {
        Ok(Found { plan, solution, .. }) => Ok(Some(Answer { plan, simulated: solution.simulated, gap: solution.gap })),
        Err(SearchError::Infeasible(_) | SearchError::Stopped(_) | SearchError::Request(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}
