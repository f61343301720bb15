//! Diagnostics: messages with a severity, a position and a hint.

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
    fn a_message_has_three_parts() {
        let diagnostic =
            Diagnostic::error("stage `s2` needs 92.1 GiB on `gpu1`, which has 80.0 GiB").hint("use at least 6 stages");
        assert_eq!(
            diagnostic.to_string(),
            "error: stage `s2` needs 92.1 GiB on `gpu1`, which has 80.0 GiB\nhint: use at least 6 stages"
        );
    }
}
