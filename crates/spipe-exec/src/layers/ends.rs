//! The first and the last layer of a language model.

use super::{Feed, Matrix, Parameter, norm::NormUnit};
use crate::kernels::{self, CrossEntropy};
use burn::tensor::{Tensor, activation::log_softmax, module::embedding};
use spipe_model::{Embedding, Head};

/// A table of token vectors.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddingUnit {
    shape: Embedding,
    norm: Option<NormUnit>,
}

impl EmbeddingUnit {
    pub fn new(shape: &Embedding) -> Result<Self, &'static str> {
        if shape.dropout {
            return Err("dropout is not computed");
        }
        let norm = shape.norm.map(|(norm, epsilon)| NormUnit::new(norm, epsilon, shape.hidden));
        Ok(Self { shape: *shape, norm })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let Embedding { vocabulary, hidden, places, .. } = self.shape;
        let mut all = vec![Parameter::weight("token.weight", vocabulary, hidden)];
        if places > 0 {
            all.push(Parameter::weight("position.weight", places, hidden));
        }
        all.extend(self.norm.iter().flat_map(|norm| norm.parameters(["norm.weight", "norm.bias"])));
        all
    }

    pub fn forward(&self, parameters: &[Matrix], feed: &Feed) -> Matrix {
        let (sequences, seq_len) = feed.batch;
        let hidden = self.shape.hidden as usize;
        let mut output = embedding(parameters[0].clone(), feed.inputs());
        let mut used = 1;
        if self.shape.places > 0 {
            output = output + parameters[1].clone().narrow(0, 0, seq_len).reshape([1, seq_len, hidden]);
            used = 2;
        }
        let output = output.reshape([sequences * seq_len, hidden]);
        match &self.norm {
            Some(norm) => norm.forward(&parameters[used..], output),
            None => output,
        }
    }
}

/// The last norm, the projection and the loss.
#[derive(Clone, Debug)]
pub(crate) struct HeadUnit {
    shape: Head,
    norm: NormUnit,
}

impl HeadUnit {
    pub fn new(shape: &Head) -> Result<Self, &'static str> {
        if shape.tied {
            return Err("its projection is the embedding's table");
        }
        Ok(Self { shape: *shape, norm: NormUnit::new(shape.norm, shape.norm_epsilon, shape.hidden) })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = self.norm.parameters(["norm.weight", "norm.bias"]);
        all.push(Parameter::weight("projection.weight", self.shape.hidden, self.shape.classes));
        all.extend(self.shape.bias.then(|| Parameter::bias("projection.bias", self.shape.classes)));
        all
    }

    /// Cross-entropy, averaged over all that is classified: every token, or the first of each sequence.
    pub fn forward(&self, parameters: &[Matrix], input: Matrix, feed: &Feed) -> Tensor<1> {
        let (norm, projection) = parameters.split_at(self.norm.count());
        let input = if self.shape.every_token { input } else { first_of_each(input, feed.batch) };
        let mut logits = feed.multiply(self.norm.forward(norm, input), projection[0].clone());
        if self.shape.bias {
            logits = logits + projection[1].clone();
        }
        let targets = feed.targets();
        match kernels::apply(CrossEntropy { targets: targets.numbers }, [&logits]) {
            Some(loss) => loss.reshape([1]),
            None => log_softmax(logits, 1).gather(1, targets.column).mean().neg(),
        }
    }

    /// Its input, the norm, and the logits with their exponentials.
    pub const fn kept(&self, sequences: u64, seq_len: u64) -> u64 {
        let rows = if self.shape.every_token { sequences * seq_len } else { sequences };
        sequences * seq_len * self.shape.hidden
            + rows * (self.shape.hidden * (1 + self.norm.kept()) + 3 * self.shape.classes)
    }
}

fn first_of_each(input: Matrix, (sequences, tokens): (usize, usize)) -> Matrix {
    let width = input.dims()[1];
    let input: Tensor<3> = input.reshape([sequences, tokens, width]);
    input.narrow(1, 0, 1).reshape([sequences, width])
}
