//! The catalogue of a command: the shipped parts, with those of the user's files.

use crate::{Failure, args, input};
use spipe_base::{Faults, Severity};
use spipe_market::{Catalogue, Date, Source, check, check_fitting, count_of};

/// The shipped parts.
pub fn shipped() -> Result<Catalogue, Failure> {
    Catalogue::shipped().map_err(|faults| Failure::Bug(format!("a shipped catalogue does not read: {faults}")))
}

/// The day that was given, or today in UTC.
pub fn day(given: Option<Date>) -> Date {
    given.unwrap_or_else(|| Date::from_unix(time::OffsetDateTime::now_utc().unix_timestamp()))
}

/// The shipped parts with those of the files, which are checked.
pub fn catalogue(what: &args::CatalogueSource) -> Result<Catalogue, Failure> {
    let mut whole = shipped()?;
    let mut sources = Vec::new();
    for path in &what.catalogues {
        let source = Source::read(path, &input::text(path)?)?;
        whole.add(source.parsed.clone());
        sources.push(source);
    }
    let mut errors = Faults::new();
    for source in &sources {
        let found = [check(source, day(what.as_of)), check_fitting(source, &whole)];
        let found = found.iter().flat_map(Faults::iter).filter(|fault| fault.severity == Severity::Error);
        found.for_each(|fault| errors.push(fault.clone()));
    }
    Ok(errors.or(whole)?)
}

/// A number of equal parts of an option.
pub fn counted(option: &str, text: &str) -> Result<(u32, String), Failure> {
    count_of(text).ok_or_else(|| {
        Failure::argument(format!("`{text}` is not a number of parts"), format!("write it like --{option} 2xNAME"))
    })
}
