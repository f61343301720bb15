//! `spipe catalogue check`.

use crate::{Failure, args, args::Format, input, market, output};
use serde::Serialize;
use spipe_base::{Diagnostic, Severity};
use spipe_market::{Date, Source, check, check_fitting, shipped};

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct CheckOutput {
    format_version: u32,
    as_of: Date,
    parts: usize,
    errors: Vec<Fault>,
    warnings: Vec<Fault>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Fault {
    message: String,
    position: Option<String>,
    hint: Option<String>,
}

impl Fault {
    fn of(diagnostic: &Diagnostic) -> Self {
        let position = diagnostic.position.as_ref().map(ToString::to_string);
        Self { message: diagnostic.message.clone(), position, hint: diagnostic.hint.clone() }
    }
}

/// Checks files and prints their faults.
pub fn run(what: &args::CatalogueCheck, format: Format) -> Result<(), Failure> {
    let day = market::day(what.as_of);
    let mut whole = market::shipped()?;
    let mut sources = Vec::new();
    if what.files.is_empty() {
        for (name, text) in shipped() {
            sources.push(Source::read(&format!("catalogue/{name}.toml"), text)?);
        }
    }
    for path in &what.files {
        let source = Source::read(path, &input::text(path)?)?;
        whole.add(source.parsed.clone());
        sources.push(source);
    }
    let mut data = CheckOutput { format_version: 1, as_of: day, parts: 0, errors: Vec::new(), warnings: Vec::new() };
    let mut found = Vec::new();
    for source in &sources {
        let mut alone = spipe_market::Catalogue::default();
        alone.add(source.parsed.clone());
        data.parts += alone.parts().count();
        for fault in check(source, day).iter().chain(check_fitting(source, &whole).iter()) {
            match fault.severity {
                Severity::Error => data.errors.push(Fault::of(fault)),
                Severity::Warning => data.warnings.push(Fault::of(fault)),
            }
            found.push(fault.clone());
        }
    }
    if format == Format::Human {
        let (errors, warnings): (Vec<_>, Vec<_>) =
            found.iter().partition(|fault: &&Diagnostic| fault.severity == Severity::Error);
        errors.iter().for_each(|fault| output::talk(&fault.to_string()));
        output::warn(warnings);
    }
    let (errors, warnings) = (data.errors.len(), data.warnings.len());
    let summary = format!("{} parts on {day}: {errors} errors, {warnings} warnings\n", data.parts);
    output::report(format, &summary, &data)?;
    if errors == 0 {
        return Ok(());
    }
    Err(Failure::Check(
        Diagnostic::error(format!("the catalogue has {errors} wrong figures or prices"))
            .hint("correct them where the messages point"),
    ))
}
