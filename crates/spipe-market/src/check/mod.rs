//! Checks of catalogue files: figures, prices, and whether each part fits another.
//!
//! Every rule has a name, which a part can give as an `exception` with its reason.

mod figures;
mod fitting;
mod prices;

use crate::{Catalogue, Date, catalogue::Source};
use spipe_base::{Diagnostic, Faults};
use std::collections::BTreeSet;

pub use figures::{RULES, TOLERANCE};

/// Checks a file: the rules of figures and prices, and unique names. Ages of prices count up to `as_of`.
///
/// Old prices, and figures of a single source, are warnings; everything else is an error.
pub fn check(source: &Source, as_of: Date) -> Faults {
    let mut faults = Faults::new();
    let mut catalogue = Catalogue::default();
    let mut names = BTreeSet::new();
    catalogue.add(source.parsed.clone());
    let file = &source.parsed;
    let listed = file.gpu.iter().map(|part| ("gpu", &part.name));
    let listed = listed.chain(file.platform.iter().map(|part| ("platform", &part.name)));
    let listed = listed.chain(file.dram.iter().map(|part| ("dram", &part.name)));
    let listed = listed.chain(file.drive.iter().map(|part| ("drive", &part.name)));
    let listed = listed.chain(file.board.iter().map(|part| ("board", &part.name)));
    let listed = listed.chain(file.bridge.iter().map(|part| ("bridge", &part.name)));
    let listed = listed.chain(file.supply.iter().map(|part| ("supply", &part.name)));
    let listed = listed.chain(file.network_card.iter().map(|part| ("network-card", &part.name)));
    let listed = listed.chain(file.network_switch.iter().map(|part| ("network-switch", &part.name)));
    let listed = listed.chain(file.cable.iter().map(|part| ("cable", &part.name)));
    let listed = listed.chain(file.rent.iter().map(|part| ("rent", &part.name)));
    for (kind, name) in listed {
        let letters = name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'));
        if name.is_empty() || !letters {
            let fault = Diagnostic::error(format!("`{name}` cannot be the name of a part"));
            faults.push(source.at(name, fault.hint("use letters, digits, `-`, `_` and `.`")));
        }
        if !names.insert((kind, name)) {
            faults.push(source.at(name, Diagnostic::error(format!("the {kind} `{name}` is there twice"))));
        }
    }
    if names.is_empty() {
        let fault = Diagnostic::error("the catalogue has no part").hint("add a `[[gpu]]` and a `[[platform]]`");
        faults.push(source.at("", fault));
    }
    file.gpu.iter().for_each(|part| figures::gpu(part, source, &mut faults));
    file.platform.iter().for_each(|part| figures::platform(part, source, &mut faults));
    file.dram.iter().for_each(|part| figures::dram(part, source, &mut faults));
    file.drive.iter().for_each(|part| figures::drive(part, source, &mut faults));
    file.board.iter().for_each(|part| figures::board(part, source, &mut faults));
    file.network_card.iter().for_each(|part| figures::network_card(part, source, &mut faults));
    file.network_switch.iter().for_each(|part| figures::network_switch(part, source, &mut faults));
    file.rent.iter().for_each(|part| figures::rent(part, source, &mut faults));
    catalogue.parts().for_each(|part| prices::part(part, as_of, source, &mut faults));
    faults
}

/// Checks that each part of a file fits another part of the whole catalogue.
pub fn check_fitting(source: &Source, whole: &Catalogue) -> Faults {
    let mut faults = Faults::new();
    fitting::check(source, whole, &mut faults);
    faults
}
