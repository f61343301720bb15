//! `spipe simulate`.

use crate::{
    Failure, args,
    args::Format,
    input, interrupt, output,
    output::Target,
    report::{
        explanation,
        picture::{Kind, draw_into},
        trace::human,
    },
};
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, SimTime};
use spipe_plan::Plan;
use spipe_schedule::Program;
use spipe_search::explain::{Explained, changes, pitfalls, remarks};
use spipe_sim::{Iterations, Options, Simulation, simulate, simulate_explained};
use spipe_timeline::Picture;
use spipe_trace::{Explanation, Metrics, Status};
use std::{collections::BTreeMap, path::Path};

/// Simulates a plan, prints the result and writes the trace.
pub fn run(what: &args::Simulate, format: Format) -> Result<(), Failure> {
    let target = what.output.as_deref().map(|path| written(path, &what.plan)).transpose()?;
    let plan = input::plan(&what.plan)?;
    let plan = match &what.runtime {
        Some(given) => {
            let fitted = input::under(plan.context().hardware.clone(), input::runtime(given)?)?;
            plan.under(fitted.runtime().clone())?
        }
        None => plan,
    };
    let program = spipe_search::program(&plan)?;
    let options = Options::default();
    let iterations = if what.once { Iterations::One } else { options.iterations };
    let options = Options { iterations, ..options };
    let simulation = if what.explain {
        explained(what, (&plan, &program), simulate_explained(&program, &options))?
    } else {
        simulate(&program, &options)
    };
    let remarks = remarks(&plan, &simulation.trace);
    output::warn(&remarks);
    let to_stdout = matches!(target, Some((Target::Stdout, _)));
    match target {
        None => {}
        Some((target, None)) => target.write_with(|out| spipe_trace::write_json(&simulation.trace, out))?,
        Some((target, Some(kind))) => {
            draw_into(target, kind, &Picture { trace: &simulation.trace, second: None, title: None })?;
        }
    }
    if !to_stdout {
        let data = data((&plan, &simulation), program.actions().len(), &remarks);
        let iteration = simulation.trace.iteration.to_ms();
        let why = simulation.trace.explanation.as_ref().map(|explained| explanation::human(explained, iteration));
        output::report(format, &(human(&simulation.trace) + &why.unwrap_or_default()), &data)?;
    }
    match &simulation.trace.status {
        Status::Ok => Ok(()),
        Status::OutOfMemory(shortage) => Err(Failure::Check(
            Diagnostic::error(format!(
                "out of memory on `{}` after {}: {} needs {}, and {} is free",
                shortage.memory, shortage.at, shortage.action, shortage.needed, shortage.free
            ))
            .hint("plan again, or recompute more layers"),
        )),
    }
}

/// The file of the result: the trace or, where the end of its name says so, a picture of it.
fn written(path: &str, plan: &str) -> Result<(Target, Option<Kind>), Failure> {
    let kind = if path == "-" { None } else { Kind::of(path).ok() };
    Ok((Target::beside(path, &[plan])?, kind))
}

/// A simulation with the changes and pitfalls of its plan in the explanation of its trace.
fn explained(
    what: &args::Simulate,
    (plan, program): (&Plan, &Program),
    mut simulation: Simulation,
) -> Result<Simulation, Failure> {
    let Some(mut explanation) = simulation.trace.explanation.take() else { return Ok(simulation) };
    let case = Explained::new(plan, simulation.trace.iteration, interrupt::flag());
    output::progress("trying changes …");
    for (number, mut tried) in changes(&case).into_iter().enumerate() {
        if let Some(folder) = &what.changes {
            let name = format!("change-{}.json", number + 1);
            Target::in_folder(Path::new(folder), &name)?.write(tried.plan.to_json().as_bytes())?;
            tried.change.replay = Some(format!("spipe simulate {}", Path::new(folder).join(name).display()));
        }
        explanation.changes.push(tried.change);
    }
    explanation.pitfalls = pitfalls(&case, program);
    output::progress("");
    simulation.trace.explanation = Some(explanation);
    Ok(simulation)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct SimulationOutput {
    format_version: u32,
    status: &'static str,
    runtime: String,
    estimate: bool,
    iteration_ms: f64,
    tokens_per_second: Option<f64>,
    bubble_fraction: f64,
    idle_ms: BTreeMap<String, BTreeMap<&'static str, f64>>,
    peak_bytes: BTreeMap<String, Bytes>,
    actions: usize,
    steady: bool,
    remarks: Vec<Remark>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Explanation>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Remark {
    message: String,
    hint: Option<String>,
}

fn data((plan, simulation): (&Plan, &Simulation), actions: usize, remarks: &[Diagnostic]) -> SimulationOutput {
    let trace = &simulation.trace;
    let metrics = Metrics::of(trace);
    let causes = |causes: &BTreeMap<spipe_base::IdleCause, SimTime>| {
        causes.iter().map(|(cause, time)| (cause.name(), time.to_ms())).collect()
    };
    SimulationOutput {
        format_version: 1,
        status: match trace.status {
            Status::Ok => "ok",
            Status::OutOfMemory(_) => "out-of-memory",
        },
        runtime: plan.context().hardware.runtime().name().into(),
        estimate: plan.is_estimate(),
        iteration_ms: metrics.iteration.to_ms(),
        // A simulation that ends early has no rate.
        tokens_per_second: metrics.tokens_per_second.filter(|_| trace.status == Status::Ok),
        bubble_fraction: metrics.bubble_fraction,
        idle_ms: metrics
            .idle
            .iter()
            .map(|(lane, idle)| (trace.lanes[lane.index()].name.clone(), causes(idle)))
            .collect(),
        peak_bytes: metrics.peaks.clone(),
        actions,
        steady: simulation.steady,
        remarks: remarks
            .iter()
            .map(|remark| Remark { message: remark.message.clone(), hint: remark.hint.clone() })
            .collect(),
        explanation: trace.explanation.clone(),
    }
}
