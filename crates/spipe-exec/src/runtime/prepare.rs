//! Preparation of a run: checks, the initial state, and the devices.

use crate::{
    actions::{
        Inputs, Interpreter, LossScales, Numerics, Training,
        drives::Drives,
        pacer::Pacer,
        store::Store,
        task::{Task, computed_on, tasks},
    },
    data::Data,
    device::{Binding, DeviceContext, tuned},
    error::RunError,
    inference::Inference,
    nn::layers::{Parameter, Reading, Unit, inferring_units, units},
    optimizer::{Optimizer, StepSettings},
    options::Options,
    persist::{
        checkpoint::{Checkpoint, CheckpointError, Identity, InitialState, NamedLayer, OptimizerSettings},
        drive::DriveFile,
        weights::{self, AdapterFile, Weights},
    },
    quantised::Format,
    runtime::{
        bind::{bind, empty_stage},
        hooks::Hooks,
        job::Job,
        room::{build, room},
    },
    stored::FrozenStorage,
    task_error::TaskError,
};
use burn::tensor::DType;
use spipe_base::{ActionId, DeviceId, Diagnostic, Faults, IdVec, LayerId, MemoryId};
use spipe_cost::{GradientFormat, Mode};
use spipe_hardware::MemoryKind;
use spipe_model::Precision;
use spipe_plan::{Executed, Plan, beyond_execution};
use spipe_schedule::{Buffer, Content, Program};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Mutex,
};

/// A run that is ready to start.
pub(crate) struct Prepared<'a> {
    pub interpreter: Interpreter<'a>,
    /// The executor of each device, with its cores.
    pub devices: Vec<Binding>,
    pub warnings: Vec<String>,
}

/// Optimizers, and storages of frozen matrices and of gradients, that run.
const EXECUTED: Executed =
    Executed { optimizers: &Optimizer::EXECUTED, bases: &Format::EXECUTED, gradients: &[GradientFormat::F32] };

/// Checks everything that can be refused, then finds the initial state and opens the devices.
pub(crate) fn prepare<'a>(job: &Job<'a>, inference: Option<Inference<'a>>) -> Result<Prepared<'a>, RunError> {
    let Job { plan, program, data, options, hooks } = *job;
    let context = plan.context();
    let workload = context.workload();
    let Checked { units, tasks, bound } = check(job, inference.is_none())?;
    let computed_on = computed_on(program);
    let planned = room(job, &bound, &computed_on)?;
    let (initial_state, warnings) = initial_state((plan, data), &units, options)?;
    let contexts = open(plan, &bound, hooks)?;
    let optimizer = optimizer(plan, options)?;
    let on_gpu = |task: &Task| {
        let context = if let Task::Step(step) = task { contexts.get(&step.device) } else { None };
        context.is_some_and(|context| context.discrete_memory && !context.emulated)
    };
    if optimizer.on_devices().is_none() && tasks.iter().any(on_gpu) {
        return Err(RunError::Unsupported(on_cores_only(&optimizer).into()));
    }
    let (drives, more) = open_drives(plan, program, options)?;
    let (arenas, unpinned) = build(program, &contexts, &planned, (&bound, hooks))?;
    let warnings = warnings.into_iter().chain(more).chain(unpinned).chain(other_choices(options)).collect();
    let scales = LossScales::new(workload.precision, initial_state.loss_scale());
    let tokens = context.model.layers().iter().find_map(|layer| layer.tokens).unwrap_or(workload.seq_len);
    let stores_half = |device: &&DeviceId| context.cost.storage(**device) != Precision::Fp32;
    let interpreter = Interpreter {
        program,
        tasks,
        computed_on,
        units,
        contexts,
        inputs: Inputs {
            data,
            reading: Reading::of(context.model),
            batch: (workload.microbatch as usize, tokens as usize),
            seed: options.seed,
            inference,
        },
        training: Training {
            optimizer,
            schedule: options.schedule,
            steps: options.steps,
            clip_norm: workload.clip_norm,
        },
        numerics: Numerics {
            half: half(workload.precision),
            half_devices: bound.keys().filter(stores_half).copied().collect(),
            wide_gradients: workload.formats.gradients == Some(GradientFormat::F32),
            frozen: FrozenStorage::new(workload, half(workload.precision)),
            scales: Mutex::new(scales),
            verdicts: Mutex::new(BTreeMap::new()),
            inject_nan: hooks.inject_nan,
        },
        initial_state,
        store: Store::default(),
        arenas,
        drives,
        pacer: Pacer::new(program.channels()),
        first_gradients: options.keep_gradients.then(|| Mutex::new(BTreeMap::new())),
    };
    Ok(Prepared { interpreter, devices: bound.into_values().collect(), warnings })
}

/// The parts of a run that the checks produce.
struct Checked {
    units: Vec<Unit>,
    tasks: IdVec<ActionId, Task>,
    bound: BTreeMap<DeviceId, Binding>,
}

/// Checks the model, the program, the bindings, the data and the folder of saved weights.
fn check(job: &Job<'_>, trains: bool) -> Result<Checked, RunError> {
    let Job { plan, program, data, options, .. } = *job;
    let context = plan.context();
    if let Some(fault) = beyond_execution(&context, EXECUTED) {
        return Err(RunError::Unsupported(fault.into()));
    }
    let mut faults = Faults::new();
    let (units, tasks) = computed(plan, program, &mut faults);
    let bound = bind(plan, program, &options.bindings).map_err(|found| faults.extend(found)).unwrap_or_default();
    if trains {
        let optimizer = optimizer(plan, options)?;
        let beyond = beyond_optimizer(program, &tasks, &optimizer);
        beyond.into_iter().for_each(|fault| faults.push(fault));
    }
    let saves = options.checkpoints.is_some() || options.resume.is_some() || options.save_weights.is_some();
    if saves && !trains {
        let fault = Diagnostic::error("nothing is trained that a checkpoint or saved weights could hold");
        faults.push(fault.hint("leave out `option checkpoint-dir` and `option save-weights`"));
    }
    if options.save_weights.is_some() && context.model.lora().is_some() {
        let fault = Diagnostic::error("adapters are trained, and the weights of the model stay as they are");
        faults.push(fault.hint("use `option save-adapter`, then `command model merge`"));
    }
    if (options.adapter.is_some() || options.save_adapter.is_some()) && context.model.lora().is_none() {
        let fault = Diagnostic::error("the plan trains no adapters");
        faults.push(fault.hint("plan with `option lora` or `option adapter`"));
    }
    faults.or(()).map_err(RunError::Unsupported)?;
    if trains {
        data.check(context.model, context.workload().seq_len)?;
    }
    if let Some(folder) = &options.save_weights {
        weights::prepare(folder, context.model)?;
    }
    if let Some(folder) = &options.save_adapter {
        weights::prepare_adapters(folder, context.model, &units)?;
    }
    Ok(Checked { units, tasks, bound })
}

/// The arithmetic of the layers and of the program, and what is wrong with them.
fn computed(plan: &Plan, program: &Program, faults: &mut Faults) -> (Vec<Unit>, IdVec<ActionId, Task>) {
    let context = plan.context();
    let trains = context.workload().mode == Mode::Train;
    let units = if trains { units(context.model) } else { inferring_units(context.model) };
    let units = units.map_err(|found| faults.extend(found)).unwrap_or_default();
    (units, tasks(program).map_err(|found| faults.extend(found)).unwrap_or_default())
}

/// Refuses a plan that cannot be executed on the devices of its machine, whatever the data and the files of a run.
/// `program` was lowered from it.
///
/// # Errors
/// Every reason that [`run`](crate::run) gives before it looks at devices and data.
pub fn check_plan(plan: &Plan, program: &Program) -> Result<(), Faults> {
    let context = plan.context();
    if let Some(fault) = beyond_execution(&context, EXECUTED) {
        return Err(fault.into());
    }
    let mut faults = Faults::new();
    let (_, tasks) = computed(plan, program, &mut faults);
    empty_stage(program).into_iter().for_each(|fault| faults.push(fault));
    beyond_drives(plan, program).into_iter().for_each(|fault| faults.push(fault));
    let workload = context.workload();
    let optimizer = Optimizer::new(workload.optimizer, StepSettings::default());
    if let (Mode::Train, Some(optimizer)) = (workload.mode, optimizer) {
        beyond_optimizer(program, &tasks, &optimizer).into_iter().for_each(|fault| faults.push(fault));
        let is_gpu = |device: DeviceId| {
            let device = &context.hardware.devices()[device];
            device.is_gpu() && !device.emulated
        };
        let on_gpu = |task: &Task| matches!(task, Task::Step(step) if is_gpu(step.device));
        if optimizer.on_devices().is_none() && tasks.iter().any(on_gpu) {
            faults.push(on_cores_only(&optimizer));
        }
    }
    faults.or(())
}

/// The fault of a step on a GPU of an optimizer that runs on cores.
fn on_cores_only(optimizer: &Optimizer) -> Diagnostic {
    let fault = Diagnostic::error(format!("a step of `{}` runs on processor cores only", optimizer.kind()));
    fault.hint("plan optimizer steps on a socket, or bind the device to `emulated`")
}

/// The plan's optimizer. Inference has none, and gets AdamW, which takes no step.
///
/// # Errors
/// An optimizer that is planned and simulated only.
pub(crate) fn optimizer(plan: &Plan, options: &Options) -> Result<Optimizer, RunError> {
    let context = plan.context();
    let workload = context.workload();
    if workload.mode != Mode::Train {
        return Ok(Optimizer::adamw(options.optimizer));
    }
    let refused = || beyond_execution(&context, EXECUTED).map(Into::into).unwrap_or_default();
    Optimizer::new(workload.optimizer, options.optimizer).ok_or_else(|| RunError::Unsupported(refused()))
}

/// The fault of a program that asks of the optimizer what it cannot do.
fn beyond_optimizer(program: &Program, tasks: &IdVec<ActionId, Task>, optimizer: &Optimizer) -> Option<Diagnostic> {
    let (name, buffers) = (optimizer.kind(), program.buffers());
    let is_shared = |buffer: &Buffer| {
        let parts = buffer.part.map_or(1, |part| part.of);
        matches!(buffer.content, Content::OptimizerState(_)) && parts > 1
    };
    let by_arithmetic = |task: &Task| match task {
        Task::Rollback { undo, .. } => !matches!(buffers[*undo].content, Content::UndoLog(_)),
        _ => false,
    };
    if optimizer.needs_whole_tensors() && buffers.iter().any(is_shared) {
        let message =
            format!("the plan shares tensors' states over devices, and a step of `{name}` needs whole tensors");
        let hint = "plan with another optimizer, or for a system that shares no tensor";
        return Some(Diagnostic::error(message).hint(hint));
    }
    if tasks.iter().any(by_arithmetic) && !optimizer.has_inverse() {
        let message = format!("the plan takes back steps by arithmetic, and a step of `{name}` has no inverse");
        return Some(
            Diagnostic::error(message).hint("plan without `arithmetic-undo`: an undo log takes back any step"),
        );
    }
    None
}

/// Opens all devices, which must compute in their storage types.
fn open(
    plan: &Plan,
    bound: &BTreeMap<DeviceId, Binding>,
    hooks: &Hooks<'_>,
) -> Result<BTreeMap<DeviceId, DeviceContext>, RunError> {
    let mut contexts = BTreeMap::new();
    for (device, binding) in bound {
        let mut context = DeviceContext::open(&binding.executor)?;
        context.discrete_memory |= hooks.discrete_memory && context.emulated;
        let stored = plan.context().cost.storage(*device);
        if context.discrete_memory && !context.emulated && !context.device.supports_dtype(dtype(stored)) {
            let fault = Diagnostic::error(format!("`{}` does not compute in {stored}", binding.executor));
            let hint =
                "plan with `option precision fp32`, or for a profile that `command calibrate` has measured there";
            return Err(RunError::Unsupported(fault.hint(hint).into()));
        }
        contexts.insert(*device, context);
    }
    Ok(contexts)
}

/// The warning of a run whose GPUs choose other kernels than before its checkpoint.
fn other_choices(options: &Options) -> Option<String> {
    let lost = options.resume.as_ref().map_or(0, |checkpoint| checkpoint.choices_lost(&tuned()));
    (lost > 0).then(|| {
        format!("losses may differ by rounding: {lost} kernels that the checkpoint was trained with are chosen again")
    })
}

/// The buffers on drives.
fn on_drives<'a>(plan: &'a Plan, program: &'a Program) -> impl Iterator<Item = &'a Buffer> {
    let memories = plan.context().hardware.memories();
    program.buffers().iter().filter(|buffer| memories[buffer.memory].kind == MemoryKind::Nvme)
}

/// The fault of a drive that keeps what no run keeps there.
fn beyond_drives(plan: &Plan, program: &Program) -> Option<Diagnostic> {
    let is_executed = |buffer: &&Buffer| {
        matches!(buffer.content, Content::Parameters(_) | Content::OptimizerState(_) | Content::Saved(..))
    };
    let buffer = on_drives(plan, program).find(|buffer| !is_executed(buffer))?;
    let (content, name) = (buffer.content.group(), &plan.context().hardware.memories()[buffer.memory].name);
    let fault = Diagnostic::error(format!("{content} are on `{name}`, which is planned and simulated only"));
    Some(fault.hint("executed are drives with parameters, optimizer state or offloaded activations"))
}

/// The files of the drives, with warnings.
fn open_drives(plan: &Plan, program: &Program, options: &Options) -> Result<(Drives, Vec<String>), RunError> {
    if let Some(fault) = beyond_drives(plan, program) {
        return Err(RunError::Unsupported(fault.into()));
    }
    let used: BTreeSet<MemoryId> = on_drives(plan, program).map(|buffer| buffer.memory).collect();
    let mut files = BTreeMap::new();
    for memory in used {
        let name = &program.memories()[memory].name;
        let Some(folder) = options.drives.get(name) else {
            let fault = Diagnostic::error(format!("the plan uses the drive `{name}`, which has no folder"));
            return Err(RunError::Unsupported(
                fault.hint(format!("name one with `option drive {name}=FOLDER`")).into(),
            ));
        };
        let file = DriveFile::create(folder, name).map_err(|error| {
            RunError::Drive(TaskError::drive(&folder.join(format!("{name}.state")), "written", &error))
        })?;
        files.insert(memory, file);
    }
    let drives = Drives::new(files);
    let warnings = drives.buffered().map(|file| format!("`{file}` takes no direct transfers: the system caches it"));
    let warnings = warnings.collect();
    Ok((drives, warnings))
}

/// The type in which a precision stores numbers.
const fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        Precision::Bf16 | Precision::Fp8 => DType::BF16,
    }
}

/// The 16-bit type of a run in a precision.
pub(crate) const fn half(precision: Precision) -> DType {
    match dtype(precision) {
        DType::F32 => DType::BF16,
        half => half,
    }
}

/// The state from which the run begins, with warnings.
fn initial_state(
    (plan, data): (&Plan, &Data),
    units: &[Unit],
    options: &Options,
) -> Result<(InitialState, Vec<String>), RunError> {
    let layers = described(plan, units);
    let Some(checkpoint) = &options.resume else {
        let tensors = layers.iter().zip(units).map(|((_, parameters), unit)| &parameters[unit.adapters()..]);
        let open = |path: &PathBuf| Weights::open(path, plan.context().model, tensors);
        let weights = options.weights.as_ref().map(open).transpose()?;
        let parameters: Vec<Vec<Parameter>> = units.iter().map(Unit::parameters).collect();
        let open = |path: &PathBuf| AdapterFile::open(path, plan.context().model, &parameters);
        let adapter = options.adapter.as_ref().map(open).transpose()?;
        return Ok((InitialState::new(options.seed, &layers, weights).with_adapter(adapter), Vec::new()));
    };
    if checkpoint.step() >= options.steps {
        let (path, done) = (checkpoint.path().into(), checkpoint.step());
        return Err(CheckpointError::Done { path, done, asked: options.steps }.into());
    }
    resumed((plan, data), &layers, (options, checkpoint))
}

/// The state of a checkpoint, with warnings.
pub(crate) fn resumed(
    (plan, data): (&Plan, &Data),
    layers: &[NamedLayer],
    (options, checkpoint): (&Options, &Checkpoint),
) -> Result<(InitialState, Vec<String>), RunError> {
    let (state, mut warnings) = InitialState::resume(&identity(plan, data, options), layers, checkpoint)?;
    let context = plan.context();
    // Trained parameters come first.
    let adapters = |parameters: &[Parameter]| parameters.iter().take_while(|parameter| parameter.is_adapter()).count();
    let trained = |parameters: &'_ [Parameter]| match (context.model.lora(), adapters(parameters)) {
        (Some(_), adapters) => adapters,
        (None, _) => parameters.len(),
    };
    let trained = layers
        .iter()
        .enumerate()
        .map(|(layer, (_, parameters))| (LayerId::from(layer), &parameters[..trained(parameters)]));
    let optimizer = optimizer(plan, options)?;
    let trained = trained.filter(|(layer, _)| context.cost.trained_parameters(*layer) > 0);
    let untrained = state.untrained(trained, &optimizer);
    if let (Some(first), more) = (untrained.first(), untrained.len().saturating_sub(1)) {
        let name = &layers[first.index()].0;
        let layers = if more == 0 { format!("layer `{name}`") } else { format!("layer `{name}` and {more} more") };
        warnings.push(format!("the checkpoint did not train {layers}: its optimizer begins anew there"));
    }
    Ok((state, warnings))
}

/// The identity of a run, which its checkpoints carry.
pub(crate) fn identity(plan: &Plan, data: &Data, options: &Options) -> Identity {
    let kind = plan.context().workload().optimizer;
    let settings = OptimizerSettings::new(kind, options.optimizer, options.schedule, options.steps);
    Identity::new(plan, data, options.seed, settings)
}

/// The names and tensors of all layers.
pub(crate) fn described(plan: &Plan, units: &[Unit]) -> Vec<NamedLayer> {
    let names = plan.context().model.layers().iter().map(|layer| layer.name.clone());
    names.zip(units.iter().map(Unit::parameters)).collect()
}
