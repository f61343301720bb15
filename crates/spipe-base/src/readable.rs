//! Numbers as people read them: percentages, counts and rates.

/// A fraction as a percentage with one decimal: `12.5 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A fraction as a percentage with its sign and one decimal: `+12.5 %`.
pub fn signed_percent(fraction: f64) -> String {
    format!("{:+.1} %", fraction * 100.0)
}

/// A count in the largest unit that leaves at least one: `6.74 B`.
pub fn count(number: f64) -> String {
    let scales = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)];
    match scales.into_iter().find(|(_, factor)| number >= *factor) {
        Some((unit, factor)) => format!("{:.2} {unit}", number / factor),
        None => format!("{number:.0}"),
    }
}

/// A count with its thousands apart: `6 738 415 616`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(" ")
}

/// A rate: a whole number with its thousands apart, or two decimals below ten.
pub fn per_second(rate: f64) -> String {
    if rate < 9.95 { format!("{rate:.2}") } else { grouped(rate.round() as u64) }
}
