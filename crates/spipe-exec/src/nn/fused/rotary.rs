//! Rotary position embedding.

use super::{addresses, all, blank, each, element, matrix, rows_and_columns, view};
use crate::nn::Matrix;
use burn_cubecl::cubecl::{
    self,
    ir::ElemType,
    prelude::*,
    std::tensor::layout::linear::{LinearView, LinearViewMut},
};

/// The rotation of heads: channels i and i + d/2 of each by an angle of their position.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    /// Cosines and sines, positions × d/2.
    pub tables: [Matrix; 2],
    /// Channels of a head, of which the first d rotate.
    pub width: usize,
}

#[cube(launch, address_type = "dynamic")]
fn turn<F: Float>(
    input: LinearView<'_, F>,
    cosines: LinearView<'_, f32>,
    sines: LinearView<'_, f32>,
    mut output: LinearViewMut<'_, F>,
    columns: usize,
    width: usize,
    positions: usize,
    half: usize,
    direction: f32,
    #[define(F)] _element: ElemType,
) {
    if !output.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let channel = ABSOLUTE_POS % columns % width;
    let mut value = f32::cast_from(input.read(ABSOLUTE_POS));
    if channel < 2 * half {
        let at = ABSOLUTE_POS / columns % positions * half + channel % half;
        let sine = direction * sines.read(at);
        let cosine = cosines.read(at);
        if channel < half {
            value = value * cosine - f32::cast_from(input.read(ABSOLUTE_POS + half)) * sine;
        } else {
            value = value * cosine + f32::cast_from(input.read(ABSOLUTE_POS - half)) * sine;
        }
    }
    output.write(ABSOLUTE_POS, F::cast_from(value));
}

/// The heads of all tokens, tokens × (heads · width), rotated in `direction` 1 or −1; none on cores.
pub(crate) fn turned(rotation: &Rotation, input: &Matrix, direction: f32) -> Option<Matrix> {
    let [cosines, sines] = &rotation.tables;
    let [input, cosines, sines] = all([input, cosines, sines])?;
    let ([rows, columns], [positions, half]) = (rows_and_columns(&input), rows_and_columns(&cosines));
    let output = blank(&input, [rows, columns], input.dtype);
    let client = &input.client;
    let (count, dim) = each(client, rows * columns);
    let [from, cosine, sine, to] = [&input, &cosines, &sines, &output].map(view);
    let (addresses, element) = (addresses([&input, &cosines]), element(input.dtype));
    let width = rotation.width;
    turn::launch(
        client, count, dim, addresses, from, cosine, sine, to, columns, width, positions, half, direction, element,
    );
    Some(matrix(output))
}
