//! Functions that are linear in both an input and a weight.

use super::super::Matrix;
use crate::nn::kernels;
use burn::{
    backend::{Backend, DispatchKindConversion, DispatchTensor},
    tensor::{
        Shape, Tensor,
        module::{conv2d, conv2d_weight_backward},
        ops::ConvOptions,
    },
};

/// A bilinear function of input and weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linear {
    /// input · weight.
    Product,
    /// A convolution; the weight has a row for each output channel.
    Convolution(Convolution),
}

/// A convolution of images, a row of numbers each, channel by channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convolution {
    pub channels: usize,
    /// Height and width of an image.
    pub side: usize,
    /// Height and width of the kernel, which is centred on its pixel.
    pub kernel: usize,
    pub stride: usize,
}

impl Convolution {
    /// Height and width of an output.
    pub const fn side_out(self) -> usize {
        (self.side - 1) / self.stride + 1
    }

    fn options(self) -> ConvOptions<2> {
        ConvOptions::new([self.stride; 2], [self.kernel / 2; 2], [1, 1], 1)
    }

    /// Images × channels × rows × columns.
    const fn inputs(self, images: usize) -> [usize; 4] {
        [images, self.channels, self.side, self.side]
    }

    const fn outputs(self, images: usize, channels: usize) -> [usize; 4] {
        [images, channels, self.side_out(), self.side_out()]
    }

    const fn weights(self, channels_out: usize) -> [usize; 4] {
        [channels_out, self.channels, self.kernel, self.kernel]
    }
}

impl Linear {
    /// The output, with its step in the graph if the matrices are tracked. If this crate's kernel
    /// applies, `known` is used as its value.
    pub fn output(self, input: Matrix, weight: Matrix, known: Option<Matrix>) -> Matrix {
        match self {
            Self::Product => kernels::matmul_known(input, weight, known),
            Self::Convolution(shape) => {
                let ([images, _], [channels, _]) = (input.dims(), weight.dims());
                let weight: Tensor<4> = weight.reshape(shape.weights(channels));
                rows(conv2d(input.reshape(shape.inputs(images)), weight, None, shape.options()))
            }
        }
    }

    /// The gradient of the input, bit for bit that of the backward of [`Self::output`].
    pub fn input_gradient<B: Backend>(self, weight: Matrix, gradient: Matrix) -> Matrix
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let shape = match self {
            Self::Product => return kernels::matmul_transposed(gradient, weight),
            Self::Convolution(shape) => shape,
        };
        let ([images, _], [channels, _]) = (gradient.dims(), weight.dims());
        let input = like(shape.inputs(images), &gradient);
        let weight: Tensor<4> = weight.reshape(shape.weights(channels));
        let gradient: Tensor<4> = gradient.reshape(shape.outputs(images, channels));
        let primitive =
            |tensor: Tensor<4>| tensor.try_into_primitive::<B>().expect("all are on the device of the product");
        let found = B::conv2d_x_backward(primitive(input), primitive(weight), primitive(gradient), shape.options());
        rows(Tensor::from_primitive::<B>(found))
    }

    /// The gradient of the weight, bit for bit that of the backward of [`Self::output`].
    pub fn weight_gradient(self, input: Matrix, gradient: Matrix) -> Matrix {
        let shape = match self {
            Self::Product => return kernels::weight_gradient(input, gradient),
            Self::Convolution(shape) => shape,
        };
        let [images, numbers] = gradient.dims();
        let channels = numbers / shape.side_out().pow(2);
        let weight = like(shape.weights(channels), &gradient);
        let gradient: Tensor<4> = gradient.reshape(shape.outputs(images, channels));
        let found = conv2d_weight_backward(input.reshape(shape.inputs(images)), weight, gradient, shape.options());
        found.reshape([channels, shape.weights(channels)[1..].iter().product()])
    }
}

/// A row for each image.
fn rows(images: Tensor<4>) -> Matrix {
    let [count, channels, rows, columns] = images.dims();
    images.reshape([count, channels * rows * columns])
}

/// A tensor that stands for one of that shape, with next to no memory.
fn like(shape: [usize; 4], other: &Matrix) -> Tensor<4> {
    Tensor::<4>::zeros([1; 4], (&other.device(), other.dtype())).expand(Shape::new(shape))
}
