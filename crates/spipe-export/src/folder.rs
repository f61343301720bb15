//! The files of an export.

use spipe_base::Faults;
use std::collections::BTreeMap;

/// The scripts of every engine, beside those of the layers.
pub(crate) const COMMON: [(&str, &str); 9] = [
    ("stage.py", include_str!("../templates/common/stage.py")),
    ("storage.py", include_str!("../templates/common/storage.py")),
    ("parameters.py", include_str!("../templates/common/parameters.py")),
    ("sources.py", include_str!("../templates/common/sources.py")),
    ("tokens.py", include_str!("../templates/common/tokens.py")),
    ("pyproject.toml", include_str!("../templates/common/pyproject.toml")),
    ("place.py", include_str!("../templates/common/place.py")),
    ("loop.py", include_str!("../templates/common/loop.py")),
    ("checkpoint.py", include_str!("../templates/common/checkpoint.py")),
];

/// The options of every script, for the page of a folder.
pub(crate) const OPTIONS: &str = include_str!("../templates/common/OPTIONS.md");

/// An exported folder.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    /// The text of each file, by its name in the folder.
    pub files: BTreeMap<String, String>,
    /// The parts of the plan that run otherwise.
    pub warnings: Faults,
}

impl Folder {
    /// Adds a file.
    pub(crate) fn add(&mut self, name: &str, text: impl Into<String>) {
        self.files.insert(name.into(), text.into());
    }
}

/// `template` with the text of each `{{name}}`.
pub(crate) fn filled(template: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_by_their_values() {
        assert_eq!(filled("a {{x}} b {{y}} {{x}}", &[("x", "1".into()), ("y", "2".into())]), "a 1 b 2 1");
    }
}
