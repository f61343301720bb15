//! What a model reads, on a device.

use super::{Convolution, Linear, Matrix, Products, Recall, Tape, noise};
use crate::data::{ImageBatch, Microbatch};
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

    /// Whether a model that reads this may be computed in 16 bits: denoising networks are in f32.
    pub const fn may_be_narrow(&self) -> bool {
        !matches!(self, Self::Noise(_))
    }
}

/// A microbatch on a device.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// Sequences or images, and tokens of each.
    pub batch: (usize, usize),
    given: Given,
    /// Whether the last layer says what it has found, beside the loss.
    answers: bool,
    /// Keys and values of tokens that came before, if there may be any.
    recall: Option<Recall>,
    /// Where products with weights are written down, if the gradients of weights are computed later.
    products: Option<Products>,
    /// Where outputs of products are written down or read, if the graph is made again from them.
    tape: Option<Tape>,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each microbatch under way")]
enum Given {
    /// Token numbers, sequences × tokens, and those of the tokens that follow, if they are known.
    Tokens { inputs: Tensor<2, Int>, targets: Option<Targets> },
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
    pub fn new(numbers: &[i32], device: &Device) -> Self {
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
                let targets = Targets::new(&batch.targets, device);
                Self::text(batch.inputs.clone(), (batch.sequences, batch.seq_len), Some(targets), device)
            }
            (Microbatch::Images(batch), Reading::Noise(condition)) => {
                Self::noisy(&noise::at_random(batch), (batch, condition), device)
            }
            (Microbatch::Images(batch), reading) => {
                let tokens = if let Reading::Classes { tokens } = reading { *tokens } else { 1 };
                let pixels = matrix(batch.pixels.clone(), batch.classes.len(), device);
                let classes = Targets::new(&batch.classes, device);
                Self::given((batch.classes.len(), tokens), Given::Classes { pixels, classes })
            }
        }
    }

    const fn given(batch: (usize, usize), given: Given) -> Self {
        Self { batch, given, answers: false, recall: None, products: None, tape: None }
    }

    /// Tokens of that many sequences, so many of each, whatever follows them.
    pub fn tokens(inputs: Vec<i32>, batch: (usize, usize), device: &Device) -> Self {
        Self::text(inputs, batch, None, device)
    }

    fn text(inputs: Vec<i32>, batch: (usize, usize), targets: Option<Targets>, device: &Device) -> Self {
        let inputs = integers(inputs, [batch.0, batch.1], device);
        Self::given(batch, Given::Tokens { inputs, targets })
    }

    /// Images with noise, under the conditions that follow from `batch`.
    pub fn noisy(noise: &noise::Noisy, (batch, condition): (&ImageBatch, &Condition), device: &Device) -> Self {
        let images = batch.classes.len();
        let numbers = |numbers: &Vec<f32>| matrix(numbers.clone(), images, device);
        let given = Given::Noise {
            noisy: numbers(&noise.pixels),
            noise: numbers(&noise.noise),
            sinusoids: numbers(&noise::sinusoids(&noise.steps, condition)),
            text: numbers(&noise::text(batch, condition)),
        };
        Self::given((images, 1), given)
    }

    /// The same, where the last layer says what it has found.
    pub fn answered(self) -> Self {
        Self { answers: true, ..self }
    }

    /// Whether the last layer says what it has found.
    pub const fn answers(&self) -> bool {
        self.answers
    }

    /// The same, with keys and values of tokens before.
    pub fn recalling(self, recall: Option<Recall>) -> Self {
        Self { recall, ..self }
    }

    /// Keys and values of tokens before, if there may be any.
    pub const fn recall(&self) -> Option<&Recall> {
        self.recall.as_ref()
    }

    /// Tokens of each sequence that came before.
    pub fn past(&self) -> usize {
        self.recall.as_ref().map_or(0, |recall| recall.past)
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
        self.apply(Linear::Product, input, weight)
    }

    /// A convolution of images with a kernel.
    pub fn convolve(&self, shape: Convolution, input: Matrix, weight: Matrix) -> Matrix {
        self.apply(Linear::Convolution(shape), input, weight)
    }

    fn apply(&self, linear: Linear, input: Matrix, weight: Matrix) -> Matrix {
        let known = self.tape.as_ref().and_then(Tape::next);
        let output = match &self.products {
            Some(products) => products.multiply(linear, input, weight, known),
            None => linear.output(input, weight, known),
        };
        if let Some(tape) = &self.tape {
            tape.write(&output);
        }
        output
    }

    /// Rows of a weight by their numbers.
    pub fn look_up(&self, weight: Matrix, numbers: Tensor<1, Int>) -> Matrix {
        match &self.products {
            Some(products) => products.look_up(weight, numbers),
            None => weight.select(0, numbers),
        }
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

    /// What each row of the last layer is to be classified as, if that is known.
    pub fn targets(&self) -> Option<Targets> {
        match &self.given {
            Given::Tokens { targets, .. } => targets.clone(),
            Given::Classes { classes: targets, .. } => Some(targets.clone()),
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
