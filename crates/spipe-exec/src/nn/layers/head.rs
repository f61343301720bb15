//! The last layer of a model: the projection to classes, and the loss.

#[cfg(feature = "cube")]
use super::replay::replayed_on_gpu;
use super::{
    Answer, Matrix, Parameter, PassContext, SavedNumbers, Signal, Targets,
    activation::biased,
    norm::NormUnit,
    replay::{Replayed, replayed},
    wide,
};
#[cfg(feature = "cube")]
use crate::nn::fused;
use crate::nn::kernels::{self, CrossEntropy};
use burn::tensor::{
    IndexingUpdateOp, Int, Tensor,
    activation::{log_softmax, softmax},
};
use spipe_model::{Head, Matrix as MatrixPlace};

/// A head: the last norm, the projection and the loss.
#[derive(Clone, Debug)]
pub(crate) struct HeadUnit {
    shape: Head,
    norm: Option<NormUnit>,
}

impl HeadUnit {
    pub fn new(shape: &Head) -> Result<Self, &'static str> {
        if shape.table_width != shape.hidden {
            return Err("projections to a narrower table are not computed");
        }
        if shape.joined_mean {
            return Err("means of patches are not computed");
        }
        let norm = shape.norm.map(|norm| NormUnit::new(norm, shape.norm_epsilon, shape.hidden));
        Ok(Self { shape: *shape, norm })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let norm = self.norm.iter().flat_map(|norm| norm.parameters(["norm.weight", "norm.bias"]));
        let mut all: Vec<Parameter> = norm.collect();
        if !self.shape.tied {
            all.push(Parameter::weight("projection.weight", self.shape.hidden, self.shape.classes));
        }
        all.extend(self.shape.bias.then(|| Parameter::bias("projection.bias", self.shape.classes)));
        all
    }

    /// Cross-entropy, averaged over the classified tokens: all, or the first of each sequence. The
    /// answer is the token that follows each sequence, or the vector of each classified image. If
    /// the following token is unknown, the cross-entropy is that of the answer. A tied head
    /// projects with `table`, the embedding's, classes × width.
    pub fn forward(&self, parameters: &[Matrix], table: Option<&Matrix>, input: Matrix, pass: &PassContext) -> Signal {
        let (norm, projection) = parameters.split_at(self.norm.as_ref().map_or(0, NormUnit::count));
        let input = if self.shape.every_token { input } else { first_of_each(input, pass.batch) };
        let input = match &self.norm {
            Some(unit) => unit.forward(norm, input),
            None => input,
        };
        let (mut logits, bias) = match table.filter(|_| self.shape.tied) {
            Some(table) => (kernels::matmul_transposed(input.clone(), table.clone()), projection),
            None => (pass.multiply(input.clone(), projection[0].clone()), &projection[1..]),
        };
        [logits] = pass.adapted(&input, ([MatrixPlace::Head], None), [logits]);
        if self.shape.bias {
            logits = biased(logits, bias[0].clone());
        }
        if let Some(cap) = self.shape.cap {
            logits = (wide(logits) / cap).tanh() * cap;
        }
        if !pass.answers() {
            let targets = pass.targets().expect("a training pass has targets");
            return Signal::Loss(cross_entropy(logits, targets));
        }
        if !self.shape.every_token {
            let targets = pass.targets().expect("images have classes");
            return Signal::Answer(Answer::Rows(Box::new(wide(input))), cross_entropy(logits, targets));
        }
        let last = last_of_each(logits.clone(), pass.batch);
        let next = largest_of_each(&last);
        let loss = match pass.targets() {
            Some(targets) => cross_entropy(logits, targets),
            None => {
                let targets = Targets::new(&next, &last.device().without_autodiff());
                cross_entropy(last, targets)
            }
        };
        Signal::Answer(Answer::Tokens(next), loss)
    }

    /// Numbers that its graph keeps: the input, the norm and the logits.
    pub const fn saved(&self, sequences: u64, seq_len: u64) -> SavedNumbers {
        let Head { hidden, classes, .. } = self.shape;
        let rows = if self.shape.every_token { sequences * seq_len } else { sequences };
        // A bound keeps its hyperbolic tangent.
        let copies = if self.shape.cap.is_some() { 2 } else { 1 };
        SavedNumbers { own: (sequences * seq_len + rows) * hidden, wide: copies * rows * classes }
    }
}

fn cross_entropy(logits: Matrix, targets: Targets) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if let Some(loss) = replayed_on_gpu(&Loss(targets.column.clone()), [&logits]) {
        return loss.reshape([1]);
    }
    let logits = wide(logits);
    match kernels::apply(CrossEntropy { targets: targets.numbers }, [&logits]) {
        Some(loss) => loss.reshape([1]),
        None => replayed(&Loss(targets.column), [logits]).reshape([1]),
    }
}

/// Cross-entropy in f32 for these targets, averaged over rows.
#[derive(Clone, Debug)]
struct Loss(Tensor<2, Int>);

impl Replayed<1> for Loss {
    fn value(&self, [logits]: [Matrix; 1]) -> Matrix {
        #[cfg(feature = "cube")]
        if let Some(losses) = fused::losses(&logits, &self.0) {
            return losses.mean().reshape([1, 1]);
        }
        log_softmax(logits, 1).gather(1, self.0.clone()).mean().neg().reshape([1, 1])
    }

    /// Softmax, minus one at each target.
    fn gradients(&self, [logits]: [Matrix; 1], gradient: Matrix) -> [Matrix; 1] {
        #[cfg(feature = "cube")]
        if let Some(found) = fused::loss_gradient(&logits, &self.0, &gradient) {
            return [found];
        }
        let rows = logits.dims()[0];
        let ones = Tensor::ones([rows, 1], &logits.device());
        let shares = softmax(logits, 1);
        let short = shares.scatter(1, self.0.clone(), ones.neg(), IndexingUpdateOp::Add);
        [short * gradient / rows as f64]
    }
}

/// The column of the largest number of each row; the first of several.
fn largest_of_each(rows: &Matrix) -> Vec<i32> {
    let width = rows.dims()[1].max(1);
    let numbers: Vec<f32> = rows.clone().inner().into_data().iter::<f32>().collect();
    let largest = |row: &[f32]| {
        let better = |best: usize, index: usize| if row[index] > row[best] { index } else { best };
        (1..row.len()).fold(0, better) as i32
    };
    numbers.chunks(width).map(largest).collect()
}

fn last_of_each(input: Matrix, (sequences, tokens): (usize, usize)) -> Matrix {
    let width = input.dims()[1];
    let input: Tensor<3> = input.reshape([sequences, tokens, width]);
    input.narrow(1, tokens - 1, 1).reshape([sequences, width])
}

fn first_of_each(input: Matrix, (sequences, tokens): (usize, usize)) -> Matrix {
    let width = input.dims()[1];
    let input: Tensor<3> = input.reshape([sequences, tokens, width]);
    input.narrow(1, 0, 1).reshape([sequences, width])
}

#[cfg(test)]
mod tests {
    use super::{super::replay::tests::derives, *};
    use crate::device::cores;
    use burn::tensor::TensorData;

    #[test]
    fn the_loss_derives_as_its_operations_do() {
        let targets = TensorData::new(vec![3i32, 0, 6, 3], [4, 1]);
        derives(&Loss(Tensor::from_data(targets, &cores())), [[4, 7]]);
    }
}
