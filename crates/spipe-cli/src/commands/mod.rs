//! One file per command.

mod baseline;
mod calibrate;
mod compare;
mod demo;
mod hardware;
mod model;
mod pages;
mod plan;
mod prediction_error;
mod reproduce;
mod run;
mod schedule;
mod simulate;
mod timeline;

use crate::{Failure, args};

/// Does what was asked for.
pub fn run(args: &args::Args) -> Result<(), Failure> {
    let format = args.format;
    match &args.command {
        args::Command::Demo(what) => demo::run(what, format),
        args::Command::PredictionError(what) => prediction_error::run(what, format),
        args::Command::Calibrate(what) => calibrate::run(what, format),
        args::Command::Model(what) => model::run(what, format),
        args::Command::Hardware(what) => hardware::run(what, format),
        args::Command::Plan(what) => plan::run(what, format),
        args::Command::Baseline(what) => baseline::run(what, format),
        args::Command::Simulate(what) => simulate::run(what, format),
        args::Command::Run(what) => run::run(what, format),
        args::Command::Timeline(what) => timeline::run(what),
        args::Command::Compare(what) => compare::run(what, format),
        args::Command::Schedule(what) => schedule::run(what, format),
        args::Command::Reproduce(what) => reproduce::run(what, format),
        args::Command::Schema(what) => pages::schema(what),
        args::Command::Completions(what) => pages::completions(what),
        args::Command::Man => pages::man(),
    }
}
