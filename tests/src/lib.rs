//! The suite that crosses the crates. The tests are in `tests/tests/`, one file per subject.
