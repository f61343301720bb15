//! Runs of inference: one program for images; for text one that reads the prompts, and one that
//! continues them.

use crate::{
    data::Microbatch,
    error::RunError,
    inference::{AllResults, Caches, Inference, Part},
    nn::layers::Reading,
    options::Options,
    report::{Outputs, Report, Step},
    runtime::{job::Job, lanes::perform},
};
use spipe_base::{Diagnostic, Faults};
use spipe_cost::{Mode, Workload};
use spipe_model::LayerKind;
use spipe_plan::Plan;
use spipe_schedule::{Program, lower};
use std::ops::ControlFlow;

/// Runs a plan that does not train.
pub(crate) fn infer(job: &Job<'_>, on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>) -> Result<Report, RunError> {
    let context = job.plan.context();
    let workload = *context.workload();
    job.data.check(context.model, workload.seq_len)?;
    if job.options.steps == 0 {
        return Err(RunError::Unsupported(Diagnostic::error("there is nothing to run: no steps").into()));
    }
    let reading = Reading::of(context.model);
    let part = match reading {
        Reading::Tokens => return generate(job, on_step),
        Reading::Classes { .. } => Part::Images,
        Reading::Noise(condition) => Part::Noise { condition, steps: job.options.steps },
    };
    let (mut report, interpreter) = perform(job, Some(inference(job, part, Default::default())), on_step)?;
    let found = interpreter.inputs.inference.as_ref().map(Inference::take_found).unwrap_or_default();
    let times = if matches!(part, Part::Images) { report.losses.len() } else { 1 };
    report.outputs = Some(Outputs::images(&found, times * workload.global_batch() as usize));
    Ok(report)
}

/// A part of an inference, done by the program of `job`; `before` is left by the part before.
pub(crate) fn inference<'a>(job: &Job<'a>, part: Part, before: (AllResults, Caches)) -> Inference<'a> {
    let context = job.plan.context();
    let workload = context.workload();
    let reads = (job.data, Reading::of(context.model), job.options.seed);
    Inference::new(part, reads, (workload.microbatch as usize, workload.microbatches as usize), before)
}

/// Length of the prompts, and of the sequences when the last token has been found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub prompts: u64,
    pub last: u64,
}

impl Lengths {
    /// A plan that infers states the length of prompts, one that generates the length of whole
    /// sequences. Each of `steps` finds one token behind the prompt; the last one is not read
    /// again.
    pub fn of(plan: &Plan, steps: u32) -> Result<Self, RunError> {
        let context = plan.context();
        let Workload { mode, seq_len, .. } = *context.workload();
        let more = u64::from(steps.max(1)) - 1;
        let refuse = |fault: Diagnostic| RunError::Unsupported(fault.into());
        let lengths = match mode {
            Mode::Generate => {
                let prompts = seq_len.checked_sub(more).filter(|prompts| *prompts > 0).ok_or_else(|| {
                    let message = format!("sequences of {seq_len} tokens have no room for a prompt and {steps} tokens");
                    refuse(
                        Diagnostic::error(message).hint("ask for fewer steps, or plan with a longer `option seq-len`"),
                    )
                })?;
                Self { prompts, last: seq_len }
            }
            Mode::Train | Mode::Infer => Self { prompts: seq_len, last: seq_len + more },
        };
        let places = context.model.layers().iter().find_map(|layer| match &layer.kind {
            LayerKind::Embedding(embedding) if embedding.places > 0 => Some(embedding.places),
            _ => None,
        });
        match places.filter(|places| *places < lengths.last) {
            Some(places) => {
                let Self { prompts, last } = lengths;
                let message = format!(
                    "`{}` has {places} positions, prompts of {prompts} tokens and {steps} more take {last}",
                    context.model.name()
                );
                Err(refuse(
                    Diagnostic::error(message).hint("plan with a shorter `option seq-len`, or ask for fewer steps"),
                ))
            }
            None => Ok(lengths),
        }
    }
}

/// The same placement for the other part of an inference.
fn other_part(plan: &Plan, mode: Mode, seq_len: u64) -> Result<(Plan, Program), RunError> {
    let refuse = |faults: Faults| {
        let what = if mode == Mode::Infer { "reading the prompts at once" } else { "continuing the prompts" };
        let mut all = Faults::new();
        all.push(Diagnostic::error(format!("the plan is checked, but {what} does not fit its placement")));
        all.extend(faults);
        RunError::Unsupported(all)
    };
    let workload = Workload { mode, seq_len, ..*plan.context().workload() };
    let plan = plan.with_workload(workload).map_err(refuse)?;
    let program = lower(&plan.context(), plan.placement()).map_err(refuse)?;
    Ok((plan, program))
}

/// Reads the prompts, then finds a token for each sequence in each step.
fn generate(job: &Job<'_>, on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>) -> Result<Report, RunError> {
    let steps = job.options.steps;
    let lengths = Lengths::of(job.plan, steps)?;
    let prefills = job.plan.context().workload().mode == Mode::Infer;
    let other = match prefills {
        true => other_part(job.plan, Mode::Generate, lengths.last)?,
        false => other_part(job.plan, Mode::Infer, lengths.prompts)?,
    };
    let other = Job { plan: &other.0, program: &other.1, ..*job };
    let (reads, continues) = if prefills { (*job, other) } else { (other, *job) };

    let mut stopped = false;
    let options = Options { steps: 1, ..job.options.clone() };
    let reads = Job { options: &options, ..reads };
    let part = Part::Prompts { tokens: lengths.prompts as usize };
    let (first, interpreter) = perform(&reads, Some(inference(&reads, part, Default::default())), &mut |step| {
        let flow = on_step(step);
        stopped = flow.is_break();
        flow
    })?;
    let (found, prompts) = match &interpreter.inputs.inference {
        Some(inference) => (inference.take_found(), all_prompts(inference, lengths)),
        None => Default::default(),
    };
    if steps == 1 || stopped {
        return Ok(Report { outputs: Some(Outputs::tokens(&found, &prompts, &[])), ..first });
    }
    let caches = interpreter.take_caches();
    drop(interpreter);

    let options = Options { steps: steps - 1, ..job.options.clone() };
    let continues = Job { options: &options, ..continues };
    let part = Part::Next { past: lengths.prompts as usize };
    let mut durations = Vec::new();
    let (second, interpreter) = perform(&continues, Some(inference(&continues, part, (found, caches))), &mut |step| {
        durations.push(step.duration);
        on_step(&Step { index: step.index + 1, ..step.clone() })
    })?;
    let found = interpreter.inputs.inference.as_ref().map(Inference::take_found).unwrap_or_default();
    let outputs = Outputs::tokens(&found, &prompts, &durations);
    Ok(Report { outputs: Some(outputs), ..joined(first, second, prefills) })
}

/// The prompts of all microbatches.
pub(crate) fn all_prompts(inference: &Inference<'_>, lengths: Lengths) -> Vec<Microbatch> {
    (0..inference.microbatches).map(|microbatch| inference.prompts(microbatch, lengths.prompts as usize)).collect()
}

/// Both parts as one report: the trace of the plan's own program, and the larger memory use.
fn joined(first: Report, second: Report, first_is_planned: bool) -> Report {
    let losses = first.losses.iter().chain(&second.losses).copied().collect();
    // The first part has one iteration, whose lanes are cold.
    let lane_overhead = second.lane_overhead;
    let (mut planned, other) = if first_is_planned { (first, second) } else { (second, first) };
    for memory in &mut planned.memories {
        if let Some(more) = other.memories.iter().find(|other| other.name == memory.name) {
            memory.planned = memory.planned.max(more.planned);
            memory.held = memory.held.max(more.held);
        }
    }
    let resident = planned.resident.max(other.resident);
    Report { losses, lane_overhead, resident, ..planned }
}
