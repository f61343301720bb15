//! Parameters and optimizer state before the first step of a run.

use super::{
    Checkpoint, CheckpointError, OPTIMIZER, WEIGHTS,
    manifest::{Identity, LossScale},
    write::{GRADIENT, NamedLayer, name_of, tensor_name},
};
use crate::{
    nn::layers::{Parameter, initial},
    optimizer::{Array, Extent, Optimizer, TensorState},
    persist::{
        tensor_file::TensorFile,
        weights::{AdapterFile, Weights},
    },
    task_error::TaskError,
};
use spipe_base::LayerId;
use std::collections::BTreeMap;

/// The state from which a run begins: a seed, weights or a checkpoint.
#[derive(Debug)]
pub(crate) struct InitialState {
    seed: u64,
    layers: Vec<String>,
    weights: Option<Weights>,
    adapter: Option<AdapterFile>,
    resumed: Option<Resumed>,
}

#[derive(Debug)]
struct Resumed {
    step: u32,
    weights: TensorFile,
    optimizer: TensorFile,
    steps: BTreeMap<String, u32>,
    loss_scale: Option<LossScale>,
}

impl Resumed {
    /// Whether the checkpoint has the optimizer's state of a tensor of `layer`.
    fn trained(&self, layer: &str, tensor: &str, (optimizer, shape): (&Optimizer, [usize; 2])) -> bool {
        let slots = optimizer.slots(&Extent::whole(shape));
        let has = |word: &str| self.optimizer.shape(&name_of(tensor, word)).is_some();
        self.steps.contains_key(layer) && slots.first().is_none_or(|slot| has(slot.name))
    }
}

impl InitialState {
    /// The state at step 0: from weights if there are any, otherwise from a seed.
    pub fn new(seed: u64, layers: &[NamedLayer], weights: Option<Weights>) -> Self {
        let layers = layers.iter().map(|(name, _)| name.clone()).collect();
        Self { seed, layers, weights, adapter: None, resumed: None }
    }

    /// The same state with the adapters of a file.
    pub fn with_adapter(self, adapter: Option<AdapterFile>) -> Self {
        Self { adapter, ..self }
    }

    /// The state of a checkpoint, with warnings about differences.
    pub fn resume(
        identity: &Identity,
        layers: &[NamedLayer],
        checkpoint: &Checkpoint,
    ) -> Result<(Self, Vec<String>), CheckpointError> {
        let open = |file: &str| {
            let path = checkpoint.folder.join(file);
            TensorFile::open(&path).map_err(|error| CheckpointError::file("read", &path, &error))
        };
        let (weights, optimizer) = (open(WEIGHTS)?, open(OPTIMIZER)?);
        let manifest = &checkpoint.manifest;
        let mut differences = tensor_differences(layers, &weights);
        if !differences.is_empty() && manifest.model != identity.model {
            differences.insert(0, format!("its model is `{}`, this one is `{}`", manifest.model, identity.model));
        }
        let same = manifest.architecture.as_ref().is_none_or(|architecture| *architecture == identity.architecture);
        if differences.is_empty() && !same {
            differences.push(format!("`{}` was another model with the same tensors", manifest.model));
        }
        let (before, now) = (manifest.optimizer.name(), identity.optimizer.name());
        if before != now {
            differences.push(format!("its optimizer is `{before}`, this one is `{now}`"));
        }
        if manifest.seed != identity.seed {
            differences.push(format!("its seed is {}, this one is {}", manifest.seed, identity.seed));
        }
        if !differences.is_empty() {
            return Err(CheckpointError::Differs { path: checkpoint.folder.clone(), differences });
        }
        let mut warnings = Vec::new();
        if manifest.batch != identity.batch {
            let (before, now) = (manifest.batch, identity.batch);
            warnings.push(format!("the checkpoint's steps had {before} sequences each, these have {now}"));
        } else if manifest.plan != identity.plan {
            warnings.push("the checkpoint was written by another plan of the same model".into());
        }
        if manifest.data.as_ref().is_some_and(|data| *data != identity.data) {
            warnings
                .push("the checkpoint's steps read another text, other images or tokens of another tokenizer".into());
        }
        if manifest.optimizer != identity.optimizer {
            warnings.push("the checkpoint's optimizer had other settings".into());
        }
        let mut initial = Self::new(identity.seed, layers, None);
        let (step, steps) = (manifest.step, manifest.optimizer_steps.clone());
        initial.resumed = Some(Resumed { step, weights, optimizer, steps, loss_scale: manifest.loss_scale });
        Ok((initial, warnings))
    }

    /// Number of steps that are done.
    pub fn step(&self) -> u32 {
        self.resumed.as_ref().map_or(0, |resumed| resumed.step)
    }

    /// The loss scale, if the checkpoint has one.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.resumed.as_ref().and_then(|resumed| resumed.loss_scale)
    }

    /// The gradient of a parameter that a delayed step left for the next one, if there is one.
    pub fn gradient(&self, layer: LayerId, parameter: &Parameter) -> Result<Option<Vec<f32>>, TaskError> {
        let Some(resumed) = &self.resumed else { return Ok(None) };
        let name = name_of(&tensor_name(&self.layers[layer.index()], parameter), GRADIENT);
        let read = resumed.optimizer.shape(&name).map(|_| resumed.optimizer.read(&name));
        read.transpose().map_err(|error| TaskError::io(OPTIMIZER, &error))
    }

    /// The numbers of a parameter of `layer`.
    pub fn parameter(&self, layer: LayerId, parameter: &Parameter) -> Result<Vec<f32>, TaskError> {
        if let (None, Some(adapter), true) = (&self.resumed, &self.adapter, parameter.is_adapter()) {
            return adapter.parameter(layer, parameter);
        }
        if let (None, Some(original)) = (&self.resumed, parameter.original()) {
            return self.parameter(layer, &original);
        }
        match (&self.resumed, &self.weights) {
            (Some(resumed), _) => {
                let name = tensor_name(&self.layers[layer.index()], parameter);
                resumed.weights.read(&name).map_err(|error| TaskError::io(WEIGHTS, &error))
            }
            (None, Some(weights)) if !parameter.is_adapter() => weights.parameter(layer, parameter),
            (None, _) => Ok(initial(self.seed, layer, parameter)),
        }
    }

    /// The layers of `layers` with parameters that the checkpoint did not train.
    pub fn untrained<'l>(
        &self,
        layers: impl Iterator<Item = (LayerId, &'l [Parameter])>,
        optimizer: &Optimizer,
    ) -> Vec<LayerId> {
        let Some(resumed) = &self.resumed else { return Vec::new() };
        let lacks = |layer: LayerId, parameter: &Parameter| {
            let name = &self.layers[layer.index()];
            !resumed.trained(name, &tensor_name(name, parameter), (optimizer, parameter.shape))
        };
        let lacks_any =
            |(layer, parameters): &(LayerId, &[Parameter])| parameters.iter().any(|parameter| lacks(*layer, parameter));
        layers.filter(lacks_any).map(|(layer, _)| layer).collect()
    }

    /// The optimizer's state of a parameter of `layer`; that before the first step if the checkpoint
    /// did not train it.
    pub fn state(
        &self,
        layer: LayerId,
        parameter: &Parameter,
        (optimizer, extent): (&Optimizer, &Extent),
    ) -> Result<TensorState, TaskError> {
        let name = &self.layers[layer.index()];
        let tensor = tensor_name(name, parameter);
        let trained = |resumed: &&Resumed| resumed.trained(name, &tensor, (optimizer, extent.shape));
        let Some(resumed) = self.resumed.as_ref().filter(trained) else { return Ok(optimizer.state(extent)) };
        let steps = resumed.steps.get(name).copied().unwrap_or(0);
        let too_little = || TaskError::inconsistent(format!("`{OPTIMIZER}` has too little of `{tensor}`"));
        let read = |(word, _, codes): (String, usize, bool)| {
            let name = name_of(&tensor, &word);
            let array = match codes {
                true => resumed.optimizer.bytes(&name).map(Array::Codes),
                false => resumed.optimizer.read(&name).map(Array::F32),
            };
            array.map_err(|error| TaskError::io(OPTIMIZER, &error))
        };
        let slots = optimizer.slots(&Extent::whole(extent.shape));
        let arrays = slots.iter().map(|slot| slot.arrays().into_iter().map(read).collect());
        let arrays = arrays.collect::<Result<Vec<Vec<Array>>, TaskError>>()?;
        let part = TensorState::from_arrays(&slots, arrays, steps).and_then(|state| state.part(extent));
        part.ok_or_else(too_little)
    }
}

/// Differences listed in a message.
const LISTED: usize = 4;

/// Differences between the tensors of a file and those of a model.
fn tensor_differences(layers: &[NamedLayer], weights: &TensorFile) -> Vec<String> {
    let mut wanted = BTreeMap::new();
    for (name, parameters) in layers {
        for parameter in parameters {
            wanted.insert(tensor_name(name, parameter), parameter.shape);
        }
    }
    let mut differences = Vec::new();
    for (name, shape) in &wanted {
        match weights.shape(name) {
            None => differences.push(format!("it has no `{name}`")),
            Some(found) if found != shape => {
                differences.push(format!("its `{name}` is {}, this one is {}", by(found), by(shape)));
            }
            Some(_) => {}
        }
    }
    let more = weights.names().into_iter().filter(|name| !wanted.contains_key(name));
    differences.extend(more.map(|name| format!("this model has no `{name}`")));
    let rest = differences.len().saturating_sub(LISTED);
    if rest > 0 {
        differences.truncate(LISTED);
        differences.push(format!("and {rest} more"));
    }
    differences
}

fn by(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ")
}
