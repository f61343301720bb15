//! Sums over the rows of a matrix, column by column: gradients of biases and of norms' weights.
//!
//! ```text
//!          8 units, each with up to 4 columns
//! row 0    ────────  lane 0
//! row 1    ────────  lane 1      each lane adds every 32nd row; then the lanes are added
//!  ⋮
//! ```

use super::{UNITS, addresses, blank, cubes, element, matrix, own, rows_and_columns, units, vector_size, view};
use crate::nn::Matrix;
use burn_cubecl::{
    cubecl::{
        self,
        ir::ElemType,
        prelude::*,
        std::tensor::layout::linear::{LinearView, LinearViewMut},
    },
    tensor::CubeTensor,
};

/// Units beside each other.
pub(super) const ACROSS: usize = 8;
/// Units below each other.
pub(super) const LANES: usize = UNITS / ACROSS;
/// The most columns of a unit: with eight units beside each other, more would leave too few cubes to
/// fill a device.
pub(super) const MOST_AT_ONCE: usize = 4;

/// The sum over all lanes, which the first one gets.
#[cube]
pub(super) fn over_lanes<N: Size>(shared: &mut Shared<[Vector<f32, N>]>, number: Vector<f32, N>) -> Vector<f32, N> {
    let unit = UNIT_POS as usize;
    sync_cube();
    shared[unit] = number;
    sync_cube();
    let mut width = CUBE_DIM as usize / 2;
    while width >= ACROSS {
        if unit < width {
            let other = shared[unit + width];
            shared[unit] += other;
        }
        sync_cube();
        width /= 2;
    }
    shared[unit % ACROSS]
}

#[cube(launch, address_type = "dynamic")]
fn sums<F: Float, W: Float, N: Size>(
    input: LinearView<'_, Vector<F, N>>,
    mut output: LinearViewMut<'_, Vector<W, N>>,
    rows: usize,
    columns: usize,
    #[define(F, W)] _widths: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS * ACROSS + unit % ACROSS;
    let mut sum = Vector::<f32, N>::new(0.0);
    if column < columns {
        let mut row = unit / ACROSS;
        while row < rows {
            sum += Vector::cast_from(input.read(row * columns + column));
            row += LANES;
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(UNITS);
    let sum = over_lanes::<N>(&mut shared, sum);
    if unit < ACROSS && column < columns {
        output.write(column, Vector::cast_from(sum));
    }
}

/// Σ dy n and Σ dy, where n is the normalised input.
#[cube(launch, address_type = "dynamic")]
fn norm_sums<F: Float, W: Float, N: Size>(
    input: LinearView<'_, Vector<F, N>>,
    gradient: LinearView<'_, Vector<F, N>>,
    kept: LinearView<'_, f32>,
    mut of_weight: LinearViewMut<'_, Vector<W, N>>,
    mut of_bias: LinearViewMut<'_, Vector<W, N>>,
    rows: usize,
    columns: usize,
    #[comptime] biased: bool,
    #[define(F, W)] _widths: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS * ACROSS + unit % ACROSS;
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut level = Vector::<f32, N>::new(0.0);
    if column < columns {
        let mut row = unit / ACROSS;
        while row < rows {
            let at = row * columns + column;
            let gradient = Vector::<f32, N>::cast_from(gradient.read(at));
            let centred = Vector::<f32, N>::cast_from(input.read(at)) - Vector::new(kept.read(2 * row));
            sum += gradient * centred * Vector::new(kept.read(2 * row + 1));
            level += gradient;
            row += LANES;
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(UNITS);
    let sum = over_lanes::<N>(&mut shared, sum);
    if unit < ACROSS && column < columns {
        of_weight.write(column, Vector::cast_from(sum));
    }
    if comptime!(biased) {
        let level = over_lanes::<N>(&mut shared, level);
        if unit < ACROSS && column < columns {
            of_bias.write(column, Vector::cast_from(level));
        }
    }
}

/// Columns by the number that a unit takes at once, and cubes for them.
pub(super) fn grid(columns: usize, size: usize) -> (usize, CubeCount) {
    let columns = columns / size;
    (columns, cubes(columns.div_ceil(ACROSS)))
}

/// Launches [`norm_sums`] on input, gradient and statistics.
pub(super) fn norm(size: usize, from: [&CubeTensor; 3], to: [&CubeTensor; 2], biased: bool) {
    let [rows, columns] = rows_and_columns(from[0]);
    let (columns, count) = grid(columns, size);
    let client = &from[0].client;
    let widths = [element(from[0].dtype), element(to[0].dtype)];
    let (dim, addresses) = (units(client), addresses(from));
    let ([input, gradient, kept], [weight, bias]) = (from.map(view), to.map(view));
    norm_sums::launch(
        client, count, dim, addresses, size, input, gradient, kept, weight, bias, rows, columns, biased, widths,
    );
}

/// The sum of all rows in the type of the matrix; none on cores.
pub(crate) fn column_sums(input: &Matrix) -> Option<Matrix> {
    let input = own(input)?;
    let [rows, width] = rows_and_columns(&input);
    let output = blank(&input, [1, width], input.dtype);
    let size = vector_size(&input).min(MOST_AT_ONCE);
    let (columns, count) = grid(width, size);
    let client = &input.client;
    let widths = [element(input.dtype); 2];
    sums::launch(
        client,
        count,
        units(client),
        addresses([&input]),
        size,
        view(&input),
        view(&output),
        rows,
        columns,
        widths,
    );
    Some(matrix(output))
}
