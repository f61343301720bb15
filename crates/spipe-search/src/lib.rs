//! Questions about plans that take the planner and the simulator together, such as "which plan is fastest?", "how much
//! memory would do?" and "which machine should one buy?". Every question is a plain struct, and every answer a value: no
//! file is opened, nothing is printed, and a front end adds its own words for settings with a [`Spelling`].
//!
//! ```text
//!   request     what is asked: model, machine, workloads, systems, pins, drives
//!      │
//!   search      the plan, over the sizes of microbatches; else a refusal with remedies
//!      ├─ questions   by searching again: the largest value, the least memory, more of a resource
//!      ├─ explain     changes that help a plan, and pitfalls that it has
//!      ├─ compare     systems beside each other, and the baselines without a search
//!      └─ whatif      the machines of a sweep, planned, looked at again, repaired and rented
//! ```
//!
//! Below them are [`Setting`], a model on a machine under a workload with its cost table, and [`Evaluator`], which lowers a
//! placement and simulates its program. The clock is read for time limits alone.
//!
//! ```
//! use spipe_cost::Workload;
//! use spipe_hardware::Hardware;
//! use spipe_model::Model;
//! use spipe_search::{Request, search, systems, workloads};
//!
//! let text = |all: &[(&str, &'static str)], name: &str| all.iter().find(|(known, _)| *known == name).unwrap().1;
//! let model = Model::from_toml("gpt2", text(spipe_model::shipped(), "gpt2"))?;
//! let hardware = Hardware::from_toml("one-gpu", text(spipe_hardware::shipped(), "one-gpu"))?;
//! let workloads = workloads(Workload { seq_len: 1024, ..Workload::PLAIN }, 8, "8")?;
//! let effort = Some(spipe_planner::Effort::Low);
//! let found = search(&Request { effort, systems: systems("1f1b")?, ..Request::new(model, hardware, workloads) })?;
//! assert!(found.solution.simulated >= found.solution.bound);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod compare;
mod error;
mod evaluator;
pub mod explain;
pub mod questions;
mod request;
mod search;
mod setting;
pub mod whatif;

pub use error::SearchError;
pub use evaluator::{Evaluator, program, whole_program};
pub use request::{
    PLANNER, Request, cores,
    drives::DriveFor,
    layout::{Chosen, Conditions, conditions},
    machine::Machine,
    meshes::{Degrees, Meshes},
    pins::{Pinned, Words},
    runtimes::{default_runtime, has_foreign_gpus, under},
    spelling::Spelling,
    systems::systems,
    watch::{Progress, Watch},
    workloads::{attends, mode, reads_images, seq_len, workloads},
};
pub use search::{
    found::{Ended, Found, gap},
    remedies::least::{Fits, Refused, Remedy, remedies},
    search,
};
pub use setting::Setting;
