//! Dates of prices and their ages.

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{borrow::Cow, fmt, str::FromStr};

/// A day of the Gregorian calendar, as a number of days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(i64);

/// The reason why text is not a date.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a date (write it like 2026-11-27)")]
pub struct DateError(String);

impl Date {
    /// Creates a date; `None` if the calendar has no such day.
    pub fn new(year: i64, month: u32, day: u32) -> Option<Self> {
        let date = Self(days_from_civil(year, i64::from(month), i64::from(day)));
        (1..=12).contains(&month).then_some(date).filter(|date| date.civil() == (year, month, day))
    }

    /// Creates the date of a moment, in seconds since 1970-01-01 in UTC.
    pub const fn from_unix(seconds: i64) -> Self {
        Self(seconds.div_euclid(86_400))
    }

    /// Returns the days from `earlier` to this date; negative if it is later.
    pub const fn days_since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }

    /// Returns year, month and day.
    pub const fn civil(self) -> (i64, u32, u32) {
        // Howard Hinnant, "chrono-compatible low-level date algorithms": eras of 400 years from March.
        let shifted = self.0 + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (year_of_era + era * 400 + (month <= 2) as i64, month as u32, day as u32)
    }
}

const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        f.pad(&format!("{year:04}-{month:02}-{day:02}"))
    }
}

impl FromStr for Date {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let [year, month, day] = parts[..] else { return Err(DateError(text.into())) };
        let digits = |part: &str, count| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit());
        let written = digits(year, 4) && digits(month, 2) && digits(day, 2);
        let date = written.then(|| Some((year.parse().ok()?, month.parse().ok()?, day.parse().ok()?))).flatten();
        date.and_then(|(year, month, day)| Self::new(year, month, day)).ok_or_else(|| DateError(text.into()))
    }
}

/// A TOML date, or text as in JSON.
impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// A reader of dates.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Date;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a date like 2026-11-27")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Date, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Date, A::Error> {
        let read = toml::value::Datetime::deserialize(MapAccessDeserializer::new(map))?;
        let date = read.date.filter(|_| read.time.is_none());
        let date = date.ok_or_else(|| A::Error::custom("expected a date like 2026-11-27, without a time"))?;
        Date::new(i64::from(date.year), u32::from(date.month), u32::from(date.day))
            .ok_or_else(|| A::Error::custom(DateError(date.to_string())))
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Date {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Date".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn days_are_counted_over_leap_years() {
        let day = |text: &str| text.parse::<Date>().unwrap();
        assert_eq!(day("1970-01-01"), Date::from_unix(0));
        assert_eq!(day("2024-03-01").days_since(day("2024-02-28")), 2);
        assert_eq!(day("2026-11-27").days_since(day("2025-11-27")), 365);
        for bad in ["2026-02-29", "2026-13-01", "2026-1-1", "26-01-01", "2026-01", "+026-01-01"] {
            assert!(bad.parse::<Date>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn text_reads_back(days in -20_000i64..60_000) {
            let date = Date(days);
            prop_assert_eq!(date.to_string().parse::<Date>(), Ok(date));
        }
    }
}
