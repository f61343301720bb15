//! What comes before a run: everything that can be refused, then the devices.

use crate::{
    Binding, Checkpoint, CheckpointError, Data, Executor, Options, RunError,
    checkpoint::{Beginning, Described, Identity},
    inference::Inference,
    interpreter::{Interpreter, Scales},
    layers::{Reading, Unit, inferring_units, units},
    pacer::Pacer,
    run::Job,
    site::{Site, assign_cores},
    store::Store,
    task::{computed_on, tasks},
    weights::{self, Weights},
};
use burn::tensor::DType;
use spipe_base::{ActionKind, DeviceId, Diagnostic, Faults, LayerId};
use spipe_hardware::DeviceKind;
use spipe_model::Precision;
use spipe_plan::Plan;
use spipe_schedule::Program;
use std::{collections::BTreeMap, path::PathBuf, sync::Mutex};

/// Everything that can be refused before anything runs, then the devices.
pub(crate) fn prepare<'a>(
    job: &Job<'a>,
    inference: Option<Inference<'a>>,
) -> Result<(Interpreter<'a>, Vec<Binding>, Vec<String>), RunError> {
    let Job { plan, program, data, options, hooks } = *job;
    let context = plan.context();
    let workload = context.workload();
    let mut faults = Faults::new();
    let units = if inference.is_some() { inferring_units(context.model) } else { units(context.model) };
    let units = units.map_err(|found| faults.extend(found)).unwrap_or_default();
    let tasks = tasks(program).map_err(|found| faults.extend(found)).unwrap_or_default();
    let bound = bind(plan, program, &options.bindings).map_err(|found| faults.extend(found)).unwrap_or_default();
    let keeps = options.checkpoints.is_some() || options.resume.is_some() || options.save_weights.is_some();
    if keeps && inference.is_some() {
        let fault = Diagnostic::error("nothing is trained that a checkpoint or saved weights could hold");
        faults.push(fault.hint("leave out `--checkpoint-dir` and `--save-weights`"));
    }
    faults.or(()).map_err(RunError::Unsupported)?;
    if inference.is_none() {
        data.check(context.model, workload.seq_len)?;
    }
    if let Some(folder) = &options.save_weights {
        weights::prepare(folder, context.model)?;
    }
    let tokens = context.model.layers().iter().find_map(|layer| layer.tokens).unwrap_or(workload.seq_len);
    let (beginning, warnings) = beginning((plan, data), &units, options)?;
    let mut sites = BTreeMap::new();
    for (device, binding) in &bound {
        let mut site = Site::open(&binding.executor)?;
        site.apart |= hooks.apart && site.emulated;
        let stored = context.cost.storage(*device);
        if site.apart && !site.emulated && !site.device.supports_dtype(width(stored)) {
            let fault = Diagnostic::error(format!("`{}` does not compute in {stored}", binding.executor));
            let hint = "plan with `--precision fp32`, or for a profile that `spipe calibrate` has measured there";
            return Err(RunError::Unsupported(fault.hint(hint).into()));
        }
        sites.insert(*device, site);
    }
    let scales = Scales::new(workload.precision, beginning.loss_scale());
    let interpreter = Interpreter {
        program,
        tasks,
        computed_on: computed_on(program),
        units,
        sites,
        data,
        reading: Reading::of(context.model),
        batch: (workload.microbatch as usize, tokens as usize),
        seed: options.seed,
        beginning,
        inference,
        optimizer: options.optimizer,
        schedule: options.schedule,
        steps: options.steps,
        store: Store::default(),
        pacer: Pacer::new(program.channels()),
        clip_norm: workload.clip_norm,
        verdicts: Mutex::new(BTreeMap::new()),
        narrow: match width(workload.precision) {
            DType::F32 => DType::BF16,
            narrow => narrow,
        },
        narrow_devices: bound
            .keys()
            .filter(|device| context.cost.storage(**device) != Precision::Fp32)
            .copied()
            .collect(),
        scales: Mutex::new(scales),
        spoils: hooks.spoils,
        first_gradients: options.keep_gradients.then(|| Mutex::new(BTreeMap::new())),
    };
    Ok((interpreter, bound.into_values().collect(), warnings))
}

/// The numbers that a precision stores.
const fn width(precision: Precision) -> DType {
    match precision {
        Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        Precision::Bf16 => DType::BF16,
    }
}

/// Where the run begins, and what about that should be known.
fn beginning(
    (plan, data): (&Plan, &Data),
    units: &[Unit],
    options: &Options,
) -> Result<(Beginning, Vec<String>), RunError> {
    let layers = described(plan, units);
    let Some(checkpoint) = &options.resume else {
        let tensors = layers.iter().map(|(_, parameters)| parameters.as_slice());
        let open = |path: &PathBuf| Weights::open(path, plan.context().model, tensors);
        let weights = options.weights.as_ref().map(open).transpose()?;
        return Ok((Beginning::new(options.seed, &layers, weights), Vec::new()));
    };
    if checkpoint.step() >= options.steps {
        let (path, done) = (checkpoint.path().into(), checkpoint.step());
        return Err(CheckpointError::Done { path, done, asked: options.steps }.into());
    }
    resumed((plan, data), &layers, (options, checkpoint))
}

/// What a checkpoint holds for a run, and what about that should be known.
pub(crate) fn resumed(
    (plan, data): (&Plan, &Data),
    layers: &[Described],
    (options, checkpoint): (&Options, &Checkpoint),
) -> Result<(Beginning, Vec<String>), RunError> {
    let (beginning, mut warnings) = Beginning::resume(&Identity::new(plan, data, options), layers, checkpoint)?;
    let context = plan.context();
    let trained = layers.iter().enumerate().map(|(layer, (_, parameters))| (LayerId::from(layer), &parameters[..]));
    let untrained = beginning.untrained(trained.filter(|(layer, _)| context.cost.trained_parameters(*layer) > 0));
    if let (Some(first), more) = (untrained.first(), untrained.len().saturating_sub(1)) {
        let name = &layers[first.index()].0;
        let layers = if more == 0 { format!("layer `{name}`") } else { format!("layer `{name}` and {more} more") };
        warnings.push(format!("the checkpoint did not train {layers}: moments begin at zero there"));
    }
    Ok((beginning, warnings))
}

/// The names and tensors of all layers.
pub(crate) fn described(plan: &Plan, units: &[Unit]) -> Vec<Described> {
    let names = plan.context().model.layers().iter().map(|layer| layer.name.clone());
    names.zip(units.iter().map(Unit::parameters)).collect()
}

/// The binding of every device that computes a stage or steps parameters, cores chosen.
pub(crate) fn bind(
    plan: &Plan,
    program: &Program,
    bindings: &[Binding],
) -> Result<BTreeMap<DeviceId, Binding>, Faults> {
    let mut faults = Faults::new();
    let steps = program
        .actions()
        .iter()
        .filter(|action| matches!(action.kind, ActionKind::OptimizerStep | ActionKind::Check | ActionKind::Rollback));
    let stepping = steps.map(|action| program.lanes()[action.lane].device);
    let mut used: Vec<DeviceId> = program.stages().iter().map(|stage| stage.device).chain(stepping).collect();
    used.sort_unstable();
    used.dedup();
    for binding in bindings {
        let known = program.devices().iter().any(|device| device.name == binding.device);
        let twice = bindings.iter().filter(|other| other.device == binding.device).count() > 1;
        if !known {
            let names: Vec<&str> = program.devices().iter().map(|device| device.name.as_str()).collect();
            faults.push(
                Diagnostic::error(format!("`{binding}` binds a device that the plan does not have"))
                    .hint(format!("its devices are {}", names.join(", "))),
            );
        } else if twice {
            faults.push(Diagnostic::error(format!("`{}` is bound more than once", binding.device)));
        }
    }
    let mut bound = BTreeMap::new();
    for device in used {
        let name = &program.devices()[device].name;
        match bindings.iter().find(|binding| binding.device == *name) {
            Some(binding) => {
                bound.insert(device, binding.clone());
            }
            None => faults.push(
                Diagnostic::error(format!("nothing executes `{name}`"))
                    .hint(format!("bind it, for example {name}=cpu:0")),
            ),
        }
    }
    faults.or(())?;
    let mut executors: Vec<Executor> = bound.values().map(|binding: &Binding| binding.executor.clone()).collect();
    let wanted: Vec<Option<usize>> = bound.keys().map(|device| threads(plan, *device)).collect();
    assign_cores(&mut executors, &wanted);
    for (binding, executor) in bound.values_mut().zip(executors) {
        binding.executor = executor;
    }
    Ok(bound)
}

/// How many cores the machine's file gives to a device.
fn threads(plan: &Plan, device: DeviceId) -> Option<usize> {
    let device = &plan.context().hardware.devices()[device];
    match device.kind {
        DeviceKind::Socket { cores, .. } => Some(cores as usize),
        DeviceKind::Gpu => device.emulated_cores.map(|cores| cores as usize),
    }
}
