//! The tensors that cross a cut between two layers.
//!
//! ```text
//! chain        one output: the matrix itself, tokens × width
//! skips        several: each made one row per image, then all side by side   [ conditioning | skip … skip | last ]
//! ```

use super::Matrix;
use burn::tensor::Tensor;
use spipe_base::LayerId;
use spipe_model::{Batch, Model, Precision};
use std::collections::BTreeMap;

/// The outputs of layers before a cut that layers after it read, in model order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CutTensors(Vec<Output>);

/// One of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Output {
    layer: LayerId,
    /// Numbers per sequence or image; only used if several tensors cross.
    numbers: usize,
}

/// Outputs that are still to be read, by layer.
pub(crate) type LiveOutputs = BTreeMap<LayerId, Matrix>;

impl CutTensors {
    /// The tensors cut after layer `after`.
    pub fn behind(model: &Model, after: LayerId) -> Self {
        Self::of(model, model.crossing(after))
    }

    /// The outputs of `layers`.
    pub fn of(model: &Model, layers: impl Iterator<Item = LayerId>) -> Self {
        let one = Batch { microbatch: 1, seq_len: model.seq_len() };
        let numbers = |layer: LayerId| {
            let bytes = model.layers()[layer].boundary(one, Precision::Fp32);
            (bytes.get() / Precision::Fp32.bytes()) as usize
        };
        Self(layers.map(|layer| Output { layer, numbers: numbers(layer) }).collect())
    }

    /// The same tensors, with every layer `by` places further.
    pub fn shifted(self, by: u32) -> Self {
        let shift = |output: Output| Output { layer: LayerId::new(output.layer.index() as u32 + by), ..output };
        Self(self.0.into_iter().map(shift).collect())
    }

    /// Whether the output of `layer` crosses the cut.
    pub fn has(&self, layer: LayerId) -> bool {
        self.0.iter().any(|output| output.layer == layer)
    }

    /// One matrix of all tensors.
    ///
    /// # Panics
    /// If one is missing, which the order of layers rules out.
    pub fn pack(&self, mut live: LiveOutputs) -> Matrix {
        let mut take = |output: &Output| live.remove(&output.layer).expect("every layer before a cut has run");
        match &self.0[..] {
            [only] => take(only),
            several => Tensor::cat(several.iter().map(take).collect(), 1),
        }
    }

    /// The tensors from one matrix.
    ///
    /// # Panics
    /// If the matrix is missing, which the program rules out.
    pub fn unpack(&self, packed: Option<Matrix>) -> LiveOutputs {
        let crosses = "what crosses a cut arrives behind it";
        match &self.0[..] {
            [] => LiveOutputs::new(),
            [only] => [(only.layer, packed.expect(crosses))].into(),
            several => {
                let packed = packed.expect(crosses);
                let mut start = 0;
                let slice = |output: &Output| {
                    let part = packed.clone().narrow(1, start, output.numbers);
                    start += output.numbers;
                    (output.layer, part)
                };
                several.iter().map(slice).collect()
            }
        }
    }
}
