//! Data that forward passes read, and results that they leave, besides activations.

use super::Interpreter;
use crate::{
    actions::{Outcome, store::Value, task::Work},
    data::Draw,
    inference::Caches,
    nn::{
        layers::{Answer, KvCache, PassContext, Signal},
        passes,
    },
    stored::{Stored, StoredPair},
    task_error::TaskError,
};
use burn::tensor::Device;
use spipe_schedule::Content;

/// The result of the last layer's forward.
#[derive(Default)]
pub(super) struct LastOutput {
    pub loss: Option<f64>,
    pub answer: Option<Answer>,
}

impl LastOutput {
    pub fn of(signal: Signal) -> Self {
        match signal {
            Signal::Loss(loss) => Self { loss: Some(passes::loss_number(loss)), answer: None },
            Signal::Answer(answer, loss) => Self { loss: Some(passes::loss_number(loss)), answer: Some(answer) },
            Signal::Tokens | Signal::Hidden(_) => Self::default(),
        }
    }
}

impl Interpreter<'_> {
    pub(super) fn pass_context(&self, iteration: u32, microbatch: usize, device: &Device) -> PassContext {
        if let Some(inference) = &self.inputs.inference {
            return inference.pass_context(iteration, microbatch, device);
        }
        let draw = Draw { seed: self.inputs.seed, step: self.initial_state.step() + iteration, microbatch };
        PassContext::new(&self.inputs.data.microbatch(draw, self.inputs.batch.0), &self.inputs.reading, device)
    }

    /// Keys and values of earlier tokens. For a stage without attention the cache is empty and only
    /// counts them.
    pub(super) fn cache(&self, iteration: u32, work: Work) -> Result<Option<KvCache>, TaskError> {
        let Some(inference) = &self.inputs.inference else { return Ok(None) };
        let past = inference.past(iteration);
        let Some(cache) = work.cache else { return Ok((past > 0).then(|| KvCache::new(past, Vec::new()))) };
        let before = self.store.take_cache(self.at(cache, iteration), work.microbatch)?;
        let device = &self.contexts[&self.program.stages()[work.stage].device].device;
        let dtype = self.compute_dtype(work.stage);
        let computed = |[keys, values]: StoredPair| Ok([keys.on(device, dtype)?, values.on(device, dtype)?]);
        Ok(Some(KvCache::new(past, before.into_iter().map(computed).collect::<Result<_, TaskError>>()?)))
    }

    /// Stores the cache and the answer of a forward.
    pub(super) fn remember(
        &self,
        outcome: &mut Outcome,
        (iteration, work): (u32, Work),
        (kept, answer): (Option<KvCache>, Option<Answer>),
    ) -> Result<(), TaskError> {
        if let Some((buffer, cache)) = work.cache.zip(kept) {
            let dtype = self.storage_dtype(work.stage);
            let kept = cache.take().into_iter().map(|pair| pair.map(|rows| Stored::of(rows, dtype))).collect();
            let instance = self.at(buffer, iteration);
            let bytes = self.store.put_cache(instance, work.microbatch, kept)?;
            outcome.held.push((instance, bytes));
        }
        if let Some((inference, answer)) = self.inputs.inference.as_ref().zip(answer) {
            inference.found(iteration, work.microbatch, answer);
        }
        Ok(())
    }

    /// Takes out all caches by content and memory.
    pub fn take_caches(&self) -> Caches {
        let buffers = self.program.buffers().enumerate();
        let caches = buffers.filter(|(_, buffer)| matches!(buffer.content, Content::Cache(_)));
        let taken = caches.filter_map(|(id, buffer)| match self.store.take((id, 0))? {
            Value::Cache(cache) => Some(((buffer.content, buffer.memory), cache)),
            _ => None,
        });
        taken.collect()
    }
}
