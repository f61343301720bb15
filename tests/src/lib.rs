//! The suite that crosses the crates.
