//! The table of a mesh: what each member of a team computes, holds and exchanges.
//!
//! - Tensor parallelism: a member has a part of the matrices of every layer ([`Layer::shard`](spipe_model::Layer::shard)).
//! - Sequence parallelism: all activations are divided, too (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).
//! - Context parallelism: a member has an even part of the tokens of each sequence, and slots for the keys and values of
//!   others (Liu et al. 2023, arXiv 2310.01889).
//! - Expert parallelism: a member has an even part of the experts (Lepikhin et al. 2020, GShard, arXiv 2006.16668).
//! - A divided optimizer state: each holder of the same parameters steps its part of them (Rajbhandari et al. 2020, ZeRO,
//!   section 5).
//!
//! The times of exchanges are in [`exchanges`](crate::exchanges).

use crate::{
    CostError, CostTable, LayerMemory, Mesh, Mode, Workload,
    exchanges::{Exchanges, key_value_bytes},
};
use spipe_base::{Bytes, LayerId};
use spipe_hardware::Hardware;
use spipe_model::Model;

/// The blocks of keys and values of other members that a member holds: one that it uses and one that arrives, each with
/// its gradients in the backward.
const BLOCKS_OF_KEYS: u64 = 4;

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

/// The model of which each member of a team has a part: of its sequences and experts, and of its matrices too.
///
/// # Errors
/// Sequences, experts or matrices that are not divisible.
fn parts(model: &Model, workload: &Workload, mesh: &Mesh) -> Result<[Model; 2], CostError> {
    let name = |layer: LayerId| model.layers()[layer].name.clone();
    let (tensor, context, expert) = (mesh.tensor(), mesh.context, mesh.expert);
    mesh.check_sequences(workload)?;
    mesh.check_experts(model)?;
    let part = model.with_sequences_divided(context);
    let part = part.map_err(|layer| CostError::Tokens { layer: name(layer), context })?;
    let part = part.with_experts_divided(expert);
    let part = part.map_err(|layer| CostError::Experts { layer: name(layer), expert })?;
    let shard = part.shard(tensor).map_err(|layer| CostError::Team { layer: name(layer), tensor })?;
    Ok([part, shard])
}

/// The table of one replica of `mesh`, whose workload is `workload`.
fn of_replica(
    (model, hardware): (&Model, &Hardware),
    workload: &Workload,
    mesh: &Mesh,
) -> Result<CostTable, CostError> {
    let [part, shard] = parts(model, workload, mesh)?;
    let mut table = CostTable::new(&shard, hardware, workload)?;
    Exchanges::of(&table, hardware, mesh)?.add_to(&mut table, &shard);
    if mesh.sequence && mesh.tensor() > 1 {
        let whole = CostTable::new(&part, hardware, workload)?;
        divide_activations(&mut table, &whole, mesh.tensor());
    }
    if mesh.context > 1 {
        add_blocks_of_keys(&mut table, &shard);
    }
    table.set_mesh(mesh, &shard);
    divide_state(&mut table);
    Ok(table)
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

/// Adds the slots of keys and values of other members to what blocks need while they compute.
fn add_blocks_of_keys(table: &mut CostTable, part: &Model) {
    let workload = *table.workload();
    let storage = table.devices().map(|device| table.storage(device)).collect::<Vec<_>>();
    let slots = if workload.mode == Mode::Train { BLOCKS_OF_KEYS } else { BLOCKS_OF_KEYS / 2 };
    table.each_memory(|(layer, device), memory| {
        let layer = &part.layers()[layer];
        let bytes = |block| key_value_bytes((layer, block), &workload, storage[device.index()]) * slots;
        LayerMemory { workspace: memory.workspace + layer.as_block().map_or(Bytes::ZERO, bytes), ..memory }
    });
}

/// Divides the optimizer's state and its steps among the holders of the same parameters.
fn divide_state(table: &mut CostTable) {
    if table.mesh().state_parts() == 1 {
        return;
    }
    let of = table.clone();
    table.each_memory(|(layer, _), memory| {
        let own = memory.optimizer.saturating_sub(memory.undivided);
        LayerMemory { optimizer: memory.undivided + of.state_part(layer, own), ..memory }
    });
    table.divide_steps();
}
