//! Products with weights whose weight gradients may be deferred.
//!
//! A graph that records every product yields both gradients in one backward, and holds the weight
//! until then. If the backward is split, or the weight leaves the device, the product is an
//! operation of its own: its weight is lent to it, and the data for the weight gradient is recorded
//! on the way:
//!
//! ```text
//! input ──► · weight ──► …            backward-input:   dX = dY Wᵀ goes on, dY is kept
//!   └────── Product { input, dY } ◄───┘  backward-weight: dW = Xᵀ dY
//! ```
//!
//! A product whose input is not tracked begins the graph: its output is a leaf.

mod linear;

pub(crate) use linear::{Convolution, Linear};

use super::Matrix;
use crate::device::Cores;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::backend::Cube;
use burn::{
    backend::{
        Autodiff, Backend, DispatchKindConversion, DispatchTensor,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
    },
    tensor::{IndexingUpdateOp, Int, Tensor},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The products of one layer on one microbatch, in order.
#[derive(Clone, Debug)]
pub(crate) struct Products {
    list: Arc<Mutex<Vec<Recorded>>>,
    /// By product, whether the gradient of its weight will be computed.
    trained: Arc<[bool]>,
}

/// The factors of a weight gradient.
#[derive(Debug)]
pub(crate) struct Product {
    source: Source,
    gradient: Matrix,
}

/// The factor that the weight was multiplied with.
#[derive(Debug)]
enum Source {
    Input(Linear, Matrix),
    /// Indices of the rows that were taken, and the number of rows of the weight.
    Rows(Tensor<1, Int>, usize),
}

impl Product {
    /// The gradient of the weight, equal to that of a graph that tracks the weight.
    pub fn weight_gradient(self) -> Matrix {
        match self.source {
            Source::Input(linear, input) => linear.weight_gradient(input, self.gradient),
            Source::Rows(numbers, count) => {
                let [_, width] = self.gradient.dims();
                let none = Matrix::zeros([count, width], (&self.gradient.device(), self.gradient.dtype()));
                none.select_assign(0, numbers, self.gradient, IndexingUpdateOp::Add)
            }
        }
    }
}

/// A product that was computed.
#[derive(Debug)]
struct Recorded {
    /// None if the weight is not trained.
    source: Option<Source>,
    way: BackwardForm,
}

/// The form of its backward.
#[derive(Debug)]
enum BackwardForm {
    /// It is an operation of its own.
    Own(Slots),
    /// Its output is this leaf of the graph.
    Leaf(Box<Matrix>),
}

/// Inputs and outputs of such an operation's backward.
#[derive(Clone, Debug, Default)]
struct Slots {
    weight: Slot,
    gradient: Slot,
}

/// A shared slot for one tensor.
#[derive(Clone, Debug, Default)]
struct Slot(Arc<Mutex<Option<Matrix>>>);

impl Slot {
    fn put(&self, matrix: Option<Matrix>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = matrix;
    }

    /// Takes the tensor out.
    ///
    /// # Panics
    /// If there is none: weights are lent before a backward, which passes every product.
    fn take(&self) -> Matrix {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().expect("what a product needs is there")
    }
}

impl Products {
    /// An empty recorder of products with weights that are `trained` or not.
    pub fn new(trained: impl Iterator<Item = bool>) -> Self {
        Self { list: Arc::default(), trained: trained.collect() }
    }

    /// Whether the weight of the next product is trained.
    fn trains(&self) -> bool {
        self.trained.get(self.all().len()).copied().unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, source: impl FnOnce() -> Source, way: BackwardForm) {
        let source = self.trains().then(source);
        self.all().push(Recorded { source, way });
    }

    /// The output of `linear` for a weight that is not tracked; `known` if it has been computed
    /// before.
    pub fn multiply(&self, linear: Linear, input: Matrix, weight: Matrix, known: Option<Matrix>) -> Matrix {
        let plain = input.clone().inner();
        let (output, way) = multiply(linear, input, (weight, self.trains()), known);
        self.record(|| Source::Input(linear, plain), way);
        output
    }

    /// Rows of a weight that is not tracked.
    pub fn look_up(&self, weight: Matrix, numbers: Tensor<1, Int>) -> Matrix {
        let count = weight.dims()[0];
        let output = weight.inner().select(0, numbers.clone());
        let output = if self.trains() { output.autodiff().require_grad() } else { output.autodiff() };
        self.record(|| Source::Rows(numbers, count), BackwardForm::Leaf(Box::new(output.clone())));
        output
    }

    /// Drops the weights until they are lent again.
    pub fn forget(&self) {
        for recorded in self.all().iter() {
            if let BackwardForm::Own(slots) = &recorded.way {
                slots.weight.put(None);
            }
        }
    }

    /// Lends the weights, in the order of the products.
    pub fn lend(&self, weights: impl Iterator<Item = Matrix>) {
        for (recorded, weight) in self.all().iter().zip(weights) {
            if let BackwardForm::Own(slots) = &recorded.way {
                slots.weight.put(Some(weight));
            }
        }
    }

    /// The factors of the weight gradients, after the graph's backward; `leaf` finds the gradients
    /// of leaves.
    pub fn collect(self, leaf: &mut dyn FnMut(&Matrix) -> Matrix) -> Vec<Product> {
        let all = std::mem::take(&mut *self.all());
        let product = |Recorded { source, way }: Recorded| {
            let source = source?;
            let gradient = match way {
                BackwardForm::Leaf(matrix) => leaf(&matrix),
                BackwardForm::Own(slots) => slots.gradient.take(),
            };
            Some(Product { source, gradient })
        };
        all.into_iter().filter_map(product).collect()
    }
}

/// The output of `linear` for a weight that is not trained: its graph keeps the weight alone.
pub(super) fn frozen(linear: Linear, input: Matrix, weight: Matrix, known: Option<Matrix>) -> Matrix {
    let weight = weight.inner();
    let output = known.unwrap_or_else(|| linear.output(input.clone().inner(), weight.clone(), None));
    tracked((linear, false), (&input, &weight, &output)).map_or_else(|| output.autodiff(), |(output, _)| output)
}

fn multiply(
    linear: Linear,
    input: Matrix,
    (weight, trains): (Matrix, bool),
    known: Option<Matrix>,
) -> (Matrix, BackwardForm) {
    let weight = weight.inner();
    let output = known.unwrap_or_else(|| linear.output(input.clone().inner(), weight.clone(), None));
    tracked((linear, trains), (&input, &weight, &output)).unwrap_or_else(|| {
        let leaf = output.autodiff().require_grad();
        (leaf.clone(), BackwardForm::Leaf(Box::new(leaf)))
    })
}

/// The output in the graph of its input; none if that belongs to no graph.
fn tracked(linear: (Linear, bool), all: (&Matrix, &Matrix, &Matrix)) -> Option<(Matrix, BackwardForm)> {
    let own = tracked_on::<Cores>(linear, all);
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    let own = own.or_else(|| tracked_on::<Cube>(linear, all));
    own
}

/// The same; none if the input belongs to another backend than `B`, too.
fn tracked_on<B: Backend>(
    (linear, trains): (Linear, bool),
    (input, weight, output): (&Matrix, &Matrix, &Matrix),
) -> Option<(Matrix, BackwardForm)>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>> + DispatchKindConversion<B>,
{
    let (_, guard) = input.clone().try_into_primitive::<Autodiff<B>>().ok()?.into_parts();
    let output = output.clone().try_into_primitive::<B>().ok()?;
    let slots = Slots::default();
    slots.weight.put(Some(weight.clone()));
    match Backward::<B, 1>::prepare::<NoCheckpointing>(Own, [guard]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let output = prepared.finish((linear, trains, slots.clone()), output);
            Some((Matrix::from_primitive::<Autodiff<B>>(output), BackwardForm::Own(slots)))
        }
        OpsKind::UnTracked(_) => None,
    }
}

/// Keeps the gradient of its output if the weight is trained, and propagates that of its input.
#[derive(Debug)]
struct Own;

impl<B: Backend> Backward<B, 1> for Own
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (Linear, bool, Slots);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = Matrix::from_primitive::<B>(gradients.consume::<B>(&ops.node));
        let (linear, trains, slots) = ops.state;
        if trains {
            slots.gradient.put(Some(gradient.clone()));
        }
        if let [Some(parent)] = ops.parents {
            let found = linear.input_gradient::<B>(slots.weight.take(), gradient).try_into_primitive::<B>();
            gradients.register::<B>(parent.id, found.expect("a weight is lent on the device of its product"));
        }
    }
}
