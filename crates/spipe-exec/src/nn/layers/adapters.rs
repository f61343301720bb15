//! Low-rank adapters of a layer (Hu et al., LoRA, arXiv 2106.09685).
//!
//! ```text
//! x ──► · W (frozen) ──────────────► + ──► y        A: inputs × rank, uniform; B: rank × outputs, zero at first
//! └──► · A ──► · B ──► · scale ──────┘
//! ```
//!
//! A layer whose matrix is trained in full beside its frozen one (PEFT's `modules_to_save`) has a copy of
//! it, the first of its tensors, with which it computes.
//!
//! A matrix that holds several, such as GPT-2's queries, keys and values in one, has one adapter, whose
//! output is cut into their parts.

use super::{Initialisation, Matrix, Parameter};
use spipe_base::Diagnostic;
use spipe_model::{Adapted, Layer, LayerKind, Lora, Matrix as MatrixPlace};
use std::borrow::Cow;

/// The end of the names of both matrices.
const ENDS: [&str; 2] = [".lora-a", ".lora-b"];

/// The end of the name of a copy, in place of that of the matrix.
const COPY: &str = ".copy";
const ORIGINAL: &str = ".weight";

/// The shapes of a layer's adapters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Adapters {
    rank: u64,
    /// The factor on the product of both matrices.
    scale: f64,
    /// The copy that is trained in full.
    copy: Option<Parameter>,
    /// In the order of [`MatrixPlace`], which is also that of the products in a forward.
    matrices: Vec<Adapted>,
}

impl Adapters {
    /// The adapters of `layer`, if it has any.
    ///
    /// # Errors
    /// Adapters that are not computed.
    pub fn of(layer: &Layer, lora: Option<&Lora>) -> Result<Option<Self>, Diagnostic> {
        let (Some(lora), Some(adaptation)) = (lora, &layer.adaptation) else { return Ok(None) };
        let refused = |what: &str, hint: &str| {
            let message = format!("adapters of layer `{}` cannot be executed yet: {what}", layer.name);
            Err(Diagnostic::error(message).hint(hint.to_owned()))
        };
        if adaptation.copy.is_some() && !adaptation.matrices.is_empty() {
            return refused("it is trained in full as well", "leave it out of the targets, or leave out `embeddings`");
        }
        let copy = match (&layer.kind, adaptation.copy) {
            (LayerKind::Head(head), Some(_)) if head.bias => {
                return refused("a copy of a head's bias is not trained", "leave out `embeddings`");
            }
            (LayerKind::Head(_), Some([classes, hidden])) => {
                Some(Parameter::weight("projection.copy", hidden, classes))
            }
            (_, Some([rows, columns])) => Some(Parameter::weight("token.copy", rows, columns)),
            (_, None) => None,
        };
        if adaptation.matrices.iter().any(|adapted| adapted.matrix == MatrixPlace::Table) {
            return refused("those of tables are not computed", "leave the embedding out of the targets");
        }
        if adaptation.matrices.iter().any(|adapted| adapted.count != 1) {
            return refused("experts are not computed", "use a model without experts");
        }
        let mut matrices = adaptation.matrices.clone();
        matrices.sort();
        let adapters = Self { rank: lora.rank, scale: lora.scale(), copy, matrices };
        Ok((adapters.count() > 0).then_some(adapters))
    }

    /// Number of their tensors.
    pub const fn count(&self) -> usize {
        self.copies() + 2 * self.matrices.len()
    }

    const fn copies(&self) -> usize {
        if self.copy.is_some() { 1 } else { 0 }
    }

    /// The place of the trained copy of the layer's parameter `name` among their tensors.
    pub fn copy_of(&self, name: &str) -> Option<usize> {
        let original = self.copy.as_ref().and_then(Parameter::original)?;
        (original.name == name).then_some(0)
    }

    /// The copy; A and B of each matrix. PEFT draws A as PyTorch does the weight of a linear layer.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter> {
        let added = self.matrices.iter().flat_map(|Adapted { matrix, outputs, inputs, .. }| {
            let [first, second] = ENDS.map(|end| format!("{}{end}", name(*matrix)));
            let shape = [self.rank as usize, *outputs as usize];
            let zeros = Parameter { name: second.into(), shape, initialisation: Initialisation::Zeros };
            [Parameter::uniform(first, [*inputs, self.rank], *inputs), zeros]
        });
        self.copy.iter().cloned().chain(added)
    }

    /// The adapters with their numbers.
    pub fn bind(&self, tensors: &[Matrix]) -> Bound {
        let pairs = tensors[self.copies()..].chunks_exact(2).map(|pair| [pair[0].clone(), pair[1].clone()]);
        Bound { scale: self.scale, all: self.matrices.iter().map(|adapted| adapted.matrix).zip(pairs).collect() }
    }

    /// The places of the tensors of adapters that follow the product with the base's `weight`, the
    /// last of those that read one input.
    pub fn behind(&self, weight: &str) -> Vec<usize> {
        let here = |adapted: &Adapted| match adapted.matrix {
            MatrixPlace::Query | MatrixPlace::Key | MatrixPlace::Value | MatrixPlace::QueryKeyValue => {
                weight == "attention.value.weight"
            }
            MatrixPlace::Output => weight == "attention.output.weight",
            MatrixPlace::Gate | MatrixPlace::Up | MatrixPlace::GateUp => weight == "mlp.up.weight",
            MatrixPlace::Down => weight == "mlp.down.weight",
            MatrixPlace::Table => weight == "token.weight",
            MatrixPlace::Head => weight == "projection.weight",
        };
        let found = self.matrices.iter().enumerate().filter(|(_, adapted)| here(adapted));
        found.flat_map(|(index, _)| [0, 1].map(|end| self.copies() + 2 * index + end)).collect()
    }

    /// Whether one of them reads what one of `places` reads.
    pub fn reads(&self, places: &[MatrixPlace]) -> bool {
        self.matrices.iter().any(|adapted| places.contains(&adapted.matrix))
    }

    /// Numbers of each token between both matrices, over all adapters.
    pub const fn inner(&self) -> u64 {
        self.rank * self.matrices.len() as u64
    }
}

impl Parameter {
    /// Whether it belongs to an adapter, or is a copy that is trained beside one.
    pub fn is_adapter(&self) -> bool {
        ENDS.iter().any(|end| self.name.ends_with(end)) || self.name.ends_with(COPY)
    }

    /// The parameter of which it is a copy.
    pub fn original(&self) -> Option<Self> {
        let name = self.name.strip_suffix(COPY)?;
        Some(Self { name: Cow::Owned(format!("{name}{ORIGINAL}")), ..self.clone() })
    }
}

/// The name of an adapted matrix among a layer's parameters.
const fn name(matrix: MatrixPlace) -> &'static str {
    match matrix {
        MatrixPlace::Query => "attention.query",
        MatrixPlace::Key => "attention.key",
        MatrixPlace::Value => "attention.value",
        MatrixPlace::QueryKeyValue => "attention.query-key-value",
        MatrixPlace::Output => "attention.output",
        MatrixPlace::Gate => "mlp.gate",
        MatrixPlace::Up => "mlp.up",
        MatrixPlace::GateUp => "mlp.gate-up",
        MatrixPlace::Down => "mlp.down",
        MatrixPlace::Table => "token",
        MatrixPlace::Head => "projection",
    }
}

/// Adapters with their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    scale: f64,
    all: Vec<(MatrixPlace, [Matrix; 2])>,
}

impl Bound {
    /// Both matrices of a place's adapter, and the factor on their product.
    pub fn at(&self, place: MatrixPlace) -> Option<([Matrix; 2], f64)> {
        let (_, pair) = self.all.iter().find(|(known, _)| *known == place)?;
        Some((pair.clone(), self.scale))
    }
}
