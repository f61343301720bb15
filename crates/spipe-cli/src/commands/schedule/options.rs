//! The options that each schedule reads; others are refused.

use super::orders;
use crate::{Failure, args, args::Given, idle::Idle};

/// The options of the shape.
const SHAPE: [&str; 2] = ["devices", "microbatches"];
/// The times of a stage.
const TIMES: [&str; 5] = ["forward", "backward-input", "backward-weight", "latency", "stage-times"];
/// The options of SPipe and Mobius beside the shape.
const ROUNDS: [&str; 6] =
    ["forward", "backward", "backward-input", "backward-weight", "forward-chunks", "backward-chunks"];
/// The options of Superpipeline.
const UNITS: [&str; 6] = ["units", "resident", "swap", "compute", "load", "evict"];
/// The options of single systems.
const SINGLE: [&str; 7] =
    ["chunks", "group", "memory-limit", "offload-chunks", "offload-ratio", "head-start", "weight-grad-memory"];

/// Refuses options that do nothing to the schedule.
pub fn check(what: &args::Schedule, given: &Given) -> Result<(), Failure> {
    let read: Vec<&str> = match what.system.as_str() {
        "superpipeline" => UNITS.to_vec(),
        "spipe" | "mobius" => [&SHAPE[..], &ROUNDS].concat(),
        // The file has the shape.
        "custom" => [&TIMES[..], &["weight-grad-memory"]].concat(),
        other => [&SHAPE[..], &TIMES, orders::Orderable::named(other)?.options].concat(),
    };
    let all = [&SHAPE[..], &TIMES, &ROUNDS, &UNITS, &SINGLE].concat();
    let parts = read.contains(&"backward-weight") && !read.contains(&"backward");
    let mut others: Vec<&str> = all.into_iter().filter(|option| !read.contains(option)).collect();
    others.retain(|option| !(parts && *option == "backward"));
    others.sort_unstable();
    others.dedup();
    let system = format!("to `{}`", what.system);
    Idle::among(given)
        .options(&others, &system, "leave it out")
        .options_if(
            parts,
            &["backward"],
            &system,
            "give its two parts, `--backward-input` and `--backward-weight`; a fused backward takes their sum",
        )
        .options_if(
            what.backward.is_some() && read.contains(&"backward"),
            &["backward-input", "backward-weight"],
            "beside `--backward`",
            "leave out one of the two",
        )
        .options_if(
            what.stage_times.is_some() && read.contains(&"stage-times"),
            &["forward", "backward-input", "backward-weight"],
            "beside `--stage-times`",
            "leave out one of the two",
        )
        .refuse()
}
