//! Ranges and ticks of axes.

use super::{Axis, Scale};
use crate::DrawError;
use spipe_base::readable::grouped;

/// The approximate number of ticks of an axis.
const MARKS: f64 = 7.0;
/// The largest number of ticks at 1, 2 and 5 on a logarithmic axis; with more, only powers of ten
/// have ticks.
const MOST: usize = 9;

/// An axis with its range and ticks.
pub(super) struct Ruler {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) marks: Vec<(f64, String)>,
    scale: Scale,
}

impl Ruler {
    /// Returns the axis for `values`.
    pub(super) fn of(values: &[f64], axis: &Axis) -> Result<Self, DrawError> {
        let wrong = values.iter().find(|value| match axis.scale {
            Scale::Linear => !value.is_finite(),
            Scale::Logarithmic => !value.is_finite() || **value <= 0.0,
        });
        if let Some(wrong) = wrong {
            return Err(DrawError::Drawing { message: format!("{wrong} has no place on the axis `{}`", axis.label) });
        }
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Ok(match axis.scale {
            _ if values.is_empty() => linear(0.0, 1.0, false),
            Scale::Linear => linear(low, high, values.iter().all(|value| value.fract().abs() < f64::EPSILON)),
            Scale::Logarithmic => logarithmic(low, high),
        })
    }

    /// Returns the position of `value`: 0 at the low end, 1 at the high end.
    pub(super) fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

/// Returns a linear axis, which starts at zero unless all values are far from it. Marks between
/// `whole` numbers would be of things that there are not.
fn linear(low: f64, high: f64, whole: bool) -> Ruler {
    let low = if low > 0.0 && low < 0.5 * high { 0.0 } else { low };
    let room = if high > low { high - low } else { high.abs().max(1.0) };
    let (digit, exponent) = nice(if whole { (room / MARKS).max(1.0) } else { room / MARKS });
    let step = decimal(digit, exponent);
    let first = (low / step).floor();
    let last = (high / step).ceil().max(first + 1.0);
    let digits = (-exponent).max(0) as usize;
    let mark = |index: i64| {
        let value = (first + index as f64) * step;
        (value, label(value, digits))
    };
    let marks = (0..=(last - first) as i64).map(mark).collect();
    Ruler { low: first * step, high: last * step, marks, scale: Scale::Linear }
}

/// Returns `value` with that many decimals, and the thousands of large ones apart.
fn label(value: f64, digits: usize) -> String {
    match value.abs() {
        large if digits == 0 && (1e4..1e15).contains(&large) => {
            format!("{}{}", if value < 0.0 { "−" } else { "" }, grouped(large.round() as u64))
        }
        // Adding zero turns −0 into 0.
        _ => format!("{:.digits$}", value + 0.0),
    }
}

/// Returns a logarithmic axis between the nearest marks (1, 2 or 5 times a power of ten) below and
/// above.
fn logarithmic(low: f64, high: f64) -> Ruler {
    let exponents = (low.log10().floor() as i32 - 1)..=(high.log10().ceil() as i32 + 1);
    let all: Vec<(u32, f64)> =
        exponents.flat_map(|exponent| [1, 2, 5].map(|digit| (digit, decimal(digit, exponent)))).collect();
    let below = all.iter().map(|mark| mark.1).filter(|mark| *mark <= low).fold(0.0, f64::max);
    let above =
        all.iter().map(|mark| mark.1).filter(|mark| *mark >= high && *mark > below).fold(f64::INFINITY, f64::min);
    let within: Vec<(u32, f64)> = all.into_iter().filter(|(_, mark)| (below..=above).contains(mark)).collect();
    let every = within.len() <= MOST;
    let marks = within
        .iter()
        .filter(|(digit, _)| every || *digit == 1)
        .map(|(_, mark)| (*mark, if *mark < 1e4 { mark.to_string() } else { label(*mark, 0) }));
    Ruler { low: below, high: above, marks: marks.collect(), scale: Scale::Logarithmic }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn nice(least: f64) -> (u32, i32) {
    let exponent = least.log10().floor() as i32;
    let candidates = [(1, exponent), (2, exponent), (5, exponent), (1, exponent + 1)];
    candidates.into_iter().find(|(digit, exponent)| decimal(*digit, *exponent) >= least).unwrap_or((1, exponent + 1))
}

/// Returns the float nearest to digit × 10^exponent, which products of powers often miss.
fn decimal(digit: u32, exponent: i32) -> f64 {
    format!("{digit}e{exponent}").parse().unwrap_or_else(|_| f64::from(digit) * 10f64.powi(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ruler(values: &[f64], scale: Scale) -> Ruler {
        Ruler::of(values, &Axis { label: "x".into(), scale }).unwrap()
    }

    fn labels(ruler: &Ruler) -> Vec<&str> {
        ruler.marks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn marks_are_round() {
        assert_eq!(labels(&ruler(&[3.0, 61.0], Scale::Linear)), ["0", "10", "20", "30", "40", "50", "60", "70"]);
        assert_eq!(labels(&ruler(&[1.21, 1.36], Scale::Linear)), ["1.20", "1.25", "1.30", "1.35", "1.40"]);
        assert_eq!(labels(&ruler(&[0.003, 0.24], Scale::Linear)), ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25"]);
        assert_eq!(labels(&ruler(&[3.1, 112.0], Scale::Logarithmic)), ["2", "5", "10", "20", "50", "100", "200"]);
        assert_eq!(
            labels(&ruler(&[0.01, 9_000.0], Scale::Logarithmic)),
            ["0.01", "0.1", "1", "10", "100", "1000", "10 000"]
        );
    }

    #[test]
    fn counts_have_whole_marks() {
        assert_eq!(labels(&ruler(&[1.0, 2.0], Scale::Linear)), ["1", "2"]);
        assert_eq!(labels(&ruler(&[65_220.1, 214_228.0], Scale::Linear))[1..3], ["50 000", "100 000"]);
    }

    #[test]
    fn values_without_a_place_are_refused() {
        let refused = |value: f64, scale| Ruler::of(&[value], &Axis { label: "x".into(), scale }).is_err();
        assert!(refused(f64::NAN, Scale::Linear));
        assert!(refused(0.0, Scale::Logarithmic));
        assert!(!refused(0.0, Scale::Linear));
    }

    proptest! {
        #[test]
        fn every_value_is_within(values in prop::collection::vec(1e-6..1e9_f64, 1..20), logarithmic: bool) {
            let ruler = ruler(&values, if logarithmic { Scale::Logarithmic } else { Scale::Linear });
            for value in values {
                let place = ruler.place(value);
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&place), "{value} at {place}");
            }
            prop_assert!((2..=21).contains(&ruler.marks.len()), "{:?}", ruler.marks);
        }
    }
}
