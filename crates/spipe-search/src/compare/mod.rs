//! Systems beside each other on one model and machine, and the baselines: equal stages without a search.
//!
//! ```text
//! systems         a system with its plan and figures      figures      what is compared
//! equal_stages    the baselines, simulated                tensor_data  their closed form, by which runs are fitted
//! ```

pub mod equal_stages;
mod figures;
mod systems;
pub mod tensor_data;

pub use equal_stages::DATA_PARALLEL;
pub use figures::{Compared, Status};
pub use systems::{baseline, compared};
