//! The first layer of a language model.

use super::{Matrix, Parameter, PassContext, norm::NormUnit};
use burn::tensor::Tensor;
use spipe_model::Embedding;

/// An embedding: a table of token vectors.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddingUnit {
    shape: Embedding,
    norm: Option<NormUnit>,
}

impl EmbeddingUnit {
    pub fn new(shape: &Embedding) -> Result<Self, &'static str> {
        if shape.dropout {
            return Err("dropout is not computed: set `dropout = false` in the model file");
        }
        if shape.table_width != shape.hidden {
            return Err("projections of a narrower table are not computed");
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

    pub fn forward(&self, parameters: &[Matrix], pass: &PassContext) -> Matrix {
        let (sequences, seq_len) = pass.batch;
        let hidden = self.shape.hidden as usize;
        let tokens = pass.inputs().reshape([sequences * seq_len]);
        let mut output = pass.look_up(parameters[0].clone(), tokens);
        if (self.shape.scale - 1.0).abs() > 0.0 {
            output = output * self.shape.scale;
        }
        let mut used = 1;
        if self.shape.places > 0 {
            let past = pass.past() as i64;
            let places = Tensor::arange(past..past + seq_len as i64, &output.device().without_autodiff());
            let places = pass.look_up(parameters[1].clone(), places).reshape([1, seq_len, hidden]);
            let by_sequence: Tensor<3> = output.reshape([sequences, seq_len, hidden]);
            output = (by_sequence + places).reshape([sequences * seq_len, hidden]);
            used = 2;
        }
        match &self.norm {
            Some(norm) => norm.forward(&parameters[used..], output),
            None => output,
        }
    }
}
