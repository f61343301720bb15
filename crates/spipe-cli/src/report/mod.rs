//! Reports: the tables and sentences that commands print for people, and the same figures as JSON.

pub mod calibration;
pub mod comparison;
pub mod explanation;
pub mod fill;
pub mod fit;
pub mod lateness;
pub mod pareto;
pub mod picture;
pub mod plan;
pub mod run;
pub mod sensitivity;
pub mod stages;
pub mod trace;
