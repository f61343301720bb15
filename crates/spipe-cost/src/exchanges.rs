//! The exchanges within the passes of a layer, among the members of a team and among devices that divide experts.
//!
//! - Tensor parallelism: a block sums its output of b·s·h numbers over the devices that share its matrices twice in the
//!   forward and twice in the backward, an embedding once in the forward, a head once in the backward (Shoeybi et al. 2019,
//!   arXiv 1909.08053, section 3). Nothing overlaps with these sums, so that they are part of the time of a pass.
//! - Sequence parallelism: each sum is a reduce-scatter and an all-gather of as many bytes (Korthikanti et al. 2022,
//!   arXiv 2205.05198, section 4.2.2); around experts, of the rows of all experts of a token.
//! - Context parallelism: keys and values of each of n devices go around a ring beside the attention of the block at
//!   hand, and in the backward their gradients with them (Liu et al. 2023, arXiv 2310.01889, section 3). With two chunks of
//!   each sequence on a device, one from either end, causal masks leave all steps with the same work. Where a step of
//!   attention takes a and the exchange of a block x,
//!
//!   ```text
//!   forward    n·a + (n − 1)·max(0, x − a)
//!   backward   n·a + (n − 1)·max(0, x′ − a) + x     x′ moves keys, values and gradients, x the last gradients
//!   ```
//! - Expert parallelism: each token goes to the devices of its experts and comes back, in the forward and in the backward
//!   (Lepikhin et al. 2020, GShard, arXiv 2006.16668, section 3.2). Nothing overlaps with these four
//!   all-to-alls. The busiest device counts, in bytes as in work ([`Experts::LOAD`](spipe_model::Experts::LOAD)).

use crate::{AllToAll, CostError, CostTable, LayerTime, Mesh, Rings, Workload, parallel, times::attention_times};
use spipe_base::{Bytes, DeviceId, Seconds};
use spipe_hardware::{CollectiveKind, Hardware};
use spipe_model::{Block, Layer, Model, Operation, Precision};

/// The groups of a mesh that exchange data within passes.
pub struct Exchanges<'a> {
    hardware: &'a Hardware,
    mesh: &'a Mesh,
    /// The devices that share matrices.
    matrices: Rings<'a>,
    /// The devices that divide sequences.
    sequences: Rings<'a>,
    /// The devices that divide experts.
    experts: AllToAll,
    workload: Workload,
    storage: Precision,
}

impl<'a> Exchanges<'a> {
    /// The groups of `mesh` for the workload of `table`.
    ///
    /// # Errors
    /// Two devices that exchange data are not connected.
    pub fn of(table: &CostTable, hardware: &'a Hardware, mesh: &'a Mesh) -> Result<Self, CostError> {
        let (matrices, sequences) = (mesh.tensor_groups(), mesh.context_groups());
        let experts = if mesh.expert > 1 { mesh.expert_groups() } else { Vec::new() };
        Ok(Self {
            hardware,
            mesh,
            matrices: Rings::of(hardware, matrices.iter().map(Vec::as_slice))?,
            sequences: Rings::single(hardware, sequences.iter().map(Vec::as_slice))?,
            experts: AllToAll::of(hardware, experts.iter().map(Vec::as_slice))?,
            workload: *table.workload(),
            storage: mesh.leads().next().map_or(table.workload().precision, |lead| table.storage(lead)),
        })
    }

    /// Adds the exchanges to the passes of `table`, whose layers are those of `part`.
    pub fn add_to(&self, table: &mut CostTable, part: &Model) {
        table.each_time(|(layer, device), time| {
            let layer = &part.layers()[layer];
            let all = [self.sums(layer), self.blocks_of_keys(layer, device), self.routed(layer)];
            let [forward, backward]: [Seconds; 2] = [0, 1].map(|pass| all.iter().map(|times| times[pass]).sum());
            let again = layer.as_block().is_some_and(|_| self.workload.recompute_ops.has(Operation::Block));
            exchanging(time, forward, if again { backward + forward } else { backward })
        });
    }

    /// The sums over the devices that share matrices, in the forward and in the backward.
    fn sums(&self, layer: &Layer) -> [Seconds; 2] {
        let sum = |bytes: Bytes| match self.mesh.sequence {
            true => [CollectiveKind::ReduceScatter, CollectiveKind::AllGather]
                .map(|kind| self.matrices.time(kind, bytes))
                .into_iter()
                .sum(),
            false => self.matrices.time(CollectiveKind::AllReduce, bytes),
        };
        let output = parallel::output_of(layer, &self.workload, self.storage);
        let second = if self.mesh.sequence { self.rows(layer).unwrap_or(output) } else { output };
        parallel::reductions(layer, self.workload.mode).map(|count| match count {
            0 => Seconds::ZERO,
            1 => sum(output),
            _ => sum(output) + sum(second),
        })
    }

    /// The exchange of keys and values that attention does not hide, in the forward and in the backward.
    fn blocks_of_keys(&self, layer: &Layer, device: DeviceId) -> [Seconds; 2] {
        let parts = self.mesh.context as f64;
        let Some(block) = layer.as_block().filter(|_| parts > 1.0) else { return [Seconds::ZERO; 2] };
        let device = &self.hardware.devices()[device];
        let Some(attention) = attention_times(layer, device, (&self.workload, self.hardware.runtime())) else {
            return [Seconds::ZERO; 2];
        };
        let bytes = key_value_bytes((layer, block), &self.workload, self.storage);
        let exposed = |step: Seconds, attention: Seconds| {
            Seconds::s((step.get() - attention.get() / parts).max(0.0) * (parts - 1.0))
        };
        let forward = exposed(self.sequences.step(bytes), attention[0]);
        let passes = self.workload.mode == crate::Mode::Train && layer.passes_gradient;
        let backward = exposed(self.sequences.step(bytes * 2), attention[1]) + self.sequences.step(bytes);
        [forward, if passes { backward } else { Seconds::ZERO }]
    }

    /// The all-to-alls before and after the experts, in the forward and in the backward. Where the devices that
    /// share matrices divide activations, each sends its own tokens alone.
    fn routed(&self, layer: &Layer) -> [Seconds; 2] {
        let Some(rows) = self.rows(layer).filter(|_| self.mesh.expert > 1) else { return [Seconds::ZERO; 2] };
        let senders = if self.mesh.sequence { self.mesh.tensor() } else { 1 };
        let both = self.experts.time(Bytes::new(rows.get().div_ceil(senders))) * 2.0;
        let passes = self.workload.mode == crate::Mode::Train && layer.passes_gradient;
        [both, if passes { both } else { Seconds::ZERO }]
    }

    /// The bytes of the inputs of a layer's experts.
    fn rows(&self, layer: &Layer) -> Option<Bytes> {
        let block = layer.as_block().filter(|block| block.experts.is_some())?;
        let tokens = layer.batch(self.workload.mean_batch()).tokens();
        Some(Bytes::new(block.rows(tokens) * block.hidden * self.storage.bytes()))
    }
}

/// The bytes of the keys and values of a device's tokens.
pub fn key_value_bytes((layer, block): (&Layer, &Block), workload: &Workload, precision: Precision) -> Bytes {
    let tokens = layer.batch(workload.longest_batch()).tokens();
    Bytes::new(tokens * (block.kv_width() + block.value_width()) * precision.bytes())
}

/// A layer's passes with the time of their exchanges.
fn exchanging(time: LayerTime, forward: Seconds, backward: Seconds) -> LayerTime {
    let longer = time.forward + forward;
    // What a selective recompute repeats exchanges nothing.
    let share = if longer > Seconds::ZERO { time.selective_share * (time.forward / longer) } else { 0.0 };
    LayerTime { forward: longer, backward_input: time.backward_input + backward, selective_share: share, ..time }
}
