//! What a model reads, on a device.

use super::{Matrix, Products, Tape};
use crate::data::{ImageBatch, Microbatch, hash, normals};
use crate::kernels;
use burn::tensor::{Device, Int, Tensor, TensorData};
use spipe_model::{Architecture, Condition, Model};
use std::sync::Arc;

/// How a model reads its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reading {
    /// Tokens, and for each the one that follows it.
    Tokens,
    /// Images with their classes, so many patches each.
    Classes { tokens: usize },
    /// Images to which noise is added, which is to be told from them.
    Noise(Condition),
}

impl Reading {
    /// What `model` reads.
    pub fn of(model: &Model) -> Self {
        match model.architecture() {
            Architecture::Vision(vision) => Self::Classes { tokens: vision.embedding.tokens() as usize },
            Architecture::Unet(unet) => Self::Noise(unet.condition),
            _ => Self::Tokens,
        }
    }
}

/// A microbatch on a device.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// Sequences or images, and tokens of each.
    pub batch: (usize, usize),
    given: Given,
    /// Where products with weights are written down, if the gradients of weights are computed later.
    products: Option<Products>,
    /// Where outputs of products are written down or read, if the graph is made again from them.
    tape: Option<Tape>,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each microbatch under way")]
enum Given {
    /// Token numbers, sequences × tokens, and those of the tokens that follow.
    Tokens { inputs: Tensor<2, Int>, targets: Targets },
    /// A row of numbers for each image, channel by channel; the classes.
    Classes { pixels: Matrix, classes: Targets },
    /// Images with noise, a row each; the sinusoids of their steps; the vectors of the text; the noise.
    Noise { noisy: Matrix, sinusoids: Matrix, text: Matrix, noise: Matrix },
}

/// What rows are to be classified as.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// On the device, in one column.
    pub column: Tensor<2, Int>,
    /// For kernels in host memory.
    pub numbers: Arc<[usize]>,
}

impl Targets {
    fn new(numbers: &[i32], device: &Device) -> Self {
        Self {
            column: integers(numbers.to_vec(), [numbers.len(), 1], device),
            numbers: numbers.iter().map(|number| number.cast_unsigned() as usize).collect(),
        }
    }
}

impl Feed {
    /// `batch` on `device`, as it is read.
    pub fn new(batch: &Microbatch, reading: &Reading, device: &Device) -> Self {
        match (batch, reading) {
            (Microbatch::Tokens(batch), _) => {
                let shape = [batch.sequences, batch.seq_len];
                let inputs = integers(batch.inputs.clone(), shape, device);
                let targets = Targets::new(&batch.targets, device);
                Self {
                    batch: (batch.sequences, batch.seq_len),
                    given: Given::Tokens { inputs, targets },
                    products: None,
                    tape: None,
                }
            }
            (Microbatch::Images(batch), Reading::Noise(condition)) => noise(batch, condition, device),
            (Microbatch::Images(batch), reading) => {
                let tokens = if let Reading::Classes { tokens } = reading { *tokens } else { 1 };
                let pixels = matrix(batch.pixels.clone(), batch.classes.len(), device);
                let classes = Targets::new(&batch.classes, device);
                Self {
                    batch: (batch.classes.len(), tokens),
                    given: Given::Classes { pixels, classes },
                    products: None,
                    tape: None,
                }
            }
        }
    }

    /// The same, with products written down in `products`.
    pub fn recorded(&self, products: Option<&Products>) -> Self {
        Self { products: products.cloned(), ..self.clone() }
    }

    /// The same, with outputs of products on `tape`.
    pub fn taped(&self, tape: &Tape) -> Self {
        Self { tape: Some(tape.clone()), ..self.clone() }
    }

    /// The product of an input with a weight.
    pub fn multiply(&self, input: Matrix, weight: Matrix) -> Matrix {
        let known = self.tape.as_ref().and_then(Tape::next);
        let output = match &self.products {
            Some(products) => products.multiply(input, weight, known),
            None => kernels::matmul_known(input, weight, known),
        };
        if let Some(tape) = &self.tape {
            tape.write(&output);
        }
        output
    }

    /// Token numbers, sequences × tokens.
    ///
    /// # Panics
    /// If the data is another, which is refused before a run; so for all below.
    pub fn inputs(&self) -> Tensor<2, Int> {
        match &self.given {
            Given::Tokens { inputs, .. } => inputs.clone(),
            _ => panic!("a model that reads tokens is given images"),
        }
    }

    /// What each row of the last layer is to be classified as.
    pub fn targets(&self) -> Targets {
        match &self.given {
            Given::Tokens { targets, .. } => targets.clone(),
            Given::Classes { classes: targets, .. } => targets.clone(),
            Given::Noise { .. } => panic!("noise has no classes"),
        }
    }

    /// The images, with noise where that is to be told from them: a row each.
    pub fn pixels(&self) -> Matrix {
        match &self.given {
            Given::Classes { pixels, .. } => pixels.clone(),
            Given::Noise { noisy, .. } => noisy.clone(),
            Given::Tokens { .. } => panic!("a model that reads images is given tokens"),
        }
    }

    /// Sinusoids of the steps, and the text, a row for each image.
    pub fn condition(&self) -> [Matrix; 2] {
        match &self.given {
            Given::Noise { sinusoids, text, .. } => [sinusoids.clone(), text.clone()],
            _ => panic!("a denoising network is given no noise"),
        }
    }

    /// The noise that was added.
    pub fn noise(&self) -> Matrix {
        match &self.given {
            Given::Noise { noise, .. } => noise.clone(),
            _ => panic!("a denoising network is given no noise"),
        }
    }
}

fn integers(numbers: Vec<i32>, shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

fn matrix(numbers: Vec<f32>, rows: usize, device: &Device) -> Matrix {
    let columns = numbers.len() / rows.max(1);
    Tensor::from_data(TensorData::new(numbers, [rows, columns]), device)
}

/// Steps of the diffusion, and the first and last variance of the noise: the scaled linear schedule of latent diffusion
/// (Rombach et al. 2022, appendix E; its published configuration files).
const STEPS: u64 = 1000;
const VARIANCES: (f64, f64) = (0.00085, 0.012);
/// The longest wave of the sinusoids (Vaswani et al. 2017, section 3.5).
const LONGEST: f64 = 10_000.0;

/// The share of an image's variance that is left after `step` (Ho et al. 2020, equation 4).
fn signal(step: u64) -> f64 {
    let (first, last) = (VARIANCES.0.sqrt(), VARIANCES.1.sqrt());
    let variance = |step: u64| (first + (last - first) * step as f64 / (STEPS - 1) as f64).powi(2);
    (0..=step).map(|step| 1.0 - variance(step)).product()
}

/// Images at random steps of the diffusion: x ← √ᾱ x + √(1 − ᾱ) ε (Ho et al. 2020, equation 4). The text is a vector for
/// each of its tokens that follows from the image's class.
fn noise(batch: &ImageBatch, condition: &Condition, device: &Device) -> Feed {
    let images = batch.classes.len();
    let each = batch.pixels.len() / images.max(1);
    let (mut noisy, mut added) = (Vec::with_capacity(images * each), Vec::with_capacity(images * each));
    let (mut sinusoids, mut text) = (Vec::new(), Vec::new());
    let half = condition.sinusoids as usize / 2;
    let words = condition.text_tokens * condition.text_width;
    for (image, (pixels, class)) in batch.pixels.chunks(each.max(1)).zip(&batch.classes).enumerate() {
        let key = hash(&[batch.key, image as u64]);
        let step = hash(&[key, 1]) % STEPS;
        let left = signal(step);
        for (pixel, number) in pixels.iter().zip(normals(key)) {
            noisy.push((left.sqrt() * f64::from(*pixel) + (1.0 - left).sqrt() * number) as f32);
            added.push(number as f32);
        }
        let angle = |wave: usize| step as f64 * LONGEST.powf(-(wave as f64) / half.max(1) as f64);
        sinusoids.extend((0..half).map(|wave| angle(wave).cos() as f32));
        sinusoids.extend((half..condition.sinusoids as usize).map(|wave| angle(wave - half).sin() as f32));
        let class = hash(&[u64::from(class.unsigned_abs()), 2]);
        text.extend(normals(class).take(words as usize).map(|number| number as f32));
    }
    let [noisy, noise, sinusoids, text] =
        [noisy, added, sinusoids, text].map(|numbers| matrix(numbers, images, device));
    Feed { batch: (images, 1), given: Given::Noise { noisy, sinusoids, text, noise }, products: None, tape: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_takes_over_step_by_step() {
        // The end of the schedule: Rombach et al.'s own products of the same variances.
        assert!((signal(0) - (1.0 - VARIANCES.0)).abs() < 1e-12);
        assert!((signal(STEPS - 1) - 0.00466).abs() < 1e-5, "{}", signal(STEPS - 1));
        assert!((1..STEPS).all(|step| signal(step) < signal(step - 1)));
    }
}
