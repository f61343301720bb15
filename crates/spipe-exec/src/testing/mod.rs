//! Tests of whole runs that need the crate's inside.

mod adapters;
mod checkpoints;
mod discrete_memory;
mod failures;
#[path = "../../tests/executor/machine.rs"]
#[expect(dead_code, reason = "tests from the outside use more of it")]
mod machine;
mod optimizer_bytes;
mod pinning;
mod rollback;
#[path = "../../tests/executor/setup.rs"]
mod setup;
mod split_backward;
