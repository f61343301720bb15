//! The commands, one file each. No command uses another.

mod baseline;
mod calibrate;
mod catalogue;
mod compare;
mod compare_systems;
mod demo;
mod export;
mod fit;
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
mod trace;
mod whatif;

use crate::{
    Failure,
    args::{Args, Command, Given},
};

/// Runs the command that was asked for.
pub fn run(args: &Args, given: &Given) -> Result<(), Failure> {
    let format = args.format;
    match &args.command {
        Command::Demo(what) => demo::run(what, format),
        Command::PredictionError(what) => prediction_error::run(what, format),
        Command::Calibrate(what) => calibrate::run(what, given, format),
        Command::Model(what) => model::run(what, given, format),
        Command::Whatif(what) => whatif::run(what, given, format),
        Command::Catalogue(what) => catalogue::run(what, format),
        Command::Hardware(what) => hardware::run(what, format),
        Command::Plan(what) => plan::run(what, given, format),
        Command::Baseline(what) => baseline::run(what, given, format),
        Command::CompareSystems(what) => compare_systems::run(what, given, format),
        Command::Simulate(what) => simulate::run(what, format),
        Command::Run(what) => run::run(what, given, format),
        Command::Timeline(what) => timeline::run(what, given),
        Command::Compare(what) => compare::run(what, format),
        Command::Schedule(what) => schedule::run(what, given, format),
        Command::Fit(what) => fit::run(what, format),
        Command::Export(what) => export::run(what),
        Command::Trace(what) => trace::run(what, format),
        Command::Reproduce(what) => reproduce::run(what, given, format),
        Command::Schema(what) => pages::schema(what),
        Command::Completions(what) => pages::completions(what, given),
        Command::Man => pages::man(given),
    }
}
