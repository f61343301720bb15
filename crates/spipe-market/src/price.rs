//! Prices with a condition, a date and a source; the newest one of a day, and its age.

use crate::{Currency, Date, Range};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The age in days beyond which a price is called old.
pub const OLD: i64 = 90;

/// The age in days beyond which the range of a price is widened.
pub const STALE: i64 = 365;

/// The factor by which a stale range is widened at each end. Estimate: prices of cards and of
/// memory moved by 1.5 to 2 times within the year before 2026.
pub const WIDENED: f64 = 1.5;

/// The condition of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Not used before.
    New,
    /// Second hand.
    Used,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 2] = [Self::New, Self::Used];

    /// Returns the word in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Used => "used",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|condition| condition.name() == text);
        known.ok_or_else(|| format!("unknown condition `{text}` (known: new, used)"))
    }
}

/// The price of one part, without tax.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PriceFile {
    /// `new` or `used`.
    pub condition: Condition,
    /// The lowest price seen.
    pub low: f64,
    /// The price to expect.
    pub typical: f64,
    /// The highest price seen.
    pub high: f64,
    /// The currency.
    pub currency: Currency,
    /// The day on which the price was seen.
    pub date: Date,
    /// The place where it was seen; it has the word "estimate" where the range is estimated.
    pub source: String,
}

impl PriceFile {
    /// Returns the price as a line of a catalogue.
    pub fn to_toml(&self) -> String {
        let Self { condition, low, typical, high, currency, date, source } = self;
        let source = toml::Value::String(source.clone());
        format!(
            "{{ condition = \"{condition}\", low = {low}, typical = {typical}, high = {high}, currency = \"{currency}\", date = {date}, \
             source = {source} }}"
        )
    }
}

/// The price of one hour of a rented machine, without tax.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HourFile {
    /// The lowest price seen.
    pub low: f64,
    /// The price to expect.
    pub typical: f64,
    /// The highest price seen.
    pub high: f64,
    /// The currency.
    pub currency: Currency,
    /// The day on which the price was seen.
    pub date: Date,
    /// The place where it was seen.
    pub source: String,
}

/// A dated range of prices.
pub trait Dated {
    /// The range as written.
    fn range(&self) -> Range;
    /// The date as written.
    fn date(&self) -> Date;
    /// The currency.
    fn currency(&self) -> &Currency;

    /// Returns the days from its date to `as_of`; negative for a later date.
    fn age(&self, as_of: Date) -> i64 {
        as_of.days_since(self.date())
    }

    /// Returns the range, widened where it is older than a year on `as_of`.
    fn range_on(&self, as_of: Date) -> Range {
        let range = self.range();
        if self.age(as_of) > STALE {
            Range { low: range.low / WIDENED, typical: range.typical, high: range.high * WIDENED }
        } else {
            range
        }
    }
}

macro_rules! dated {
    ($($type:ident),+) => {$(
        impl Dated for $type {
            fn range(&self) -> Range {
                Range { low: self.low, typical: self.typical, high: self.high }
            }

            fn date(&self) -> Date {
                self.date
            }

            fn currency(&self) -> &Currency {
                &self.currency
            }
        }
    )+};
}

dated!(PriceFile, HourFile);

/// Returns the newest of `prices` that is not later than `as_of`, or else the oldest one.
pub fn current<P: Dated>(prices: &[P], as_of: Date) -> Option<&P> {
    let known = prices.iter().filter(|price| price.date() <= as_of).max_by_key(|price| price.date());
    known.or_else(|| prices.iter().min_by_key(|price| price.date()))
}

/// Returns the current price in `condition`, or in the other condition where there is none.
pub fn in_condition(prices: &[PriceFile], condition: Condition, as_of: Date) -> Option<&PriceFile> {
    let of = |wanted: Condition| {
        let all: Vec<&PriceFile> = prices.iter().filter(|price| price.condition == wanted).collect();
        let known = all.iter().filter(|price| price.date <= as_of).max_by_key(|price| price.date);
        known.or_else(|| all.iter().min_by_key(|price| price.date)).copied()
    };
    let other = if condition == Condition::New { Condition::Used } else { Condition::New };
    of(condition).or_else(|| of(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(condition: Condition, typical: f64, date: &str) -> PriceFile {
        PriceFile {
            condition,
            low: typical / 2.0,
            typical,
            high: typical * 2.0,
            currency: Currency::usd(),
            date: date.parse().unwrap(),
            source: "a test".into(),
        }
    }

    #[test]
    fn the_newest_known_price_of_the_condition_counts() {
        let prices = [
            price(Condition::New, 100.0, "2025-08-01"),
            price(Condition::New, 300.0, "2026-08-01"),
            price(Condition::Used, 50.0, "2026-05-01"),
        ];
        let typical = |condition, date: &str| {
            in_condition(&prices, condition, date.parse().unwrap()).map(|price| price.typical.round() as i64)
        };
        assert_eq!(typical(Condition::New, "2026-07-31"), Some(100));
        assert_eq!(typical(Condition::New, "2026-08-01"), Some(300));
        assert_eq!(typical(Condition::New, "2020-01-01"), Some(100), "the oldest stands in for earlier days");
        assert_eq!(typical(Condition::Used, "2026-08-01"), Some(50));
        assert_eq!(in_condition(&prices[..2], Condition::Used, prices[1].date), Some(&prices[1]));
    }

    #[test]
    fn a_price_widens_after_a_year() {
        let old = price(Condition::New, 90.0, "2025-08-01");
        let on = |date: &str| old.range_on(date.parse().unwrap());
        assert_eq!(on("2026-08-01"), old.range());
        assert_eq!(on("2026-08-02"), Range { low: 30.0, typical: 90.0, high: 270.0 });
    }
}
