//! Number formats of charts: durations, ticks of the time axis, percentages.

use spipe_base::SimTime;

/// The units of the time axis in nanoseconds.
const UNITS: [(&str, f64); 4] = [("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)];

/// The ticks of a time axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ticks {
    /// The unit of the labels.
    pub(crate) unit: &'static str,
    /// The time and label of each tick.
    pub(crate) marks: Vec<(SimTime, String)>,
}

/// Returns about `count` ticks from zero to `end`, at multiples of 1, 2 or 5 times a power of ten.
pub(crate) fn ticks(end: SimTime, count: usize) -> Ticks {
    let end = end.as_ns().max(1);
    let step = nice_step(end / count.max(1) as u64);
    let (unit, factor) = unit_of(end as f64 / 2.0);
    let digits =
        (0..6).find(|digits| (step as f64 / factor * 10f64.powi(*digits)).fract() < 1e-6).unwrap_or(6) as usize;
    let label = |ns: u64| format!("{:.digits$}", ns as f64 / factor);
    let marks = (0..=end / step).map(|index| (SimTime::ns(index * step), label(index * step))).collect();
    Ticks { unit, marks }
}

/// Returns the smallest of 1, 2, 5, 10, 20 … that is at least `least`.
fn nice_step(least: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        if let Some(step) = [1, 2, 5].iter().filter_map(|digit| power.checked_mul(*digit)).find(|step| *step >= least) {
            return step;
        }
        match power.checked_mul(10) {
            Some(larger) => power = larger,
            None => return least,
        }
    }
}

fn unit_of(ns: f64) -> (&'static str, f64) {
    UNITS.into_iter().find(|(_, factor)| ns >= *factor).unwrap_or(("ns", 1.0))
}

/// Formats a duration with its unit and about four significant digits: `4.190 ms`, `123.4 ms`.
pub(crate) fn duration(time: SimTime) -> String {
    let ns = time.as_ns() as f64;
    let (unit, factor) = unit_of(ns);
    let value = ns / factor;
    let digits = match value {
        _ if unit == "ns" => 0,
        value if value < 10.0 => 3,
        value if value < 100.0 => 2,
        value if value < 10_000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a fraction as a percentage with one decimal.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a number with thousands separators, and with one decimal below a hundred.
pub(crate) fn count(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let axis = ticks(SimTime::ms(123), 10);
        assert_eq!(axis.unit, "ms");
        let labels: Vec<&str> = axis.marks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0", "20", "40", "60", "80", "100", "120"]);
        let fine: Vec<String> = ticks(SimTime::ns(2_500_000), 10).marks.into_iter().map(|(_, label)| label).collect();
        assert_eq!(fine[..3], ["0.0", "0.5", "1.0"]);
    }

    #[test]
    fn ticks_end_at_every_size() {
        for end in [0, 1, 7, 999, u64::MAX] {
            let axis = ticks(SimTime::ns(end), 12);
            assert!(!axis.marks.is_empty() && axis.marks.len() <= 14, "{end}: {axis:?}");
        }
    }

    #[test]
    fn numbers_have_their_digits() {
        assert_eq!(duration(SimTime::ns(4_190_000)), "4.190 ms");
        assert_eq!(duration(SimTime::ns(123_400_000)), "123.4 ms");
        assert_eq!(duration(SimTime::ns(12)), "12 ns");
        assert_eq!(duration(SimTime::ZERO), "0 ns");
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!(count(12.34), "12.3");
        assert_eq!(percent(0.1234), "12.3 %");
    }
}
