//! The table of a mesh: what each member of a team computes, holds and exchanges.
//!
//! - Tensor parallelism: a member has a part of the matrices of every layer ([`Layer::shard`](spipe_model::Layer::shard)).
//!   A block sums its output of b·s·h numbers over the team twice in the forward and twice in the backward, an embedding
//!   once in the forward, a head once in the backward (Shoeybi et al. 2019, arXiv 1909.08053, section 3). Nothing overlaps
//!   with these sums, so that they are part of the time of a pass.
//! - Sequence parallelism: each of these sums is a reduce-scatter and an all-gather, and all activations are divided
//!   (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).
//! - A divided optimizer state: each replica steps its part of the parameters (Rajbhandari et al. 2020, ZeRO, section 5).

use crate::{CostError, CostTable, LayerMemory, LayerTime, Mesh, Rings, Workload, parallel, times::attending};
use spipe_base::{Bytes, LayerId, Seconds};
use spipe_hardware::{CollectiveKind, Hardware};
use spipe_model::Model;

impl CostTable {
    /// Computes the table of `model` on the teams of `mesh` for `workload`. Its own workload is that of one replica,
    /// and the figures of a device are those of each member of the team that it leads.
    ///
    /// # Errors
    /// The sizes of the workload, a layer that no device can run, and what the mesh does not divide.
    pub fn on(model: &Model, hardware: &Hardware, workload: &Workload, mesh: &Mesh) -> Result<Self, CostError> {
        if mesh.is_single() {
            return Self::new(model, hardware, workload);
        }
        workload.check()?;
        let each = mesh.microbatches_of_each(workload.microbatches)?;
        of_replica((model, hardware), &Workload { microbatches: each, ..*workload }, mesh)
    }
}

/// The table of one replica of `mesh`, whose workload is `workload`.
fn of_replica(
    (model, hardware): (&Model, &Hardware),
    workload: &Workload,
    mesh: &Mesh,
) -> Result<CostTable, CostError> {
    let tensor = mesh.tensor();
    let refused = |layer: LayerId| CostError::Team { layer: model.layers()[layer].name.clone(), tensor };
    let part = model.shard(tensor).map_err(refused)?;
    let mut table = CostTable::new(&part, hardware, workload)?;
    if tensor > 1 {
        let whole = mesh.sequence.then(|| CostTable::new(model, hardware, workload)).transpose()?;
        add_sums(&mut table, (&part, hardware), mesh)?;
        if let Some(whole) = whole {
            divide_activations(&mut table, &whole, tensor);
        }
    }
    divide_state(&mut table, mesh.state_parts());
    table.set_mesh(mesh);
    Ok(table)
}

/// Adds the sums over teams to the passes.
fn add_sums(table: &mut CostTable, (part, hardware): (&Model, &Hardware), mesh: &Mesh) -> Result<(), CostError> {
    let rings = Rings::of(hardware, mesh.replicas.iter().flatten().map(Vec::as_slice))?;
    let workload = attending(table.workload(), hardware.runtime());
    let sum = |bytes: Bytes| match mesh.sequence {
        true => rings.time(CollectiveKind::ReduceScatter, bytes) + rings.time(CollectiveKind::AllGather, bytes),
        false => rings.time(CollectiveKind::AllReduce, bytes),
    };
    let storage = mesh.leads().next().map_or(workload.precision, |lead| table.storage(lead));
    table.each_time(|layer, time| {
        let layer = &part.layers()[layer];
        let once = sum(parallel::output_of(layer, &workload, storage));
        let [forward, backward] = parallel::reductions(layer, workload.mode).map(|count| once * count as f64);
        exchanging(time, forward, backward)
    });
    Ok(())
}

/// A layer's passes with the time of their sums.
fn exchanging(time: LayerTime, forward: Seconds, backward: Seconds) -> LayerTime {
    let longer = time.forward + forward;
    // What a selective recompute repeats has no sums in it.
    let share = if longer > Seconds::ZERO { time.selective_share * (time.forward / longer) } else { 0.0 };
    LayerTime { forward: longer, backward_input: time.backward_input + backward, selective_share: share, ..time }
}

/// Divides activations by tokens. Products still see all tokens of a microbatch: workspaces stay.
fn divide_activations(table: &mut CostTable, whole: &CostTable, tensor: u64) {
    let divided = |bytes: Bytes| Bytes::new(bytes.get().div_ceil(tensor));
    table.each_memory(|(layer, device), memory| {
        let all = whole.memory(layer, device);
        LayerMemory {
            saved: divided(all.saved).min(memory.saved),
            saved_selective: divided(all.saved_selective).min(memory.saved_selective),
            input: divided(all.input),
            boundary: divided(all.boundary),
            ..memory
        }
    });
}

/// Divides the optimizer's state and its steps among replicas.
fn divide_state(table: &mut CostTable, parts: u64) {
    if parts == 1 {
        return;
    }
    table.each_memory(|_, memory| {
        let own = memory.optimizer.saturating_sub(memory.undivided);
        LayerMemory { optimizer: memory.undivided + Bytes::new(own.get().div_ceil(parts)), ..memory }
    });
    table.divide_steps(parts);
}
