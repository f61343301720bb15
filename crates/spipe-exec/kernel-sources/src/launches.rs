//! Every kernel, launched as `spipe-exec` launches it: storage types, vector sizes, addresses and
//! the choices that are made when a kernel is compiled.

use crate::{
    cubecl::client::Client,
    nn::{
        Matrix,
        fused::{
            Activated, Activation, Heads, Norm, Rotation, Softmax, activated, activated_gradients, add_in_place,
            column_sums, gated, gated_gradients, joined, loss_gradient, losses, norm_gradients, normed,
            score_gradients, shares, split, turned,
        },
    },
    optimizer,
    tensor::{CubeTensor, DType, Int, Tensor},
};

/// The types in which tensors are stored.
const WIDTHS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Sizes of tensors, each with its own vectors, gaps and addresses.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rows: usize,
    columns: usize,
    tokens: usize,
    width: usize,
}

/// Rows without gaps, in the largest vectors.
const EVEN: Sizes = Sizes { rows: 48, columns: 1024, tokens: 64, width: 128 };
/// Rows with gaps, number by number.
const ODD: Sizes = Sizes { rows: 5, columns: 75, tokens: 7, width: 7 };
/// More than 2³² numbers, which takes addresses of 64 bits.
const LARGE: Sizes = Sizes { rows: 1 << 19, columns: 1 << 14, tokens: 1 << 20, width: 1 << 12 };

/// Launches of tensors of one type and one size.
struct Launches<'a> {
    client: &'a Client,
    width: DType,
    sizes: Sizes,
}

/// Launches every kernel.
pub fn launch_all(client: &Client) {
    for width in WIDTHS {
        for sizes in [EVEN, ODD, LARGE] {
            let launches = Launches { client, width, sizes };
            launches.activations();
            launches.attention();
            launches.losses();
            launches.norms();
            launches.sums();
            launches.optimizer();
        }
    }
}

/// A tensor without numbers.
fn tensor<const D: usize, K>(client: &Client, shape: [usize; D], width: DType) -> Tensor<D, K> {
    Tensor::from_primitive::<crate::backend::Cube>(CubeTensor::contiguous(client, &shape.into(), width))
}

/// Whether a kernel was launched.
fn launched<T>(found: Option<T>) {
    assert!(found.is_some(), "the tensors are on a GPU");
}

impl Launches<'_> {
    /// A matrix without numbers.
    fn matrix(&self, shape: [usize; 2], width: DType) -> Matrix {
        tensor(self.client, shape, width)
    }

    /// Activations, with the input itself and a row.
    fn rows(&self) -> (Matrix, Matrix) {
        let Sizes { rows, columns, .. } = self.sizes;
        (self.matrix([rows, columns], self.width), self.matrix([1, columns], self.width))
    }

    fn activations(&self) {
        let (input, row) = self.rows();
        for function in [Activation::Identity, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            for bias in [None, Some(&row)] {
                let of = Activated { function, input: &input, bias };
                launched(activated(of));
                launched(activated_gradients(of, &input));
            }
        }
        launched(gated(Activation::Silu, [&input; 2]));
        launched(gated_gradients(Activation::Silu, [&input; 3]));
    }

    fn attention(&self) {
        let (client, Sizes { tokens, width, .. }) = (self.client, self.sizes);
        let half = width / 2;
        let tables = [(); 2].map(|()| self.matrix([tokens, half], DType::F32));
        let rows = self.matrix([tokens, 2 * width], self.width);
        for direction in [1.0, -1.0] {
            launched(turned(&Rotation { tables: tables.clone(), width }, &rows, direction));
        }
        let heads = Heads { sequences: 1, count: 4, share: 2, tokens, width, scale: 0.5 };
        launched(split(heads, &rows));
        launched(joined(heads, &tensor(client, [1, 4, tokens, width], self.width)));
        let scores = tensor(client, [1, 4, tokens, tokens], self.width);
        for cap in [None, Some(30.0)] {
            for causal in [false, true] {
                let how = Softmax { cap, queries: tokens, first_query: 0, window: tokens, causal };
                launched(shares(how, &scores));
                launched(score_gradients(how, [&scores; 2]));
            }
        }
    }

    fn losses(&self) {
        let (logits, _) = self.rows();
        let gradient = self.matrix([1, 1], DType::F32);
        for index in [DType::I32, DType::I64] {
            let targets: Tensor<2, Int> = tensor(self.client, [self.sizes.rows, 1], index);
            launched(losses(&logits, &targets));
            launched(loss_gradient(&logits, &targets, &gradient));
        }
    }

    fn norms(&self) {
        let (input, row) = self.rows();
        for centres in [false, true] {
            let norm = Norm { centres, epsilon: 1e-5 };
            for bias in [None, Some(&row)] {
                launched(normed(norm, [&input, &row], bias));
                launched(norm_gradients(norm, [&input, &row, &input], bias.map(|_| self.width)));
            }
        }
    }

    /// Sums of rows, and of gradients in their type or in f32.
    fn sums(&self) {
        let Sizes { rows, columns, .. } = self.sizes;
        launched(column_sums(&self.rows().0));
        for wide in [self.width, DType::F32] {
            let [sum, more] = [wide, self.width].map(|width| self.matrix([rows, columns], width));
            assert!(add_in_place(sum, more).is_ok(), "the tensors are on a GPU");
        }
    }

    /// Steps on gradients of the type, with weights of every type.
    fn optimizer(&self) {
        let Sizes { rows, columns, .. } = self.sizes;
        for weights in [None, Some(DType::BF16), Some(DType::F16)] {
            let held = [(); 3].map(|()| self.matrix([rows, columns], DType::F32));
            let weights = weights.map(|width| self.matrix([rows, columns], width));
            optimizer::step(held, self.matrix([rows, columns], self.width), weights);
        }
    }
}
