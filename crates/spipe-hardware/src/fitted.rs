//! Constants that were fitted on measured runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Constants that `spipe fit` has found for a runtime on this machine, with the error of one class of
/// runs. They are used if that runtime is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FittedFile {
    /// The runtime that executed the runs.
    pub runtime: String,
    /// The class of runs: `one-gpu`, `data-parallel`, `tensor-parallel`, `pipeline` or `offload`.
    pub class: String,
    /// The number of runs of this class that the errors are of.
    pub count: u32,
    /// Whether these runs were predicted, and not fitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub predicted: bool,
    /// The mean absolute error of their iteration times, as a fraction.
    pub mean_error: f64,
    /// The largest absolute error.
    pub largest_error: f64,
    /// The constants by name. All tables of a runtime have the same ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub constants: BTreeMap<String, f64>,
    /// The source of the runs.
    pub source: Option<String>,
}
