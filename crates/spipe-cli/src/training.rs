//! Running a plan; shared by `run` and `demo`.

use crate::{
    Failure,
    args::Format,
    data::Words,
    measuring::on_backend,
    output,
    progress::{self, Progress},
    resuming::Resuming,
};
use spipe_base::Diagnostic;
use spipe_exec::{AdamW, Backend, Binding, Data, Executor, Options, Report, RunError, Schedule};
use spipe_hardware::DeviceKind;
use spipe_model::{Attention, LayerKind};
use spipe_plan::Plan;
use spipe_schedule::Program;
use std::{collections::BTreeMap, ops::ControlFlow};

/// How to train.
pub struct Training<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub data: &'a Data,
    /// What its tokens say.
    pub words: &'a Words,
    pub bindings: Vec<Binding>,
    pub steps: u32,
    pub seed: u64,
    pub optimizer: AdamW,
    pub schedule: Schedule,
    pub resuming: Resuming,
}

impl Training<'_> {
    fn options(&self) -> Options {
        Options {
            steps: self.steps,
            seed: self.seed,
            optimizer: self.optimizer,
            schedule: self.schedule,
            checkpoints: self.resuming.checkpoints.clone(),
            resume: self.resuming.resume.clone(),
            weights: self.resuming.weights.clone(),
            save_weights: self.resuming.save_weights.clone(),
            ..Options::new(self.bindings.clone())
        }
    }

    /// Whether it goes on from a checkpoint that has all its steps behind it.
    pub fn is_done(&self) -> bool {
        self.resuming.resume.is_some() && self.resuming.step() == self.steps
    }

    /// Writes the weights of one that is, if they were asked for, and says so.
    pub fn conclude(&self, format: Format) -> Result<(), Failure> {
        for warning in spipe_exec::save_weights(self.plan, self.data, &self.options()).map_err(refuse)? {
            output::talk(&format!("warning: {warning}"));
        }
        self.resuming.accompany()?;
        output::talk(&format!("nothing is left to do: all {} steps are behind the checkpoint", self.steps));
        progress::nothing_left(self.steps, format)
    }
}

/// Trains, and tells of every step: to people on a terminal, to programs in lines of JSON.
pub fn train(training: &Training<'_>, format: Format) -> Result<Report, Failure> {
    let options = training.options();
    if keeps_uncounted_scores(training) {
        output::talk(
            "warning: the plan counts fused attention, and CPU cores keep every score: plan for them with \
             `--materialised-attention`",
        );
    }
    let mut progress = Progress::start((training.resuming.step(), training.steps), format);
    let mut failure = None;
    let report = spipe_exec::run(training.plan, training.program, training.data, &options, &mut |step| {
        failure = failure.take().or(progress.step(step).err());
        if failure.is_some() || progress.is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.clear();
    if let Some(failure) = failure {
        return Err(failure);
    }
    let report = report.map_err(refuse)?;
    for warning in &report.warnings {
        output::talk(&format!("warning: {warning}"));
    }
    training.resuming.accompany()?;
    progress.end(&report, training.words)?;
    Ok(report)
}

/// Whether attention needs more memory than the plan counts where it is computed.
fn keeps_uncounted_scores(training: &Training<'_>) -> bool {
    let context = training.plan.context();
    let attends = context.model.layers().iter().any(|layer| matches!(layer.kind, LayerKind::Block(_)));
    let on_cores = |binding: &Binding| {
        let device = context.hardware.device(&binding.device);
        let used = training.plan.placement().stages.iter().any(|stage| Some(stage.device) == device);
        used && binding.executor.cpu().is_some()
    };
    context.workload().attention == Attention::Fused && attends && training.bindings.iter().any(on_cores)
}

/// The failure that an error of the executor is.
pub fn refuse(error: RunError) -> Failure {
    let hint = error.hint();
    let diagnostic = Diagnostic::error(error.to_string());
    let diagnostic = match hint {
        Some(hint) => diagnostic.hint(hint),
        None => diagnostic,
    };
    match error {
        RunError::Unsupported(faults) => Failure::Input(faults),
        RunError::NoDevice { .. } => Failure::NoDevice(diagnostic),
        RunError::Data(_) | RunError::Checkpoint(_) | RunError::Weights(_) => diagnostic.into(),
        RunError::OutOfMemory(_) | RunError::Exceeded { .. } | RunError::Lane { .. } | RunError::NotFinite { .. } => {
            Failure::Check(diagnostic)
        }
        RunError::Stalled { .. } => Failure::Bug(diagnostic.message),
    }
}

/// What executes each device of the machine of `plan`, used or not: what was given, otherwise CPU cores for sockets, an
/// emulated accelerator for accelerators that the machine's file calls emulated, and a CUDA device for the others.
pub fn bindings(plan: &Plan, given: &[String], backend: Backend) -> Result<Vec<Binding>, Failure> {
    let context = plan.context();
    let mut asked = BTreeMap::new();
    for text in given {
        let binding: Binding = text.parse().map_err(Failure::Input)?;
        if context.hardware.device(&binding.device).is_none() {
            let names: Vec<&str> = context.hardware.devices().iter().map(|device| device.name.as_str()).collect();
            return Err(Failure::argument(
                format!("`{}` has no device `{}`", context.hardware.name(), binding.device),
                format!("its devices are {}", names.join(", ")),
            ));
        }
        let binding = Binding { executor: on_backend(binding.executor, text, backend), ..binding };
        if let Some(other) = asked.insert(binding.device.clone(), binding) {
            let message = format!("`{}` is bound twice", other.device);
            return Err(Failure::argument(message, "leave one `--bind` of it out"));
        }
    }
    let (mut cpus, mut emulated, mut gpus) = (0, 0, 0);
    let mut bindings = Vec::new();
    for device in context.hardware.devices() {
        let executor = match &device.kind {
            DeviceKind::Socket { .. } => Executor::Cpu { index: next(&mut cpus), backend, cores: Vec::new() },
            DeviceKind::Gpu if device.emulated => {
                Executor::Emulated { index: next(&mut emulated), backend, cores: Vec::new() }
            }
            DeviceKind::Gpu => Executor::Cuda { index: next(&mut gpus) },
        };
        let standard = Binding { device: device.name.clone(), executor };
        bindings.push(asked.remove(&device.name).unwrap_or(standard));
    }
    Ok(bindings)
}

fn next(counter: &mut u32) -> u32 {
    *counter += 1;
    *counter - 1
}
