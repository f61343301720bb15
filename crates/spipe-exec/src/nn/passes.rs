//! Forward, recompute and backward of consecutive layers.
//!
//! A graph never leaves a stage. Each pass makes fresh leaves of the parameters, so that the graphs
//! of concurrent microbatches share nothing:
//!
//! ```text
//! input ──front (not tracked)──► leaf ──rest──► output ──► next stage
//!   │                              ▲      saved: Tracked { leaf, parameters, output }
//!   └──front again (recompute)─────┘      recomputed: Tracked { input leaf, parameters, output }
//! ```

use crate::nn::{
    Matrix, Tensors,
    layers::{ActivationRecord, Answer, PassContext, Product, Products, Signal, Unit},
    wide,
};
#[cfg(feature = "cube")]
use crate::nn::{
    fused,
    layers::{LinearFunction, linear_on_gpu},
};
use burn::tensor::Tensor;

/// Consecutive layers with their parameters.
#[derive(Clone, Copy)]
pub(crate) struct Layers<'a> {
    /// The index of the first layer in the model.
    pub first: usize,
    pub units: &'a [Unit],
    pub parameters: &'a [Vec<Matrix>],
    table: Option<EmbeddingTable<'a>>,
}

/// The embedding's table, shared by two layers.
#[derive(Clone, Copy)]
struct EmbeddingTable<'a> {
    /// The index of the layer that owns it, the first of the two.
    owner: usize,
    matrix: &'a Matrix,
    trains: bool,
}

impl<'a> Layers<'a> {
    /// Layers from index `first` of the model on. If one shares the table of another, either both
    /// are among them or [`Self::sharing`] supplies the table.
    pub fn new(first: usize, units: &'a [Unit], parameters: &'a [Vec<Matrix>]) -> Self {
        let table = units.iter().find_map(Unit::tied).and_then(|tied| {
            let matrix = parameters.get(tied.owner.index().checked_sub(first)?)?.first()?;
            Some(EmbeddingTable { owner: tied.owner.index(), matrix, trains: tied.trains })
        });
        Self { first, units, parameters, table }
    }

    /// Supplies the table that one of them shares with a layer elsewhere.
    pub fn sharing(self, matrix: Option<&'a Matrix>) -> Self {
        let table = self.units.iter().find_map(Unit::tied).zip(matrix);
        let table =
            table.map(|(tied, matrix)| EmbeddingTable { owner: tied.owner.index(), matrix, trains: tied.trains });
        Self { table: self.table.or(table), ..self }
    }

    /// The layers before layer `middle` of the model, and the others.
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let count = middle.saturating_sub(self.first).min(self.units.len());
        let (units, parameters) = (self.units.split_at(count), self.parameters.split_at(count));
        (
            Self { units: units.0, parameters: parameters.0, ..self },
            Self { first: self.first + count, units: units.1, parameters: parameters.1, ..self },
        )
    }
}

/// Outputs of intermediate layers that a pass shall return as well.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    wanted: Vec<usize>,
    /// By layer of the model, without a graph.
    pub found: Vec<(usize, Matrix)>,
}

impl Outputs {
    /// Asks for the outputs of the layers `wanted`.
    pub const fn of(wanted: Vec<usize>) -> Self {
        Self { wanted, found: Vec::new() }
    }

    fn look(&mut self, layer: usize, behind: impl FnOnce() -> Matrix) {
        if self.wanted.contains(&layer) {
            self.found.push((layer, behind().inner()));
        }
    }
}

/// A graph from its leaves to its output.
#[derive(Debug)]
pub(crate) struct Tracked {
    /// The index of its first layer in the model.
    pub first: usize,
    /// The leaf of the input; none if the graph starts at data.
    input: Option<Matrix>,
    /// The leaves of trained parameters; none for weights whose gradients come later.
    parameters: Vec<Vec<Option<Matrix>>>,
    /// The products of each layer whose weight gradients come later.
    products: Vec<Option<Products>>,
    /// The leaf of a table that belongs to a layer before the graph, and the index of that layer.
    borrowed: Option<(usize, Matrix)>,
    output: Signal,
}

impl Tracked {
    /// The loss at the end of the graph.
    ///
    /// # Panics
    /// If it does not end in a loss.
    pub fn loss(&self) -> f64 {
        match &self.output {
            Signal::Loss(loss) => loss_number(loss.clone().inner()),
            _ => panic!("the last layer has no loss"),
        }
    }

    /// The index after its last layer.
    pub const fn end(&self) -> usize {
        self.first + self.parameters.len()
    }

    /// Whether weights are lent to it.
    pub fn borrows(&self) -> bool {
        self.products.iter().any(Option::is_some)
    }

    /// Drops the weights until they are lent again.
    pub fn forget(&self) {
        self.products.iter().flatten().for_each(Products::forget);
    }

    /// Lends weights for the backward, from `layers`, which contain all layers of the graph.
    pub fn lend(&self, layers: Layers<'_>) {
        let (_, layers) = layers.split_at(self.first);
        for (products, (unit, parameters)) in self.products.iter().zip(layers.units.iter().zip(layers.parameters)) {
            if let Some(products) = products {
                products.lend(unit.multiplied().into_iter().map(|index| parameters[index].clone()));
            }
        }
    }
}

/// The gradient from which a backward starts.
pub(crate) enum Seed {
    /// The output is the loss, with this gradient.
    Loss(f64),
    /// The gradient of the output.
    Gradient(Box<Matrix>),
}

/// Gradients of tracked parameters and of the input.
pub(crate) struct Gradients {
    pub parameters: Tensors,
    /// The gradient of a table that belongs to a layer before all of them.
    pub shared: Option<Matrix>,
    pub input: Option<Matrix>,
}

/// The gradient of a parameter, or the product from which it is computed.
#[derive(Debug)]
pub(crate) enum PendingGradient {
    Known(Box<Matrix>),
    Product(Box<Product>),
}

/// The rest of a backward, once the gradient of its input is known.
#[derive(Debug, Default)]
pub(crate) struct PendingBackward {
    pub layers: Vec<Vec<PendingGradient>>,
    /// The gradient of a table that belongs to a layer before all of them.
    shared: Option<Matrix>,
}

/// Runs `layers` without a graph, but with the operations that a graph would record: Burn's plain
/// operations may round differently.
pub(crate) fn untracked(layers: Layers<'_>, input: Signal, pass: &PassContext, outputs: &mut Outputs) -> Signal {
    let input = match input {
        Signal::Hidden(matrix) => Some(matrix.autodiff()),
        _ => None,
    };
    let constants = |layer: &Vec<Matrix>| layer.iter().map(|parameter| parameter.clone().autodiff()).collect();
    let parameters: Tensors = layers.parameters.iter().map(constants).collect();
    let table = layers.table.map(|table| table.matrix.clone().autodiff());
    let table = layers.table.zip(table.as_ref()).map(|(table, matrix)| EmbeddingTable { matrix, ..table });
    plain(compute(Layers { parameters: &parameters, table, ..layers }, input, (pass, &[]), outputs))
}

/// Runs `layers` on the outputs that they read; returns the tensors cut after the last of them.
fn compute(
    layers: Layers<'_>,
    input: Option<Matrix>,
    (pass, products): (&PassContext, &[Option<Products>]),
    outputs: &mut Outputs,
) -> Signal {
    let Some((first, last)) = layers.units.first().zip(layers.units.last()) else {
        return input.map_or(Signal::Tokens, Signal::Hidden);
    };
    let mut live = first.before().unpack(input);
    for (index, (unit, parameters)) in layers.units.iter().zip(layers.parameters).enumerate() {
        let table = layers.table.filter(|_| unit.tied().is_some()).map(|table| table.matrix);
        match unit.forward(parameters, table, &live, &pass.with_products(products.get(index).and_then(Option::as_ref)))
        {
            Signal::Hidden(output) => live.insert(unit.id(), output),
            other => return other,
        };
        live.retain(|layer, _| unit.after().has(*layer));
        outputs.look(layers.first + index, || unit.after().pack(live.clone()));
    }
    Signal::Hidden(last.after().pack(live))
}

/// Runs `layers` and records their graph; `split` defers the gradients of weights.
pub(crate) fn tracked(
    layers: Layers<'_>,
    input: Signal,
    pass: &PassContext,
    split: bool,
    outputs: &mut Outputs,
) -> Tracked {
    let input = match input {
        Signal::Hidden(matrix) => Some(matrix.autodiff().require_grad()),
        _ => None,
    };
    // If both users of a table are in this graph, it is a leaf, to whose gradient both add.
    let shared = layers.table.filter(|_| layers.units.iter().any(|unit| unit.tied().is_some()));
    let shares = |unit: &Unit| shared.is_some_and(|table| table.owner == unit.id().index());
    let late = |unit: &Unit| if split && !shares(unit) { unit.multiplied() } else { Vec::new() };
    let late: Vec<Vec<usize>> = layers.units.iter().map(late).collect();
    let tensors = |((unit, late), parameters): ((&Unit, &Vec<usize>), &Vec<Matrix>)| {
        let trained = unit.trained();
        let tensor = |(index, parameter): (usize, &Matrix)| {
            let tensor = parameter.clone().autodiff();
            if late.contains(&index) || index >= trained { tensor } else { tensor.require_grad() }
        };
        parameters.iter().enumerate().map(tensor).collect()
    };
    let parameters: Tensors = layers.units.iter().zip(&late).zip(layers.parameters).map(tensors).collect();
    let records = |(unit, late): (&Unit, &Vec<usize>)| {
        let trained = unit.trained();
        (!late.is_empty()).then(|| Products::new(late.iter().map(|index| *index < trained)))
    };
    let products: Vec<Option<Products>> = layers.units.iter().zip(&late).map(records).collect();
    let leaf = layers.table.map(|table| table_leaf(table, layers, &parameters));
    let table = layers.table.zip(leaf.as_ref()).map(|(table, matrix)| EmbeddingTable { matrix, ..table });
    let with_leaves = Layers { parameters: &parameters, table, ..layers };
    let output = compute(with_leaves, input.clone(), (pass, &products), outputs);
    let leaves = |((unit, late), tensors): ((&Unit, &Vec<usize>), Vec<Matrix>)| {
        let leaf = |(index, tensor)| (!late.contains(&index)).then_some(tensor);
        tensors.into_iter().take(unit.trained()).enumerate().map(leaf).collect()
    };
    let parameters = layers.units.iter().zip(&late).zip(parameters).map(leaves).collect();
    let is_borrowed = |table: &EmbeddingTable<'_>| {
        table.trains && table.owner < layers.first && layers.units.iter().any(|unit| unit.tied().is_some())
    };
    let borrowed = layers.table.filter(is_borrowed).map(|table| table.owner).zip(leaf);
    Tracked { first: layers.first, input, parameters, products, borrowed, output }
}

/// The leaf of the table in the graph of `layers`: its owner's, or one of its own.
fn table_leaf(table: EmbeddingTable<'_>, layers: Layers<'_>, leaves: &Tensors) -> Matrix {
    if let Some(leaf) = table.owner.checked_sub(layers.first).and_then(|owner| leaves.get(owner)?.first()) {
        return leaf.clone();
    }
    let leaf = table.matrix.clone().autodiff();
    if table.trains { leaf.require_grad() } else { leaf }
}

/// A stage's forward: its output without a graph, and the graph of its layers from `tracked_from`
/// on.
pub(crate) fn forward(
    layers: Layers<'_>,
    (tracked_from, split): (usize, bool),
    input: Signal,
    pass: &PassContext,
    outputs: &mut Outputs,
) -> (Signal, Option<Tracked>) {
    let (front, rest) = layers.split_at(tracked_from);
    let middle = if front.units.is_empty() { input } else { untracked(front, input, pass, outputs) };
    if rest.units.is_empty() {
        return (middle, None);
    }
    let graph = tracked(rest, middle, pass, split, outputs);
    (plain(graph.output.clone()), Some(graph))
}

/// The activations from which a graph can be rebuilt: they are saved in its place if it leaves the
/// device.
#[derive(Debug)]
pub(crate) struct SavedActivations<T> {
    /// The index of its first layer in the model.
    pub first: usize,
    /// The input of that layer, unless it is the stage's input; and the outputs of all products.
    pub input: Option<T>,
    pub outputs: Vec<T>,
}

impl<T> SavedActivations<T> {
    /// The same structure of other things, which come in the order of [`Self::iter`]; none if there
    /// are too few.
    pub fn of<U>(&self, things: Vec<U>) -> Option<SavedActivations<U>> {
        let mut things = things.into_iter();
        let input = if self.input.is_some() { Some(things.next()?) } else { None };
        let outputs: Vec<U> = things.collect();
        (outputs.len() == self.outputs.len()).then_some(SavedActivations { first: self.first, input, outputs })
    }

    /// The same structure, every element changed.
    pub fn turned<U>(self, change: impl Fn(T) -> U) -> SavedActivations<U> {
        let outputs = self.outputs.into_iter().map(&change).collect();
        SavedActivations { first: self.first, input: self.input.map(&change), outputs }
    }

    /// The same structure, every element changed, or the first error.
    pub fn tried<U, E>(self, change: impl Fn(T) -> Result<U, E>) -> Result<SavedActivations<U>, E> {
        let outputs = self.outputs.into_iter().map(&change).collect::<Result<_, E>>()?;
        Ok(SavedActivations { first: self.first, input: self.input.map(&change).transpose()?, outputs })
    }

    /// All elements.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.input.iter().chain(&self.outputs)
    }
}

/// A stage's forward without a graph: its output, and the activations from which the graph of its
/// layers from `recorded_from` on can be rebuilt.
pub(crate) fn recorded_forward(
    layers: Layers<'_>,
    recorded_from: usize,
    input: Signal,
    pass: &PassContext,
    outputs: &mut Outputs,
) -> (Signal, SavedActivations<Matrix>) {
    let (front, rest) = layers.split_at(recorded_from);
    let is_whole = front.units.is_empty();
    let middle = if is_whole { input } else { untracked(front, input, pass, outputs) };
    let record = ActivationRecord::blank();
    let kept = match &middle {
        Signal::Hidden(matrix) if !is_whole => Some(matrix.clone()),
        _ => None,
    };
    let first = rest.first;
    let signal =
        if rest.units.is_empty() { middle } else { untracked(rest, middle, &pass.with_record(&record), outputs) };
    (signal, SavedActivations { first, input: kept, outputs: record.take() })
}

/// The results of one graph's backward: pending gradients of its parameters, the gradient of its
/// input, and that of a table that belongs to an earlier layer.
struct InputGradients {
    later: Vec<Vec<PendingGradient>>,
    input: Option<Matrix>,
    borrowed: Option<(usize, Matrix)>,
}

fn input_gradient(graph: Tracked, seed: Seed) -> InputGradients {
    let root: Tensor<1> = match (graph.output, seed) {
        (Signal::Loss(loss), Seed::Loss(scale)) => loss.mul_scalar(scale),
        (Signal::Hidden(output), Seed::Gradient(gradient)) => seeded(output, *gradient),
        (Signal::Loss(_), Seed::Gradient(_)) => panic!("a gradient arrives where the loss is computed"),
        (_, _) => panic!("no gradient arrives at an output that is not the loss"),
    };
    let mut gradients = root.backward();
    let mut of = |leaf: &Matrix| leaf.grad_remove(&mut gradients).unwrap_or_else(|| leaf.clone().inner().zeros_like());
    let mut later = Vec::new();
    let mut products = graph.products.into_iter();
    for parameters in &graph.parameters {
        let mut products =
            products.next().flatten().map(|products| products.collect(&mut of)).unwrap_or_default().into_iter();
        let due = |parameter: &Option<Matrix>| match parameter {
            Some(leaf) => PendingGradient::Known(Box::new(of(leaf))),
            None => PendingGradient::Product(Box::new(
                products.next().expect("every weight without a leaf is multiplied with"),
            )),
        };
        later.push(parameters.iter().map(due).collect());
    }
    let input = graph.input.as_ref().map(&mut of);
    InputGradients { later, input, borrowed: graph.borrowed.map(|(owner, leaf)| (owner, of(&leaf))) }
}

/// A number whose derivative by `output` is `gradient`.
fn seeded(output: Matrix, gradient: Matrix) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if let Some(root) = linear_on_gpu(&Seeded(gradient.clone()), [&output]) {
        return root.reshape([1]);
    }
    // The derivative of Σ y g by y is g.
    (output * gradient).sum()
}

/// A function that is nowhere computed: its graph begins with the gradient of its input.
#[cfg(feature = "cube")]
#[derive(Clone, Debug)]
struct Seeded(Matrix);

#[cfg(feature = "cube")]
impl LinearFunction<1> for Seeded {
    fn value(&self, [output]: [Matrix; 1]) -> Matrix {
        Matrix::zeros([1, 1], (&output.device(), output.dtype()))
    }

    fn gradients(&self, _: Matrix) -> [Matrix; 1] {
        [self.0.clone()]
    }
}

/// The backward of consecutive graphs without the deferred gradients; returns those, and the
/// gradient of the first graph's input.
pub(crate) fn backward_input(graphs: Vec<Tracked>, seed: Seed) -> (PendingBackward, Option<Matrix>) {
    let mut seed = Some(seed);
    let (mut later, mut input, mut borrowed): (Vec<Vec<PendingGradient>>, _, _) = (Vec::new(), None, None);
    let first = graphs.first().map_or(0, |graph| graph.first);
    for graph in graphs.into_iter().rev() {
        let seed = seed.take().or_else(|| input.take().map(|gradient| Seed::Gradient(Box::new(gradient))));
        let mut left = input_gradient(graph, seed.expect("a graph before another one has an input"));
        left.later.append(&mut later);
        (later, input) = (left.later, left.input);
        borrowed = borrowed.or(left.borrowed);
    }
    // Both uses of a table add up, the later one first, as within one graph.
    let mut shared = None;
    if let Some((owner, gradient)) = borrowed {
        match owner.checked_sub(first).and_then(|owner| later.get_mut(owner)?.first_mut()) {
            Some(PendingGradient::Known(own)) => **own = gradient + Matrix::clone(own),
            _ => shared = Some(gradient),
        }
    }
    (PendingBackward { layers: later, shared }, input)
}

/// The parameter gradients of the rest of a backward.
pub(crate) fn backward_weight(later: PendingBackward) -> Gradients {
    let gradient = |due| match due {
        PendingGradient::Known(gradient) => *gradient,
        PendingGradient::Product(product) => product.weight_gradient(),
    };
    let parameters = later.layers.into_iter().map(|layer| layer.into_iter().map(gradient).collect()).collect();
    Gradients { parameters, shared: later.shared, input: None }
}

/// The whole backward of consecutive graphs.
pub(crate) fn backward(graphs: Vec<Tracked>, seed: Seed) -> Gradients {
    let (later, input) = backward_input(graphs, seed);
    Gradients { input, ..backward_weight(later) }
}

/// Adds `more` to `sum` in f32, tensor by tensor. On a GPU, the sums stay where they are, in their
/// type.
pub(crate) fn accumulate(sum: Tensors, more: Tensors) -> Tensors {
    let all = |(sum, more): (Vec<Matrix>, Vec<Matrix>)| sum.into_iter().zip(more).map(add).collect();
    sum.into_iter().zip(more).map(all).collect()
}

fn add((sum, more): (Matrix, Matrix)) -> Matrix {
    #[cfg(feature = "cube")]
    let (sum, more) = match fused::add_in_place(sum, more) {
        Ok(sum) => return sum,
        Err(same) => same,
    };
    wide(sum) + wide(more)
}

/// The same signal without a graph.
fn plain(signal: Signal) -> Signal {
    match signal {
        Signal::Tokens => Signal::Tokens,
        Signal::Hidden(matrix) => Signal::Hidden(matrix.inner()),
        Signal::Loss(loss) => Signal::Loss(loss.inner()),
        Signal::Answer(Answer::Rows(rows), loss) => Signal::Answer(Answer::Rows(Box::new(rows.inner())), loss.inner()),
        Signal::Answer(tokens, loss) => Signal::Answer(tokens, loss.inner()),
    }
}

/// The loss as a number.
pub(crate) fn loss_number(loss: Tensor<1>) -> f64 {
    f64::from(loss.into_scalar::<f32>())
}
