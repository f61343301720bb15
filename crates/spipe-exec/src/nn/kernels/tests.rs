//! Each kernel against Burn's operations: values and gradients within 2·10⁻⁵ of the largest.

use super::*;
use crate::{device::cores, nn::Matrix};
use burn::tensor::{
    Device, Tensor, TensorData,
    activation::{log_softmax, silu, softmax},
};
use std::sync::Arc;

fn filled(device: &Device, shape: [usize; 2], seed: usize) -> Matrix {
    let number = |index: usize| ((index * 7919 + seed * 104_729) % 1009) as f32 / 500.0 - 1.0;
    let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(number).collect();
    Tensor::<2>::from_data(TensorData::new(numbers, shape), device).autodiff().require_grad()
}

fn numbers(matrix: Matrix) -> Vec<f32> {
    matrix.into_data().try_to_vec().unwrap()
}

fn near(found: Matrix, expected: Matrix, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let (found, expected) = (numbers(found), numbers(expected));
    let largest = expected.iter().fold(1e-3f32, |largest, number| largest.max(number.abs()));
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= 2e-5 * largest, "{what}, {index}: {found} {expected}");
    }
}

/// Value and all gradients of both.
fn compare<const N: usize>(
    shapes: [[usize; 2]; N],
    ours: impl Fn([&Matrix; N]) -> Option<Matrix>,
    theirs: impl Fn([Matrix; N]) -> Matrix,
) {
    let device = cores();
    let mut seeds = 1..;
    let inputs = shapes.map(|shape| filled(&device, shape, seeds.next().unwrap()));
    let ours = ours(inputs.each_ref()).expect("this processor has the kernels");
    let theirs = theirs(inputs.clone());
    near(ours.clone().inner(), theirs.clone().inner(), "value");
    let weights = filled(&device, ours.dims(), 99).inner().autodiff();
    let mut found = (ours * weights.clone()).sum().backward();
    let mut expected = (theirs * weights).sum().backward();
    for (index, input) in inputs.iter().enumerate() {
        let what = format!("gradient {index}");
        near(input.grad_remove(&mut found).unwrap(), input.grad_remove(&mut expected).unwrap(), &what);
    }
}

#[test]
fn products() {
    compare([[37, 70], [70, 130]], |[a, b]| Some(matmul(a.clone(), b.clone())), |[a, b]| a.matmul(b));
    compare(
        [[70, 37], [70, 130]],
        |[a, b]| Some(weight_gradient(a.clone(), b.clone())),
        |[a, b]| a.transpose().matmul(b),
    );
    compare(
        [[37, 70], [130, 70]],
        |[a, b]| Some(matmul_transposed(a.clone(), b.clone())),
        |[a, b]| a.matmul(b.transpose()),
    );
}

#[test]
fn the_late_gradients_of_a_product_are_the_early_ones() {
    let device = cores();
    let [left, right] = [filled(&device, [37, 70], 1), filled(&device, [70, 130], 2)];
    let gradient = filled(&device, [37, 130], 3).inner();
    let product = matmul(left.clone(), right.clone());
    let mut found = (product * gradient.clone().autodiff()).sum().backward();
    let early = right.grad_remove(&mut found).unwrap();
    assert_eq!(numbers(weight_gradient(left.clone().inner(), gradient.clone())), numbers(early));
    let early = left.grad_remove(&mut found).unwrap();
    assert_eq!(numbers(matmul_transposed(gradient, right.inner())), numbers(early));
}

#[test]
fn activations() {
    compare([[37, 70], [37, 70]], |inputs| apply(Swiglu, inputs), |[gate, up]| silu(gate) * up);
    // Burn's own derivative is that of the approximation by a hyperbolic tangent.
    let exact = |input: Matrix| input.clone() * ((input / std::f32::consts::SQRT_2).erf() + 1.0) * 0.5;
    compare([[37, 70]], |inputs| apply(Gelu::Exact, inputs), |[input]| exact(input));
    let tanh = |input: Matrix| {
        let inner = (input.clone() + input.clone().powi_scalar(3) * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
        input * (inner.tanh() + 1.0) * 0.5
    };
    compare([[37, 70]], |inputs| apply(Gelu::Tanh, inputs), |[input]| tanh(input));
}

#[test]
fn rows_behind_others() {
    compare(
        [[6, 5], [4, 5]],
        |inputs| apply(Join { sequences: 2 }, inputs),
        |[before, now]| {
            let parts = [before.clone().narrow(0, 0, 3), now.clone().narrow(0, 0, 2)];
            let more = [before.narrow(0, 3, 3), now.narrow(0, 2, 2)];
            Tensor::cat(parts.into_iter().chain(more).collect(), 0)
        },
    );
}

#[test]
fn products_of_few_rows() {
    for rows in [1, 3, 8] {
        compare([[rows, 70], [70, 130]], |[a, b]| Some(matmul(a.clone(), b.clone())), |[a, b]| a.matmul(b));
        compare(
            [[rows, 70], [130, 70]],
            |[a, b]| Some(matmul_transposed(a.clone(), b.clone())),
            |[a, b]| a.matmul(b.transpose()),
        );
    }
}

#[test]
fn norms() {
    let spread = |input: Matrix| (input.square().mean_dim(1) + 1e-5).sqrt();
    compare(
        [[37, 70], [1, 70]],
        |inputs| apply(RmsNorm { epsilon: 1e-5 }, inputs),
        |[input, weight]| input.clone() / spread(input) * weight,
    );
    compare(
        [[37, 70], [1, 70], [1, 70]],
        |inputs| apply(LayerNorm { epsilon: 1e-5 }, inputs),
        |[input, weight, bias]| {
            let centred = input.clone() - input.mean_dim(1);
            centred.clone() / spread(centred) * weight + bias
        },
    );
}

#[test]
fn losses() {
    let targets: Vec<i32> = (0..37).map(|row| row * 31 % 70).collect();
    let kernel = CrossEntropy { targets: targets.iter().map(|target| *target as usize).collect() };
    compare(
        [[37, 70]],
        |inputs| apply(kernel.clone(), inputs),
        |[logits]| {
            let device = logits.device();
            let column = Tensor::<2, burn::tensor::Int>::from_data(TensorData::new(targets.clone(), [37, 1]), &device);
            log_softmax(logits, 1).gather(1, column).mean().neg().reshape([1, 1])
        },
    );
}

/// Rotation of all pairs as a matrix, then scores and mix by definition, for one head of one
/// sequence.
#[test]
fn attention_of_one_head() {
    let (tokens, width) = (19, 8);
    let angle = |position: usize, channel: usize| position as f32 * 0.3 / (channel + 1) as f32;
    let table = |of: fn(f32) -> f32| -> Arc<[f32]> {
        (0..tokens).flat_map(|position| (0..width / 2).map(move |channel| of(angle(position, channel)))).collect()
    };
    for causal in [false, true] {
        let kernel = Attention {
            batch: (1, tokens),
            keys: tokens,
            heads: 1,
            key_heads: 1,
            width,
            angles: Some(Angles { cosines: table(f32::cos), sines: table(f32::sin), turned: width }),
            sees: (0..tokens)
                .map(|query| if causal { (query.saturating_sub(4), query + 1) } else { (0, tokens) })
                .collect(),
        };
        let turned = |heads: Matrix| {
            let constant = |numbers: Vec<f32>| {
                let data = TensorData::new(numbers, [tokens, width / 2]);
                Tensor::<2>::from_data(data, &heads.device().without_autodiff()).autodiff()
            };
            let (cosines, sines) = (constant(table(f32::cos).to_vec()), constant(table(f32::sin).to_vec()));
            let (x, y) = (heads.clone().narrow(1, 0, width / 2), heads.narrow(1, width / 2, width / 2));
            let first = x.clone() * cosines.clone() - y.clone() * sines.clone();
            Tensor::cat(vec![first, y * cosines + x * sines], 1)
        };
        let sees = kernel.sees.clone();
        compare(
            [[tokens, width]; 3],
            |inputs| apply(kernel.clone(), inputs),
            |[queries, keys, values]| {
                let device = queries.device().without_autodiff();
                let places = (0..tokens * tokens).map(|place| (sees[place / tokens], place % tokens));
                let mask = places.map(|((first, end), key)| if (first..end).contains(&key) { 0.0f32 } else { -1e9 });
                let mask = Tensor::<2>::from_data(TensorData::new(mask.collect::<Vec<_>>(), [tokens, tokens]), &device);
                let scores = turned(queries).matmul(turned(keys).transpose()) / (width as f32).sqrt();
                softmax(scores + mask.autodiff(), 1).matmul(values)
            },
        );
    }
}

#[test]
fn threads_change_nothing() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let device = cores();
            let (input, weight) = (filled(&device, [200, 96], 1), filled(&device, [96, 96], 2));
            let norm = filled(&device, [1, 96], 3);
            let scaled = apply(RmsNorm { epsilon: 1e-5 }, [&input, &norm]).unwrap();
            let inner = matmul(scaled, weight.clone());
            let outer = apply(Swiglu, [&inner, &inner]).unwrap();
            let mut found = outer.clone().sum().backward();
            [outer.inner(), weight.grad_remove(&mut found).unwrap(), norm.grad_remove(&mut found).unwrap()].map(numbers)
        })
    };
    assert!(run(1) == run(3));
}
