//! The exchange of plans and traces with the engines of others.
//!
//! ```text
//! Plan ─┬► fsdp, deepspeed ──► plan.json, ds_config.json, *.py, README.md
//!       ├► megatron ──► arguments.txt, megatron.json, README.md
//!       ├► torchtitan ► plan.py, plan.json, schedule.csv, README.md
//!       ├► chakra ──► trace.0.et, trace.1.et, …, README.md
//!       └► torch ───► schedule.csv, plan.json, *.py, README.md ──► torchrun, one process per device
//!                                                                      │
//! Trace ◄─ import ◄── files of PyTorch's profiler, one per process ◄───┘
//! ```
//!
//! An export is a pure function of the plan: the files of the folder, and warnings about what runs
//! otherwise than planned. What an engine cannot express is refused, with the reason and the
//! nearest plan that can be exported. The scripts are in `templates/`, as they are run.
//!
#![doc = include_str!("../README.md")]

mod batch;
mod calibration;
mod chakra;
mod deepspeed;
mod engine;
mod fingerprint;
mod folder;
mod fsdp;
mod launch;
mod megatron;
mod modules;
mod network;
mod profiler;
mod program;
mod ranks;
mod sharded;
mod topology;
mod torch;
mod torchtitan;
mod training;
mod weights;

pub use calibration::{
    BusyCopy, CALIBRATION_REQUEST, CALIBRATION_SCRIPT, Calibrated, CopyRates, DeviceRates, LayerRates, MessageRates,
    PytorchRates, calibration,
};
pub use chakra::chakra;
pub use deepspeed::deepspeed;
pub use engine::Engine;
pub use fingerprint::fingerprint;
pub use folder::Folder;
pub use fsdp::fsdp;
pub use launch::Beside;
pub use megatron::megatron;
pub use modules::Modules;
pub use profiler::{ImportError, Imported, ProfilerFile, import};
pub use program::schema;
pub use topology::{Printed, hardware_from_topology};
pub use torch::torch;
pub use torchtitan::torchtitan;
pub use weights::{different_fields, listed_tokens};
