//! What the tests share.

pub mod instances;
pub mod schedule;
