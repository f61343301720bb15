//! Sums of gradients, in place.

use super::{addresses, each, element, in_place, matrix, own, vector_size, view};
use crate::nn::Matrix;
use burn::backend::Cube;
use burn_cubecl::cubecl::{
    self,
    ir::ElemType,
    prelude::*,
    std::tensor::layout::linear::{LinearView, LinearViewMut},
};

#[cube(launch, address_type = "dynamic")]
fn add<F: Float, G: Float, N: Size>(
    mut sum: LinearViewMut<'_, Vector<F, N>>,
    more: LinearView<'_, Vector<G, N>>,
    #[define(F, G)] _widths: [ElemType; 2],
) {
    if !sum.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let found = Vector::<f32, N>::cast_from(sum.read(ABSOLUTE_POS)) + Vector::cast_from(more.read(ABSOLUTE_POS));
    sum.write(ABSOLUTE_POS, Vector::cast_from(found));
}

/// Adds `more` to `sum` in f32, rounded to the type of `sum`; the arguments if they belong to no GPU.
pub(crate) fn add_in_place(sum: Matrix, more: Matrix) -> Result<Matrix, (Matrix, Matrix)> {
    let Some(added) = own(&more) else { return Err((sum, more)) };
    let sum = in_place(sum.try_into_primitive::<Cube>().expect("both are on one device"));
    let client = &sum.client;
    let size = vector_size(&sum).min(vector_size(&added));
    let (count, dim) = each(client, sum.meta.num_elements() / size);
    let widths = [element(sum.dtype), element(added.dtype)];
    add::launch(client, count, dim, addresses([&sum, &added]), size, view(&sum), view(&added), widths);
    Ok(matrix(sum))
}
