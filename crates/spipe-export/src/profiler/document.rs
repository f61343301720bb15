//! The profiler's JSON.

use super::{ImportError, ProfilerFile};
use serde::Deserialize;
use serde_json::Value;
use spipe_base::LaneRole;

/// A file of the profiler.
#[derive(Debug, Deserialize)]
pub struct Document {
    /// The events.
    #[serde(rename = "traceEvents")]
    pub events: Vec<Event>,
    /// The zero of their times, in ns.
    #[serde(rename = "baseTimeNanoseconds", default)]
    pub base: u64,
    /// The keys that an exported script adds.
    pub spipe: Option<Added>,
    /// The process, as PyTorch names it.
    #[serde(rename = "distributedInfo")]
    pub distributed: Option<Distributed>,
}

/// The keys that an exported script adds to the profiler's file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Added {
    /// The rank of the process.
    pub rank: u64,
    /// The plan's device.
    pub device: String,
    /// The fingerprint of the plan.
    pub plan: Option<String>,
    /// The times of the steps without the profiler.
    #[serde(default)]
    pub iterations_ms: Vec<f64>,
    /// Which of them the actions are of.
    pub traced: Option<usize>,
    /// The lanes of a program's actions.
    #[serde(default)]
    pub lanes: Vec<MeasuredLane>,
    /// The bytes that the process held before the step.
    pub held_bytes: Option<Held>,
}

/// A lane of a program's actions.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MeasuredLane {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Its role.
    pub role: LaneRole,
}

/// Bytes of tensors.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Held {
    /// In the host's memory.
    pub host: u64,
    /// In the memory of the process' GPU.
    pub device: u64,
}

/// The process, as PyTorch names it.
#[derive(Debug, Deserialize)]
pub struct Distributed {
    /// The rank of the process.
    pub rank: u64,
}

/// An event. Times are in µs.
#[derive(Debug, Deserialize)]
pub struct Event {
    #[serde(default)]
    ph: String,
    /// The category.
    #[serde(default)]
    pub cat: String,
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The thread, or on a GPU the stream.
    #[serde(default)]
    pub tid: Value,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    /// The arguments.
    #[serde(default)]
    pub args: Value,
}

impl Document {
    /// Reads a file.
    pub fn read(file: &ProfilerFile<'_>) -> Result<Self, ImportError> {
        serde_json::from_str(file.text).map_err(|error| ImportError::Json {
            file: file.name.into(),
            message: error.to_string(),
            line: error.line(),
            column: error.column(),
        })
    }

    /// The events with a duration.
    pub fn slices(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.ph == "X")
    }

    /// The times of an event's start and end, in ns.
    pub fn times(&self, event: &Event) -> (u64, u64) {
        let start = self.base.saturating_add(ns(event.ts));
        (start, start.saturating_add(ns(event.dur)))
    }
}

/// Nanoseconds of microseconds; negative ones are zero.
fn ns(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

impl Event {
    /// A number among the arguments.
    pub fn number(&self, key: &str) -> Option<i64> {
        let value = self.args.get(key)?;
        value.as_i64().or_else(|| value.as_str()?.parse().ok())
    }
}
