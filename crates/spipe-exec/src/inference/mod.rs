//! The feedback of inference: the first layer reads what the last layer has found.
//!
//! ```text
//! text      prompts ─► prefill ─► token ─► next ─► token ─► …      caches hold keys and values of all tokens so far
//! images    in their order ─► a vector each
//! noise     images with noise ─► step ─► with less noise ─► step ─► …
//! ```

mod outputs;

use crate::{
    data::{Batch, Data, Draw, ImageBatch, Images, Microbatch},
    nn::layers::{Answer, PassContext, Reading, begin, denoised, go_on},
    stored::Cache,
};
use burn::tensor::Device;
use spipe_base::MemoryId;
use spipe_model::Condition;
use spipe_schedule::Content;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Caches by content and memory.
pub(crate) type Caches = BTreeMap<(Content, MemoryId), Cache>;

/// The part of an inference that a program does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    /// Reads the first `tokens` tokens of each sequence at once.
    Prompts { tokens: usize },
    /// Finds one token after the other, behind the first `past` of each sequence.
    Next { past: usize },
    /// Without caches: computes all tokens so far again for each new one. The first `tokens` are
    /// the prompt.
    Again { tokens: usize },
    /// Finds a vector for each image.
    Images,
    /// Removes noise from images in `steps` steps.
    Noise { condition: Condition, steps: u32 },
}

/// Results for one microbatch, iteration after iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MicrobatchResults {
    /// Tokens of each iteration, one for each sequence.
    pub tokens: Vec<Vec<i32>>,
    /// Rows of each iteration, one for each image; for denoising only those of the last iteration.
    pub rows: Vec<Vec<f32>>,
}

/// Results by microbatch.
pub(crate) type AllResults = BTreeMap<usize, MicrobatchResults>;

/// Inputs and results of one program of an inference.
#[derive(Debug)]
pub(crate) struct Inference<'a> {
    pub part: Part,
    pub data: &'a Data,
    pub reading: Reading,
    pub seed: u64,
    /// Sequences or images of a microbatch, and number of microbatches.
    pub sequences: usize,
    pub microbatches: usize,
    found: Mutex<AllResults>,
    caches: Mutex<Caches>,
}

impl<'a> Inference<'a> {
    /// The state before the first iteration; `found` and `caches` are left by the part before.
    pub fn new(
        part: Part,
        (data, reading, seed): (&'a Data, Reading, u64),
        (sequences, microbatches): (usize, usize),
        (found, caches): (AllResults, Caches),
    ) -> Self {
        let (found, caches) = (Mutex::new(found), Mutex::new(caches));
        Self { part, data, reading, seed, sequences, microbatches, found, caches }
    }

    fn all_found(&self) -> MutexGuard<'_, AllResults> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out all results.
    pub fn take_found(&self) -> AllResults {
        std::mem::take(&mut *self.all_found())
    }

    /// Takes out the initial value of a cache.
    pub fn cache(&self, of: (Content, MemoryId)) -> Cache {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).remove(&of).unwrap_or_default()
    }

    /// Tokens of each sequence before those of an iteration.
    pub const fn past(&self, iteration: u32) -> usize {
        match self.part {
            Part::Next { past } => past + iteration as usize,
            _ => 0,
        }
    }

    /// The input of a forward.
    ///
    /// # Panics
    /// If the data is of another kind than the part reads, which is refused before a run.
    pub fn pass_context(&self, iteration: u32, microbatch: usize, device: &Device) -> PassContext {
        let batch = |tokens: usize| (self.sequences, tokens);
        let pass = match (self.part, self.data) {
            (Part::Prompts { tokens }, Data::Tokens(_)) => {
                PassContext::new(&self.prompts(microbatch, tokens), &self.reading, device)
            }
            (Part::Next { .. }, _) => {
                let last = self.all_found().get(&microbatch).and_then(|found| found.tokens.last().cloned());
                PassContext::tokens(last.expect("a token follows others"), batch(1), device)
            }
            (Part::Again { tokens }, Data::Tokens(_)) => {
                let prompts = self.prompts(microbatch, tokens);
                let found = self.all_found().get(&microbatch).cloned().unwrap_or_default();
                match prompts {
                    Microbatch::Tokens(prompts) if iteration > 0 => PassContext::tokens(
                        continued(&prompts, &found.tokens),
                        batch(tokens + found.tokens.len()),
                        device,
                    ),
                    prompts => PassContext::new(&prompts, &self.reading, device),
                }
            }
            (Part::Images, Data::Images(images)) => {
                PassContext::new(&Microbatch::Images(self.images(images, iteration, microbatch)), &self.reading, device)
            }
            (Part::Noise { condition, steps }, Data::Images(images)) => {
                let batch = self.images(images, 0, microbatch);
                let now = self.all_found().get(&microbatch).and_then(|found| found.rows.last().cloned());
                let noisy = match now {
                    Some(pixels) => go_on(&batch, pixels, iteration, steps),
                    None => begin(&batch, steps),
                };
                PassContext::noisy(&noisy, (&batch, &condition), device)
            }
            _ => panic!("the data is of another kind"),
        };
        pass.answered()
    }

    /// The first `tokens` tokens of each sequence.
    pub fn prompts(&self, microbatch: usize, tokens: usize) -> Microbatch {
        let draw = Draw { seed: self.seed, step: 0, microbatch };
        match self.data.microbatch(draw, self.sequences) {
            Microbatch::Tokens(batch) => Microbatch::Tokens(batch.cut(tokens)),
            images @ Microbatch::Images(_) => images,
        }
    }

    fn images(&self, images: &Images, iteration: u32, microbatch: usize) -> ImageBatch {
        let before = iteration as usize * self.microbatches + microbatch;
        images.in_order(self.seed, (before * self.sequences) as u64, self.sequences)
    }

    /// Records the answer of the last layer.
    pub fn found(&self, iteration: u32, microbatch: usize, answer: Answer) {
        match (answer, self.part, self.data) {
            (Answer::Tokens(tokens), ..) => self.all_found().entry(microbatch).or_default().tokens.push(tokens),
            (Answer::Rows(rows), Part::Noise { steps, .. }, Data::Images(images)) => {
                let noise: Vec<f32> = rows.into_data().iter::<f32>().collect();
                let mut all = self.all_found();
                let found = all.entry(microbatch).or_default();
                let before = found.rows.pop();
                let before = before.unwrap_or_else(|| begin(&self.images(images, 0, microbatch), steps).pixels);
                found.rows.push(denoised(&before, &noise, iteration, steps));
            }
            (Answer::Rows(rows), ..) => {
                let rows = rows.into_data().iter::<f32>().collect();
                self.all_found().entry(microbatch).or_default().rows.push(rows);
            }
        }
    }
}

/// Every prompt, followed by the tokens found for it.
fn continued(prompts: &Batch, found: &[Vec<i32>]) -> Vec<i32> {
    let sequence = |(sequence, prompt): (usize, &[i32])| {
        prompt.iter().copied().chain(found.iter().map(|tokens| tokens[sequence])).collect::<Vec<_>>()
    };
    prompts.inputs.chunks(prompts.seq_len).enumerate().flat_map(sequence).collect()
}
