//! Outputs of products with weights, recorded by a forward whose activations are offloaded.
//!
//! A graph belongs to the library and cannot move. The activations from which it is rebuilt can:
//!
//! ```text
//! forward    no graph; the output of every product is recorded ──► host
//! backward   host ──► the graph again: outputs of products are known, the operations between them are recomputed
//! ```

use super::Matrix;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Outputs of the products of consecutive layers, in order.
#[derive(Clone, Debug)]
pub(crate) struct ActivationRecord {
    outputs: Arc<Mutex<VecDeque<Matrix>>>,
    writes: bool,
}

impl ActivationRecord {
    /// An empty record to write to.
    pub fn blank() -> Self {
        Self { outputs: Arc::default(), writes: true }
    }

    /// A record to read from.
    pub fn of(outputs: Vec<Matrix>) -> Self {
        Self { outputs: Arc::new(Mutex::new(outputs.into())), writes: false }
    }

    fn outputs(&self) -> MutexGuard<'_, VecDeque<Matrix>> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out all outputs.
    pub fn take(&self) -> Vec<Matrix> {
        std::mem::take(&mut *self.outputs()).into()
    }

    /// The next output, when reading.
    pub fn next(&self) -> Option<Matrix> {
        if self.writes { None } else { self.outputs().pop_front() }
    }

    /// Appends an output, when writing.
    pub fn write(&self, output: &Matrix) {
        if self.writes {
            self.outputs().push_back(output.clone().inner());
        }
    }
}
