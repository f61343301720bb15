//! What forwards read and leave beside buffers of activations.

use super::Interpreter;
use crate::{
    data::Draw,
    inference::Caches,
    layers::{Answer, Feed, Recall, Signal},
    passes,
    state::Outcome,
    store::{StoredPair, Value},
    stored::Stored,
    task::Work,
};
use burn::tensor::Device;
use spipe_schedule::Content;

/// What a forward ends in, if it is that of the last layer.
#[derive(Default)]
pub(super) struct End {
    pub loss: Option<f64>,
    pub answer: Option<Answer>,
}

impl End {
    pub fn of(signal: Signal) -> Self {
        match signal {
            Signal::Loss(loss) => Self { loss: Some(passes::loss_number(loss)), answer: None },
            Signal::Answer(answer, loss) => Self { loss: Some(passes::loss_number(loss)), answer: Some(answer) },
            Signal::Tokens | Signal::Hidden(_) => Self::default(),
        }
    }
}

impl Interpreter<'_> {
    pub(super) fn feed(&self, iteration: u32, microbatch: usize, device: &Device) -> Feed {
        if let Some(inference) = &self.inference {
            return inference.feed(iteration, microbatch, device);
        }
        let draw = Draw { seed: self.seed, step: self.beginning.step() + iteration, microbatch };
        Feed::new(&self.data.microbatch(draw, self.batch.0), &self.reading, device)
    }

    /// Keys and values of the tokens before those of a forward; of a stage without attention, how many those are.
    pub(super) fn recall(&self, iteration: u32, work: Work) -> Result<Option<Recall>, String> {
        let Some(inference) = &self.inference else { return Ok(None) };
        let past = inference.past(iteration);
        let Some(cache) = work.cache else { return Ok((past > 0).then(|| Recall::new(past, Vec::new()))) };
        let before = self.store.recall(self.at(cache, iteration), work.microbatch)?;
        let device = &self.sites[&self.program.stages()[work.stage].device].device;
        let width = self.computed_by(work.stage);
        let computed = |[keys, values]: StoredPair| Ok([keys.on(device, width)?, values.on(device, width)?]);
        Ok(Some(Recall::new(past, before.into_iter().map(computed).collect::<Result<_, String>>()?)))
    }

    /// Keeps what a forward has found for those to come.
    pub(super) fn remember(
        &self,
        outcome: &mut Outcome,
        (iteration, work): (u32, Work),
        (recall, answer): (Option<Recall>, Option<Answer>),
    ) -> Result<(), String> {
        if let Some((cache, recall)) = work.cache.zip(recall) {
            let width = self.held_by(work.stage);
            let kept = recall.take().into_iter().map(|pair| pair.map(|rows| Stored::of(rows, width))).collect();
            let instance = self.at(cache, iteration);
            let bytes = self.store.remember(instance, work.microbatch, kept)?;
            outcome.held.push((instance, bytes));
        }
        if let Some((inference, answer)) = self.inference.as_ref().zip(answer) {
            inference.found(iteration, work.microbatch, answer);
        }
        Ok(())
    }

    /// What is left of all caches, by what they hold and where.
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
