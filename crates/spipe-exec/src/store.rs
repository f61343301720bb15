//! The values of buffers.

use crate::{
    account::Instance,
    layers::Matrix,
    optimizer::Moments,
    passes::{Saved, Tensors, Tracked},
};
use spipe_base::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// What a buffer holds.
#[derive(Debug)]
pub(crate) enum Value {
    Parameters(Tensors),
    Gradients(Tensors),
    Moments(Vec<Vec<Moments>>),
    /// An activation or the gradient of one.
    Matrix(Box<Matrix>),
    Saved(Box<Saved>),
    Recomputed(Box<Tracked>),
}

impl Value {
    /// Bytes of its tensors; none for graphs, which do not tell.
    pub fn bytes(&self) -> Option<Bytes> {
        let tensors = |tensors: &Tensors| tensors.iter().flatten().map(matrix_bytes).sum();
        match self {
            Self::Parameters(all) | Self::Gradients(all) => Some(tensors(all)),
            Self::Moments(all) => Some(Bytes::new(all.iter().flatten().map(Moments::bytes).sum())),
            Self::Matrix(matrix) => Some(matrix_bytes(matrix)),
            Self::Saved(_) | Self::Recomputed(_) => None,
        }
    }
}

/// Bytes of an f32 matrix.
pub(crate) fn matrix_bytes(matrix: &Matrix) -> Bytes {
    let [rows, columns] = matrix.dims();
    Bytes::new(4 * (rows * columns) as u64)
}

/// All values by buffer and iteration; resident ones are under iteration 0.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<BTreeMap<Instance, Value>>);

/// A value that is not what its buffer's content promises.
fn wrong(instance: Instance) -> String {
    format!("{} of iteration {} does not hold what it should", instance.0, instance.1)
}

impl Store {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<Instance, Value>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn put(&self, instance: Instance, value: Value) {
        let before = self.with(|values| values.insert(instance, value));
        drop(before);
    }

    /// Takes a value out; the memory of what is dropped later is freed outside the lock.
    pub fn take(&self, instance: Instance) -> Option<Value> {
        self.with(|values| values.remove(&instance))
    }

    /// Handles to the parameters; no numbers are copied.
    pub fn parameters(&self, instance: Instance) -> Result<Tensors, String> {
        self.with(|values| match values.get(&instance) {
            Some(Value::Parameters(tensors)) => Ok(tensors.clone()),
            _ => Err(wrong(instance)),
        })
    }

    /// A handle to an activation or a gradient.
    pub fn matrix(&self, instance: Instance) -> Result<Matrix, String> {
        self.with(|values| match values.get(&instance) {
            Some(Value::Matrix(matrix)) => Ok(Matrix::clone(matrix)),
            _ => Err(wrong(instance)),
        })
    }

    /// The input that was kept for a recompute.
    pub fn kept_input(&self, instance: Instance) -> Result<crate::layers::Signal, String> {
        self.with(|values| match values.get(&instance) {
            Some(Value::Saved(saved)) => saved.input.clone().ok_or_else(|| wrong(instance)),
            _ => Err(wrong(instance)),
        })
    }

    pub fn take_saved(&self, instance: Instance) -> Result<Saved, String> {
        match self.take(instance) {
            Some(Value::Saved(saved)) => Ok(*saved),
            _ => Err(wrong(instance)),
        }
    }

    pub fn take_recomputed(&self, instance: Instance) -> Result<Tracked, String> {
        match self.take(instance) {
            Some(Value::Recomputed(graph)) => Ok(*graph),
            _ => Err(wrong(instance)),
        }
    }

    pub fn take_parameters(&self, instance: Instance) -> Result<Tensors, String> {
        match self.take(instance) {
            Some(Value::Parameters(tensors)) => Ok(tensors),
            _ => Err(wrong(instance)),
        }
    }

    pub fn take_gradients(&self, instance: Instance) -> Result<Tensors, String> {
        match self.take(instance) {
            Some(Value::Gradients(tensors)) => Ok(tensors),
            _ => Err(wrong(instance)),
        }
    }

    pub fn take_moments(&self, instance: Instance) -> Result<Vec<Vec<Moments>>, String> {
        match self.take(instance) {
            Some(Value::Moments(moments)) => Ok(moments),
            _ => Err(wrong(instance)),
        }
    }
}
