//! Faults with positions. A path of keys and indices is located in the text only when a fault is
//! reported there.

use spipe_base::{Diagnostic, Faults, Position, position_of};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The parsed file, if there is a text.
pub(crate) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
    pub root: Option<&'a Spanned<DeTable<'a>>>,
}

impl Source<'_> {
    pub fn position(&self, offset: usize) -> Position {
        position_of(self.file, self.text, offset)
    }

    /// Returns the position of a path such as `gpu.0.memory`, or of its innermost existing parent.
    fn locate(&self, path: &str) -> Position {
        self.position(self.root.map_or(0, |root| offset_of(root.get_ref(), path)))
    }
}

fn offset_of(root: &DeTable<'_>, path: &str) -> usize {
    let mut offset = 0;
    let mut table = Some(root);
    let mut array: Option<&[Spanned<DeValue<'_>>]> = None;
    for segment in path.split('.') {
        let by_key =
            table.and_then(|table| table.iter().find(|(key, _)| key.get_ref() == segment).map(|(_, value)| value));
        let by_index = || array.and_then(|items| items.get(segment.parse::<usize>().ok()?));
        let Some(value) = by_key.or_else(by_index) else { break };
        offset = value.span().start;
        (table, array) = (None, None);
        match value.get_ref() {
            DeValue::Table(inner) => table = Some(inner),
            DeValue::Array(items) => array = Some(items),
            _ => {}
        }
    }
    offset
}

/// The faults of one file.
pub(crate) struct Report<'a> {
    pub source: Source<'a>,
    pub faults: Faults,
}

impl<'a> Report<'a> {
    pub fn new(source: Source<'a>) -> Self {
        Self { source, faults: Faults::new() }
    }

    /// Adds a fault at a path such as `gpu.0.memory`.
    pub fn push(&mut self, path: &str, diagnostic: Diagnostic) {
        let position = self.source.locate(path);
        self.faults.push(diagnostic.at(position));
    }

    /// Adds an error at a path.
    pub fn error(&mut self, path: &str, message: String) {
        self.push(path, Diagnostic::error(message));
    }

    /// Adds a fault at a byte offset of the text.
    pub fn push_at(&mut self, offset: usize, diagnostic: Diagnostic) {
        let position = self.source.position(offset);
        self.faults.push(diagnostic.at(position));
    }

    /// Returns the faults sorted by position.
    pub fn into_sorted(self) -> Faults {
        let mut all: Vec<Diagnostic> = self.faults.iter().cloned().collect();
        all.sort_by(|a, b| a.position.cmp(&b.position));
        let mut sorted = Faults::new();
        all.into_iter().for_each(|diagnostic| sorted.push(diagnostic));
        sorted
    }
}

/// Returns the known word most similar to `word`, if it is similar enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    let scored = known.into_iter().map(|candidate| (edits(word, candidate), candidate));
    scored.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Returns the edit distance: insertions, deletions, replacements and swaps of neighbours.
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_a_slip_away() {
        assert_eq!(nearest("bandwith", ["bandwidth", "between"]), Some("bandwidth"));
        assert_eq!(nearest("gpu0", ["gpu1", "root0"]), Some("gpu1"));
        assert_eq!(nearest("colour", ["cores", "name"]), None);
        assert_eq!(edits("lnak", "link"), 2);
        assert_eq!(edits("lnik", "link"), 1);
    }
}
