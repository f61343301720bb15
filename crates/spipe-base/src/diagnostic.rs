//! Diagnostics: messages with a severity, a position and a hint.

use crate::readable::few;
use std::fmt;

/// A position in a text file, counted from one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The file, as named by the user.
    pub file: String,
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Formats an I/O error as a lower-case clause without its error number.
///
/// ```
/// let missing = std::io::Error::from_raw_os_error(2);
/// assert_eq!(spipe_base::words_of(&missing), "no such file or directory");
/// ```
pub fn words_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = words.chars();
    letters.next().map(|first| first.to_lowercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}

/// Returns the position of byte `offset` of `text`.
pub fn position_of(file: &str, text: &str, offset: usize) -> Position {
    let before = &text[..text.floor_char_boundary(offset.min(text.len()))];
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Position { file: file.into(), line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
}

/// Returns the most similar of the `known` words, if `word` is probably a misspelling of it: at most
/// a third of its characters are inserted, deleted, replaced or swapped. `_` counts as `-`.
///
/// ```
/// use spipe_base::similar_word;
///
/// assert_eq!(similar_word("bandwith", ["bandwidth", "between"]), Some("bandwidth"));
/// assert_eq!(similar_word("colour", ["cores", "name"]), None);
/// ```
pub fn similar_word<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |word: &str| word.replace('_', "-");
    let (wanted, most) = (plain(word), (word.chars().count() / 3).max(1));
    let scored = known.into_iter().map(|known| (strsim::osa_distance(&wanted, &plain(known)), known));
    scored.filter(|(distance, _)| *distance <= most).min().map(|(_, known)| known)
}

/// How serious a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The result is still valid.
    Warning,
    /// There is no result.
    Error,
}

/// One message: a lower-case fragment with ids in backticks, an optional position, and an optional
/// hint.
///
/// Libraries do not know how their front end spells options and commands. In backticks they write
/// `option seq-len 512` and `command simulate`; the command prints `--seq-len 512` and `spipe simulate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How serious it is.
    pub severity: Severity,
    /// The fault, with its amount.
    pub message: String,
    /// The place in the input.
    pub position: Option<Position>,
    /// The remedy.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Creates an error.
    pub fn error(message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), position: None, hint: None }
    }

    /// Creates a warning.
    pub fn warning(message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(message) }
    }

    /// Adds a position.
    pub fn at(mut self, position: Position) -> Self {
        self.position = Some(position);
        self
    }

    /// One diagnostic for each kind, in the order of the first ones: its first message, with the names of the others. Two
    /// messages are of one kind if they differ only in names in backticks and in numbers with their units.
    ///
    /// ```
    /// use spipe_base::Diagnostic;
    ///
    /// let full = |gpu: u32| Diagnostic::warning(format!("the plan fills 9{gpu}.5 % of `gpu{gpu}`"));
    /// let folded = Diagnostic::folded(&[full(5), full(6), full(7)]);
    /// assert_eq!(folded[0].message, "the plan fills 95.5 % of `gpu5`; likewise gpu6..gpu7 (3 in all)");
    /// ```
    pub fn folded<'a>(all: impl IntoIterator<Item = &'a Self>) -> Vec<Self> {
        let mut kinds: Vec<(Severity, String, Vec<&Self>)> = Vec::new();
        for one in all {
            let kind = kind_of(&one.message);
            match kinds.iter_mut().find(|(severity, known, _)| (*severity, known.as_str()) == (one.severity, &kind)) {
                Some((_, _, same)) => same.push(one),
                None => kinds.push((one.severity, kind, vec![one])),
            }
        }
        kinds.iter().map(|(_, _, same)| likewise(same)).collect()
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}", self.message)?;
        if let Some(position) = &self.position {
            write!(f, "\n  --> {position}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// The longest unit behind a number, in characters: `GiB`.
const UNIT: usize = 3;

/// A message without names in backticks, and without numbers and their units.
fn kind_of(message: &str) -> String {
    let plain = message.split('`').step_by(2).flat_map(|part| part.split(' ').chain(["`"]));
    let (mut kind, mut behind_number) = (Vec::new(), false);
    for word in plain {
        let is_number = word.contains(|letter: char| letter.is_ascii_digit());
        let is_unit = word != "`" && word.trim_end_matches([',', ';', ')']).chars().count() <= UNIT;
        if is_number {
            kind.push("#");
        } else if !(behind_number && is_unit) {
            kind.push(word);
        }
        behind_number = is_number;
    }
    kind.join(" ")
}

/// The first of some messages of one kind, with the names in which the others differ from it.
fn likewise(same: &[&Diagnostic]) -> Diagnostic {
    let Some((first, others)) = same.split_first() else { unreachable!("a kind has a message") };
    if others.is_empty() {
        return (*first).clone();
    }
    let names = |one: &Diagnostic| one.message.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let own = names(first);
    let differs = |at: usize| others.iter().any(|other| names(other).get(at) != own.get(at));
    let places: Vec<usize> = (0..own.len()).filter(|at| differs(*at)).collect();
    let mut subjects: Vec<String> = Vec::new();
    for other in others {
        let names = names(other);
        let parts: Vec<&str> = places.iter().filter_map(|at| names.get(*at)).map(String::as_str).collect();
        let subject = parts.join(" and ");
        if !subject.is_empty() && !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    let named = few(subjects.iter().map(String::as_str));
    let count = format!("{} in all", same.len());
    let rest = if named.is_empty() { count } else { format!("likewise {named} ({count})") };
    let message = format!("{}; {rest}", first.message);
    Diagnostic { message, ..(*first).clone() }
}

/// All faults of an input, not only the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<Diagnostic>);

impl Faults {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Adds all faults of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Whether no fault is an error.
    pub fn is_harmless(&self) -> bool {
        self.0.iter().all(|diagnostic| diagnostic.severity == Severity::Warning)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the faults in the order in which they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// Returns `value` if no fault is an error, otherwise the faults.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_harmless() { Ok(value) } else { Err(self) }
    }
}

impl From<Diagnostic> for Faults {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_one() {
        let text = "a\nµ = 1\n";
        let position = position_of("m.toml", text, text.find('=').unwrap());
        assert_eq!(position.to_string(), "m.toml:2:3");
    }

    #[test]
    fn messages_of_one_kind_are_said_once() {
        let said = |messages: &[&str]| {
            let all: Vec<Diagnostic> = messages.iter().map(|message| Diagnostic::warning(*message)).collect();
            Diagnostic::folded(&all).into_iter().map(|one| one.message).collect::<Vec<_>>()
        };
        assert_eq!(said(&["a copy takes 2 ms", "`gpu0` is slow"]), ["a copy takes 2 ms", "`gpu0` is slow"]);
        assert_eq!(said(&["layer 3 has no time", "layer 4 has no time"]), ["layer 3 has no time; 2 in all"]);
        let copy =
            |from: u32, took: &str| format!("the copy from `gpu{from}` to `cpu0` (1 MiB) takes {took}, too long");
        let copies = [copy(0, "1.2 ms"), copy(2, "900 us"), copy(4, "2 s")];
        assert_eq!(
            said(&[&copies[0], "other", &copies[1], &copies[2]]),
            [&format!("{}; likewise gpu2, gpu4 (3 in all)", copies[0]), "other"]
        );
        let files: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(|file| format!("`{file}` is not read")).into();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        assert_eq!(said(&files), ["`a` is not read; likewise b, c, d, e, … (6 in all)"]);
    }

    #[test]
    fn a_message_has_three_parts() {
        let diagnostic =
            Diagnostic::error("stage `s2` needs 92.1 GiB on `gpu1`, which has 80.0 GiB").hint("use at least 6 stages");
        assert_eq!(
            diagnostic.to_string(),
            "error: stage `s2` needs 92.1 GiB on `gpu1`, which has 80.0 GiB\nhint: use at least 6 stages"
        );
    }
}
