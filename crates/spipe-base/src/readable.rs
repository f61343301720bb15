//! Numbers as people read them, percentages, counts and rates, and ranges of numbered names.

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

/// The numbers next to `number` that satisfy `divides`, one below and one above it up to `most`: `4 or 8`; `1` if there
/// are none.
pub fn nearest(number: u64, most: u64, divides: impl Fn(u64) -> bool) -> String {
    let below = (1..number).rev().find(|other| divides(*other));
    let above = (number.saturating_add(1)..=most).find(|other| divides(*other));
    let both: Vec<String> = below.iter().chain(&above).map(u64::to_string).collect();
    if both.is_empty() { "1".into() } else { both.join(" or ") }
}

/// A rate: a whole number with its thousands apart, or two decimals below ten.
pub fn per_second(rate: f64) -> String {
    if rate < 9.95 { format!("{rate:.2}") } else { grouped(rate.round() as u64) }
}

/// A name before its number, the number, and the name from its first dot on: `gpu12.compute` is `gpu`, 12 and `.compute`.
/// `None` if no number is there.
pub fn numbered(name: &str) -> Option<(&str, u64, &str)> {
    let (base, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
    let stem = base.trim_end_matches(|letter: char| letter.is_ascii_digit());
    Some((stem, base[stem.len()..].parse().ok()?, rest))
}

/// Whether a name has the number after that of another one, and equals it otherwise.
pub fn follows(before: &str, after: &str) -> bool {
    let next = |(stem, number, rest): (_, u64, _)| Some((stem, number.checked_add(1)?, rest));
    numbered(before).and_then(next).is_some_and(|next| numbered(after) == Some(next))
}

/// Names from the first to the last one: `gpu0..gpu63.compute`.
pub fn range(first: &str, last: &str) -> String {
    let base = first.split('.').next().unwrap_or(first);
    if first == last { first.to_owned() } else { format!("{base}..{last}") }
}

/// Names in their order, consecutive numbers as ranges.
///
/// ```
/// use spipe_base::readable::ranges;
///
/// assert_eq!(ranges(["gpu4", "gpu5", "gpu6", "cpu1"]), ["gpu4..gpu6", "cpu1"]);
/// ```
pub fn ranges<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    runs(names).into_iter().map(|(first, last, _)| range(first, last)).collect()
}

/// The first and the last of each run of names with consecutive numbers, and their number.
fn runs<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, &'a str, usize)> {
    let mut runs: Vec<(&str, &str, usize)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((_, last, count)) if follows(last, name) => (*last, *count) = (name, *count + 1),
            _ => runs.push((name, name, 1)),
        }
    }
    runs
}

/// Names in backticks for a sentence; a run of names with consecutive numbers is given by its first and its last.
///
/// ```
/// use spipe_base::readable::listed;
///
/// let names = ["gpu0", "gpu1", "gpu2", "dram0"];
/// assert_eq!(listed(&names), "`gpu0` to `gpu2` and `dram0`");
/// ```
pub fn listed(names: &[&str]) -> String {
    let run = |(first, last, count): (&str, &str, usize)| match count {
        1 => vec![format!("`{first}`")],
        2 => vec![format!("`{first}`"), format!("`{last}`")],
        _ => vec![format!("`{first}` to `{last}`")],
    };
    let words: Vec<String> = runs(names.iter().copied()).into_iter().flat_map(run).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "the machine".into(),
    }
}

/// The names that [`few`] shows at most; ranges count once.
const NAMED: usize = 4;

/// The first few names, consecutive numbers as ranges: `gpu0..gpu7, cpu0`, or `a, b, c, d, …`.
pub fn few<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut ranges = ranges(names);
    if ranges.len() > NAMED {
        ranges.truncate(NAMED);
        ranges.push("…".into());
    }
    ranges.join(", ")
}
