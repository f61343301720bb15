//! Amounts of jobs as text: counts of tokens, long durations, energy prices.

use serde::Serialize;
use spipe_base::Exact;
use spipe_market::{Currency, MoneyError};
use std::{fmt, str::FromStr};

/// The reason why text is no such amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what} (write it like \"{example}\")")]
pub struct AmountError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// Splits text into its number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || matches!(letter, '.' | '_'));
    let number: f64 = text[..text.len() - unit.len()].replace('_', "").parse().ok()?;
    number.is_finite().then(|| (number, unit.trim()))
}

/// A number of tokens, at least one.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Tokens(pub f64);

impl FromStr for Tokens {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || AmountError { text: text.into(), what: "number of tokens", example: "2 G" };
        let (number, unit) = split(text).ok_or_else(error)?;
        let factor = match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" | "B" => 1e9,
            "T" => 1e12,
            _ => return Err(error()),
        };
        Some(Self(number * factor)).filter(|tokens| tokens.0 >= 1.0).ok_or_else(error)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scales = [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)];
        match scales.into_iter().find(|(_, factor)| self.0 >= *factor) {
            Some((unit, factor)) => f.pad(&format!("{} {unit}", self.0 / factor)),
            None => f.pad(&format!("{}", self.0)),
        }
    }
}

impl Exact for Tokens {
    fn exact(&self) -> String {
        format!("{}", self.0)
    }
}

/// A duration of hours to years, above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Hours(pub f64);

impl FromStr for Hours {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || AmountError { text: text.into(), what: "duration", example: "14 d" };
        let (number, unit) = split(text).ok_or_else(error)?;
        let factor = match unit {
            "s" => 1.0 / 3600.0,
            "min" | "m" => 1.0 / 60.0,
            "h" | "hours" | "hour" => 1.0,
            "d" | "days" | "day" => 24.0,
            "w" | "weeks" | "week" => 168.0,
            "y" | "years" | "year" => spipe_market::HOURS_PER_YEAR,
            _ => return Err(error()),
        };
        Some(Self(number * factor)).filter(|hours| hours.0 > 0.0).ok_or_else(error)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.0 {
            hours if hours < 1.0 => format!("{:.0} min", hours * 60.0),
            hours if hours < 48.0 => format!("{hours:.1} h"),
            hours if hours < 2.0 * spipe_market::HOURS_PER_YEAR => format!("{:.1} d", hours / 24.0),
            hours => format!("{:.1} years", hours / spipe_market::HOURS_PER_YEAR),
        })
    }
}

impl Exact for Hours {
    fn exact(&self) -> String {
        format!("{} h", self.0)
    }
}

/// A price of energy per kilowatt-hour.
#[derive(Clone, Debug, PartialEq)]
pub struct EnergyPrice {
    /// The amount.
    pub amount: f64,
    /// The currency.
    pub currency: Currency,
}

impl FromStr for EnergyPrice {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || AmountError { text: text.into(), what: "price of energy", example: "0.30 EUR/kWh" };
        let (amount, unit) = split(text).ok_or_else(error)?;
        let (currency, per) = unit.split_once('/').ok_or_else(error)?;
        let currency: Result<Currency, MoneyError> = currency.trim().parse();
        if per.trim() != "kWh" {
            return Err(error());
        }
        currency.map(|currency| Self { amount, currency }).map_err(|_| error())
    }
}

impl Exact for EnergyPrice {
    fn exact(&self) -> String {
        format!("{} {}/kWh", self.amount, self.currency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_a_number_and_a_unit() {
        assert_eq!("2 G".parse(), Ok(Tokens(2e9)));
        assert_eq!("1_000_000".parse(), Ok(Tokens(1e6)));
        assert_eq!("14 d".parse(), Ok(Hours(336.0)));
        assert_eq!("3 years".parse(), Ok(Hours(3.0 * 8766.0)));
        assert_eq!("0.30 EUR/kWh".parse::<EnergyPrice>().map(|price| price.amount), Ok(0.3));
        assert!(["", "-1 G", "0", "2 GB"].iter().all(|bad| bad.parse::<Tokens>().is_err()));
        assert!(["14", "0 d", "two days"].iter().all(|bad| bad.parse::<Hours>().is_err()));
        assert!(["0.3", "0.3 EUR", "0.3 EUR/h"].iter().all(|bad| bad.parse::<EnergyPrice>().is_err()));
    }
}
