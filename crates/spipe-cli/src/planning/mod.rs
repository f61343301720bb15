//! Planning: requests and conditions from the options of a command line.
//!
//! ```text
//! task         model, machine and workload, and the conditions on their plan, from the options of `spipe plan`
//! training     what is trained and in which formats, from the same options
//! data         the shape of the data, from the same options
//! baseline     the configurations that the options of `spipe baseline` describe
//! measured     the plans of measured runs, for `spipe fit`
//! bar          the bar of a search
//! ```

pub mod bar;
pub mod baseline;
mod data;
pub mod measured;
pub mod task;
pub mod training;
