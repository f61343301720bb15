//! LayerNorm and RMSNorm, and their gradients.

use super::{
    UNITS, addresses, all, blank, columns, cubes, element, matrix, rows_and_columns, total, units, vector_size, view,
};
use crate::nn::Matrix;
use burn::tensor::DType;
use burn_cubecl::cubecl::{
    self,
    ir::ElemType,
    prelude::*,
    std::tensor::layout::linear::{LinearView, LinearViewMut},
};

/// A norm over the width of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    /// Whether the mean is subtracted.
    pub centres: bool,
    pub epsilon: f32,
}

/// Mean and inverse standard deviation of a row, which every unit of its cube gets.
#[cube]
fn statistics<F: Float>(
    input: &LinearView<'_, F>,
    start: usize,
    width: usize,
    shared: &mut Shared<[f32]>,
    epsilon: f32,
    #[comptime] centres: bool,
) -> (f32, f32) {
    let mut mean = 0.0f32;
    if comptime!(centres) {
        let mut sum = 0.0f32;
        let mut column = UNIT_POS as usize;
        while column < width {
            sum += f32::cast_from(input.read(start + column));
            column += CUBE_DIM as usize;
        }
        mean = total(shared, sum) / f32::cast_from(width);
    }
    let mut square = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < width {
        let centred = f32::cast_from(input.read(start + column)) - mean;
        square += centred * centred;
        column += CUBE_DIM as usize;
    }
    let variance = total(shared, square) / f32::cast_from(width);
    (mean, 1.0f32 / f32::sqrt(variance + epsilon))
}

/// (x − mean) ÷ deviation.
#[cube]
fn normalised<F: Float>(input: &LinearView<'_, F>, at: usize, of: (f32, f32)) -> f32 {
    let (mean, inverse) = of;
    (f32::cast_from(input.read(at)) - mean) * inverse
}

#[cube(launch, address_type = "dynamic")]
fn forward<F: Float, W: Float>(
    input: LinearView<'_, F>,
    weight: LinearView<'_, W>,
    bias: LinearView<'_, W>,
    mut output: LinearViewMut<'_, F>,
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] centres: bool,
    #[comptime] biased: bool,
    #[define(F, W)] _widths: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * width;
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    let (mean, inverse) = statistics::<F>(&input, start, width, &mut shared, epsilon, centres);
    let mut column = UNIT_POS as usize;
    while column < width {
        let scaled = normalised::<F>(&input, start + column, (mean, inverse));
        let mut value = scaled * f32::cast_from(weight.read(column));
        if comptime!(biased) {
            value += f32::cast_from(bias.read(column));
        }
        output.write(start + column, F::cast_from(value));
        column += CUBE_DIM as usize;
    }
}

/// With n the normalised input, r its inverse deviation and h = dy w: dx = (h − mean h − n mean(h
/// n)) r; without mean h if not centred. The mean and r of each row are kept.
#[cube(launch, address_type = "dynamic")]
fn backward<F: Float, W: Float>(
    input: LinearView<'_, F>,
    weight: LinearView<'_, W>,
    gradient: LinearView<'_, F>,
    mut of_input: LinearViewMut<'_, F>,
    mut kept: LinearViewMut<'_, f32>,
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] centres: bool,
    #[define(F, W)] _widths: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * width;
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    let (mean, inverse) = statistics::<F>(&input, start, width, &mut shared, epsilon, centres);
    let mut level = 0.0f32;
    let mut along = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < width {
        let scaled = normalised::<F>(&input, start + column, (mean, inverse));
        let inner = f32::cast_from(gradient.read(start + column)) * f32::cast_from(weight.read(column));
        level += inner;
        along += inner * scaled;
        column += CUBE_DIM as usize;
    }
    let along = total(&mut shared, along) / f32::cast_from(width);
    let mut middle = 0.0f32;
    if comptime!(centres) {
        middle = total(&mut shared, level) / f32::cast_from(width);
    }
    let mut column = UNIT_POS as usize;
    while column < width {
        let scaled = normalised::<F>(&input, start + column, (mean, inverse));
        let inner = f32::cast_from(gradient.read(start + column)) * f32::cast_from(weight.read(column));
        of_input.write(start + column, F::cast_from((inner - middle - scaled * along) * inverse));
        column += CUBE_DIM as usize;
    }
    if UNIT_POS == 0 {
        kept.write(2 * row, mean);
        kept.write(2 * row + 1, inverse);
    }
}

/// (x − mean) ÷ deviation · w + b; none on cores.
pub(crate) fn normed(norm: Norm, [input, weight]: [&Matrix; 2], bias: Option<&Matrix>) -> Option<Matrix> {
    let [input, weight, bias_or_weight] = all([input, weight, bias.unwrap_or(weight)])?;
    let [rows, width] = rows_and_columns(&input);
    let output = blank(&input, [rows, width], input.dtype);
    let client = &input.client;
    let widths = [element(input.dtype), element(weight.dtype)];
    let (dim, addresses) = (units(client), addresses([&input, &output]));
    let (all, biased) = ([&input, &weight, &bias_or_weight, &output].map(view), bias.is_some());
    let [of, by, plus, to] = all;
    let Norm { centres, epsilon } = norm;
    forward::launch(
        client,
        cubes(rows),
        dim,
        addresses,
        of,
        by,
        plus,
        to,
        rows,
        width,
        epsilon,
        centres,
        biased,
        widths,
    );
    Some(matrix(output))
}

/// The gradients of input, weight and bias; none on cores.
pub(crate) fn norm_gradients(
    norm: Norm,
    [input, weight, gradient]: [&Matrix; 3],
    bias: Option<DType>,
) -> Option<(Matrix, Matrix, Option<Matrix>)> {
    let [input, weight, gradient] = all([input, weight, gradient])?;
    let [rows, width] = rows_and_columns(&input);
    let of_input = blank(&input, [rows, width], input.dtype);
    let kept = blank(&input, [rows, 2], DType::F32);
    let client = &input.client;
    let widths = [element(input.dtype), element(weight.dtype)];
    let (dim, addresses) = (units(client), addresses([&input, &of_input]));
    let [of, by, from, to, keep] = [&input, &weight, &gradient, &of_input, &kept].map(view);
    let Norm { centres, epsilon } = norm;
    backward::launch(
        client,
        cubes(rows),
        dim,
        addresses,
        of,
        by,
        from,
        to,
        keep,
        rows,
        width,
        epsilon,
        centres,
        widths,
    );
    let of_weight = blank(&input, [1, width], weight.dtype);
    let of_bias = bias.map(|dtype| blank(&input, [1, width], dtype));
    let size = vector_size(&input).min(columns::MOST_AT_ONCE);
    columns::norm(
        size,
        [&input, &gradient, &kept],
        [&of_weight, of_bias.as_ref().unwrap_or(&of_weight)],
        of_bias.is_some(),
    );
    Some((matrix(of_input), matrix(of_weight), of_bias.map(matrix)))
}
