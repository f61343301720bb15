//! One program on its lanes: a thread for each.

use crate::{
    actions::Interpreter,
    device::Binding,
    error::RunError,
    host::{Growth, Tally, Watch, Watched},
    inference::Inference,
    nn::layers::Unit,
    persist::checkpoint::{Checkpoint, Writer},
    report::{Gradient, MemoryUse, Report, Step},
    runtime::{
        job::Job,
        monitor::Monitor,
        prepare::{Prepared, described, identity, prepare},
        program_index::ProgramIndex,
        run_state::RunState,
        steps::Steps,
        trace::trace,
        weights::save_trained,
    },
    task_error::TaskError,
};
use burn::tensor::TensorData;
use spipe_base::{ActionId, Bytes, Diagnostic, IdVec, LaneId, LayerId};
use std::{
    any::Any,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

/// Runs one program; returns the interpreter as the last action has left it.
pub(crate) fn perform<'a>(
    job: &Job<'a>,
    inference: Option<Inference<'a>>,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
) -> Result<(Report, Interpreter<'a>), RunError> {
    let Job { plan, program, data, options, hooks } = *job;
    let (growth, began) = (Growth::start(), Instant::now());
    let Prepared { interpreter, devices, mut warnings } = prepare(job, inference)?;
    stamp(began, "devices and host memory are ready");
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
    stamp(began, "the first values are in place");
    monitor.with(|state| {
        for (instance, bytes) in held {
            state.ledger.hold(&program_index, spipe_base::SimTime::ZERO, instance, bytes);
        }
        state.exceeded(&program_index, || "parameters were put in place".into()).map_or(Ok(()), Err)
    })?;
    let tokens = program.shape().tokens.unwrap_or(0);
    let tallies: IdVec<LaneId, &Tally> = program.lanes().iter().map(|_| Tally::new()).collect();
    monitor.with(|state| state.watched = watched(&interpreter, &tallies));
    let steps = Steps { monitor: &monitor, done, tokens, writer: writer.as_ref(), state: &interpreter };
    let watch = Watch::start();
    steps.start();
    let follow = || steps.follow(on_step).inspect(|()| stamp(began, "the last step is done"));
    run_lanes((&interpreter, &monitor), (hooks.before, &tallies), follow)?;
    stamp(began, "all lanes have ended");
    let contention = watch.contention();
    let state = monitor.into_state()?;
    save_trained(plan, &interpreter, options)?;
    for warning in interpreter.contexts.values().flat_map(|context| &context.warnings) {
        // Devices of one kind say the same.
        if !warnings.contains(warning) {
            warnings.push(warning.clone());
        }
    }
    let mut report = report(&program_index, &interpreter, &state, (devices, warnings))?;
    report.trace.notes.extend(contention.and_then(|contention| contention.note()));
    stamp(began, "the report is made");
    Ok((Report { resident: growth.most(), ..report }, interpreter))
}

/// Logs a moment before or after the steps of a run, in seconds since its beginning.
fn stamp(began: Instant, what: &str) {
    tracing::info!(seconds = began.elapsed().as_secs_f64(), "{what}");
}

/// The threads of a run: its lanes, and the cores of its devices.
fn watched(interpreter: &Interpreter<'_>, tallies: &IdVec<LaneId, &'static Tally>) -> Vec<Watched> {
    let program = interpreter.program;
    let lanes = program.lanes().enumerate().map(|(id, lane)| {
        let computes = lane.queue.iter().any(|action| program.actions()[*action].kind.is_compute());
        Watched::new(lane.name.clone(), computes, vec![tallies[id]])
    });
    let pools = interpreter.contexts.iter().filter(|(_, context)| !context.tallies.is_empty());
    let pools = pools.map(|(id, context)| {
        let computes = program.stages().iter().any(|stage| stage.device == *id);
        Watched::new(format!("cores of {}", program.devices()[*id].name), computes, context.tallies.clone())
    });
    lanes.chain(pools).collect()
}

/// Runs every lane on a thread of its own while this thread does `follow`; all threads have ended
/// when it returns.
fn run_lanes(
    (interpreter, monitor): (&Interpreter<'_>, &Monitor<'_>),
    (before, tallies): (&(dyn Fn(u32, ActionId) + Sync), &IdVec<LaneId, &'static Tally>),
    follow: impl FnOnce() -> Result<(), RunError>,
) -> Result<(), RunError> {
    let lanes = interpreter.program.lanes();
    std::thread::scope(|scope| {
        // If `on_step` panics, lanes must not wait for an end that never comes.
        let _stop = StopOnDrop(monitor, "the caller");
        for lane in lanes.ids() {
            let name = lanes[lane].name.clone();
            let thread = std::thread::Builder::new().name(name.clone());
            let tally = tallies[lane];
            let work = move || {
                tally.begin();
                walk(monitor, interpreter, lane, before);
                tally.end();
            };
            if let Err(error) = thread.spawn_scoped(scope, work) {
                let action = "starting its thread".into();
                monitor.fail(RunError::Lane { lane: name, action, error: TaskError::Thread(error.to_string()) });
            }
        }
        follow().inspect_err(|error| monitor.fail(error.clone()))
    })
}

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
