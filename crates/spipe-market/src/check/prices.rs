//! The rules of prices: order, sources and ages.

use crate::{
    Date, Dated,
    catalogue::{Part, Source},
    price::{OLD, STALE},
};
use spipe_base::{Diagnostic, Faults};

/// Checks the prices of a part.
pub(super) fn part(part: Part<'_>, as_of: Date, source: &Source, faults: &mut Faults) {
    for price in part.prices() {
        one(part.name(), (price, &price.source), source, faults);
    }
    let newest = part.prices().iter().map(|price| price.date).max();
    let hours = if let Part::Rent(rent) = part { rent.hour.as_slice() } else { &[] };
    for hour in hours {
        one(part.name(), (hour, &hour.source), source, faults);
    }
    if let Part::Rent(rent) = part {
        if rent.hour.is_empty() {
            let fault = Diagnostic::error(format!("`{}` has no price of an hour", rent.name));
            faults.push(source.at(&rent.name, fault.hint("add one to `hour`")));
        }
        if rent.gpus == 0 {
            let fault = Diagnostic::error(format!("`{}` has no GPU", rent.name));
            faults.push(source.at(&rent.name, fault.hint("state `gpus`, at least 1")));
        }
    }
    if let Part::Board(board) = part
        && let Some(share) = &board.share_of_gpus
        && !(crate::Range { low: share.low, typical: share.typical, high: share.high }).is_ordered()
    {
        let fault = Diagnostic::error(format!(
            "the share of `{}` is negative, or not in the order low, typical, high",
            board.name
        ));
        faults.push(source.at(&board.name, fault.hint("write them in ascending order")));
    }
    let Some(newest) = newest.max(hours.iter().map(|hour| hour.date).max()) else { return };
    let age = as_of.days_since(newest);
    let hint = if age > STALE {
        "its range is widened by 1.5 at each end; add a newer price"
    } else if age > OLD {
        "add a newer price"
    } else {
        return;
    };
    let message = format!("the newest price of `{}` is {age} days old on {as_of}", part.name());
    faults.push(source.at(part.name(), Diagnostic::warning(message).hint(hint)));
}

/// Checks one price.
fn one(name: &str, (price, from): (&impl Dated, &str), source: &Source, faults: &mut Faults) {
    let range = price.range();
    let (low, typical, high) = (range.low, range.typical, range.high);
    let written = format!("the price of `{name}` of {} ({low}, {typical}, {high} {})", price.date(), price.currency());
    let mut report = |what: &str, hint: &str| {
        faults.push(source.at(name, Diagnostic::error(format!("{written} {what}")).hint(hint)));
    };
    if [low, typical, high].iter().any(|amount| !amount.is_finite() || *amount < 0.0) {
        report("is negative or not a number", "write amounts of money without a sign");
    } else if !range.is_ordered() {
        report("is reversed", "write low, typical and high in ascending order");
    }
    if from.trim().is_empty() {
        report("has no source", "say where it was seen");
    }
}
