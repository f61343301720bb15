//! Systems beside each other on one model and machine, and closed forms of tensor and data parallelism.
//!
//! ```text
//! systems         a system with its plan and figures      figures      what is compared
//! data_parallel   plain data parallelism, with figures    tensor_data  every pair of degrees, priced
//! ```

mod data_parallel;
mod figures;
mod systems;
pub mod tensor_data;

pub use data_parallel::{DATA_PARALLEL, data_parallel};
pub use figures::{Compared, Status};
pub use systems::compared;
