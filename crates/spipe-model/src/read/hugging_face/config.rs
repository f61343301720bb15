//! A `config.json` or a table inside it, read by key with the defaults of its class.

use serde_json::{Map, Value};
use spipe_base::{Diagnostic, Faults, Position, position_of};

/// One table of a config.
pub(super) struct Config<'a> {
    /// The file and its text, for positions.
    file: &'a str,
    text: &'a str,
    /// The offset of the table in the text.
    start: usize,
    table: &'a Map<String, Value>,
    /// Errors, and warnings about ignored settings.
    pub faults: Faults,
}

impl<'a> Config<'a> {
    pub(super) fn new(file: &'a str, text: &'a str, table: &'a Map<String, Value>) -> Self {
        Self { file, text, start: 0, table, faults: Faults::new() }
    }

    /// Returns the first table found under one of `keys`.
    pub(super) fn child(&self, keys: &[&str]) -> Option<Self> {
        let (key, table) = keys.iter().find_map(|key| Some((*key, self.table.get(*key)?.as_object()?)))?;
        let start = self.offset(key).unwrap_or(self.start);
        Some(Self { file: self.file, text: self.text, start, table, faults: Faults::new() })
    }

    /// Returns the offset of `"key":` at or after the start of the table.
    fn offset(&self, key: &str) -> Option<usize> {
        let quoted = format!("\"{key}\"");
        let rest = &self.text[self.start..];
        let is_key = |offset: &usize| rest[offset + quoted.len()..].trim_start().starts_with(':');
        rest.match_indices(&quoted).map(|(offset, _)| offset).find(is_key).map(|offset| self.start + offset)
    }

    /// Returns the position of the first of `keys` that is present, otherwise of the table.
    pub(super) fn locate(&self, keys: &[&str]) -> Position {
        let present = keys.iter().filter(|key| self.table.contains_key(**key));
        let offset = present.filter_map(|key| self.offset(key)).next().unwrap_or(self.start);
        position_of(self.file, self.text, offset)
    }

    /// Warns at `key` of an ignored setting.
    pub(super) fn warn(&mut self, key: &str, message: impl Into<String>) {
        let position = self.locate(&[key]);
        self.faults.push(Diagnostic::warning(message).at(position));
    }

    /// Returns the first of `keys` that is present, with its value, which may be null.
    fn find(&self, keys: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        keys.iter().find_map(|key| Some((*key, self.table.get(*key)?)))
    }

    /// Whether `key` is present and not null.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.find(&[key]).is_some_and(|(_, value)| !value.is_null())
    }

    fn wrong(&mut self, key: &str, value: &Value, wanted: &str) {
        let position = self.locate(&[key]);
        self.faults.push(Diagnostic::error(format!("`{key}` is {value}, not {wanted}")).at(position));
    }

    /// Returns a size: `default` if absent, `None` if null.
    pub(super) fn nullable_size(&mut self, keys: &[&'static str], default: Option<u64>) -> Option<u64> {
        match self.find(keys) {
            None => default,
            Some((_, Value::Null)) => None,
            Some((key, value)) => value.as_u64().or_else(|| {
                self.wrong(key, value, "a whole number");
                default
            }),
        }
    }

    /// Returns a size: `default` if absent or null.
    pub(super) fn size(&mut self, keys: &[&'static str], default: u64) -> u64 {
        self.nullable_size(keys, Some(default)).unwrap_or(default)
    }

    /// Returns a size that every config should state. If absent, the class's default is used with a
    /// warning.
    pub(super) fn stated_size(&mut self, keys: &[&'static str], default: u64) -> u64 {
        if self.find(keys).is_none() {
            let key = keys.first().copied().unwrap_or_default();
            self.warn(key, format!("`{key}` is absent; the default of its class, {default}, is used"));
        }
        self.size(keys, default)
    }

    /// Returns a number: `default` if absent or null.
    pub(super) fn number(&mut self, keys: &[&'static str], default: f64) -> f64 {
        match self.find(keys) {
            None | Some((_, Value::Null)) => default,
            Some((key, value)) => value.as_f64().unwrap_or_else(|| {
                self.wrong(key, value, "a number");
                default
            }),
        }
    }

    /// Returns a number: `default` if absent, `None` if null.
    pub(super) fn nullable_number(&mut self, key: &'static str, default: Option<f64>) -> Option<f64> {
        match self.find(&[key]) {
            None => default,
            Some((_, Value::Null)) => None,
            Some(_) => Some(self.number(&[key], default.unwrap_or_default())),
        }
    }

    /// Returns a boolean: `default` if absent or null.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        match self.find(&[key]) {
            None | Some((_, Value::Null)) => default,
            Some((key, value)) => value.as_bool().unwrap_or_else(|| {
                self.wrong(key, value, "true or false");
                default
            }),
        }
    }

    /// Returns the value of `key`, if there is one.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.table.get(key)
    }

    /// Returns a string, if there is one.
    pub(super) fn word(&self, key: &str) -> Option<&'a str> {
        self.table.get(key)?.as_str()
    }

    /// Returns a list of strings, if there is one.
    pub(super) fn words(&self, key: &str) -> Option<Vec<&'a str>> {
        Some(self.table.get(key)?.as_array()?.iter().filter_map(Value::as_str).collect())
    }

    /// Reports at `key` that the network cannot be described.
    pub(super) fn refuse(&mut self, key: &str, message: String) {
        let position = self.locate(&[key]);
        self.faults.push(Diagnostic::error(message).at(position));
    }

    /// The same with a hint.
    pub(super) fn refuse_with(&mut self, key: &str, message: String, hint: &str) {
        let position = self.locate(&[key]);
        self.faults.push(Diagnostic::error(message).hint(hint).at(position));
    }

    /// Returns a list of sizes; a single size stands for `count` equal ones. `None` if absent or
    /// null.
    pub(super) fn sizes(&mut self, key: &'static str, count: usize) -> Option<Vec<u64>> {
        let value = self.table.get(key).filter(|value| !value.is_null())?;
        let sizes = match value.as_array() {
            Some(list) => list.iter().map(Value::as_u64).collect(),
            None => value.as_u64().map(|size| vec![size; count]),
        };
        if sizes.is_none() {
            self.wrong(key, value, "a list of whole numbers");
        }
        sizes
    }

    /// Returns the number of entries of a table, if there is one.
    pub(super) fn entries(&self, key: &str) -> Option<u64> {
        Some(self.table.get(key)?.as_object()?.len() as u64)
    }

    /// Returns a size that may also be written as a list of equal sizes.
    pub(super) fn side(&mut self, key: &'static str, default: u64) -> u64 {
        let Some(sides) = self.table.get(key).and_then(Value::as_array) else { return self.size(&[key], default) };
        match (sides.first().and_then(Value::as_u64), sides.iter().all(|side| Some(side) == sides.first())) {
            (Some(side), true) => side,
            _ => {
                let value = Value::Array(sides.clone());
                self.wrong(key, &value, "a square");
                default
            }
        }
    }
}
