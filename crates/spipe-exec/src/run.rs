//! A run: one thread per lane of a program.

use crate::{
    AdamW, Binding, Checkpoint, Checkpoints, Data, MemoryUse, Outputs, RunError, Schedule,
    board::Board,
    checkpoint::{Between, Disk, Identity, RealDisk, Writer},
    contention::Watch,
    infer::infer,
    inference::Inference,
    interpreter::Interpreter,
    layers::{Unit, units},
    preparation::{described, prepare, resumed},
    rules::Rules,
    state::State,
    steps::Steps,
    system::Growth,
    weights,
};
use burn::tensor::TensorData;
use spipe_base::{ActionId, Bytes, Diagnostic, LaneId, LayerId};
use spipe_cost::Mode;
use spipe_plan::Plan;
use spipe_schedule::Program;
use spipe_trace::Trace;
use std::{
    any::Any,
    collections::BTreeMap,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::Duration,
};

/// How a program is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What executes each device that has a stage or steps parameters.
    pub bindings: Vec<Binding>,
    /// Steps in all, those before the checkpoint that is gone on from among them.
    pub steps: u32,
    /// Parameters and batches follow from it.
    pub seed: u64,
    /// How parameters are updated.
    pub optimizer: AdamW,
    /// How its learning rate changes.
    pub schedule: Schedule,
    /// Whether the report carries the gradients of the first step.
    pub keep_gradients: bool,
    /// Where checkpoints are written, if they are.
    pub checkpoints: Option<Checkpoints>,
    /// What to go on from.
    pub resume: Option<Checkpoint>,
    /// Weights in the layout of Hugging Face, a file or a folder, that the first step starts from.
    pub weights: Option<PathBuf>,
    /// The folder to which such weights are written at the end.
    pub save_weights: Option<PathBuf>,
}

impl Options {
    /// One step from seed 0 with PyTorch's defaults.
    pub fn new(bindings: Vec<Binding>) -> Self {
        Self {
            bindings,
            steps: 1,
            seed: 0,
            optimizer: AdamW::default(),
            schedule: Schedule::default(),
            keep_gradients: false,
            checkpoints: None,
            resume: None,
            weights: None,
            save_weights: None,
        }
    }
}

/// One iteration that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 0.
    pub index: u32,
    /// The mean of the losses of its microbatches.
    pub loss: f64,
    /// The norm of the gradients of all parameters that it stepped with, before it was clipped; none where it is not known.
    pub norm: Option<f64>,
    /// Whether it stepped nothing, because some gradients were not finite: their loss was multiplied with too much.
    pub left_out: bool,
    /// From the end of the step before; from the first action for the first one.
    pub duration: Duration,
    /// Tokens that it consumed.
    pub tokens: u64,
    /// By memory, the most that was held since the step before.
    pub peaks: BTreeMap<String, Bytes>,
}

/// The gradient of one tensor, summed over the microbatches of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The layer.
    pub layer: String,
    /// The tensor's name in the layer.
    pub tensor: String,
    /// Row by row.
    pub values: Vec<f32>,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The iteration of median duration, after one to warm up, with a note where others took CPU time. Memory is what was
    /// really held: tensors by their size, graphs by an estimate of what they keep, workspace as planned.
    pub trace: Trace,
    /// The loss of every step.
    pub losses: Vec<f64>,
    /// The share of that iteration that compute lanes spent neither in actions nor waiting for others or for memory.
    pub lane_overhead: f64,
    /// Planned and held bytes of every memory, over the whole run.
    pub memories: Vec<MemoryUse>,
    /// How much the resident size of this process grew at most, as the operating system counts, which knows of pages only and
    /// of all that the allocator keeps.
    pub resident: Option<Bytes>,
    /// The gradients of the first step, if they were asked for, in the order of layers and their tensors.
    pub gradients: Vec<Gradient>,
    /// What each device ran on, with its cores.
    pub devices: Vec<Binding>,
    /// What could not be done as asked, though the run went on.
    pub warnings: Vec<String>,
    /// What was found, where nothing is trained.
    pub outputs: Option<Outputs>,
}

/// Runs `program`, which was lowered from `plan`, and calls `on_step` after each iteration on this thread; it can end the run.
///
/// # Errors
/// Whatever [`RunError`] names. No thread is left behind.
pub fn run(
    plan: &Plan,
    program: &Program,
    data: &Data,
    options: &Options,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
) -> Result<Report, RunError> {
    run_with((plan, program), data, options, on_step, &Hooks::NONE)
}

/// Writes the weights of the checkpoint that a run goes on from, where that has all its steps behind it; returns what should be known.
///
/// # Errors
/// A checkpoint that does not suit the run, or weights that cannot be written.
pub fn save_weights(plan: &Plan, data: &Data, options: &Options) -> Result<Vec<String>, RunError> {
    let (Some(checkpoint), Some(folder)) = (&options.resume, &options.save_weights) else { return Ok(Vec::new()) };
    let model = plan.context().model;
    let units = units(model).map_err(RunError::Unsupported)?;
    let layers = described(plan, &units);
    let (beginning, warnings) = resumed((plan, data), &layers, (options, checkpoint))?;
    weights::prepare(folder, model)?;
    let parameters: Vec<_> = layers.into_iter().map(|(_, parameters)| parameters).collect();
    let numbers = &mut |layer: LayerId, index: usize| beginning.parameter(layer, &parameters[layer.index()][index]);
    weights::save(folder, (model, &parameters), numbers, MOST_BYTES)?;
    Ok(warnings)
}

/// What tests do to a run.
pub(crate) struct Hooks<'a> {
    /// Is called before each action and may panic.
    pub before: &'a (dyn Fn(u32, ActionId) + Sync),
    /// Where checkpoints are written.
    pub disk: &'a dyn Disk,
    /// Whether the gradient of a layer is spoilt in an iteration.
    pub spoils: fn(u32, LayerId) -> bool,
    /// Whether emulated accelerators are taken for devices with a memory of their own.
    pub apart: bool,
}

impl Hooks<'_> {
    /// Nothing.
    pub const NONE: Self = Self { before: &|_, _| {}, disk: &RealDisk, spoils: |_, _| false, apart: false };
}

/// The same, with hooks.
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

/// A program with all that it takes to carry it out.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub data: &'a Data,
    pub options: &'a Options,
    pub hooks: &'a Hooks<'a>,
}

/// Carries out one program; the interpreter is as the last action has left it.
pub(crate) fn perform<'a>(
    job: &Job<'a>,
    inference: Option<Inference<'a>>,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
) -> Result<(Report, Interpreter<'a>), RunError> {
    let Job { plan, program, data, options, hooks } = *job;
    let growth = Growth::start();
    let (interpreter, devices, mut warnings) = prepare(job, inference)?;
    let writer = options.checkpoints.clone().map(|place| {
        let layers = described(plan, &interpreter.units);
        let resumed = options.resume.as_ref().map(Checkpoint::step);
        Writer::open((place, resumed), Identity::new(plan, data, options), layers, hooks.disk)
    });
    let writer = writer.transpose()?;
    let rules = Rules::new(program);
    let done = interpreter.beginning.step();
    let board = Board::new(&rules, options.steps.saturating_sub(done));
    let held = interpreter.fill().map_err(|fault| RunError::Unsupported(Diagnostic::error(fault).into()))?;
    board.with(|state| {
        for (instance, bytes) in held {
            state.account.hold(&rules, spipe_base::SimTime::ZERO, instance, bytes);
        }
        state.exceeded(&rules, || "parameters were put in place".into()).map_or(Ok(()), Err)
    })?;
    let tokens = program.shape().tokens.unwrap_or(0);
    let steps = Steps { board: &board, done, tokens, writer: writer.as_ref(), state: &interpreter };
    let watch = Watch::start();
    steps.start();
    std::thread::scope(|scope| {
        // If `on_step` panics, lanes must not wait for what will never come.
        let _stop = StopOnDrop(&board, "the caller");
        for lane in program.lanes().ids() {
            let (board, interpreter) = (&board, &interpreter);
            let name = program.lanes()[lane].name.clone();
            let thread = std::thread::Builder::new().name(name.clone());
            if let Err(error) = thread.spawn_scoped(scope, move || walk(board, interpreter, lane, hooks.before)) {
                let action = "starting its thread".into();
                board.fail(RunError::Lane { lane: name, action, message: error.to_string() });
            }
        }
        steps.follow(on_step).inspect_err(|error| board.fail(error.clone()))
    })?;
    let contention = watch.contention();
    let state = board.into_state()?;
    if let Some(folder) = &options.save_weights {
        let parameters: Vec<_> = interpreter.units.iter().map(Unit::parameters).collect();
        let numbers = &mut |layer, index| {
            let numbers = Between::parameter(&interpreter, layer, index)?;
            if numbers.iter().all(|number| number.is_finite()) { Ok(numbers) } else { Err("it is not finite".into()) }
        };
        weights::save(folder, (plan.context().model, &parameters), numbers, MOST_BYTES)?;
    }
    warnings.extend(interpreter.sites.values().flat_map(|site| site.warnings.clone()));
    let mut report = report(&rules, &interpreter, &state, (devices, warnings))?;
    report.trace.notes.extend(contention.and_then(|contention| contention.note()));
    Ok((Report { resident: growth.most(), ..report }, interpreter))
}

/// The largest file of weights, as transformers writes them.
const MOST_BYTES: u64 = 5_000_000_000;

/// Stops everyone where a thread panics outside its actions: with what it was.
struct StopOnDrop<'a, 'b>(&'a Board<'b>, &'a str);

impl Drop for StopOnDrop<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(RunError::Stalled { waiting: format!("{} has given up", self.1) });
        }
    }
}

/// A lane's thread: its actions in order, iteration after iteration.
fn walk(board: &Board<'_>, interpreter: &Interpreter<'_>, lane: LaneId, before: &(dyn Fn(u32, ActionId) + Sync)) {
    let _stop = StopOnDrop(board, &interpreter.program.lanes()[lane].name);
    while let Some((iteration, action)) = board.begin(lane) {
        let done = catch_unwind(AssertUnwindSafe(|| {
            before(iteration, action);
            interpreter.perform(iteration, action, &|| board.has_failed())
        }));
        let message = match done {
            Ok(Ok(outcome)) => {
                for instance in board.end(lane, (iteration, action), outcome) {
                    drop(interpreter.store.take(instance));
                }
                continue;
            }
            Ok(Err(message)) => message,
            Err(panic) => panic_message(panic.as_ref()),
        };
        let program = interpreter.program;
        return board.fail(RunError::Lane {
            lane: program.lanes()[lane].name.clone(),
            action: format!("{} of step {}", program.describe(action), interpreter.beginning.step() + iteration),
            message,
        });
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

fn report(
    rules: &Rules<'_>,
    interpreter: &Interpreter<'_>,
    state: &State,
    (devices, warnings): (Vec<Binding>, Vec<String>),
) -> Result<Report, RunError> {
    let Some((trace, lane_overhead)) = crate::trace::trace(rules, state) else {
        return Err(RunError::Unsupported(Diagnostic::error("there is nothing to run: no steps or no actions").into()));
    };
    let program = rules.program;
    let memories = program.memories().enumerate().map(|(id, space)| {
        let (planned, held) = state.account.peaks(id);
        let site = interpreter.sites.iter().find(|(device, _)| program.devices()[**device].memory == id);
        let reserved = site.and_then(|(_, site)| site.reserved());
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

/// Gradients by the names of their tensors; those that come in parts are joined in the order in which they come.
pub(crate) fn named_gradients<T: Iterator<Item = TensorData>>(
    units: &[crate::layers::Unit],
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
