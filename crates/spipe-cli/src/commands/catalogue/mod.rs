//! `spipe catalogue`.

mod check;
mod compose;
mod show;

use crate::{Failure, args, args::Format, market, output};
use serde::Serialize;
use spipe_base::Diagnostic;
use spipe_market::{Condition, Dated as _, Money, PriceFile};

/// Lists, shows, checks or composes.
pub fn run(what: &args::Catalogue, format: Format) -> Result<(), Failure> {
    match what {
        args::Catalogue::List(what) => show::list(what, format),
        args::Catalogue::Show(what) => show::show(what, format),
        args::Catalogue::Check(what) => check::run(what, format),
        args::Catalogue::Compose(what) => compose::run(what, format),
        args::Catalogue::Price(what) => price(what, format),
    }
}

/// Prints a price as a line of a catalogue.
fn price(what: &args::CataloguePrice, format: Format) -> Result<(), Failure> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct PartsOutput<'a> {
        format_version: u32,
        part: &'a str,
        price: &'a PriceFile,
        toml: String,
    }
    let (part, price) = read(&what.price, &what.source).map_err(|diagnostic| Failure::Arguments(diagnostic.into()))?;
    if market::shipped()?.find(part).is_none() {
        output::talk(&format!("warning: the shipped catalogue has no part `{part}`"));
    }
    let toml = price.to_toml();
    output::report(
        format,
        &format!("{toml},\n"),
        &PartsOutput { format_version: 1, part, price: &price, toml: toml.clone() },
    )
}

/// Reads `rtx3090=650..900EUR@2026-11-20,used`.
fn read<'a>(text: &'a str, source: &str) -> Result<(&'a str, PriceFile), Diagnostic> {
    let fault = |what: String| {
        Diagnostic::error(format!("`{text}` is not a price: {what}"))
            .hint("write it like rtx3090=650..900EUR@2026-11-20,used")
    };
    let (part, rest) = text.split_once('=').ok_or_else(|| fault("it has no `=`".into()))?;
    let (amounts, rest) = rest.split_once('@').ok_or_else(|| fault("it has no date".into()))?;
    let (date, condition) = rest.split_once(',').unwrap_or((rest, "new"));
    let numbers: Vec<&str> = amounts.split("..").collect();
    let last: Money =
        numbers.last().unwrap_or(&"").parse().map_err(|error: spipe_market::MoneyError| fault(error.to_string()))?;
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| fault(format!("`{text}` is not a number")));
    let (low, typical) = match numbers[..] {
        [_] => (last.amount, last.amount),
        [low, _] => (number(low)?, f64::midpoint(number(low)?, last.amount)),
        [low, typical, _] => (number(low)?, number(typical)?),
        _ => return Err(fault("it has more than three amounts".into())),
    };
    let price = PriceFile {
        condition: condition.trim().parse::<Condition>().map_err(fault)?,
        low,
        typical,
        high: last.amount,
        currency: last.currency,
        date: date.parse().map_err(|error: spipe_market::DateError| fault(error.to_string()))?,
        source: source.to_owned(),
    };
    if price.range().is_ordered() {
        Ok((part, price))
    } else {
        Err(fault("its amounts are negative or descend".into()))
    }
}
