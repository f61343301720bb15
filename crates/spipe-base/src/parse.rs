//! Parsing of text such as `"18.522 ms"` into a number and a unit.

/// The error of a text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text does not start with a number.
    #[error("`{text}` is not a {quantity}: it does not start with a number (write it like \"{example}\")")]
    NoNumber {
        /// The text as given.
        text: String,
        /// The expected quantity.
        quantity: &'static str,
        /// A valid example.
        example: &'static str,
    },
    /// A number without a unit.
    #[error("`{text}` has no unit (write a {quantity} like \"{example}\")")]
    NoUnit {
        /// The text as given.
        text: String,
        /// The expected quantity.
        quantity: &'static str,
        /// A valid example.
        example: &'static str,
    },
    /// The unit of another quantity.
    #[error("`{unit}` is not a unit of {quantity} (known: {known})")]
    WrongUnit {
        /// The unit as given.
        unit: String,
        /// The expected quantity.
        quantity: &'static str,
        /// The units of that quantity.
        known: String,
    },
    /// A number outside of the quantity's range, a denormal one, or none at all.
    #[error("`{text}` is out of range for a {quantity} ({range})")]
    OutOfRange {
        /// The text as given.
        text: String,
        /// The expected quantity.
        quantity: &'static str,
        /// The least and the largest value.
        range: &'static str,
    },
}

/// The name and units of a quantity, for its parser.
pub(crate) struct Units {
    /// The quantity's name in messages.
    pub quantity: &'static str,
    /// A valid example for messages.
    pub example: &'static str,
    /// The least and the largest value that may be written, for messages.
    pub range: &'static str,
    /// Each unit with its factor to the base unit.
    pub table: &'static [(&'static str, f64)],
}

impl Units {
    /// The refusal of `text`, which is outside of the range.
    pub fn out_of_range(&self, text: &str) -> ParseQuantityError {
        ParseQuantityError::OutOfRange { text: text.into(), quantity: self.quantity, range: self.range }
    }
}

/// Parses `text` and returns its value in the base unit.
pub(crate) fn parse(text: &str, units: &Units) -> Result<f64, ParseQuantityError> {
    let trimmed = text.trim();
    let end = number_end(trimmed);
    let digits: String = trimmed[..end].chars().filter(|c| *c != '_').collect();
    let value: f64 = digits.parse().map_err(|_| ParseQuantityError::NoNumber {
        text: text.into(),
        quantity: units.quantity,
        example: units.example,
    })?;
    let unit = trimmed[end..].trim();
    if unit.is_empty() {
        return Err(ParseQuantityError::NoUnit { text: text.into(), quantity: units.quantity, example: units.example });
    }
    let factor = units.table.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(|| {
        ParseQuantityError::WrongUnit {
            unit: unit.into(),
            quantity: units.quantity,
            known: units.table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        }
    })?;
    let scaled = scale(value, factor);
    if scaled.is_finite() && scaled >= 0.0 { Ok(scaled) } else { Err(units.out_of_range(text)) }
}

/// Converts `value` units of `factor` base units each. Small units divide, so that `18.522 ms` is
/// the nearest float.
pub(crate) fn scale(value: f64, factor: f64) -> f64 {
    if factor < 1.0 { value / (1.0 / factor).round() } else { value * factor }
}

/// Returns the end of the number at the start of `text`. An `e` counts only when digits follow it.
fn number_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let exponent = matches!(bytes[end], b'e' | b'E')
            && bytes.get(end + 1).is_some_and(|next| next.is_ascii_digit() || matches!(next, b'-' | b'+'));
        let sign = matches!(bytes[end], b'-' | b'+') && (end == 0 || matches!(bytes[end - 1], b'e' | b'E'));
        if bytes[end].is_ascii_digit() || matches!(bytes[end], b'.' | b'_') || exponent || sign {
            end += 1;
        } else {
            break;
        }
    }
    end
}

/// Writes `value` with `digits` decimals in the largest of `scales` (in descending order) that
/// leaves at least one unit.
pub(crate) fn write_scaled(
    f: &mut std::fmt::Formatter<'_>,
    value: f64,
    scales: &[(&str, f64)],
    digits: usize,
) -> std::fmt::Result {
    let (unit, factor) =
        scales.iter().find(|(_, factor)| value >= *factor).or(scales.last()).copied().unwrap_or(("", 1.0));
    let digits = f.precision().unwrap_or(digits);
    f.pad_integral(true, "", &format!("{:.digits$} {unit}", value / factor))
}
