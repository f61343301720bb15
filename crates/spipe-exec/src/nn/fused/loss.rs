//! Cross-entropy of logits, and its gradient.

use super::{UNITS, addresses, blank, cubes, element, matrix, own, rows_and_columns, softmax::statistics, units, view};
use crate::nn::Matrix;
use burn::{
    backend::Cube,
    tensor::{DType, Int, Tensor},
};
use burn_cubecl::{
    cubecl::{
        self,
        ir::{ElemType, IntKind},
        prelude::*,
        std::tensor::layout::linear::{LinearView, LinearViewMut},
    },
    kernel::into_contiguous,
    tensor::CubeTensor,
};

#[cube(launch, address_type = "dynamic")]
fn forward<F: Float, I: Numeric>(
    logits: LinearView<'_, F>,
    targets: LinearView<'_, I>,
    mut losses: LinearViewMut<'_, f32>,
    rows: usize,
    classes: usize,
    #[define(F)] _width: ElemType,
    #[define(I)] _index: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    let (best, sum) = statistics::<F>(&logits, row * classes, (0, classes), 1.0f32, &mut shared, false);
    if UNIT_POS == 0 {
        let target = f32::cast_from(logits.read(row * classes + usize::cast_from(targets.read(row))));
        losses.write(row, f32::ln(sum) + best - target);
    }
}

/// (softmax − 1 at the target) · gradient ÷ rows.
#[cube(launch, address_type = "dynamic")]
fn backward<F: Float, I: Numeric>(
    logits: LinearView<'_, F>,
    targets: LinearView<'_, I>,
    gradient: LinearView<'_, f32>,
    mut of_logits: LinearViewMut<'_, F>,
    rows: usize,
    classes: usize,
    #[define(F)] _width: ElemType,
    #[define(I)] _index: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * classes;
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    let (best, sum) = statistics::<F>(&logits, start, (0, classes), 1.0f32, &mut shared, false);
    let target = usize::cast_from(targets.read(row));
    let factor = gradient.read(0) / f32::cast_from(rows);
    let mut class = UNIT_POS as usize;
    while class < classes {
        let mut share = f32::exp(f32::cast_from(logits.read(start + class)) - best) / sum;
        if class == target {
            share -= 1.0f32;
        }
        of_logits.write(start + class, F::cast_from(share * factor));
        class += CUBE_DIM as usize;
    }
}

fn numbers(targets: &Tensor<2, Int>) -> Option<CubeTensor> {
    targets.clone().try_into_primitive::<Cube>().ok().map(into_contiguous)
}

fn index(targets: &CubeTensor) -> ElemType {
    ElemType::Int(match targets.dtype {
        DType::I64 => IntKind::I64,
        _ => IntKind::I32,
    })
}

/// The cross-entropy of each row in f32, rows × 1; none on cores.
pub(crate) fn losses(logits: &Matrix, targets: &Tensor<2, Int>) -> Option<Matrix> {
    let (logits, targets) = (own(logits)?, numbers(targets)?);
    let [rows, classes] = rows_and_columns(&logits);
    let found = blank(&logits, [rows, 1], DType::F32);
    let client = &logits.client;
    let [from, at, to] = [&logits, &targets, &found].map(view);
    let (dim, addresses) = (units(client), addresses([&logits]));
    forward::launch(
        client,
        cubes(rows),
        dim,
        addresses,
        from,
        at,
        to,
        rows,
        classes,
        element(logits.dtype),
        index(&targets),
    );
    Some(matrix(found))
}

/// The gradient of the logits in their type, from that of the mean of the losses; none on cores.
pub(crate) fn loss_gradient(logits: &Matrix, targets: &Tensor<2, Int>, gradient: &Matrix) -> Option<Matrix> {
    let (logits, targets, gradient) = (own(logits)?, numbers(targets)?, own(gradient)?);
    let [rows, classes] = rows_and_columns(&logits);
    let found = blank(&logits, [rows, classes], logits.dtype);
    let client = &logits.client;
    let [from, at, by, to] = [&logits, &targets, &gradient, &found].map(view);
    let (dim, addresses) = (units(client), addresses([&logits]));
    let (width, index) = (element(logits.dtype), index(&targets));
    backward::launch(client, cubes(rows), dim, addresses, from, at, by, to, rows, classes, width, index);
    Some(matrix(found))
}
