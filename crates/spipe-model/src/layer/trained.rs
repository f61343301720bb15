//! The trained and the stored parameters of a layer.

use crate::adapters::{Adaptation, Tensor};
use crate::{Batch, Block, Experts, Layer, LayerKind, LayerWork};

impl Layer {
    /// Returns the number of trained parameters: its own unless it is frozen, and those of adapters.
    pub fn trained_parameters(&self) -> u64 {
        let own = if self.trains { self.parameters } else { 0 };
        let added = |adaptation: &Adaptation| adaptation.parameters().saturating_add(adaptation.copied_parameters());
        own.saturating_add(self.adaptation.as_ref().map_or(0, added))
    }

    /// Whether anything in it is trained.
    pub fn learns(&self) -> bool {
        self.trains || self.adaptation.as_ref().is_some_and(Adaptation::trains)
    }

    /// Returns the work of its adapters alone, which is part of its [`work`](Self::work).
    pub fn adapter_work(&self, batch: Batch) -> LayerWork {
        match &self.adaptation {
            Some(adaptation) => adaptation.work(self.experts(), self.batch(batch)),
            None => LayerWork::default(),
        }
    }

    /// Returns the casts around its adapters where these are in 32 bits and passes in 16.
    pub fn adapter_casts(&self, batch: Batch) -> LayerWork {
        match &self.adaptation {
            Some(adaptation) => adaptation.casts(self.experts(), self.batch(batch)),
            None => LayerWork::default(),
        }
    }

    /// Returns the expected share of its experts that the tokens of `microbatches` of `batch` reach; 1
    /// without experts.
    pub fn touched_share(&self, batch: Batch, microbatches: u64) -> f64 {
        let tokens = self.batch(batch).tokens().saturating_mul(microbatches);
        let share =
            |experts: Experts| experts.touched(tokens.saturating_mul(experts.devices.into())) / experts.count as f64;
        self.experts().map_or(1.0, share)
    }

    /// Returns the experts of a block that has some.
    pub(crate) fn experts(&self) -> Option<Experts> {
        self.as_block().and_then(|block| block.experts)
    }
}

impl Layer {
    /// Returns the shapes of its own parameters. Whatever is not a matrix of a block or a table is
    /// counted as vectors; a layer whose shapes are not known is one square matrix.
    pub fn tensors(&self) -> Vec<Tensor> {
        let (tables, width) = match &self.kind {
            LayerKind::Block(block) => (block.matrices(), block.hidden),
            LayerKind::Embedding(embedding) => {
                (vec![Tensor { rows: embedding.vocabulary, columns: embedding.hidden, count: 1 }], embedding.hidden)
            }
            LayerKind::Head(head) if head.tied => (Vec::new(), head.hidden),
            LayerKind::Head(head) => (vec![Tensor { rows: head.classes, columns: head.hidden, count: 1 }], head.hidden),
            _ => {
                let side = self.parameters.isqrt();
                (vec![Tensor { rows: side, columns: side, count: 1 }], side.max(1))
            }
        };
        let rest = self.parameters.saturating_sub(tables.iter().map(Tensor::elements).sum());
        let width = width.max(1);
        let vectors = [
            Tensor { rows: width, columns: 1, count: rest / width },
            Tensor { rows: rest % width, columns: 1, count: 1 },
        ];
        tables.into_iter().chain(vectors.into_iter().filter(|vectors| vectors.elements() > 0)).collect()
    }

    /// Returns the matrices that a quantised base stores in its format: those of blocks, without
    /// routers. Embeddings, norms and heads stay in 16 bits (arXiv 2305.14314).
    pub fn quantised(&self) -> Vec<Tensor> {
        self.as_block().map(Block::matrices).unwrap_or_default()
    }
}
