//! Instances and a simulator, shared by the tests.

pub mod instances;
pub mod schedule;
