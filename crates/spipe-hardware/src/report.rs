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
