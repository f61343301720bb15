//! Activations of feed-forward networks, with the bias before them, or with what they gate.

use super::{
    UNITS, addresses, all, blank,
    columns::{ACROSS, LANES, MOST_AT_ONCE, grid, over_lanes},
    each, element, matrix, rows_and_columns, units, vector_size, view,
};
use crate::nn::{
    Matrix,
    kernels::{GELU_CUBE, GELU_TWICE},
};
use burn_cubecl::{
    cubecl::{
        self,
        ir::ElemType,
        prelude::*,
        std::tensor::layout::linear::{LinearView, LinearViewMut},
    },
    tensor::CubeTensor,
};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// A function of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Activation {
    /// The number itself.
    Identity,
    /// x (1 + erf(x ÷ √2)) ÷ 2.
    Gelu,
    /// x σ(2 √(2 ÷ π) (x + 0.044715 x³)).
    GeluTanh,
    /// x σ(x).
    Silu,
}

/// 1 ÷ √(2 π).
const BELL: f32 = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// 1 ÷ (1 + e⁻ˣ).
#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0);
    one / (one + Vector::exp(-x))
}

/// f(x).
#[cube]
fn value<N: Size>(x: Vector<f32, N>, #[comptime] function: Activation) -> Vector<f32, N> {
    if comptime!(function == Activation::Identity) {
        x
    } else if comptime!(function == Activation::Gelu) {
        Vector::new(0.5) * x * (Vector::new(1.0) + Vector::erf(x * Vector::new(FRAC_1_SQRT_2)))
    } else if comptime!(function == Activation::GeluTanh) {
        let inner = Vector::new(1.0) + Vector::new(GELU_CUBE) * x * x;
        x * sigmoid::<N>(Vector::new(GELU_TWICE) * x * inner)
    } else {
        x * sigmoid::<N>(x)
    }
}

/// f′(x).
#[cube]
fn slope<N: Size>(x: Vector<f32, N>, #[comptime] function: Activation) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0);
    if comptime!(function == Activation::Identity) {
        one
    } else if comptime!(function == Activation::Gelu) {
        // Φ(x) + x φ(x).
        let below = Vector::new(0.5) * (one + Vector::erf(x * Vector::new(FRAC_1_SQRT_2)));
        below + x * Vector::exp(x * x * Vector::new(-0.5)) * Vector::new(BELL)
    } else if comptime!(function == Activation::GeluTanh) {
        let square = Vector::new(GELU_CUBE) * x * x;
        let share = sigmoid::<N>(Vector::new(GELU_TWICE) * x * (one + square));
        share * (one + x * (one - share) * Vector::new(GELU_TWICE) * (one + Vector::new(3.0) * square))
    } else {
        let share = sigmoid::<N>(x);
        share * (one + x * (one - share))
    }
}

#[cube(launch, address_type = "dynamic")]
fn forward<F: Float, N: Size>(
    input: LinearView<'_, Vector<F, N>>,
    bias: LinearView<'_, Vector<F, N>>,
    mut output: LinearViewMut<'_, Vector<F, N>>,
    columns: usize,
    #[comptime] function: Activation,
    #[comptime] biased: bool,
    #[define(F)] _width: ElemType,
) {
    if !output.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let mut x = Vector::<f32, N>::cast_from(input.read(ABSOLUTE_POS));
    if comptime!(biased) {
        x += Vector::cast_from(bias.read(ABSOLUTE_POS % columns));
    }
    output.write(ABSOLUTE_POS, Vector::cast_from(value::<N>(x, function)));
}

#[cube(launch, address_type = "dynamic")]
fn gated_forward<F: Float, N: Size>(
    gates: LinearView<'_, Vector<F, N>>,
    ups: LinearView<'_, Vector<F, N>>,
    mut output: LinearViewMut<'_, Vector<F, N>>,
    #[comptime] function: Activation,
    #[define(F)] _width: ElemType,
) {
    if !output.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let gate = Vector::<f32, N>::cast_from(gates.read(ABSOLUTE_POS));
    let up = Vector::<f32, N>::cast_from(ups.read(ABSOLUTE_POS));
    output.write(ABSOLUTE_POS, Vector::cast_from(value::<N>(gate, function) * up));
}

#[cube(launch, address_type = "dynamic")]
fn gated_backward<F: Float, N: Size>(
    gates: LinearView<'_, Vector<F, N>>,
    ups: LinearView<'_, Vector<F, N>>,
    gradients: LinearView<'_, Vector<F, N>>,
    mut of_gates: LinearViewMut<'_, Vector<F, N>>,
    mut of_ups: LinearViewMut<'_, Vector<F, N>>,
    #[comptime] function: Activation,
    #[define(F)] _width: ElemType,
) {
    if !of_gates.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let gate = Vector::<f32, N>::cast_from(gates.read(ABSOLUTE_POS));
    let up = Vector::<f32, N>::cast_from(ups.read(ABSOLUTE_POS));
    let gradient = Vector::<f32, N>::cast_from(gradients.read(ABSOLUTE_POS));
    of_gates.write(ABSOLUTE_POS, Vector::cast_from(gradient * up * slope::<N>(gate, function)));
    of_ups.write(ABSOLUTE_POS, Vector::cast_from(gradient * value::<N>(gate, function)));
}

/// dx = dy f′(x + b), and Σ dx.
#[cube(launch, address_type = "dynamic")]
fn activation_sums<F: Float, N: Size>(
    input: LinearView<'_, Vector<F, N>>,
    bias: LinearView<'_, Vector<F, N>>,
    gradient: LinearView<'_, Vector<F, N>>,
    mut of_input: LinearViewMut<'_, Vector<F, N>>,
    mut of_bias: LinearViewMut<'_, Vector<F, N>>,
    rows: usize,
    columns: usize,
    #[comptime] function: Activation,
    #[comptime] biased: bool,
    #[define(F)] _width: ElemType,
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS * ACROSS + unit % ACROSS;
    let mut level = Vector::<f32, N>::new(0.0);
    if column < columns {
        let mut plus = Vector::<f32, N>::new(0.0);
        if comptime!(biased) {
            plus = Vector::cast_from(bias.read(column));
        }
        let mut row = unit / ACROSS;
        while row < rows {
            let at = row * columns + column;
            let input = Vector::<f32, N>::cast_from(input.read(at)) + plus;
            let found = Vector::<f32, N>::cast_from(gradient.read(at)) * slope::<N>(input, function);
            of_input.write(at, Vector::cast_from(found));
            level += found;
            row += LANES;
        }
    }
    if comptime!(biased) {
        let mut shared = Shared::<[Vector<f32, N>]>::new_slice(UNITS);
        let level = over_lanes::<N>(&mut shared, level);
        if unit < ACROSS && column < columns {
            of_bias.write(column, Vector::cast_from(level));
        }
    }
}

/// Launches [`activation_sums`] on input, bias and gradient.
fn backward(function: Activation, from: [&CubeTensor; 3], to: [&CubeTensor; 2], biased: bool) {
    let [rows, columns] = rows_and_columns(from[0]);
    let size = vector_size(from[0]).min(MOST_AT_ONCE);
    let (columns, count) = grid(columns, size);
    let client = &from[0].client;
    let (dim, addresses, width) = (units(client), addresses(from), element(from[0].dtype));
    let ([input, bias, gradient], [of_input, of_bias]) = (from.map(view), to.map(view));
    activation_sums::launch(
        client, count, dim, addresses, size, input, bias, gradient, of_input, of_bias, rows, columns, function, biased,
        width,
    );
}

/// An activation of an input, to which a bias is added first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activated<'a> {
    pub function: Activation,
    pub input: &'a Matrix,
    pub bias: Option<&'a Matrix>,
}

/// f(x + b); none on cores.
pub(crate) fn activated(Activated { function, input, bias }: Activated<'_>) -> Option<Matrix> {
    let [input, bias_or_input] = all([input, bias.unwrap_or(input)])?;
    let [rows, columns] = rows_and_columns(&input);
    let output = blank(&input, [rows, columns], input.dtype);
    let (client, size) = (&input.client, vector_size(&input));
    let (count, dim) = each(client, rows * columns / size);
    let [x, b, to] = [&input, &bias_or_input, &output].map(view);
    let (addresses, width) = (addresses([&input]), element(input.dtype));
    forward::launch(client, count, dim, addresses, size, x, b, to, columns / size, function, bias.is_some(), width);
    Some(matrix(output))
}

/// The gradients of input and bias; none on cores.
pub(crate) fn activated_gradients(
    Activated { function, input, bias }: Activated<'_>,
    gradient: &Matrix,
) -> Option<(Matrix, Option<Matrix>)> {
    let [input, gradient, bias_or_input] = all([input, gradient, bias.unwrap_or(input)])?;
    let [rows, width] = rows_and_columns(&input);
    let of_input = blank(&input, [rows, width], input.dtype);
    let of_bias = bias.is_some().then(|| blank(&input, [1, width], input.dtype));
    let to = [&of_input, of_bias.as_ref().unwrap_or(&of_input)];
    backward(function, [&input, &bias_or_input, &gradient], to, bias.is_some());
    Some((matrix(of_input), of_bias.map(matrix)))
}

/// f(gate) · up; none on cores.
pub(crate) fn gated(function: Activation, [gates, ups]: [&Matrix; 2]) -> Option<Matrix> {
    let [gates, ups] = all([gates, ups])?;
    let output = blank(&gates, rows_and_columns(&gates), gates.dtype);
    let (client, size) = (&gates.client, vector_size(&gates));
    let (count, dim) = each(client, gates.meta.num_elements() / size);
    let [gate, up, to] = [&gates, &ups, &output].map(view);
    gated_forward::launch(client, count, dim, addresses([&gates]), size, gate, up, to, function, element(gates.dtype));
    Some(matrix(output))
}

/// The gradients of both; none on cores.
pub(crate) fn gated_gradients(function: Activation, [gates, ups, gradient]: [&Matrix; 3]) -> Option<[Matrix; 2]> {
    let [gates, ups, gradient] = all([gates, ups, gradient])?;
    let [of_gates, of_ups] = [(); 2].map(|()| blank(&gates, rows_and_columns(&gates), gates.dtype));
    let (client, size) = (&gates.client, vector_size(&gates));
    let (count, dim) = each(client, gates.meta.num_elements() / size);
    let [gate, up, from, to_gates, to_ups] = [&gates, &ups, &gradient, &of_gates, &of_ups].map(view);
    let (addresses, width) = (addresses([&gates]), element(gates.dtype));
    gated_backward::launch(client, count, dim, addresses, size, gate, up, from, to_gates, to_ups, function, width);
    Some([of_gates, of_ups].map(matrix))
}
