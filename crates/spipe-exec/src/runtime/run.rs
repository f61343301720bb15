//! A run: one thread per lane of a program.

use crate::{
    actions::Interpreter,
    data::Data,
    device::Binding,
    error::RunError,
    host::{Growth, Watch},
    inference::Inference,
    nn::layers::{Parameter, Unit, initial, units},
    options::Options,
    persist::{
        checkpoint::{Checkpoint, TrainingState, Writer},
        weights::{self, WeightsError},
    },
    report::{Gradient, MemoryUse, Report, Step},
    runtime::{
        hooks::Hooks,
        infer::infer,
        monitor::Monitor,
        prepare::{Prepared, described, identity, prepare, resumed},
        program_index::ProgramIndex,
        run_state::RunState,
        steps::Steps,
        trace::trace,
    },
    task_error::{NotFinite, TaskError},
};
use burn::tensor::TensorData;
use spipe_base::{ActionId, Bytes, Diagnostic, LaneId, LayerId};
use spipe_cost::Mode;
use spipe_model::Model;
use spipe_plan::Plan;
use spipe_schedule::Program;
use std::{
    any::Any,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// Runs `program`, which was lowered from `plan`, and calls `on_step` on this thread after each
/// iteration; it can end the run.
///
/// # Errors
/// Every kind of [`RunError`]. No thread is left behind.
pub fn run(
    plan: &Plan,
    program: &Program,
    data: &Data,
    options: &Options,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
) -> Result<Report, RunError> {
    run_with((plan, program), data, options, on_step, &Hooks::NONE)
}

/// Saves the weights or the adapter of the checkpoint that a run resumes from, if that has all its steps
/// behind it; returns warnings.
///
/// # Errors
/// A checkpoint that does not suit the run, or weights that cannot be written.
pub fn save_weights(plan: &Plan, data: &Data, options: &Options) -> Result<Vec<String>, RunError> {
    let Some(checkpoint) = &options.resume else { return Ok(Vec::new()) };
    if options.save_weights.is_none() && options.save_adapter.is_none() {
        return Ok(Vec::new());
    }
    let model = plan.context().model;
    let units = units(model).map_err(RunError::Unsupported)?;
    let layers = described(plan, &units);
    let (state, warnings) = resumed((plan, data), &layers, (options, checkpoint))?;
    let parameters: Vec<_> = layers.into_iter().map(|(_, parameters)| parameters).collect();
    let numbers = &mut |layer: LayerId, index: usize| state.parameter(layer, &parameters[layer.index()][index]);
    save((model, &parameters), options, numbers)?;
    Ok(warnings)
}

/// Saves the weights with which a run without weights and with `seed` starts, in the layout of
/// transformers.
///
/// # Errors
/// A model that cannot be executed or has no known layout, or a folder that cannot be written.
pub fn save_initial_weights(model: &Model, seed: u64, folder: &Path) -> Result<(), RunError> {
    let parameters: Vec<_> = units(model).map_err(RunError::Unsupported)?.iter().map(Unit::parameters).collect();
    weights::prepare(folder, model)?;
    let numbers = &mut |layer: LayerId, index: usize| Ok(initial(seed, layer, &parameters[layer.index()][index]));
    Ok(weights::save(folder, (model, &parameters), numbers, MOST_BYTES)?)
}

/// Checks that the weights at `path`, a file or a folder, are those of `model`.
///
/// # Errors
/// Tensors that are missing or have another shape.
pub fn check_weights(path: &Path, model: &Model) -> Result<(), RunError> {
    let parameters: Vec<_> = units(model).map_err(RunError::Unsupported)?.iter().map(Unit::parameters).collect();
    weights::Weights::open(path, model, parameters.iter().map(Vec::as_slice))?;
    Ok(())
}

/// The same as [`run`], with faults injected.
pub(crate) fn run_with(
    (plan, program): (&Plan, &Program),
    data: &Data,
    options: &Options,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
    hooks: &Hooks<'_>,
) -> Result<Report, RunError> {
    let job = Job { plan, program, data, options, hooks };
    match plan.context().workload().mode {
        Mode::Train => perform(&job, None, on_step).map(|(report, _)| report),
        Mode::Infer | Mode::Generate => infer(&job, on_step),
    }
}

/// A program, and everything that it takes to run it.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub data: &'a Data,
    pub options: &'a Options,
    pub hooks: &'a Hooks<'a>,
}

/// Runs one program; returns the interpreter as the last action has left it.
pub(crate) fn perform<'a>(
    job: &Job<'a>,
    inference: Option<Inference<'a>>,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
) -> Result<(Report, Interpreter<'a>), RunError> {
    let Job { plan, program, data, options, hooks } = *job;
    let growth = Growth::start();
    let Prepared { interpreter, devices, mut warnings } = prepare(job, inference)?;
    let writer = options.checkpoints.clone().map(|place| {
        let layers = described(plan, &interpreter.units);
        let resumed = options.resume.as_ref().map(Checkpoint::step);
        let optimizer = interpreter.training.optimizer.clone();
        Writer::open((place, resumed), (identity(plan, data, options), optimizer), layers, hooks.disk)
    });
    let writer = writer.transpose()?;
    let program_index = ProgramIndex::new(program);
    let done = interpreter.initial_state.step();
    let monitor = Monitor::new(&program_index, options.steps.saturating_sub(done));
    let held = interpreter.fill().map_err(|error| match error {
        TaskError::Drive { .. } => RunError::Drive(error),
        error => RunError::Unsupported(Diagnostic::error(error.to_string()).into()),
    })?;
    monitor.with(|state| {
        for (instance, bytes) in held {
            state.ledger.hold(&program_index, spipe_base::SimTime::ZERO, instance, bytes);
        }
        state.exceeded(&program_index, || "parameters were put in place".into()).map_or(Ok(()), Err)
    })?;
    let tokens = program.shape().tokens.unwrap_or(0);
    let steps = Steps { monitor: &monitor, done, tokens, writer: writer.as_ref(), state: &interpreter };
    let watch = Watch::start();
    steps.start();
    run_lanes((&interpreter, &monitor), hooks.before, || steps.follow(on_step))?;
    let contention = watch.contention();
    let state = monitor.into_state()?;
    save_trained(plan, &interpreter, options)?;
    warnings.extend(interpreter.contexts.values().flat_map(|context| context.warnings.clone()));
    let mut report = report(&program_index, &interpreter, &state, (devices, warnings))?;
    report.trace.notes.extend(contention.and_then(|contention| contention.note()));
    Ok((Report { resident: growth.most(), ..report }, interpreter))
}

/// Runs every lane on a thread of its own while this thread does `follow`; all threads have ended
/// when it returns.
fn run_lanes(
    (interpreter, monitor): (&Interpreter<'_>, &Monitor<'_>),
    before: &(dyn Fn(u32, ActionId) + Sync),
    follow: impl FnOnce() -> Result<(), RunError>,
) -> Result<(), RunError> {
    let lanes = interpreter.program.lanes();
    std::thread::scope(|scope| {
        // If `on_step` panics, lanes must not wait for an end that never comes.
        let _stop = StopOnDrop(monitor, "the caller");
        for lane in lanes.ids() {
            let name = lanes[lane].name.clone();
            let thread = std::thread::Builder::new().name(name.clone());
            if let Err(error) = thread.spawn_scoped(scope, move || walk(monitor, interpreter, lane, before)) {
                let action = "starting its thread".into();
                monitor.fail(RunError::Lane { lane: name, action, error: TaskError::Thread(error.to_string()) });
            }
        }
        follow().inspect_err(|error| monitor.fail(error.clone()))
    })
}

/// Saves weights or adapters, as far as the options ask for them.
fn save(
    (model, parameters): (&Model, &[Vec<Parameter>]),
    options: &Options,
    numbers: &mut dyn FnMut(LayerId, usize) -> Result<Vec<f32>, TaskError>,
) -> Result<(), WeightsError> {
    if let Some(folder) = &options.save_weights {
        weights::prepare(folder, model)?;
        weights::save(folder, (model, parameters), numbers, MOST_BYTES)?;
    }
    if let Some(folder) = &options.save_adapter {
        let base = options.weights.as_ref().map_or_else(|| model.name().into(), |path| path.display().to_string());
        weights::save_adapters(folder, (model, parameters), &base, numbers)?;
    }
    Ok(())
}

/// Saves the weights or the adapters after the last step.
fn save_trained(plan: &Plan, interpreter: &Interpreter<'_>, options: &Options) -> Result<(), RunError> {
    let parameters: Vec<_> = interpreter.units.iter().map(Unit::parameters).collect();
    let numbers = &mut |layer, index| {
        let numbers = TrainingState::parameter(interpreter, layer, index)?;
        if numbers.iter().all(|number| number.is_finite()) { Ok(numbers) } else { Err(NotFinite::Parameter.into()) }
    };
    Ok(save((plan.context().model, &parameters), options, numbers)?)
}

/// The largest file of weights, as in transformers.
const MOST_BYTES: u64 = 5_000_000_000;

/// Fails the run if the thread, which has this name, panics outside its actions.
struct StopOnDrop<'a, 'b>(&'a Monitor<'b>, &'a str);

impl Drop for StopOnDrop<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(RunError::Stalled { waiting: format!("{} has given up", self.1) });
        }
    }
}

/// The thread of a lane: its actions in order, iteration after iteration.
fn walk(monitor: &Monitor<'_>, interpreter: &Interpreter<'_>, lane: LaneId, before: &(dyn Fn(u32, ActionId) + Sync)) {
    let _stop = StopOnDrop(monitor, &interpreter.program.lanes()[lane].name);
    while let Some((iteration, action)) = monitor.begin(lane) {
        let done = catch_unwind(AssertUnwindSafe(|| {
            before(iteration, action);
            interpreter.perform(iteration, action, &|| monitor.has_failed())
        }));
        let error = match done {
            Ok(Ok(outcome)) => {
                for instance in monitor.end(lane, (iteration, action), outcome) {
                    drop(interpreter.store.take(instance));
                }
                continue;
            }
            Ok(Err(error)) => error,
            Err(panic) => TaskError::Panicked(panic_message(panic.as_ref())),
        };
        let program = interpreter.program;
        return monitor.fail(RunError::Lane {
            lane: program.lanes()[lane].name.clone(),
            action: format!("{} of step {}", program.describe(action), interpreter.initial_state.step() + iteration),
            error,
        });
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

fn report(
    program_index: &ProgramIndex<'_>,
    interpreter: &Interpreter<'_>,
    state: &RunState,
    (devices, warnings): (Vec<Binding>, Vec<String>),
) -> Result<Report, RunError> {
    let Some((trace, lane_overhead)) = trace(program_index, state) else {
        return Err(RunError::Unsupported(Diagnostic::error("there is nothing to run: no steps or no actions").into()));
    };
    let program = program_index.program;
    let memories = program.memories().enumerate().map(|(id, space)| {
        let (planned, held) = state.ledger.peaks(id);
        let context = interpreter.contexts.iter().find(|(device, _)| program.devices()[**device].memory == id);
        let reserved = context.and_then(|(_, context)| context.reserved());
        MemoryUse { name: space.name.clone(), capacity: space.capacity, planned, held, reserved }
    });
    Ok(Report {
        trace,
        losses: state.losses.clone(),
        lane_overhead,
        memories: memories.filter(|memory| memory.planned > Bytes::ZERO).collect(),
        resident: None,
        gradients: gradients(interpreter),
        devices,
        warnings,
        outputs: None,
    })
}

fn gradients(interpreter: &Interpreter<'_>) -> Vec<Gradient> {
    let Some(kept) = &interpreter.first_gradients else { return Vec::new() };
    let kept = kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let parts = kept.iter().flat_map(|(layer, parts)| parts.values().map(|tensors| (*layer, tensors.iter().cloned())));
    named_gradients(&interpreter.units, parts)
}

/// Gradients with the names of their tensors; consecutive parts of a tensor are joined.
pub(crate) fn named_gradients<T: Iterator<Item = TensorData>>(
    units: &[Unit],
    layers: impl Iterator<Item = (LayerId, T)>,
) -> Vec<Gradient> {
    let mut all: Vec<Gradient> = Vec::new();
    for (id, tensors) in layers {
        let layer = id.to_string();
        for (parameter, data) in units[id.index()].parameters().into_iter().zip(tensors) {
            let numbers = data.iter::<f32>();
            match all.iter_mut().find(|known| known.layer == layer && known.tensor == parameter.name) {
                Some(known) => known.values.extend(numbers),
                None => {
                    all.push(Gradient {
                        layer: layer.clone(),
                        tensor: parameter.name.clone().into_owned(),
                        values: numbers.collect(),
                    });
                }
            }
        }
    }
    all
}
