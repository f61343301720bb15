//! The weights that a run starts from and leaves behind.

use crate::{
    actions::Interpreter,
    data::Data,
    error::RunError,
    nn::layers::{Parameter, Unit, initial, units},
    options::Options,
    persist::{
        checkpoint::TrainingState,
        weights::{self, WeightsError},
    },
    runtime::prepare::{described, resumed},
    task_error::{NotFinite, TaskError},
};
use spipe_base::LayerId;
use spipe_model::Model;
use spipe_plan::Plan;
use std::path::Path;

/// The largest file of weights, as in transformers.
const MOST_BYTES: u64 = 5_000_000_000;

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
pub(crate) fn save_trained(plan: &Plan, interpreter: &Interpreter<'_>, options: &Options) -> Result<(), RunError> {
    let parameters: Vec<_> = interpreter.units.iter().map(Unit::parameters).collect();
    let numbers = &mut |layer, index| {
        let numbers = TrainingState::parameter(interpreter, layer, index)?;
        if numbers.iter().all(|number| number.is_finite()) { Ok(numbers) } else { Err(NotFinite::Parameter.into()) }
    };
    Ok(save((plan.context().model, &parameters), options, numbers)?)
}
