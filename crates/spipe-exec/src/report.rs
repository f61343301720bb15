//! The results of a run.

use crate::{device::Binding, host::HostWork};
use safetensors::{Dtype, SafeTensorError, tensor::TensorView};
use spipe_base::Bytes;
use spipe_trace::Trace;
use std::{collections::BTreeMap, time::Duration};

/// A finished iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 0.
    pub index: u32,
    /// The mean loss of its microbatches.
    pub loss: f64,
    /// The norm of all gradients before clipping; none where it is not known.
    pub norm: Option<f64>,
    /// Whether all optimizer steps were skipped because the loss scale made some gradients
    /// overflow.
    pub left_out: bool,
    /// Time since the end of the step before; of the first step, since its first action.
    pub duration: Duration,
    /// Tokens consumed.
    pub tokens: u64,
    /// The most bytes held in each memory since the step before.
    pub peaks: BTreeMap<String, Bytes>,
    /// The work of the run's threads with memory since the step before.
    pub work: Vec<ThreadWork>,
    /// Kernels launched on GPUs since the step before; none without a GPU.
    pub launches: Option<u64>,
}

/// The work of a lane's thread, or of the cores of a device, with memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadWork {
    /// The name of the lane, or that of the device behind `cores of `.
    pub name: String,
    /// Whether layers are computed there. Their tensors are allocated by the library of the device.
    pub computes: bool,
    /// The work.
    pub work: HostWork,
}

/// The gradient of one tensor, summed over the microbatches of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The layer.
    pub layer: String,
    /// The tensor's name in the layer.
    pub tensor: String,
    /// The numbers, row by row.
    pub values: Vec<f32>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The iteration of median duration, after one to warm up, with a note if others took CPU time.
    /// Memory is that really held: tensors by their size, graphs by an estimate, workspace as
    /// planned.
    pub trace: Trace,
    /// The loss of every step.
    pub losses: Vec<f64>,
    /// The share of that iteration that compute lanes spent neither in actions nor waiting for
    /// others or for memory.
    pub lane_overhead: f64,
    /// Planned and held bytes of every memory, over the whole run.
    pub memories: Vec<MemoryUse>,
    /// The growth of this process's resident size. The operating system counts whole pages, and
    /// everything that the allocator keeps.
    pub resident: Option<Bytes>,
    /// The gradients of the first step in the order of layers and their tensors, if the options ask
    /// for them.
    pub gradients: Vec<Gradient>,
    /// The executor of each device, with its cores.
    pub devices: Vec<Binding>,
    /// Requests that could not be met, though the run went on.
    pub warnings: Vec<String>,
    /// The outputs of inference.
    pub outputs: Option<Outputs>,
}

/// The use of one memory, as planned and as measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its name.
    pub name: String,
    /// Its capacity, if it is limited.
    pub capacity: Option<Bytes>,
    /// The peak of the program's own figures, which actions wait for.
    pub planned: Bytes,
    /// The peak really held: tensors by their size, graphs by an estimate, workspace as planned.
    pub held: Bytes,
    /// Bytes that the allocator of a device with discrete memory had reserved when the run ended.
    /// It returns nothing, so this is its peak, unused gaps included.
    pub reserved: Option<Bytes>,
}

/// The outputs of inference.
#[derive(Clone, Debug, PartialEq)]
pub enum Outputs {
    /// Text.
    Tokens {
        /// The beginnings of the sequences, in the order of microbatches.
        prompts: Vec<Vec<i32>>,
        /// The tokens found for each.
        tokens: Vec<Vec<i32>>,
        /// Median time from one token of a sequence to the next; none if there was only one.
        per_token: Option<Duration>,
    },
    /// A row of numbers for each image: its vector, or the image without noise.
    Images {
        /// Length of a row.
        width: usize,
        /// All rows.
        rows: Vec<f32>,
    },
}

impl Outputs {
    /// A safetensors file: `tokens` with a row for each sequence, or `images` with a row for each
    /// image.
    ///
    /// # Errors
    /// A failure of the library.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, SafeTensorError> {
        let (name, kind, shape, bytes): (_, _, _, Vec<u8>) = match self {
            Self::Tokens { tokens, .. } => {
                let shape = vec![tokens.len(), tokens.first().map_or(0, Vec::len)];
                ("tokens", Dtype::I32, shape, tokens.iter().flatten().flat_map(|token| token.to_le_bytes()).collect())
            }
            Self::Images { width, rows } => {
                let shape = vec![rows.len() / (*width).max(1), *width];
                ("images", Dtype::F32, shape, rows.iter().flat_map(|number| number.to_le_bytes()).collect())
            }
        };
        safetensors::serialize([(name, TensorView::new(kind, shape, &bytes)?)], None)
    }
}
