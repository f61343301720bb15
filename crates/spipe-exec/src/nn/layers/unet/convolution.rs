//! Convolutions and group norms.

use super::{super::Convolution, Matrix, Parameter, PassContext, Rest, norm_parameters};
use burn::tensor::{Tensor, activation::silu};
use spipe_model::Convolution as Shape;

/// A convolution that may halve or double the image; the last one is preceded by a norm.
#[derive(Clone, Debug)]
pub(crate) struct ConvolutionUnit(Shape);

/// Added to the variance, as in diffusers' residual blocks and last norm.
pub(super) const EPSILON: f64 = 1e-5;
/// Height and width of a kernel.
const KERNEL: u64 = 3;

impl ConvolutionUnit {
    pub const fn new(shape: &Shape) -> Self {
        Self(*shape)
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let Shape { inputs, outputs, norm, .. } = self.0;
        let mut all = Vec::new();
        if norm {
            all.extend(norm_parameters("norm", inputs));
        }
        all.extend(convolution_parameters("convolution", inputs, outputs));
        all
    }

    pub fn forward(&self, parameters: &[Matrix], input: Matrix, pass: &PassContext) -> Matrix {
        let Shape { inputs, side_in, side_out, norm, groups, .. } = self.0;
        let mut rest = Rest(parameters);
        let mut images = Images::of(input, inputs, side_in);
        if norm {
            images = images.norm(groups, EPSILON, rest.pair()).map(silu);
        }
        if side_out > side_in {
            images = images.enlarged(side_out as usize);
        }
        let stride = if side_out < side_in { 2 } else { 1 };
        images.convolved(pass, rest.pair(), stride).into_rows()
    }
}

/// The weight and the bias of a convolution: a row for each output channel.
pub(super) fn convolution_parameters(name: &str, inputs: u64, outputs: u64) -> [Parameter; 2] {
    let taps = inputs * KERNEL * KERNEL;
    [
        Parameter::uniform(format!("{name}.weight"), [outputs, taps], taps),
        Parameter::uniform(format!("{name}.bias"), [1, outputs], taps),
    ]
}

/// Images × channels × rows × columns.
#[derive(Clone, Debug)]
pub(super) struct Images(pub Tensor<4>);

impl Images {
    /// Images from rows.
    pub fn of(rows: Matrix, channels: u64, side: u64) -> Self {
        let images = rows.dims()[0];
        Self(rows.reshape([images, channels as usize, side as usize, side as usize]))
    }

    /// A row for each image.
    pub fn into_rows(self) -> Matrix {
        let [images, channels, rows, columns] = self.0.dims();
        self.0.reshape([images, channels * rows * columns])
    }

    pub fn map(self, change: impl FnOnce(Tensor<4>) -> Tensor<4>) -> Self {
        Self(change(self.0))
    }

    /// Group norm (Wu, He 2018): mean and variance over the channels of a group, a weight and a
    /// bias for each channel.
    pub fn norm(self, groups: u64, epsilon: f64, parameters: &[Matrix]) -> Self {
        let shape = self.0.dims();
        let [images, channels, rows, columns] = shape;
        let groups = groups as usize;
        let input: Matrix = self.0.reshape([images * groups, channels / groups * rows * columns]);
        let centred = input.clone() - input.mean_dim(1);
        let spread = (centred.clone().square().mean_dim(1) + epsilon).sqrt();
        let by_channel = |parameter: &Matrix| parameter.clone().reshape([1, channels, 1, 1]);
        let normal = (centred / spread).reshape(shape);
        Self(normal * by_channel(&parameters[0]) + by_channel(&parameters[1]))
    }

    /// A convolution, and a bias for each output channel.
    pub fn convolved(self, pass: &PassContext, parameters: &[Matrix], stride: usize) -> Self {
        let [_, channels, side, _] = self.0.dims();
        let shape = Convolution { channels, side, kernel: KERNEL as usize, stride };
        let output = pass.convolve(shape, self.into_rows(), parameters[0].clone());
        let [_, outputs] = parameters[1].dims();
        let output = Self::of(output, outputs as u64, shape.side_out() as u64);
        output.map(|output| output + parameters[1].clone().reshape([1, outputs, 1, 1]))
    }

    /// Each pixel repeated twice in both directions, cut to `side`.
    fn enlarged(self, side: usize) -> Self {
        let [images, channels, rows, columns] = self.0.dims();
        let pixels: Tensor<6> = self.0.reshape([images, channels, rows, 1, columns, 1]);
        let pixels = pixels.expand([images, channels, rows, 2, columns, 2]);
        let larger: Tensor<4> = pixels.reshape([images, channels, 2 * rows, 2 * columns]);
        Self(larger.narrow(2, 0, side).narrow(3, 0, side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cores;
    use burn::tensor::TensorData;

    fn rows(numbers: &[f32], columns: usize) -> Matrix {
        Tensor::from_data(TensorData::new(numbers.to_vec(), [numbers.len() / columns, columns]), &cores())
    }

    fn numbers(matrix: Matrix) -> Vec<f32> {
        matrix.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn images_grow_by_whole_pixels() {
        let larger = Images::of(rows(&[1.0, 2.0, 3.0, 4.0], 4), 1, 2).enlarged(3);
        assert_eq!(numbers(larger.into_rows()), [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    }

    #[test]
    fn groups_are_normalised() {
        let parameters = [rows(&[2.0, 1.0], 2), rows(&[0.0, 0.5], 2)];
        let normal = Images::of(rows(&[1.0, 3.0, 1.0, 3.0, 5.0, 5.0, 9.0, 9.0], 8), 2, 2).norm(2, 0.0, &parameters);
        assert_eq!(numbers(normal.into_rows()), [-2.0, 2.0, -2.0, 2.0, -0.5, -0.5, 1.5, 1.5]);
    }

    #[test]
    fn a_kernel_sees_neighbours_and_nothing_beyond_the_edge() {
        let kernel = [rows(&[0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 9), rows(&[0.5], 1)];
        let pass = PassContext::tokens(vec![0], (1, 1), &cores());
        let convolved =
            |stride: usize| Images::of(rows(&[1.0, 2.0, 3.0, 4.0], 4), 1, 2).convolved(&pass, &kernel, stride);
        // The pixel above and the pixel to the left.
        assert_eq!(numbers(convolved(1).into_rows()), [0.5, 1.5, 1.5, 5.5]);
        assert_eq!(numbers(convolved(2).into_rows()), [0.5]);
    }
}
