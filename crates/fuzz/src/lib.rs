//! Fuzz targets: functions that read any bytes and must neither panic nor run on without end.
//!
//! ```text
//! quantities  hardware  model  config  plan  trace  order      every reader, and what follows from its result
//! pipeline                                                     random valid inputs: plan ─► lower ─► simulate
//! ```
//!
//! A refusal is a right answer; so is a result that keeps its promises: text that is written reads
//! back as the same value, and a program never holds more than its plan counts.

mod draws;
mod pipeline;
mod readers;

/// A function that reads any bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its folder in the corpus.
pub const TARGETS: [(&str, Target); 8] = [
    ("quantities", readers::quantities),
    ("hardware", readers::hardware),
    ("model", readers::model),
    ("config", readers::config),
    ("plan", readers::plan),
    ("trace", readers::trace),
    ("order", readers::order),
    ("pipeline", pipeline::run),
];
