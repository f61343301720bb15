//! Systems beside each other on one model and machine, and the baselines: tensor and data parallelism in closed form.
//!
//! ```text
//! systems         a system with its plan and figures      figures      what is compared
//! data_parallel   the baseline of them, with figures      tensor_data  every pair of degrees, priced
//! ```

mod data_parallel;
mod figures;
mod systems;
pub mod tensor_data;

pub use data_parallel::baseline;
pub use figures::{Compared, Status};
pub use systems::compared;
pub use tensor_data::DATA_PARALLEL;
