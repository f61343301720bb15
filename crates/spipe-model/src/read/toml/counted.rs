//! Model files of kind `counted`.

use crate::{
    Counted, CountedPart,
    read::check::{Check, MOST_LAYERS, MOST_PARAMETERS},
};
use serde::{Deserialize, Serialize};

/// A network that is counted and not planned.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct CountedFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: CountedKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// The type of network.
    pub what: String,
    /// Its parts, in model order.
    pub part: Vec<PartTable>,
}

/// The `kind` of networks that are counted alone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CountedKind {
    /// Parts with their parameters.
    Counted,
}

/// Equal parts of a network.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PartTable {
    /// Their name.
    pub name: String,
    /// The number of parts; 1 if absent.
    #[serde(default = "one")]
    pub count: u64,
    /// The parameters of each.
    pub parameters: u64,
}

const fn one() -> u64 {
    1
}

impl CountedFile {
    /// Returns the network, and reports parts that are too large.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Counted {
        let part = |table: &PartTable| CountedPart {
            name: table.name.clone(),
            count: table.count,
            parameters: table.parameters,
        };
        let counted = Counted { what: self.what.clone(), parts: self.part.iter().map(part).collect() };
        check.counted(&counted);
        counted
    }

    /// Returns the file that describes a network.
    pub(crate) fn from_counted(name: &str, source: Option<&str>, counted: &Counted) -> Self {
        let part =
            |part: &CountedPart| PartTable { name: part.name.clone(), count: part.count, parameters: part.parameters };
        Self {
            format_version: super::FORMAT_VERSION,
            kind: CountedKind::Counted,
            name: name.into(),
            source: source.map(str::to_owned),
            what: counted.what.clone(),
            part: counted.parts.iter().map(part).collect(),
        }
    }
}

impl Check<'_> {
    /// Refuses no parts, too many, and more than [`MOST_PARAMETERS`].
    pub(crate) fn counted(&mut self, counted: &Counted) {
        if counted.parts.is_empty() {
            self.error("part", "there is no part".into());
        }
        let mut total = 0.0;
        let mut names = std::collections::BTreeSet::new();
        for (index, part) in counted.parts.iter().enumerate() {
            self.size(&format!("part.{index}.count"), part.count, MOST_LAYERS);
            total += part.count as f64 * part.parameters as f64;
            if !names.insert(&part.name) {
                self.error(&format!("part.{index}.name"), format!("there is another part `{}`", part.name));
            }
        }
        if total > MOST_PARAMETERS {
            let message = format!("these parts have {total:.1e} parameters, more than {MOST_PARAMETERS:.0e}");
            self.error("part", message);
        }
    }
}
