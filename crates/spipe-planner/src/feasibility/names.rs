//! Names in messages.

/// Joins names in backticks; a run of names with consecutive numbers is given by its first and its
/// last.
///
/// ```
/// let names = ["gpu0", "gpu1", "gpu2", "dram0"];
/// assert_eq!(spipe_planner::listed(&names), "`gpu0` to `gpu2` and `dram0`");
/// ```
pub fn listed(names: &[&str]) -> String {
    let parts = |name: &str| {
        let word = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        Some((word.to_owned(), name[word.len()..].parse::<u64>().ok()?))
    };
    let next = |name: &str| parts(name).map(|(word, number)| (word, number + 1));
    let mut runs: Vec<(&str, &str, usize)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((_, last, count)) if next(last).is_some() && next(last) == parts(name) => {
                (*last, *count) = (name, *count + 1)
            }
            _ => runs.push((name, name, 1)),
        }
    }
    let run = |(first, last, count): (&str, &str, usize)| match count {
        1 => vec![format!("`{first}`")],
        2 => vec![format!("`{first}`"), format!("`{last}`")],
        _ => vec![format!("`{first}` to `{last}`")],
    };
    let words: Vec<String> = runs.into_iter().flat_map(run).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "the machine".into(),
    }
}
