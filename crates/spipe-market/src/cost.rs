//! The price of a machine, and the cost of a job on it.
//!
//! ```text
//! hour of an owned machine = price · (1 − residual) / (years · 8,766 h · use) + W/1,000 · PUE · price per kWh
//! cost of the job          = hours · that
//! hour of a rented machine = rate
//! ```

use crate::{
    Catalogue, Choice, Composed, Condition, Currency, Date, Item, Kind, MoneyError, Per, Range, Rates, RentPart, Watts,
    price::{Dated, current, in_condition},
};

/// The hours of a year: 365.25 days.
pub const HOURS_PER_YEAR: f64 = 8766.0;

/// The reason why a machine has no price.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unpriced {
    /// A part has no price.
    #[error("`{0}` has no price in the catalogue")]
    NoPrice(String),
    /// A price is in a currency without a rate.
    #[error("the price of `{part}` is in {}: {error}", error.from())]
    NoRate {
        /// The part.
        part: String,
        /// The missing rate.
        error: MoneyError,
    },
}

impl MoneyError {
    /// The currency without a rate.
    fn from(&self) -> String {
        match self {
            Self::NoRate { from, .. } => from.to_string(),
            other => other.to_string(),
        }
    }
}

/// The price of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachinePrice {
    /// The sum over its parts, without tax, in the currency of the rates.
    pub range: Range,
    /// The price of each item, all pieces together.
    pub items: Vec<(Item, Range)>,
    /// The date of the oldest price.
    pub oldest: Date,
    /// The parts whose price is older than a year, so that its range was widened.
    pub stale: Vec<String>,
    /// The parts that were only to be had in the other condition.
    pub substituted: Vec<String>,
}

/// Returns the price of a machine on a day, in a condition where its parts are sold in it.
///
/// # Errors
/// A part without a price, or in a currency without a rate.
pub fn price(
    catalogue: &Catalogue,
    machine: &Composed,
    (condition, as_of): (Condition, Date),
    rates: &Rates,
) -> Result<MachinePrice, Unpriced> {
    let mut found = MachinePrice {
        range: Range::default(),
        items: Vec::new(),
        oldest: as_of,
        stale: Vec::new(),
        substituted: Vec::new(),
    };
    for item in &machine.items {
        let one = of_item((catalogue, machine), item, (condition, as_of), rates, &mut found)?;
        found.range = found.range + one;
        found.items.push((item.clone(), one));
    }
    Ok(found)
}

/// The price of all pieces of an item.
fn of_item(
    (catalogue, machine): (&Catalogue, &Composed),
    item: &Item,
    (condition, as_of): (Condition, Date),
    rates: &Rates,
    found: &mut MachinePrice,
) -> Result<Range, Unpriced> {
    if item.kind == Kind::Board
        && let Some(share) = catalogue.boards.iter().find(|board| board.name == item.name)
        && let Some(share) = &share.share_of_gpus
    {
        let gpus = found
            .items
            .iter()
            .find(|(item, _)| item.kind == Kind::Gpu)
            .map_or_else(Range::default, |(_, price)| *price);
        let share = Range { low: share.low, typical: share.typical, high: share.high };
        found.oldest = found.oldest.min(as_of);
        return Ok(Range {
            low: gpus.low * share.low,
            typical: gpus.typical * share.typical,
            high: gpus.high * share.high,
        });
    }
    let part = catalogue.parts().find(|part| part.kind() == item.kind && part.name() == item.name);
    let prices = part.map_or(&[][..], |part| part.prices());
    let Some(price) = in_condition(prices, condition, as_of) else {
        // The CPU and the GPU of a superchip are one part.
        let is_half = item.kind == Kind::Platform && is_superchip(catalogue, &machine.choice);
        return if is_half { Ok(Range::default()) } else { Err(Unpriced::NoPrice(item.name.clone())) };
    };
    let rate = rates.rate(&price.currency).map_err(|error| Unpriced::NoRate { part: item.name.clone(), error })?;
    found.oldest = found.oldest.min(price.date);
    if price.age(as_of) > crate::price::STALE {
        found.stale.push(item.name.clone());
    }
    if price.condition != condition {
        found.substituted.push(item.name.clone());
    }
    Ok(price.range_on(as_of) * (rate * f64::from(item.count)))
}

fn is_superchip(catalogue: &Catalogue, choice: &Choice) -> bool {
    let platform = catalogue.platforms.iter().find(|platform| platform.name == choice.platform);
    platform.is_some_and(|platform| platform.form == crate::PlatformForm::Superchip)
}

/// Returns the price of an hour of `nodes` equal rented machines, on a day: `nodes` times that of one.
///
/// # Errors
/// No price, or a currency without a rate.
pub fn rent_hour((rent, nodes): (&RentPart, u32), as_of: Date, rates: &Rates) -> Result<Range, Unpriced> {
    let hour = current(&rent.hour, as_of).ok_or_else(|| Unpriced::NoPrice(rent.name.clone()))?;
    let rate = rates.rate(&hour.currency).map_err(|error| Unpriced::NoRate { part: rent.name.clone(), error })?;
    let pieces = if rent.per == Per::Gpu { rent.gpus } else { 1 };
    Ok(hour.range_on(as_of) * (rate * f64::from(pieces) * f64::from(nodes)))
}

/// How a machine is owned.
#[derive(Clone, Debug, PartialEq)]
pub struct Ownership {
    /// The currency of all amounts.
    pub currency: Currency,
    /// The years until it is sold.
    pub years: f64,
    /// The share of the hours in which it computes, above 0 and at most 1.
    pub utilisation: f64,
    /// The share of the price that it is sold for.
    pub residual: Range,
    /// The price of a kilowatt-hour.
    pub kilowatt_hour: f64,
    /// The power of the building over that of its machines, at least 1.
    pub pue: f64,
}

impl Ownership {
    /// Returns the cost of an hour of a machine of this price that draws `power`.
    pub fn hour(&self, price: Range, power: Watts) -> Range {
        let hours = self.years * HOURS_PER_YEAR * self.utilisation;
        let energy = self.energy(power);
        // The least cost has the lowest price and the highest residual value.
        Range {
            low: price.low * (1.0 - self.residual.high) / hours + energy,
            typical: price.typical * (1.0 - self.residual.typical) / hours + energy,
            high: price.high * (1.0 - self.residual.low) / hours + energy,
        }
    }

    /// Returns the cost of the energy of an hour.
    pub fn energy(&self, power: Watts) -> f64 {
        power.get() / 1000.0 * self.pue * self.kilowatt_hour
    }
}

/// Returns the cost of `hours` at a price of an hour.
pub fn job_cost(hours: f64, hour: Range) -> Range {
    hour * hours
}
