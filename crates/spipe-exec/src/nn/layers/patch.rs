//! The first layer of an image encoder.

use super::{Matrix, Parameter, PassContext, SavedNumbers, cast, float, norm::NormUnit};
use burn::tensor::Tensor;
use spipe_model::PatchEmbedding;

/// Patches, each projected to a vector, behind a class token (Dosovitskiy et al. 2020, equation 1).
#[derive(Clone, Debug)]
pub(crate) struct PatchUnit {
    shape: PatchEmbedding,
    norm: Option<NormUnit>,
}

/// The weight that projects patches.
const PROJECTION: &str = "projection.weight";

impl PatchUnit {
    pub fn new(shape: &PatchEmbedding) -> Self {
        let norm = shape.norm.map(|(norm, epsilon)| NormUnit::new(norm, epsilon, shape.hidden));
        Self { shape: *shape, norm }
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let hidden = self.shape.hidden;
        let mut all = vec![
            Parameter::weight("class.weight", 1, hidden),
            Parameter::weight("position.weight", self.shape.tokens(), hidden),
            Parameter::weight(PROJECTION, self.shape.patch_width(), hidden),
        ];
        all.extend(self.shape.bias.then(|| Parameter::bias("projection.bias", hidden)));
        all.extend(self.norm.iter().flat_map(|norm| norm.parameters(["norm.weight", "norm.bias"])));
        all
    }

    /// Whether a parameter is a weight of a product.
    pub fn multiplies(parameter: &Parameter) -> bool {
        parameter.name == PROJECTION
    }

    pub fn forward(&self, parameters: &[Matrix], pass: &PassContext) -> Matrix {
        let PatchEmbedding { hidden, bias, .. } = self.shape;
        let (images, tokens) = pass.batch;
        let hidden = hidden as usize;
        let pixels = cast(pass.pixels(), float(parameters[2].dtype()));
        let mut vectors = pass.multiply(self.patches(pixels, images), parameters[2].clone());
        if bias {
            vectors = vectors + parameters[3].clone();
        }
        let vectors: Tensor<3> = vectors.reshape([images, tokens - 1, hidden]);
        let class: Tensor<3> = parameters[0].clone().reshape([1, 1, hidden]).expand([images, 1, hidden]);
        let positions: Tensor<3> = parameters[1].clone().reshape([1, tokens, hidden]);
        let output = (Tensor::cat(vec![class, vectors], 1) + positions).reshape([images * tokens, hidden]);
        match &self.norm {
            Some(norm) => norm.forward(&parameters[3 + usize::from(bias)..], output),
            None => output,
        }
    }

    /// A row for each patch: channel by channel, row by row.
    fn patches(&self, pixels: Matrix, images: usize) -> Matrix {
        let [image, patch, channels] =
            [self.shape.image, self.shape.patch, self.shape.channels].map(|size| size as usize);
        let side = image / patch;
        let patches: Tensor<6> = pixels.reshape([images, channels, side, patch, side, patch]);
        patches.permute([0, 2, 4, 1, 3, 5]).reshape([images * side * side, channels * patch * patch])
    }

    /// Numbers that its graph keeps: the patches, and the input of the norm.
    pub fn saved(&self, images: u64) -> SavedNumbers {
        let tokens = self.shape.tokens();
        let normed = if self.norm.is_some() { tokens * self.shape.hidden } else { 0 };
        SavedNumbers { own: images * ((tokens - 1) * self.shape.patch_width() + normed), wide: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cores;
    use burn::tensor::TensorData;

    #[test]
    fn patches_are_cut_row_by_row() {
        let shape = PatchEmbedding {
            image: 4,
            patch: 2,
            channels: 2,
            hidden: 4,
            bias: true,
            class_token: true,
            mask_token: false,
            norm: None,
        };
        let pixels: Vec<f32> = (0..32).map(|pixel| pixel as f32).collect();
        let pixels = Tensor::from_data(TensorData::new(pixels, [1, 32]), &cores());
        let patches = PatchUnit::new(&shape).patches(pixels, 1);
        assert_eq!(patches.dims(), [4, 8]);
        let numbers: Vec<f32> = patches.into_data().try_to_vec().unwrap();
        assert_eq!(numbers[..8], [0.0, 1.0, 4.0, 5.0, 16.0, 17.0, 20.0, 21.0]);
        assert_eq!(numbers[8..16], [2.0, 3.0, 6.0, 7.0, 18.0, 19.0, 22.0, 23.0]);
        assert_eq!(numbers[16..20], [8.0, 9.0, 12.0, 13.0]);
    }
}
