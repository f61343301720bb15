//! The layers that can be computed: their tensors, their arithmetic, and what their graphs keep.
//!
//! Everything between layers is a matrix of tokens × width, so that every projection is one matrix product whatever the
//! microbatch. All parameters are matrices too: norms and biases have one row.

mod attention;
mod block;
mod ends;
mod norm;
mod start;

pub(crate) use start::initial;

use block::BlockUnit;
use burn::tensor::{Device, Int, Tensor};
use ends::{EmbeddingUnit, HeadUnit};
use spipe_base::{Bytes, Diagnostic, Faults};
use spipe_model::{Layer, LayerKind, Model};

/// A matrix of tokens × width, or of parameters.
pub(crate) type Matrix = Tensor<2>;

/// A parameter of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Its name in the layer, `attention.query.weight`.
    pub name: &'static str,
    /// Rows and columns; weights are inputs × outputs.
    pub shape: [usize; 2],
    /// What it is before the first step.
    pub start: Start,
}

/// What a parameter is before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Normal with a standard deviation of 0.02, as GPT-2 and Llama are initialised.
    Normal,
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

impl Parameter {
    const fn weight(name: &'static str, rows: u64, columns: u64) -> Self {
        Self { name, shape: [rows as usize, columns as usize], start: Start::Normal }
    }

    const fn bias(name: &'static str, width: u64) -> Self {
        Self { name, shape: [1, width as usize], start: Start::Zeros }
    }

    /// How many numbers it has.
    pub const fn count(&self) -> usize {
        self.shape[0] * self.shape[1]
    }
}

/// The sequences of a microbatch on a device.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// Sequences, and tokens of each.
    pub batch: (usize, usize),
    /// Token numbers, sequences × tokens.
    pub inputs: Tensor<2, Int>,
    /// The numbers of the tokens that follow, all in one column.
    pub targets: Tensor<2, Int>,
}

impl Feed {
    /// `batch` on `device`.
    pub fn new(batch: &crate::data::Batch, device: &Device) -> Self {
        let shape = [batch.sequences, batch.seq_len];
        let matrix = |numbers: &[i32], shape: [usize; 2]| {
            Tensor::from_data(burn::tensor::TensorData::new(numbers.to_vec(), shape), device)
        };
        Self {
            batch: (batch.sequences, batch.seq_len),
            inputs: matrix(&batch.inputs, shape),
            targets: matrix(&batch.targets, [batch.sequences * batch.seq_len, 1]),
        }
    }
}

/// What goes from layer to layer.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// Nothing yet: the layer reads the tokens.
    Tokens,
    /// A vector for each token.
    Hidden(Matrix),
    /// The mean loss over all tokens.
    Loss(Tensor<1>),
}

impl Signal {
    /// The vectors.
    ///
    /// # Panics
    /// If there are none, which models refuse: an embedding is first, a head is last.
    pub fn hidden(self) -> Matrix {
        match self {
            Self::Hidden(matrix) => matrix,
            Self::Tokens => panic!("tokens where vectors belong"),
            Self::Loss(_) => panic!("a loss where vectors belong"),
        }
    }
}

/// A layer as it is computed.
#[derive(Clone, Debug)]
pub(crate) enum Unit {
    Embedding(EmbeddingUnit),
    Block(Box<BlockUnit>),
    Head(HeadUnit),
}

impl Unit {
    /// The arithmetic of `layer`, or what of it cannot be computed.
    pub fn new(layer: &Layer) -> Result<Self, Diagnostic> {
        let unsupported = |what: &str| {
            Diagnostic::error(format!("layer `{}` cannot be executed yet: {what}", layer.name))
                .hint("transformers with rotary or learned positions, one feed-forward network, untied embeddings and no dropout run")
        };
        if layer.tied_to.is_some() {
            return Err(unsupported("it shares its parameters with another layer"));
        }
        if !layer.trains {
            return Err(unsupported("it is frozen"));
        }
        match &layer.kind {
            LayerKind::Embedding(embedding) => EmbeddingUnit::new(embedding).map(Self::Embedding),
            LayerKind::Block(block) => BlockUnit::new(block).map(|unit| Self::Block(Box::new(unit))),
            LayerKind::Head(head) => HeadUnit::new(head).map(Self::Head),
            LayerKind::PatchEmbedding(_) => Err("images are not read"),
            LayerKind::Projection(_) | LayerKind::Contrast(_) => Err("contrastive losses are not computed"),
            LayerKind::Unet(_) => Err("convolutions are not computed"),
            LayerKind::Profiled(_) => Err("it is known by measurements only"),
        }
        .map_err(unsupported)
    }

    /// Its parameters, in the order in which [`Unit::forward`] takes them.
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Embedding(unit) => unit.parameters(),
            Self::Block(unit) => unit.parameters(),
            Self::Head(unit) => unit.parameters(),
        }
    }

    /// Its output; with tracked parameters or input, the graph as well.
    pub fn forward(&self, parameters: &[Matrix], input: Signal, feed: &Feed) -> Signal {
        match self {
            Self::Embedding(unit) => Signal::Hidden(unit.forward(parameters, feed)),
            Self::Block(unit) => Signal::Hidden(unit.forward(parameters, input.hidden(), feed)),
            Self::Head(unit) => Signal::Loss(unit.forward(parameters, input.hidden(), feed)),
        }
    }

    /// Bytes that its graph keeps from forward to backward, its input included: an estimate, counted from the operations
    /// that Burn records.
    pub fn kept(&self, (sequences, seq_len): (usize, usize)) -> Bytes {
        let tokens = (sequences * seq_len) as u64;
        let numbers = match self {
            Self::Embedding(_) => tokens,
            Self::Block(unit) => unit.kept(sequences as u64, seq_len as u64),
            Self::Head(unit) => unit.kept(tokens),
        };
        Bytes::new(4 * numbers)
    }
}

/// All layers of `model`, or everything about it that cannot be computed.
pub(crate) fn units(model: &Model) -> Result<Vec<Unit>, Faults> {
    let mut faults = Faults::new();
    let mut units = Vec::new();
    let last = model.layers().len().saturating_sub(1);
    for (id, layer) in model.layers().enumerate() {
        match Unit::new(layer) {
            Ok(unit) => {
                let belongs = match &unit {
                    Unit::Embedding(_) => id.index() == 0,
                    Unit::Block(_) => id.index() > 0 && id.index() < last,
                    Unit::Head(_) => id.index() == last,
                };
                if !belongs {
                    faults.push(Diagnostic::error(format!(
                        "layer `{}` cannot be executed where it is: an embedding comes first, then blocks, then a head",
                        layer.name
                    )));
                }
                units.push(unit);
            }
            // One message for a run of equal layers.
            Err(fault) if !same_kind_before(model, id) => faults.push(fault),
            Err(_) => {}
        }
    }
    faults.or(units)
}

fn same_kind_before(model: &Model, id: spipe_base::LayerId) -> bool {
    let kind = |index: usize| &model.layers()[spipe_base::LayerId::from(index)].kind;
    id.index() > 0 && std::mem::discriminant(kind(id.index())) == std::mem::discriminant(kind(id.index() - 1))
}
