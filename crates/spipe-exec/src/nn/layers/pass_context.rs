//! The context of a pass: its microbatch on a device, and the recorders of its products.

use super::{ActivationRecord, Convolution, KvCache, Linear, Matrix, Products, adapters::Bound, noise, product};
use crate::data::{ImageBatch, Microbatch};
use burn::tensor::{Device, Int, Tensor, TensorData};
use spipe_model::{Architecture, Condition, Matrix as MatrixPlace, Model};
use std::sync::Arc;

/// The kind of data that a model reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reading {
    /// Tokens, and for each the token that follows.
    Tokens,
    /// Images with their classes, of `tokens` patches each.
    Classes { tokens: usize },
    /// Images with noise, which is to be predicted.
    Noise(Condition),
}

impl Reading {
    /// The kind of data that `model` reads.
    pub fn of(model: &Model) -> Self {
        match model.architecture() {
            Architecture::Vision(vision) => Self::Classes { tokens: vision.embedding.tokens() as usize },
            Architecture::Unet(unet) => Self::Noise(unet.condition),
            _ => Self::Tokens,
        }
    }

    /// Whether 16-bit computation is possible: denoising networks need f32.
    pub const fn supports_half(&self) -> bool {
        !matches!(self, Self::Noise(_))
    }
}

/// A microbatch on a device, with the recorders of a pass.
#[derive(Clone, Debug)]
pub(crate) struct PassContext {
    /// Sequences or images, and tokens of each.
    pub batch: (usize, usize),
    data: PassData,
    /// Whether the last layer returns an answer beside the loss.
    answers: bool,
    /// Keys and values of earlier tokens, if there may be any.
    cache: Option<KvCache>,
    /// The adapters of the layer in computation.
    adapters: Option<Bound>,
    /// The recorder of products, if weight gradients are deferred.
    products: Option<Products>,
    /// The recorder of outputs of products, if the graph is rebuilt from them.
    record: Option<ActivationRecord>,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each microbatch under way")]
enum PassData {
    /// Token numbers, sequences × tokens, and those of the following tokens, if known.
    Tokens { inputs: Tensor<2, Int>, targets: Option<Targets> },
    /// A row of numbers for each image, channel by channel; the classes.
    Classes { pixels: Matrix, classes: Targets },
    /// Images with noise, a row each; sinusoids of their diffusion steps; vectors of the text; the
    /// noise.
    Noise { noisy: Matrix, sinusoids: Matrix, text: Matrix, noise: Matrix },
}

/// The target classes of rows.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// On the device, in one column.
    pub column: Tensor<2, Int>,
    /// In host memory, for kernels.
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

impl PassContext {
    /// The context of `batch` on `device`.
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
                Self::data((batch.classes.len(), tokens), PassData::Classes { pixels, classes })
            }
        }
    }

    const fn data(batch: (usize, usize), data: PassData) -> Self {
        Self { batch, data, answers: false, cache: None, adapters: None, products: None, record: None }
    }

    /// Tokens of `batch.0` sequences, `batch.1` of each, whose followers are unknown.
    pub fn tokens(inputs: Vec<i32>, batch: (usize, usize), device: &Device) -> Self {
        Self::text(inputs, batch, None, device)
    }

    fn text(inputs: Vec<i32>, batch: (usize, usize), targets: Option<Targets>, device: &Device) -> Self {
        let inputs = integers(inputs, [batch.0, batch.1], device);
        Self::data(batch, PassData::Tokens { inputs, targets })
    }

    /// Images with noise, with conditions derived from `batch`.
    pub fn noisy(noise: &noise::Noisy, (batch, condition): (&ImageBatch, &Condition), device: &Device) -> Self {
        let images = batch.classes.len();
        let numbers = |numbers: &Vec<f32>| matrix(numbers.clone(), images, device);
        let data = PassData::Noise {
            noisy: numbers(&noise.pixels),
            noise: numbers(&noise.noise),
            sinusoids: numbers(&noise::sinusoids(&noise.steps, condition)),
            text: numbers(&noise::text(batch, condition)),
        };
        Self::data((images, 1), data)
    }

    /// The same context with an answer of the last layer.
    pub fn answered(self) -> Self {
        Self { answers: true, ..self }
    }

    /// Whether the last layer returns an answer.
    pub const fn answers(&self) -> bool {
        self.answers
    }

    /// The same context with keys and values of earlier tokens.
    pub fn with_cache(self, cache: Option<KvCache>) -> Self {
        Self { cache, ..self }
    }

    /// Keys and values of earlier tokens, if there may be any.
    pub const fn cache(&self) -> Option<&KvCache> {
        self.cache.as_ref()
    }

    /// Number of earlier tokens of each sequence.
    pub fn past(&self) -> usize {
        self.cache.as_ref().map_or(0, |cache| cache.past)
    }

    /// The same context with the adapters of a layer.
    pub fn with_adapters(&self, adapters: Option<Bound>) -> Self {
        Self { adapters, ..self.clone() }
    }

    /// The same context with a recorder of products.
    pub fn with_products(&self, products: Option<&Products>) -> Self {
        Self { products: products.cloned(), ..self.clone() }
    }

    /// The same context with a recorder of outputs of products.
    pub fn with_record(&self, record: &ActivationRecord) -> Self {
        Self { record: Some(record.clone()), ..self.clone() }
    }

    /// The product of an input with a weight.
    pub fn multiply(&self, input: Matrix, weight: Matrix) -> Matrix {
        self.apply(Linear::Product, input, weight)
    }

    /// The outputs of the matrices `places`, which all read `input`, with those of their adapters; or
    /// with the parts of the one adapter of `whole`, which holds them all.
    pub fn adapted<const N: usize>(
        &self,
        input: &Matrix,
        (places, whole): ([MatrixPlace; N], Option<MatrixPlace>),
        outputs: [Matrix; N],
    ) -> [Matrix; N] {
        if self.adapters.is_none() {
            return outputs;
        }
        if let Some(added) = whole.and_then(|whole| self.low_rank(whole, input)) {
            let mut start = 0;
            return outputs.map(|output| {
                let width = output.dims()[1];
                start += width;
                output + added.clone().narrow(1, start - width, width)
            });
        }
        let mut places = places.into_iter();
        outputs.map(|output| match places.next().and_then(|place| self.low_rank(place, input)) {
            Some(added) => output + added,
            None => output,
        })
    }

    /// The output of a place's adapter, if there is one.
    fn low_rank(&self, place: MatrixPlace, input: &Matrix) -> Option<Matrix> {
        let ([first, second], scale) = self.adapters.as_ref()?.at(place)?;
        let inner = self.multiply(input.clone(), first);
        Some(self.multiply(inner, second).mul_scalar(scale))
    }

    /// A convolution of images with a kernel.
    pub fn convolve(&self, shape: Convolution, input: Matrix, weight: Matrix) -> Matrix {
        self.apply(Linear::Convolution(shape), input, weight)
    }

    fn apply(&self, linear: Linear, input: Matrix, weight: Matrix) -> Matrix {
        let known = self.record.as_ref().and_then(ActivationRecord::next);
        let output = match &self.products {
            Some(products) => products.multiply(linear, input, weight, known),
            None if weight.is_require_grad() => linear.output(input, weight, known),
            None => product::frozen(linear, input, weight, known),
        };
        if let Some(record) = &self.record {
            record.write(&output);
        }
        output
    }

    /// Rows of a weight by their indices.
    pub fn look_up(&self, weight: Matrix, numbers: Tensor<1, Int>) -> Matrix {
        match &self.products {
            Some(products) => products.look_up(weight, numbers),
            None => weight.select(0, numbers),
        }
    }

    /// Token numbers, sequences × tokens.
    ///
    /// # Panics
    /// If the data is of another kind, which is refused before a run; likewise the functions below.
    pub fn inputs(&self) -> Tensor<2, Int> {
        match &self.data {
            PassData::Tokens { inputs, .. } => inputs.clone(),
            _ => panic!("a model that reads tokens is given images"),
        }
    }

    /// The target class of each row of the last layer, if known.
    pub fn targets(&self) -> Option<Targets> {
        match &self.data {
            PassData::Tokens { targets, .. } => targets.clone(),
            PassData::Classes { classes: targets, .. } => Some(targets.clone()),
            PassData::Noise { .. } => panic!("noise has no classes"),
        }
    }

    /// The images, a row each; with noise if that is to be predicted.
    pub fn pixels(&self) -> Matrix {
        match &self.data {
            PassData::Classes { pixels, .. } => pixels.clone(),
            PassData::Noise { noisy, .. } => noisy.clone(),
            PassData::Tokens { .. } => panic!("a model that reads images is given tokens"),
        }
    }

    /// Sinusoids of the diffusion steps, and the text; a row for each image.
    pub fn condition(&self) -> [Matrix; 2] {
        match &self.data {
            PassData::Noise { sinusoids, text, .. } => [sinusoids.clone(), text.clone()],
            _ => panic!("a denoising network is given no noise"),
        }
    }

    /// The noise that was added.
    pub fn noise(&self) -> Matrix {
        match &self.data {
            PassData::Noise { noise, .. } => noise.clone(),
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
