//! Amounts of money, their ranges, and rates between currencies.

use crate::Date;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// A currency, as three capital letters of ISO 4217.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Currency(String);

/// The reason why text is no amount of money.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// The currency is not three capital letters.
    #[error("`{0}` is not a currency (write three capital letters, such as EUR)")]
    Currency(String),
    /// The text is not a number and a currency.
    #[error("`{0}` is not an amount of money (write it like \"12000 EUR\")")]
    Amount(String),
    /// No rate joins two currencies.
    #[error("there is no rate from {from} to {to}")]
    NoRate {
        /// The currency of the amount.
        from: Currency,
        /// The currency that was asked for.
        to: Currency,
    },
}

impl Currency {
    /// The currency of most shipped prices.
    pub fn usd() -> Self {
        Self("USD".into())
    }
}

impl FromStr for Currency {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let is_code = text.len() == 3 && text.bytes().all(|letter| letter.is_ascii_uppercase());
        if is_code { Ok(Self(text.into())) } else { Err(MoneyError::Currency(text.into())) }
    }
}

impl TryFrom<String> for Currency {
    type Error = MoneyError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> Self {
        currency.0
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// An amount in a currency, such as `12000 EUR`.
#[derive(Clone, Debug, PartialEq)]
pub struct Money {
    /// The number, finite and not negative.
    pub amount: f64,
    /// The currency.
    pub currency: Currency,
}

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || MoneyError::Amount(text.into());
        let trimmed = text.trim();
        let unit = trimmed.trim_start_matches(|letter: char| letter.is_ascii_digit() || matches!(letter, '.' | '_'));
        let amount: f64 = trimmed[..trimmed.len() - unit.len()].replace('_', "").parse().map_err(|_| error())?;
        if unit.trim().is_empty() || !amount.is_finite() {
            return Err(error());
        }
        Ok(Self { amount, currency: unit.parse()? })
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.amount, self.currency))
    }
}

impl spipe_base::Exact for Money {
    fn exact(&self) -> String {
        self.to_string()
    }
}

/// A lowest, a typical and a highest amount, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Range {
    /// The lowest amount.
    pub low: f64,
    /// The typical amount.
    pub typical: f64,
    /// The highest amount.
    pub high: f64,
}

impl Range {
    /// A range of one amount.
    pub const fn exactly(amount: f64) -> Self {
        Self { low: amount, typical: amount, high: amount }
    }

    /// Returns the range with `change` applied to each amount.
    pub fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self { low: change(self.low), typical: change(self.typical), high: change(self.high) }
    }

    /// Returns whether all amounts are finite, not negative and in order.
    pub fn is_ordered(self) -> bool {
        [self.low, self.typical, self.high].iter().all(|amount| amount.is_finite() && *amount >= 0.0)
            && self.low <= self.typical
            && self.typical <= self.high
    }

    /// Returns the amount at `position`: 0 is the lowest, ½ the typical and 1 the highest, with
    /// straight lines between them.
    pub fn at(self, position: f64) -> f64 {
        if position <= 0.5 {
            self.low + (self.typical - self.low) * position * 2.0
        } else {
            self.typical + (self.high - self.typical) * (position - 0.5) * 2.0
        }
    }
}

impl std::ops::Add for Range {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { low: self.low + other.low, typical: self.typical + other.typical, high: self.high + other.high }
    }
}

impl std::ops::Mul<f64> for Range {
    type Output = Self;

    /// Scales by a factor that is not negative.
    fn mul(self, factor: f64) -> Self {
        self.map(|amount| amount * factor)
    }
}

impl std::iter::Sum for Range {
    fn sum<I: Iterator<Item = Self>>(ranges: I) -> Self {
        ranges.fold(Self::default(), |total, range| total + range)
    }
}

/// A rate between two currencies, as a job states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RateFile {
    /// The currency of prices.
    pub from: Currency,
    /// How much of the job's currency one unit of `from` is worth.
    pub rate: f64,
    /// The date of the rate.
    pub date: Date,
    /// Its source.
    pub source: String,
}

/// Rates into one currency.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    to: Currency,
    rates: BTreeMap<Currency, f64>,
}

impl Rates {
    /// Rates into `to`. Rates that are not positive and finite are left out.
    pub fn new(to: Currency, given: &[RateFile]) -> Self {
        let usable = given.iter().filter(|rate| rate.rate.is_finite() && rate.rate > 0.0);
        let mut rates: BTreeMap<Currency, f64> = usable.map(|rate| (rate.from.clone(), rate.rate)).collect();
        rates.insert(to.clone(), 1.0);
        Self { to, rates }
    }

    /// Returns the currency of the results.
    pub const fn currency(&self) -> &Currency {
        &self.to
    }

    /// Returns the value of one unit of `from`.
    ///
    /// # Errors
    /// No rate was given for it.
    pub fn rate(&self, from: &Currency) -> Result<f64, MoneyError> {
        let error = || MoneyError::NoRate { from: from.clone(), to: self.to.clone() };
        self.rates.get(from).copied().ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_has_a_number_and_a_currency() {
        assert_eq!("12_000 EUR".parse::<Money>().map(|money| money.amount), Ok(12_000.0));
        for bad in ["12000", "EUR", "-3 EUR", "12 eur", "12 EURO", "1.2.3 EUR"] {
            assert!(bad.parse::<Money>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_interpolate_between_their_amounts() {
        let range = Range { low: 1.0, typical: 2.0, high: 6.0 };
        let at = [0.0, 0.25, 0.5, 0.75, 1.0].map(|position| range.at(position));
        assert!(at.iter().zip([1.0, 1.5, 2.0, 4.0, 6.0]).all(|(left, right)| (left - right).abs() < 1e-12), "{at:?}");
        assert!(!Range { low: 3.0, ..range }.is_ordered());
    }
}
