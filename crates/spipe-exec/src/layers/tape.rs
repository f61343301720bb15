//! Outputs of products with weights, written down by a forward whose activations leave the device.
//!
//! A graph belongs to the library and cannot move. What can is what it is made from:
//!
//! ```text
//! forward    no graph; every product's output is written down ──► host
//! backward   host ──► the graph again: products have their outputs already, what lies between is computed from them
//! ```

use super::Matrix;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Outputs of the products of consecutive layers, in the order in which they are computed.
#[derive(Clone, Debug)]
pub(crate) struct Tape {
    outputs: Arc<Mutex<VecDeque<Matrix>>>,
    writes: bool,
}

impl Tape {
    /// One to write to.
    pub fn blank() -> Self {
        Self { outputs: Arc::default(), writes: true }
    }

    /// One to read from.
    pub fn of(outputs: Vec<Matrix>) -> Self {
        Self { outputs: Arc::new(Mutex::new(outputs.into())), writes: false }
    }

    fn outputs(&self) -> MutexGuard<'_, VecDeque<Matrix>> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is on it.
    pub fn take(&self) -> Vec<Matrix> {
        std::mem::take(&mut *self.outputs()).into()
    }

    /// The next output, if it has been written down before.
    pub fn next(&self) -> Option<Matrix> {
        if self.writes { None } else { self.outputs().pop_front() }
    }

    /// Writes an output down, unless this is a repetition.
    pub fn write(&self, output: &Matrix) {
        if self.writes {
            self.outputs().push_back(output.clone().inner());
        }
    }
}
