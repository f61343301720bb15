//! Plain training on one device, which every schedule must reproduce.

use crate::{
    data::{Data, Draw},
    device::{DeviceContext, transfer},
    error::RunError,
    inference::Part,
    nn::{
        Tensors,
        layers::{
            Parameter, PassContext, Reading, Signal, Unit, inferring_units, initial, joined, split_trained, units,
        },
        passes::{self, Layers, Outputs, Seed},
    },
    optimizer::{Extent, Numbers, TensorState, step as step_all, sum_of_squares},
    options::Options,
    report::{Gradient, Outputs as Found},
    runtime::{Hooks, Job, Lengths, all_prompts, bind, half, inference, named_gradients, optimizer},
    stored::FrozenStorage,
    task_error::TaskError,
};
use burn::tensor::{Tensor, TensorData};
use spipe_base::{Diagnostic, LayerId};
use spipe_cost::Mode;
use spipe_plan::Plan;
use spipe_schedule::{Content, Lifetime, Program};
use std::time::{Duration, Instant};

/// The result of plain training.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The loss of every step.
    pub losses: Vec<f64>,
    /// The gradients of the first step, in the order of layers and their tensors.
    pub gradients: Vec<Gradient>,
    /// How long each step took.
    pub durations: Vec<Duration>,
}

/// Trains the plan's model without a pipeline. The same microbatches run one after the other, each
/// with one graph over all layers, and gradients are summed in ascending order. If the program
/// delays gradients by an iteration, so does this. A base with a format of its own is converted to f32
/// once, before the first step. Runs on the executor of the first stage's
/// device, cores included.
///
/// # Errors
/// A fault of the model, the bindings or the data.
pub fn reference(plan: &Plan, program: &Program, data: &Data, options: &Options) -> Result<Reference, RunError> {
    let context = plan.context();
    data.check(context.model, context.workload().seq_len)?;
    let reading = Reading::of(context.model);
    let WholeModel { units, device_context, shapes, mut parameters, executor } =
        WholeModel::new(plan, program, options)?;
    let optimizer = optimizer(plan, options)?;
    let state = |parameter: &Parameter| optimizer.state(&Extent::whole(parameter.shape));
    let of = |(unit, shapes): (&Unit, &Vec<Parameter>)| shapes[..unit.trained()].iter().map(state).collect();
    let mut states: Vec<Vec<TensorState>> = units.iter().zip(&shapes).map(of).collect();
    let mut result = Reference { losses: Vec::new(), gradients: Vec::new(), durations: Vec::new() };
    let (microbatches, sequences) =
        (context.cost.whole_workload().microbatches as usize, context.workload().microbatch as usize);
    let delayed = program
        .buffers()
        .iter()
        .any(|buffer| matches!(buffer.content, Content::Gradients(_)) && buffer.lifetime == Lifetime::Arrives);
    let mut before: Option<Tensors> = None;
    let failed = |error| RunError::Lane { lane: executor.clone(), action: "the reference".into(), error };
    for step in 0..options.steps {
        let start = Instant::now();
        let (loss, gradients) = device_context
            .compute(|| {
                let mut sum: Option<Tensors> = None;
                let mut losses = 0.0;
                for microbatch in 0..microbatches {
                    let draw = Draw { seed: options.seed, step, microbatch };
                    let pass = PassContext::new(&data.microbatch(draw, sequences), &reading, &device_context.device);
                    let layers = Layers::new(0, &units, &parameters);
                    let graph = passes::tracked(layers, Signal::Tokens, &pass, false, &mut Outputs::default());
                    losses += graph.loss();
                    let gradients = passes::backward(vec![graph], Seed::Loss(1.0 / microbatches as f64)).parameters;
                    sum = Some(match sum {
                        Some(sum) => passes::accumulate(sum, gradients),
                        None => gradients,
                    });
                }
                (losses / microbatches as f64, sum.unwrap_or_default())
            })
            .map_err(failed)?;
        if step == 0 {
            let layers =
                gradients.iter().enumerate().map(|(layer, tensors)| (LayerId::from(layer), tensors.as_slice()));
            let host = layers.map(|(layer, tensors)| (layer, tensors.iter().map(|tensor| tensor.clone().into_data())));
            result.gradients = named_gradients(&units, host);
        }
        let gradients = if delayed { before.replace(gradients) } else { Some(gradients) };
        if let Some(gradients) = gradients {
            let factor = context.workload().clip_norm.map_or(1.0, |clip| clip.factor(norm(&gradients)));
            let now = optimizer.in_step(options.schedule, (step, options.steps));
            let (trained, frozen) = split_trained(&units, parameters);
            let step = || step_all(&now, trained, (gradients, factor), &mut states);
            parameters = joined(device_context.compute(step).map_err(failed)?, frozen);
        }
        result.losses.push(loss);
        result.durations.push(start.elapsed());
    }
    Ok(result)
}

/// The norm of all gradients.
fn norm(gradients: &Tensors) -> f64 {
    let numbers: Vec<Vec<f32>> = gradients.iter().flatten().map(transfer::numbers).collect();
    sum_of_squares(numbers.iter().map(|numbers| Numbers::F32(numbers))).sqrt()
}

/// A whole model on one device.
struct WholeModel {
    units: Vec<Unit>,
    device_context: DeviceContext,
    shapes: Vec<Vec<Parameter>>,
    parameters: Tensors,
    /// The device in words.
    executor: String,
}

impl WholeModel {
    fn new(plan: &Plan, program: &Program, options: &Options) -> Result<Self, RunError> {
        let model = plan.context().model;
        let trains = plan.context().workload().mode == Mode::Train;
        let units = if trains { units(model) } else { inferring_units(model) }.map_err(RunError::Unsupported)?;
        let bound = bind(plan, program, &options.bindings).map_err(RunError::Unsupported)?;
        let first = program.stages().iter().next().and_then(|stage| bound.get(&stage.device));
        let Some(binding) = first else {
            return Err(RunError::Unsupported(Diagnostic::error("the program has no stages").into()));
        };
        let device_context = DeviceContext::open(&binding.executor)?;
        let shapes: Vec<_> = units.iter().map(Unit::parameters).collect();
        let workload = *plan.context().workload();
        let frozen = FrozenStorage::new(&workload, half(workload.precision));
        let layer = |(layer, shapes): (usize, &Vec<Parameter>)| {
            let tensor = |(index, shape): (usize, &Parameter)| {
                let numbers = initial(options.seed, LayerId::from(layer), shape);
                let data = match frozen.of(&units[layer], index) {
                    Some(storage) => storage.rounded(numbers, shape.shape)?,
                    None => TensorData::new(numbers, shape.shape),
                };
                Ok(Tensor::from_data(data, &device_context.device))
            };
            shapes.iter().enumerate().map(tensor).collect()
        };
        let failed =
            |error| RunError::Lane { lane: binding.executor.to_string(), action: "the reference".into(), error };
        let parameters = shapes.iter().enumerate().map(layer).collect::<Result<_, TaskError>>().map_err(failed)?;
        Ok(Self { units, device_context, shapes, parameters, executor: binding.executor.to_string() })
    }
}

/// The result of plain inference.
#[derive(Clone, Debug, PartialEq)]
pub struct Inferred {
    /// The outputs.
    pub outputs: Found,
    /// The loss of every step.
    pub losses: Vec<f64>,
}

/// Infers without a pipeline and without caches. The same microbatches run one after the other
/// through all layers; every token is computed again for each that follows.
///
/// # Errors
/// A fault of the model, the bindings or the data.
pub fn inferred(plan: &Plan, program: &Program, data: &Data, options: &Options) -> Result<Inferred, RunError> {
    let context = plan.context();
    data.check(context.model, context.workload().seq_len)?;
    let (part, lengths) = match Reading::of(context.model) {
        Reading::Tokens => {
            let lengths = Lengths::of(plan, options.steps)?;
            (Part::Again { tokens: lengths.prompts as usize }, Some(lengths))
        }
        Reading::Classes { .. } => (Part::Images, None),
        Reading::Noise(condition) => (Part::Noise { condition, steps: options.steps }, None),
    };
    let WholeModel { units, device_context, parameters, executor, .. } = WholeModel::new(plan, program, options)?;
    let job = Job { plan, program, data, options, hooks: &Hooks::NONE };
    let inference = inference(&job, part, Default::default());
    let failed = |error| RunError::Lane { lane: executor.clone(), action: "the reference".into(), error };
    let mut losses = Vec::new();
    for iteration in 0..options.steps {
        let mut sum = 0.0;
        for microbatch in 0..inference.microbatches {
            let pass = || {
                let pass = inference.pass_context(iteration, microbatch, &device_context.device);
                let layers = Layers::new(0, &units, &parameters);
                passes::untracked(layers, Signal::Tokens, &pass, &mut Outputs::default())
            };
            if let Signal::Answer(answer, loss) = device_context.compute(pass).map_err(failed)? {
                inference.found(iteration, microbatch, answer);
                sum += passes::loss_number(loss);
            }
        }
        losses.push(sum / inference.microbatches as f64);
    }
    let found = inference.take_found();
    let outputs = match lengths {
        Some(lengths) => Found::tokens(&found, &all_prompts(&inference, lengths), &[]),
        None => {
            let times = if matches!(part, Part::Images) { options.steps as usize } else { 1 };
            Found::images(&found, times * context.workload().global_batch() as usize)
        }
    };
    Ok(Inferred { outputs, losses })
}
