//! `spipe trace`.

use crate::{Failure, args, args::Format, input, output, output::Target, report::trace::human};
use serde::Serialize;
use spipe_base::{ActionKind, Diagnostic, Position, SimTime, Subject};
use spipe_export::{ImportError, Imported, ProfilerFile, fingerprint, import};
use spipe_plan::Plan;
use spipe_trace::Metrics;
use std::collections::BTreeSet;

/// Reads traces of other programs.
pub fn run(what: &args::Trace, format: Format) -> Result<(), Failure> {
    let args::Trace::Import(what) = what;
    let paths = files(&what.profiles)?;
    let given: Vec<&str> = paths.iter().map(String::as_str).chain(what.plan.as_deref()).collect();
    let target = Target::beside(&what.output, &given)?;
    let texts: Vec<String> = paths.iter().map(|path| input::text(path)).collect::<Result<_, _>>()?;
    let files: Vec<ProfilerFile<'_>> =
        paths.iter().zip(&texts).map(|(name, text)| ProfilerFile { name, text }).collect();
    let mut imported = import(&files).map_err(refused)?;
    if let Some(path) = what.plan.as_deref() {
        let plan = input::plan(path)?;
        name(&mut imported, &plan, path)?;
    }
    let to_stdout = matches!(target, Target::Stdout);
    target.write(spipe_trace::to_json(&imported.trace).as_bytes())?;
    if to_stdout {
        return Ok(());
    }
    let metrics = Metrics::of(&imported.trace);
    let data = TraceOutput {
        format_version: 1,
        iteration_ms: metrics.iteration.to_ms(),
        iteration_without_profiler_ms: imported.trace.iteration_without_profiler.map(SimTime::to_ms),
        bubble_fraction: metrics.bubble_fraction,
        lanes: imported.trace.lanes.iter().map(|lane| lane.name.as_str()).collect(),
        spans: imported.trace.spans.len(),
    };
    output::report(format, &human(&imported.trace), &data)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct TraceOutput<'a> {
    format_version: u32,
    iteration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    iteration_without_profiler_ms: Option<f64>,
    bubble_fraction: f64,
    lanes: Vec<&'a str>,
    spans: usize,
}

/// The given files, and those of the given folders.
fn files(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    for path in given {
        if !std::path::Path::new(path).is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| Failure::file(path, "read", &error))?;
        let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        let mut found: Vec<String> = paths
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .map(|path| path.display().to_string())
            .collect();
        if found.is_empty() {
            return Err(Failure::argument(format!("`{path}` has no .json files"), "name the profiler's files"));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

fn refused(error: ImportError) -> Failure {
    let diagnostic = Diagnostic::error(error.to_string());
    Failure::input(match error {
        ImportError::Json { file, line, column, .. } => {
            diagnostic.at(Position { file, line: line.max(1), column: column.max(1) })
        }
        ImportError::NoActions { .. } => {
            diagnostic.hint("profile a step of PyTorch's pipeline runtime, such as that of `spipe export torch`")
        }
        ImportError::Twice { .. } => diagnostic.hint("give one file per process of one run"),
        ImportError::Plans { .. } => diagnostic.hint("give the files of one run"),
        ImportError::Nothing => diagnostic,
    })
}

/// Gives the trace the name and the tokens of `plan`, of which it must be.
fn name(imported: &mut Imported, plan: &Plan, path: &str) -> Result<(), Failure> {
    let wrong = |what: String| {
        let hint = "give the plan that was exported, or leave `--plan` out";
        Failure::input(Diagnostic::error(format!("the trace is of another plan than `{path}`: {what}")).hint(hint))
    };
    let program = spipe_search::program(plan)?;
    let (stages, microbatches) = (program.stages().len(), program.shape().microbatches);
    let mut forwards = BTreeSet::new();
    for span in imported.trace.spans.iter().filter(|span| span.kind.is_compute()) {
        let Subject { stage: Some(stage), microbatch: Some(microbatch), .. } = span.subject else { continue };
        let Some(planned) = program.stages().get(stage).filter(|_| (microbatch.index() as u64) < microbatches) else {
            let label = span.label();
            return Err(wrong(format!("it has `{label}`, the plan {stages} stages and {microbatches} microbatches")));
        };
        let device = &program.devices()[planned.device].name;
        let lane = &imported.trace.lanes[span.lane.index()];
        if imported.plan.is_some() && lane.device != *device {
            return Err(wrong(format!("`{}` ran on `{}`, the plan has it on `{device}`", span.label(), lane.device)));
        }
        if span.kind == ActionKind::Forward {
            forwards.insert((stage, microbatch));
        }
    }
    let wanted = program.actions().iter().filter(|action| action.kind == ActionKind::Forward).count();
    if imported.plan.is_some() && forwards.len() != wanted {
        return Err(wrong(format!("it has {} forwards, the plan has {wanted}", forwards.len())));
    }
    let own = fingerprint(plan);
    if imported.plan.as_ref().is_some_and(|exported| *exported != own) {
        return Err(wrong("its system, batch, devices or choices of stages differ".to_owned()));
    }
    imported.trace.name.clone_from(&program.shape().name);
    imported.trace.tokens = program.shape().tokens;
    Ok(())
}
