//! AdamW as one kernel of a device, which reads and writes every number once.
//!
//! ```text
//! gradients (f32, bf16 or f16) ─┐
//! parameters (f32) ─────────────┼─► one thread for each vector ─► parameters, moments, weights of 16 bits, all in place
//! moments (f32) ────────────────┘
//! ```

use super::{
    device_state::{DeviceMoments, DeviceParameter},
    kernel::Scalars,
};
use crate::nn::{
    Matrix,
    fused::{addresses, each, element, in_place, matrix, vector_size},
};
use burn::backend::Cube;
use burn_cubecl::{
    cubecl::{
        self, ir::ElemType, prelude::*, std::tensor::layout::linear::LinearView,
        std::tensor::layout::linear::LinearViewMut,
    },
    tensor::CubeTensor,
};

/// The scalars of one step.
#[derive(CubeType, CubeLaunch)]
struct Factors {
    factor: f32,
    keep: f32,
    first_weight: f32,
    second_decay: f32,
    second_weight: f32,
    second_root: f32,
    eps: f32,
    step: f32,
}

/// Parameters and both moments, in f32.
#[derive(CubeType, CubeLaunch)]
struct State<'a, N: Size> {
    parameters: LinearViewMut<'a, Vector<f32, N>>,
    firsts: LinearViewMut<'a, Vector<f32, N>>,
    seconds: LinearViewMut<'a, Vector<f32, N>>,
}

/// Updates one vector; returns its new parameters.
#[cube]
fn update<N: Size>(gradient: Vector<f32, N>, state: &mut State<'_, N>, factors: &Factors) -> Vector<f32, N> {
    let gradient = gradient * Vector::new(factors.factor);
    let first = state.firsts.read(ABSOLUTE_POS);
    let first = first + Vector::new(factors.first_weight) * (gradient - first);
    let second = state.seconds.read(ABSOLUTE_POS) * Vector::new(factors.second_decay);
    let second = second + Vector::new(factors.second_weight) * gradient * gradient;
    let denominator = Vector::sqrt(second) / Vector::new(factors.second_root) + Vector::new(factors.eps);
    let parameter = state.parameters.read(ABSOLUTE_POS) * Vector::new(factors.keep);
    let parameter = parameter + Vector::new(factors.step) * first / denominator;
    state.firsts.write(ABSOLUTE_POS, first);
    state.seconds.write(ABSOLUTE_POS, second);
    state.parameters.write(ABSOLUTE_POS, parameter);
    parameter
}

#[cube(launch, address_type = "dynamic")]
fn step_wide<G: Float, N: Size>(
    gradients: LinearView<'_, Vector<G, N>>,
    mut state: State<'_, N>,
    factors: Factors,
    #[define(G)] _width: ElemType,
) {
    if !gradients.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    update::<N>(Vector::cast_from(gradients.read(ABSOLUTE_POS)), &mut state, &factors);
}

#[cube(launch, address_type = "dynamic")]
fn step_narrow<G: Float, W: Float, N: Size>(
    gradients: LinearView<'_, Vector<G, N>>,
    mut state: State<'_, N>,
    mut weights: LinearViewMut<'_, Vector<W, N>>,
    factors: Factors,
    #[define(G, W)] _widths: [ElemType; 2],
) {
    if !gradients.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let parameter = update::<N>(Vector::cast_from(gradients.read(ABSOLUTE_POS)), &mut state, &factors);
    weights.write(ABSOLUTE_POS, Vector::cast_from(parameter));
}

/// One step in place; returns the arguments if the tensors belong to no device that runs such
/// kernels.
pub(super) fn step(
    scalars: Scalars,
    held: DeviceParameter,
    gradient: Matrix,
    moments: DeviceMoments,
) -> Result<(DeviceParameter, DeviceMoments), (DeviceParameter, Matrix, DeviceMoments)> {
    let Some(gradients) = of(&gradient) else { return Err((held, gradient, moments)) };
    drop(gradient);
    let DeviceMoments { first, second, steps } = moments;
    let state = [held.parameter, first, second].map(to_write);
    let weights = held.weights.map(to_write);
    launch(scalars, gradients, &state, weights.as_ref());
    let [parameter, first, second] = state.map(matrix);
    let held = DeviceParameter { parameter, weights: weights.map(matrix) };
    Ok((held, DeviceMoments { first, second, steps }))
}

fn launch(scalars: Scalars, gradients: CubeTensor, state: &[CubeTensor; 3], weights: Option<&CubeTensor>) {
    let client = gradients.client.clone();
    let all = || state.iter().chain(weights).chain([&gradients]);
    let width = all().map(vector_size).min().unwrap_or(1);
    let (count, dim) = each(&client, gradients.meta.num_elements() / width);
    let addresses = addresses(all());
    let Scalars { factor, keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
    let factors = FactorsLaunch::new(factor, keep, first_weight, second_decay, second_weight, second_root, eps, step);
    let of = element(gradients.dtype);
    let gradients = gradients.into_linear_view();
    match weights {
        None => step_wide::launch(&client, count, dim, addresses, width, gradients, views(state), factors, of),
        Some(weights) => {
            let widths = [of, element(weights.dtype)];
            let weights = weights.clone().into_linear_view();
            let state = views(state);
            step_narrow::launch(&client, count, dim, addresses, width, gradients, state, weights, factors, widths);
        }
    }
}

fn views<N: Size>(state: &[CubeTensor; 3]) -> StateLaunch<'static, N> {
    let [parameters, firsts, seconds] = state.each_ref().map(|tensor| tensor.clone().into_linear_view());
    StateLaunch::new(parameters, firsts, seconds)
}

/// The tensor of a device's library; none of another library.
fn of(matrix: &Matrix) -> Option<CubeTensor> {
    matrix.clone().try_into_primitive::<Cube>().ok()
}

/// The same tensor if nobody else reads it, otherwise a copy.
fn to_write(matrix: Matrix) -> CubeTensor {
    in_place(matrix.try_into_primitive::<Cube>().expect("all are on the device of the gradients"))
}
