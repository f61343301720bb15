//! The adapters of one layer: parameters, work, and bytes saved for the backward.

use super::{Matrix, Tensor};
use crate::{
    Batch, Block, Experts, LayerWork, Op, Precision,
    work::{product, sum},
};

/// The adapters of a layer of a model that is adapted. A layer without any is frozen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adaptation {
    /// The inner width of the adapters.
    pub rank: u64,
    /// The adapted matrices.
    pub matrices: Vec<Adapted>,
    /// The rows and columns of a copy of the layer's table that is trained in full.
    pub copy: Option<[u64; 2]>,
    /// Whether adapted matrices have trained magnitudes.
    pub dora: bool,
    /// Whether training drops inputs of adapters.
    pub dropout: bool,
}

/// An adapted matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Adapted {
    /// The matrix.
    pub matrix: Matrix,
    /// Its outputs.
    pub outputs: u64,
    /// Its inputs.
    pub inputs: u64,
    /// The number of such matrices: one for each expert.
    pub count: u64,
}

impl Adaptation {
    /// Whether anything of the layer is trained.
    pub const fn trains(&self) -> bool {
        !self.matrices.is_empty() || self.copy.is_some()
    }

    /// Returns the trained tensors of the adapters: A and B of each matrix, and DoRA's magnitudes.
    pub fn tensors(&self) -> Vec<Tensor> {
        let of = |adapted: &Adapted| {
            let Adapted { outputs, inputs, count, .. } = *adapted;
            let magnitudes = self.dora.then_some(Tensor { rows: outputs, columns: 1, count });
            [
                Some(Tensor { rows: self.rank, columns: inputs, count }),
                Some(Tensor { rows: outputs, columns: self.rank, count }),
                magnitudes,
            ]
        };
        self.matrices.iter().flat_map(of).flatten().collect()
    }

    /// Returns the parameters of the adapters: rank × (inputs + outputs) for each matrix (arXiv
    /// 2106.09685, section 4.2), and one for each of its outputs with DoRA.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(Tensor::elements).fold(0, u64::saturating_add)
    }

    /// Returns the parameters of the copy that is trained in full.
    pub fn copied_parameters(&self) -> u64 {
        self.copy.map_or(0, |[rows, columns]| rows.saturating_mul(columns))
    }

    /// Whether an adapter reads what `matrix` reads.
    fn reads(&self, matrices: &[Matrix]) -> bool {
        self.matrices.iter().any(|adapted| matrices.contains(&adapted.matrix))
    }

    /// Returns the work of the layer with its adapters: the frozen matrices have no weight gradient.
    pub(crate) fn adapt(&self, work: LayerWork, experts: Option<Experts>, batch: Batch) -> LayerWork {
        let mut adapted = LayerWork { ..work };
        if self.copy.is_none() {
            adapted.backward_weight.clear();
        }
        let more = self.work(experts, batch);
        adapted.forward.extend(more.forward);
        adapted.backward_input.extend(more.backward_input);
        adapted.backward_weight.extend(more.backward_weight);
        adapted
    }

    /// Returns the work of the adapters alone.
    pub(crate) fn work(&self, experts: Option<Experts>, batch: Batch) -> LayerWork {
        let mut work = LayerWork::default();
        for adapted in &self.matrices {
            let (networks, rows) = rows(experts, adapted, batch);
            self.one(&mut work, adapted, (networks, rows));
        }
        work
    }

    /// Returns the casts around adapters in 32 bits whose products run in 16 (PEFT under autocast), in
    /// numbers of 16 bits: the input to 32 bits, its dropout there, the dropped input and both matrices
    /// back to 16; in the backward their gradients the other way.
    pub(crate) fn casts(&self, experts: Option<Experts>, batch: Batch) -> LayerWork {
        let mut work = LayerWork::default();
        for adapted in self.matrices.iter().filter(|adapted| adapted.matrix != Matrix::Table) {
            let (networks, rows) = rows(experts, adapted, batch);
            let read = product(&[networks, rows, adapted.inputs]);
            let weights = product(&[networks, self.rank, adapted.inputs + adapted.outputs]);
            // Dropout in 32 bits with a mask moves 9 bytes of a number, of which `one` counts 4.
            let dropped = if self.dropout { product(&[5, read]) / 2 } else { 0 };
            let inputs = Op::Elementwise { elements: sum(&[product(&[6, read]), dropped]), kernels: 2 };
            let matrices = Op::Elementwise { elements: product(&[3, weights]), kernels: 2 };
            work.forward.extend([inputs, matrices]);
            work.backward_input.push(inputs);
            work.backward_weight.push(matrices);
        }
        work
    }

    /// Adds the work of an adapter on `networks` products of `rows` rows: dropout and cast of the
    /// input, both matrices, scale and sum. The backward casts and sums the same tensors once more.
    fn one(&self, work: &mut LayerWork, adapted: &Adapted, (networks, rows): (u64, u64)) {
        let Adapted { matrix, outputs, inputs, .. } = *adapted;
        let (read, written) = (product(&[networks, rows, inputs]), product(&[networks, rows, outputs]));
        if matrix == Matrix::Table {
            // Rows of A are gathered; their gradient is scattered.
            let inner = product(&[rows, self.rank]);
            work.forward.push(Op::elementwise(product(&[2, inner])));
            work.forward.push(Op::matmul(rows, outputs, self.rank));
            work.backward_weight.push(Op::matmul(self.rank, outputs, rows));
            work.backward_weight.push(Op::matmul(rows, self.rank, outputs));
            work.backward_weight.push(Op::elementwise(product(&[3, inner])));
            return;
        }
        if self.dropout {
            work.copy(read);
        }
        work.linear(networks, rows, (self.rank, inputs));
        work.linear(networks, rows, (outputs, self.rank));
        work.forward.push(Op::Elementwise { elements: product(&[5, written]), kernels: 2 });
        work.backward_input.push(Op::elementwise(product(&[2, written])));
        work.backward_input.push(Op::elementwise(product(&[3, read])));
        if self.dora {
            self.magnitudes(work, adapted, (networks, rows));
        }
    }

    /// Adds the work of the magnitudes of an adapted matrix, as PEFT 0.21 does it (`DoraLinearLayer`):
    /// both matrices of the adapter on an identity, the norm of each row of W + s·B·A, which has no gradient,
    /// and a factor per output on the base's product and on the adapter's. With dropout the base's product is
    /// repeated on the dropped input.
    fn magnitudes(&self, work: &mut LayerWork, adapted: &Adapted, (networks, rows): (u64, u64)) {
        let Adapted { outputs, inputs, count, .. } = *adapted;
        let (weights, written) = (product(&[count, outputs, inputs]), product(&[networks, rows, outputs]));
        work.forward.push(Op::MatMul { batch: count, m: inputs, n: self.rank, k: inputs });
        work.forward.push(Op::MatMul { batch: count, m: inputs, n: outputs, k: self.rank });
        work.forward.push(Op::Elementwise { elements: product(&[6, weights]), kernels: 3 });
        work.forward.push(Op::Elementwise { elements: product(&[4, written]), kernels: 2 });
        work.backward_input.push(Op::Elementwise { elements: product(&[4, written]), kernels: 2 });
        work.backward_weight.push(Op::Elementwise { elements: product(&[4, written]), kernels: 2 });
        if self.dropout {
            work.forward.push(Op::MatMul { batch: networks, m: rows, n: outputs, k: inputs });
            work.backward_input.push(Op::MatMul { batch: networks, m: rows, n: inputs, k: outputs });
        }
    }

    /// Returns the bytes of the matrices that exist at once while magnitudes are computed: B·A, s·B·A and
    /// W + s·B·A of the largest adapted matrix.
    pub(crate) fn workspace(&self, precision: Precision) -> u64 {
        let sizes = self.matrices.iter().filter(|adapted| adapted.matrix != Matrix::Table);
        let largest = sizes.map(|adapted| product(&[adapted.outputs, adapted.inputs])).max();
        largest.filter(|_| self.dora).map_or(0, |elements| product(&[3, elements, precision.bytes()]))
    }

    /// Returns the bytes of the block's saved tensors that no gradient needs: inputs of matrices that
    /// have no adapter. The output of the attention is kept by the attention itself.
    pub(crate) fn unsaved(&self, block: &Block, batch: Batch, precision: Precision) -> u64 {
        use Matrix::{Down, Gate, GateUp, Key, Query, QueryKeyValue, Up, Value};
        let tokens = batch.tokens();
        let unread = |matrices: &[Matrix], elements: u64| if self.reads(matrices) { 0 } else { elements };
        let elements = [
            unread(&[Query, Key, Value, QueryKeyValue], product(&[tokens, block.hidden])),
            unread(&[Gate, Up, GateUp], product(&[tokens, block.hidden])),
            unread(&[Down], product(&[block.rows(tokens), block.intermediate])),
        ];
        product(&[sum(&elements), precision.bytes()])
    }

    /// Returns the bytes that the adapters save: their inner vectors; with dropout its mask (one byte)
    /// and the dropped input of each; with magnitudes the products of base and adapter, whose gradients
    /// they need.
    pub(crate) fn saved(&self, experts: Option<Experts>, batch: Batch, precision: Precision) -> u64 {
        let of = |adapted: &Adapted| {
            let (networks, rows) = rows(experts, adapted, batch);
            let inner = product(&[self.rank, precision.bytes()]);
            let dropped = if self.dropout { product(&[adapted.inputs, 1 + precision.bytes()]) } else { 0 };
            let scaled = if self.dora && adapted.matrix != Matrix::Table { 2 * adapted.outputs } else { 0 };
            product(&[networks, rows, sum(&[inner, dropped, product(&[scaled, precision.bytes()])])])
        };
        self.matrices.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Returns the adapters' part of a layer's signature.
    pub(crate) fn signature(&self) -> String {
        let matrix = |adapted: &Adapted| format!(" {}×{}", adapted.matrix.short(), adapted.count);
        let matrices: String = self.matrices.iter().map(matrix).collect();
        let flags = [(self.dora, " dora"), (self.dropout, " drop"), (self.copy.is_some(), " copy")];
        let flags: String = flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
        format!(" lora r{}{matrices}{flags}", self.rank)
    }
}

/// Returns how many products an adapter makes at once and the rows of each: experts share the rows.
fn rows(experts: Option<Experts>, adapted: &Adapted, batch: Batch) -> (u64, u64) {
    match experts.filter(|_| adapted.count > 1) {
        Some(experts) => {
            let rows = batch.tokens().saturating_mul(experts.per_token);
            let busy = experts.count.min(rows).max(1);
            (busy, rows.div_ceil(busy))
        }
        None => (1, batch.tokens()),
    }
}
