//! Runs and calibrations from the outside.

mod adapters;
mod calibration;
mod clipping;
mod drives;
mod gradients;
mod inference;
mod machine;
mod optimizers;
mod parity;
mod peft;
mod quantised;
mod replicas;
mod resuming;
mod setup;
mod shared;
mod systems;
