//! The readers of models: TOML files, Hugging Face configs, and the shipped files. Each checks a
//! network's sizes while it is read.

mod check;
mod hugging_face;
mod shipped;
mod toml;

pub use hugging_face::{Adapter, Component, components};
pub use shipped::shipped;
pub use toml::schema;
