//! `spipe whatif`.

mod answer;
mod given;

use crate::{
    Failure, args,
    args::{Format, Given},
    engines, first_tries, input, interrupt, market,
    options::OPTIONS,
    output,
    output::Target,
};
use answer::Answerer;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spipe_base::Diagnostic;
use spipe_market::Source;
use spipe_search::{
    cores,
    whatif::{Clock, JobPlanner, Task, Training},
};
use spipe_whatif::{Counts, Job, Plans, Shard, State, Sweep, TrainFile, merge, run as sweep_run};
use std::{collections::BTreeSet, time::Duration};

/// Sweeps machines for a job, or joins the parts of a sweep.
pub fn run(what: &args::Whatif, given: &Given, format: Format) -> Result<(), Failure> {
    match &what.merge {
        Some(args::WhatifCommand::Merge(what)) => join(what, format),
        None => whole(&what.sweep, given, format),
    }
}

/// The bar of a sweep of machines.
fn bar(machines: usize, format: Format) -> ProgressBar {
    let bar = match format {
        Format::Human => ProgressBar::new(machines as u64),
        Format::Json => ProgressBar::with_draw_target(Some(machines as u64), ProgressDrawTarget::hidden()),
    };
    if let Ok(style) = ProgressStyle::with_template("{human_pos} of {human_len} machines · {msg} · {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// The planner of a job, within a time limit.
fn planner(job: &Job, limit: Option<Duration>, bar: &ProgressBar) -> Result<JobPlanner, Failure> {
    let training = |train: &TrainFile| {
        let runtime = train.runtime.as_deref().map(input::runtime).transpose()?;
        Ok(Training::new(train, input::model(&train.model)?, runtime, OPTIONS)?)
    };
    let trainings = job.file.train.iter().map(training).collect::<Result<_, Failure>>()?;
    let bar = bar.clone();
    let tell = move |decided: usize, counts: Counts| {
        bar.set_position(decided as u64);
        let Counts { solved, shared, bounded, .. } = counts;
        bar.set_message(format!("{solved} planned, {shared} shared, {bounded} bounded"));
    };
    Ok(JobPlanner::new(trainings, Clock::new(limit, interrupt::flag()), (Box::new(tell), Box::new(engines::names))))
}

fn whole(what: &args::WhatifSweep, given: &Given, format: Format) -> Result<(), Failure> {
    let missing = |path: &&str| *path != "-" && !path.ends_with(".toml") && !std::path::Path::new(path).exists();
    if let Some(path) = what.job.as_deref().filter(missing) {
        return Err(Failure::argument(format!("there is no job file `{path}`"), first_tries::whatif(path).to_string()));
    }
    let limit = what.time_limit.map(input::limit).transpose()?;
    // A first try ends soon; a job file is searched to its end, whatever the load.
    let first_try = what.job.is_none() && what.shard.is_none() && what.resume.is_none();
    let limit = limit.or_else(|| first_try.then_some(FIRST_TRY));
    let shard = what.shard.as_deref().map(given::shard).transpose()?;
    let inputs: Vec<&str> =
        what.job.iter().chain(&what.own).chain(&what.source.catalogues).map(String::as_str).collect();
    let target = what.output.output.as_deref().map(|path| Target::beside(path, &inputs)).transpose()?;
    let resumed = what.resume.as_deref().filter(|path| std::path::Path::new(path).exists()).map(state).transpose()?;
    let kept = what.resume.as_deref().map(Target::open).transpose()?;
    let catalogue = market::catalogue(&what.source)?;
    let setup = given::setup(what, given)?;
    let known = match resumed {
        Some(state) if state.setup != setup => {
            let path = what.resume.clone().unwrap_or_default();
            return Err(Failure::argument(format!("`{path}` has the plans of another job"), "name another file"));
        }
        Some(state) => state.plans,
        None => Plans::new(),
    };
    let task = Task::new(setup, catalogue)?;
    let bar = bar(task.sweep.candidates.len(), format);
    let planner = planner(&task.job, limit, &bar)?;
    let question = task.question(shard.unwrap_or(Shard::WHOLE), task.own.is_none());
    let pool = pool(what.threads)?;
    if shard.is_none() {
        planner.begin(SWEEP);
    }
    let found = pool.install(|| sweep_run(&question, &planner, known))?;
    let state = State::new(task.setup.clone(), question.shard, found.counts, found.plans.clone());
    if let Some(kept) = kept {
        kept.write(output::to_json(&state)?.as_bytes())?;
    }
    if shard.is_some() {
        bar.finish_and_clear();
        output::talk(&tally(&task.sweep, &state));
        if let Some(target) = target {
            target.write(output::to_json(&state)?.as_bytes())?;
        }
        return Ok(());
    }
    let answerer =
        Answerer { task: &task, planner: &planner, bar: &bar, rent: &what.rent, output: &what.output, format };
    pool.install(|| answerer.answer(found, target))
}

/// The machines of a part of a sweep and how they were decided, in words.
fn tally(sweep: &Sweep, state: &State) -> String {
    let Shard { part, of } = state.shard;
    let own = || sweep.candidates.iter().filter(|candidate| candidate.index % of == part - 1);
    let unlike: BTreeSet<&str> = own().map(|candidate| candidate.key.as_str()).collect();
    let Counts { solved, shared, bounded, left } = state.counts;
    format!(
        "{} machines, {} of them unlike in speed or memory: {solved} planned, {shared} shared, {bounded} bounded, {left} left",
        own().count(),
        unlike.len()
    )
}

/// The time limit of a job of flags.
const FIRST_TRY: Duration = Duration::from_secs(30);

/// The most of the time limit that the sweep itself may take: a machine without any plan is worse than a plan that a second
/// look would improve.
const SWEEP: f64 = 0.85;

/// The plans of a file.
fn state(path: &str) -> Result<State, Failure> {
    let state: State = serde_json::from_str(&input::text(path)?).map_err(|error| {
        let fault = Diagnostic::error(format!("`{path}` has no plans of a sweep: {error}"));
        Failure::input(fault.hint("`spipe whatif --shard` and `--resume` write such files"))
    })?;
    let hint = "plan the sweep again into a new file";
    state.check().map_err(|error| Failure::input(Diagnostic::error(format!("`{path}`: {error}")).hint(hint)))?;
    Ok(state)
}

fn join(what: &args::WhatifMerge, format: Format) -> Result<(), Failure> {
    let target = what.output.output.as_deref().map(|path| {
        let inputs: Vec<&str> = what.parts.iter().map(String::as_str).collect();
        Target::beside(path, &inputs)
    });
    let target = target.transpose()?;
    let parts = what.parts.iter().map(|path| Ok((path.clone(), state(path)?))).collect::<Result<Vec<_>, Failure>>()?;
    let whole = merge(parts).map_err(|error| {
        let hint = "give all parts that `spipe whatif --shard` has written for one job";
        Failure::input(Diagnostic::error(error.to_string()).hint(hint))
    })?;
    let mut catalogue = market::shipped()?;
    for text in &whole.setup.catalogues {
        catalogue.add(Source::read("catalogue", text)?.parsed);
    }
    let task = Task::new(whole.setup, catalogue)?;
    let bar = bar(0, format);
    let planner = planner(&task.job, None, &bar)?;
    let mut found = spipe_whatif::Run { counts: whole.counts, plans: whole.plans, ..spipe_whatif::Run::default() };
    // A machine without a plan was set aside in its part.
    found.answers = task.sweep.candidates.iter().map(|candidate| found.plans.get(&candidate.key).cloned()).collect();
    let answerer = Answerer { task: &task, planner: &planner, bar: &bar, rent: &[], output: &what.output, format };
    pool(None)?.install(|| answerer.answer(found, target))
}

/// The threads of a sweep.
fn pool(threads: Option<usize>) -> Result<rayon::ThreadPool, Failure> {
    let threads = threads.map_or_else(cores, |threads| threads.clamp(1, cores()));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| Failure::Bug(format!("threads cannot be started: {error}")))
}
