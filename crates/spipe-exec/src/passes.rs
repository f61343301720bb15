//! Forward, recompute, backward and optimizer step of consecutive layers.
//!
//! A graph never leaves a stage. Each pass makes fresh leaves of the parameters, so that the graphs of microbatches that
//! are under way together share nothing:
//!
//! ```text
//! input ──front (not tracked)──► leaf ──rest──► output ──► next stage
//!   │                              ▲      Saved { input, rest: Tracked { leaf, parameters, output } }
//!   └──front again (recompute)─────┘      Recomputed = Tracked { input leaf, parameters, output }
//! ```

use crate::{
    AdamW,
    layers::{Feed, Matrix, Signal, Unit},
    optimizer::Moments,
};
use burn::tensor::{Tensor, TensorData};

/// The tensors of consecutive layers, layer by layer.
pub(crate) type Tensors = Vec<Vec<Matrix>>;

/// A graph from leaves to its output.
#[derive(Debug)]
pub(crate) struct Tracked {
    /// The leaf that the graph starts at, unless it starts at tokens.
    input: Option<Matrix>,
    /// The leaves of the parameters.
    parameters: Tensors,
    output: Signal,
}

impl Tracked {
    /// The loss that the graph ends in.
    ///
    /// # Panics
    /// If it does not end in one.
    pub fn loss(&self) -> f64 {
        match &self.output {
            Signal::Loss(loss) => loss_number(loss.clone().inner()),
            _ => panic!("the last layer has no loss"),
        }
    }
}

/// What a stage keeps of a forward for its backward.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The input, if layers are computed again from it.
    pub input: Option<Signal>,
    /// The graph of the layers that are not, if there are any.
    pub rest: Option<Tracked>,
}

/// What a backward starts from.
pub(crate) enum Seed {
    /// The loss is the output; its gradient is this.
    Loss(f64),
    /// The gradient of the output.
    Gradient(Box<Matrix>),
}

/// Gradients of the parameters that were tracked, and of the input.
pub(crate) struct Gradients {
    pub parameters: Tensors,
    pub input: Option<Matrix>,
}

/// Runs `units` without a graph, yet with the very operations that a graph would record: Burn's plain operations may round
/// differently.
pub(crate) fn untracked(units: &[Unit], parameters: &[Vec<Matrix>], input: Signal, feed: &Feed) -> Signal {
    let input = match input {
        Signal::Hidden(matrix) => Some(matrix.autodiff()),
        _ => None,
    };
    let parameters: Tensors =
        parameters.iter().map(|layer| layer.iter().map(|parameter| parameter.clone().autodiff()).collect()).collect();
    plain(compute(units, &parameters, input, feed))
}

/// Runs `units`, each on what those that it reads put out; hands on what crosses behind the last of them.
fn compute(units: &[Unit], parameters: &[Vec<Matrix>], input: Option<Matrix>, feed: &Feed) -> Signal {
    let Some((first, last)) = units.first().zip(units.last()) else {
        return input.map_or(Signal::Tokens, Signal::Hidden);
    };
    let mut live = first.before().unpack(input);
    for (unit, parameters) in units.iter().zip(parameters) {
        match unit.forward(parameters, &live, feed) {
            Signal::Hidden(output) => live.insert(unit.id(), output),
            other => return other,
        };
        live.retain(|layer, _| unit.after().has(*layer));
    }
    Signal::Hidden(last.after().pack(live))
}

/// Runs `units` and records their graph.
pub(crate) fn tracked(units: &[Unit], parameters: &[Vec<Matrix>], input: Signal, feed: &Feed) -> Tracked {
    let leaf = |matrix: Matrix| matrix.autodiff().require_grad();
    let input = match input {
        Signal::Hidden(matrix) => Some(leaf(matrix)),
        _ => None,
    };
    let parameters: Tensors =
        parameters.iter().map(|layer| layer.iter().map(|parameter| leaf(parameter.clone())).collect()).collect();
    let output = compute(units, &parameters, input.clone(), feed);
    Tracked { input, parameters, output }
}

/// A stage's forward: its output without a graph, and what it keeps. The first `recomputed` units run without one.
pub(crate) fn forward(
    (units, recomputed): (&[Unit], usize),
    parameters: &[Vec<Matrix>],
    input: Signal,
    feed: &Feed,
) -> (Signal, Saved) {
    let (front, rest) = units.split_at(recomputed);
    let (front_parameters, rest_parameters) = parameters.split_at(recomputed);
    let kept = (recomputed > 0).then(|| input.clone());
    let middle = if front.is_empty() { input } else { untracked(front, front_parameters, input, feed) };
    if rest.is_empty() {
        return (middle, Saved { input: kept, rest: None });
    }
    let graph = tracked(rest, rest_parameters, middle, feed);
    (plain(graph.output.clone()), Saved { input: kept, rest: Some(graph) })
}

/// The backward of one graph.
pub(crate) fn backward(graph: Tracked, seed: Seed) -> Gradients {
    let root: Tensor<1> = match (graph.output, seed) {
        (Signal::Loss(loss), Seed::Loss(scale)) => loss.mul_scalar(scale),
        // The derivative of Σ y g by y is g.
        (Signal::Hidden(output), Seed::Gradient(gradient)) => (output * *gradient).sum(),
        (Signal::Loss(_), Seed::Gradient(_)) => panic!("a gradient arrives where the loss is computed"),
        (_, _) => panic!("no gradient arrives at an output that is not the loss"),
    };
    let mut gradients = root.backward();
    let mut of = |leaf: &Matrix| leaf.grad_remove(&mut gradients).unwrap_or_else(|| leaf.clone().inner().zeros_like());
    Gradients {
        parameters: graph.parameters.iter().map(|layer| layer.iter().map(&mut of).collect()).collect(),
        input: graph.input.as_ref().map(&mut of),
    }
}

/// The backward of a stage: the layers that were saved, then those that were computed again.
pub(crate) fn stage_backward(saved: Saved, recomputed: Option<Tracked>, seed: Seed) -> Gradients {
    match (saved.rest, recomputed) {
        (Some(rest), None) => backward(rest, seed),
        (None, Some(front)) => backward(front, seed),
        (Some(rest), Some(front)) => {
            let rest = backward(rest, seed);
            let Some(middle) = rest.input else { panic!("recomputed layers lead nowhere") };
            let mut all = backward(front, Seed::Gradient(Box::new(middle)));
            all.parameters.extend(rest.parameters);
            all
        }
        (None, None) => panic!("nothing was kept of the forward"),
    }
}

/// Adds `more` to `sum`, tensor by tensor.
pub(crate) fn accumulate(sum: Tensors, more: Tensors) -> Tensors {
    let add =
        |(sum, more): (Vec<Matrix>, Vec<Matrix>)| sum.into_iter().zip(more).map(|(sum, more)| sum + more).collect();
    sum.into_iter().zip(more).map(add).collect()
}

/// Steps every tensor of `parameters`. Where nobody else holds a tensor, its memory is updated in place.
pub(crate) fn step(adam: &AdamW, parameters: Tensors, gradients: Tensors, moments: &mut [Vec<Moments>]) -> Tensors {
    let layers = parameters.into_iter().zip(gradients).zip(moments);
    layers
        .map(|((parameters, gradients), moments)| {
            let tensors = parameters.into_iter().zip(gradients).zip(moments);
            tensors.map(|((parameter, gradient), moments)| step_tensor(adam, parameter, gradient, moments)).collect()
        })
        .collect()
}

fn step_tensor(adam: &AdamW, parameter: Matrix, gradient: Matrix, moments: &mut Moments) -> Matrix {
    let device = parameter.device();
    let (mut data, gradient) = (parameter.into_data(), gradient.into_data());
    {
        let parameters = data.as_mut_slice::<f32>().expect("parameters are f32");
        let gradients = gradient.as_slice::<f32>().expect("gradients are f32");
        adam.step(parameters, gradients, moments);
    }
    Tensor::from_data(data, &device)
}

/// The numbers of a tensor.
pub(crate) fn numbers(tensor: &Matrix) -> Vec<f32> {
    let data: TensorData = tensor.clone().into_data();
    data.try_to_vec().expect("tensors are f32")
}

/// The same without a graph.
fn plain(signal: Signal) -> Signal {
    match signal {
        Signal::Tokens => Signal::Tokens,
        Signal::Hidden(matrix) => Signal::Hidden(matrix.inner()),
        Signal::Loss(loss) => Signal::Loss(loss.inner()),
    }
}

/// The loss as a number.
pub(crate) fn loss_number(loss: Tensor<1>) -> f64 {
    f64::from(loss.into_scalar::<f32>())
}
