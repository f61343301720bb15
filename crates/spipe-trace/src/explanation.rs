//! Explanations of an iteration: why lanes wait, what decides its length, and what would help.
//!
//! ```text
//! waits          gpu0.compute waits 1.2 s for weights ◄─ weights-in s3 ◄─ … : pcie0.down is full
//! critical path  actions that each start when the one before permits; they add up to the iteration
//! changes        tried on the plan: the iteration with each of them
//! pitfalls       known mistakes, each with its cost
//! ```

use serde::{Deserialize, Serialize};
use spipe_base::IdleCause;

/// Why an iteration takes as long as it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Explanation {
    /// The idle time of compute lanes, the longest first.
    pub waits: Vec<Wait>,
    /// The critical path of the last iteration, from its start to its end. The pieces add up to the
    /// iteration.
    pub critical_path: Vec<Piece>,
    /// The tried changes of plan or machine that help most, the best first.
    #[serde(default)]
    pub changes: Vec<TriedChange>,
    /// Known mistakes that cost time, the dearest first.
    #[serde(default)]
    pub pitfalls: Vec<Pitfall>,
}

/// The idle time of a lane with one cause and one resource behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Wait {
    /// The lane.
    pub lane: String,
    /// The cause.
    pub cause: IdleCause,
    /// The idle time, in ms per iteration.
    pub ms: f64,
    /// The number of idle intervals.
    pub count: u64,
    /// The resource at the end of the chain: a lane, a channel of a link, or a memory.
    pub resource: Option<String>,
    /// The share of the resource in use during the wait, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<f64>,
    /// The chain of causes of the longest interval: each action let the one before it start.
    pub chain: Vec<Piece>,
}

/// A part of an interval with the action that decided it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Piece {
    /// The lane of the action.
    pub lane: String,
    /// The action: its kind and subject; `idle` where no action explains the time.
    pub action: String,
    /// The start, in ms from that of the iteration; negative in the iteration before.
    pub start_ms: f64,
    /// The length, in ms.
    pub ms: f64,
    /// The resource that decides how long the action takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The share of the resource in use meanwhile, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<f64>,
}

/// A change that was tried: planned again and simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TriedChange {
    /// The change, in words.
    pub change: String,
    /// The iteration with it, in ms.
    pub iteration_ms: f64,
    /// 1 − iteration with it ÷ iteration without it.
    pub gain: f64,
    /// The command that repeats the simulation, where the changed plan was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

/// A known mistake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pitfall {
    /// Its name.
    pub name: String,
    /// The stages, devices or links that it concerns.
    #[serde(rename = "where")]
    pub place: String,
    /// The iteration less the iteration without it, in ms.
    pub cost_ms: f64,
    /// The pitfall, and the remedy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub words: String,
}
