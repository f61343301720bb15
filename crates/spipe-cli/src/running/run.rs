//! A run of a plan, with progress and checkpoints.

use super::{
    checkpoints::Persistence,
    progress::{self, Progress},
    tokenizer::Encoding,
};
use crate::{Failure, args::Format, output};
use spipe_base::Diagnostic;
use spipe_exec::{Binding, Data, Options, Report, Schedule, StepSettings};
use spipe_model::{Attention, LayerKind};
use spipe_plan::Plan;
use spipe_schedule::Program;
use std::ops::ControlFlow;

/// A run of a plan.
pub struct Run<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub data: &'a Data,
    /// The encoding of its texts as tokens.
    pub encoding: &'a Encoding,
    pub bindings: Vec<Binding>,
    pub steps: u32,
    pub seed: u64,
    pub optimizer: StepSettings,
    pub schedule: Schedule,
    pub persistence: Persistence,
}

impl Run<'_> {
    fn options(&self) -> Options {
        Options {
            steps: self.steps,
            seed: self.seed,
            optimizer: self.optimizer,
            schedule: self.schedule,
            checkpoints: self.persistence.checkpoints.clone(),
            resume: self.persistence.resume.clone(),
            drives: self.persistence.drives.clone(),
            weights: self.persistence.weights.clone(),
            save_weights: self.persistence.save_weights.clone(),
            adapter: self.persistence.adapter.clone(),
            save_adapter: self.persistence.save_adapter.clone(),
            ..Options::new(self.bindings.clone())
        }
    }

    /// Whether the checkpoint that it resumes from has all its steps done.
    pub fn is_done(&self) -> bool {
        self.persistence.resume.is_some() && self.persistence.step() == self.steps
    }

    /// Ends a run that is done: writes its weights, if they were asked for.
    pub fn conclude(&self, format: Format) -> Result<(), Failure> {
        warn(&spipe_exec::save_weights(self.plan, self.data, &self.options())?);
        self.persistence.copy_companions()?;
        output::talk(&format!("nothing is left to do: the checkpoint is after all {} steps", self.steps));
        progress::nothing_left(self.steps, format)
    }
}

/// Executes a run and reports every step: as a bar on a terminal, or as lines of JSON.
pub fn execute(run: &Run<'_>, format: Format) -> Result<Report, Failure> {
    let options = run.options();
    if keeps_uncounted_scores(run) {
        output::talk(
            "warning: the plan assumes fused attention, but CPU cores keep all attention scores: plan with \
             `--materialised-attention`",
        );
    }
    let mut progress = Progress::start((run.persistence.step(), run.steps), format);
    let mut failure = None;
    let report = spipe_exec::run(run.plan, run.program, run.data, &options, &mut |step| {
        failure = failure.take().or(progress.step(step).err());
        if failure.is_some() || progress.is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.clear();
    if let Some(failure) = failure {
        return Err(failure);
    }
    let report = report?;
    warn(&report.warnings);
    run.persistence.copy_companions()?;
    progress.end(&report, run.encoding)?;
    Ok(report)
}

/// Prints the warnings of an executor.
fn warn(warnings: &[String]) {
    let warnings: Vec<Diagnostic> = warnings.iter().map(Diagnostic::warning).collect();
    output::warn(&warnings);
}

/// Whether attention runs on CPU cores although the plan counts the memory of fused attention.
fn keeps_uncounted_scores(run: &Run<'_>) -> bool {
    let context = run.plan.context();
    let attends = context.model.layers().iter().any(|layer| matches!(layer.kind, LayerKind::Block(_)));
    let on_cores = |binding: &Binding| {
        let device = context.hardware.device(&binding.device);
        let used = run.plan.placement().stages.iter().any(|stage| Some(stage.lead()) == device);
        used && binding.executor.cpu().is_some()
    };
    context.workload().attention == Attention::Fused && attends && run.bindings.iter().any(on_cores)
}
