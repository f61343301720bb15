//! A TOML document with positions. It is checked against the schema of a file, so that all faults
//! are found at once.

use serde_json::Value;
use spipe_base::{Diagnostic, Faults, Position, position_of, similar_word};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A parsed TOML text.
pub(crate) struct Document<'a> {
    file: &'a str,
    text: &'a str,
    root: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    /// Parses `text`, or returns all its syntax errors.
    pub(crate) fn parse(file: &'a str, text: &'a str) -> Result<Self, Faults> {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut faults = Faults::new();
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            faults.push(Diagnostic::error(error.message().trim_end_matches('.')).at(position_of(file, text, offset)));
        }
        faults.or(Self { file, text, root })
    }

    fn position(&self, offset: usize) -> Position {
        position_of(self.file, self.text, offset)
    }

    /// Returns the value of a key of the root table.
    pub(crate) fn get(&self, key: &str) -> Option<&DeValue<'a>> {
        self.root.get_ref().get(key).map(Spanned::get_ref)
    }

    /// Returns the position of the value at `path` (`text.hidden`, `layer.2.name`), or of the
    /// innermost enclosing table that has one.
    pub(crate) fn locate(&self, path: &str) -> Position {
        let mut offset = 0;
        let mut segments = path.split('.').filter(|segment| !segment.is_empty());
        let mut value = segments.next().and_then(|key| self.root.get_ref().get(key));
        while let Some(found) = value {
            offset = found.span().start;
            value = segments.next().and_then(|segment| match found.get_ref() {
                DeValue::Table(table) => table.get(segment),
                DeValue::Array(items) => segment.parse().ok().and_then(|index: usize| items.get(index)),
                _ => None,
            });
        }
        self.position(offset)
    }

    /// Returns a fault for every unknown or missing key and every value of a wrong type.
    pub(crate) fn check(&self, schema: &Value) -> Faults {
        let mut walk = Walk { document: self, root: schema, faults: Faults::new() };
        walk.table("", self.root.get_ref(), self.root.span().start, schema);
        walk.faults
    }
}

/// A simultaneous walk through a document and a JSON schema.
struct Walk<'a> {
    document: &'a Document<'a>,
    root: &'a Value,
    faults: Faults,
}

impl<'a> Walk<'a> {
    fn error(&mut self, offset: usize, message: String) {
        self.faults.push(Diagnostic::error(message).at(self.document.position(offset)));
    }

    /// Resolves references, and the optional value's alternative that is not null.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let not_null = |options: &'a Value| {
            options.as_array().into_iter().flatten().find(|option| option["type"].as_str() != Some("null"))
        };
        if let Some(name) = schema["$ref"].as_str() {
            self.resolve(&self.root["$defs"][name.trim_start_matches("#/$defs/")])
        } else if let Some(option) = not_null(&schema["anyOf"]) {
            self.resolve(option)
        } else {
            schema
        }
    }

    fn table(&mut self, name: &str, table: &DeTable<'_>, start: usize, schema: &'a Value) {
        let Some(properties) = schema["properties"].as_object() else {
            for (key, value) in table {
                self.value(key.get_ref(), value, &schema["additionalProperties"]);
            }
            return;
        };
        for (key, value) in table {
            match properties.get(key.get_ref().as_ref()) {
                Some(property) => self.value(key.get_ref(), value, property),
                None => {
                    let unknown = Diagnostic::error(format!("unknown key `{}`", key.get_ref()))
                        .at(self.document.position(key.span().start));
                    let known = properties.keys().map(String::as_str);
                    self.faults.push(unknown.hint(advice(key.get_ref(), known)));
                }
            }
        }
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for key in required.filter(|key| !table.contains_key(*key)) {
            let place = if name.is_empty() { String::new() } else { format!(" in `{name}`") };
            self.error(start, format!("the key `{key}` is missing{place}"));
        }
    }

    fn value(&mut self, key: &str, value: &Spanned<DeValue<'_>>, schema: &'a Value) {
        let schema = self.resolve(schema);
        let start = value.span().start;
        let words = words(schema);
        match (value.get_ref(), kind(schema)) {
            (DeValue::Table(table), "object") => self.table(key, table, start, schema),
            (DeValue::Array(items), "array") => {
                for item in items {
                    self.value(key, item, &schema["items"]);
                }
            }
            (DeValue::String(word), _) if !words.is_empty() => {
                if !words.contains(&word.as_ref()) {
                    let fault = Diagnostic::error(format!("`{key}` cannot be `{word}`"));
                    let fault = fault.at(self.document.position(start));
                    self.faults.push(fault.hint(advice(word, words.into_iter())));
                }
            }
            (DeValue::Integer(number), "integer") if number.as_str().starts_with('-') => {
                self.error(start, format!("`{key}` is negative"));
            }
            (DeValue::Integer(number), "integer") => {
                if i64::from_str_radix(number.as_str(), number.radix()).is_err() {
                    self.error(start, format!("`{key}` is too large"));
                }
            }
            (DeValue::String(_), "string") | (DeValue::Boolean(_), "boolean") => {}
            (DeValue::Float(_) | DeValue::Integer(_), "number") => {}
            (other, wanted) => {
                let wanted = if words.is_empty() { wanted } else { "string" };
                let article = if wanted.starts_with(['a', 'i', 'o']) { "an" } else { "a" };
                self.error(start, format!("`{key}` is a TOML {}, not {article} {wanted}", other.type_str()));
            }
        }
    }
}

/// Returns the type that `schema` requires, apart from null.
fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or(""),
        kind => kind.as_str().unwrap_or(""),
    }
}

/// Returns the words that `schema` allows, if it is an enumeration.
fn words(schema: &Value) -> Vec<&str> {
    let constants = schema["oneOf"].as_array().into_iter().flatten().map(|option| &option["const"]);
    let listed = schema["enum"].as_array().into_iter().flatten();
    constants.chain(listed).chain([&schema["const"]]).filter_map(Value::as_str).collect()
}

/// Suggests a replacement for `word`: the most similar of `known`, or all of them.
pub(crate) fn advice<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match similar_word(word, known.clone()) {
        Some(similar) => format!("did you mean `{similar}`"),
        None => format!("known: {}", known.collect::<Vec<_>>().join(", ")),
    }
}
