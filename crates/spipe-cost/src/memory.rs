//! The memory of a layer on a device.

use crate::{GradientFormat, Group, Mode, Workload, groups};
use spipe_base::{Bytes, LayerId};
use spipe_hardware::{LossKernel, NormKernel, Runtime};
use spipe_model::{Attention, Batch, Layer, LayerKind, Model, Operation, Operations, Precision, Recompute};

/// The bytes of a layer on the device that runs it. AdamW takes 2 + 2 + 12 bytes per parameter in
/// 16-bit training and 4 + 4 + 8 in f32 (Rajbhandari et al., ZeRO, 2020, section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerMemory {
    /// Its parameters.
    pub parameters: Bytes,
    /// The part of them that is copied to a device which runs all microbatches of an iteration and then
    /// leaves the layer: of experts, those that tokens are expected to reach.
    pub streamed: Bytes,
    /// The part of them that a step on the host writes back: where adapters are trained, these alone;
    /// otherwise all, since steps return whole layers.
    pub updated: Bytes,
    /// Their gradients; zero for a frozen layer, and where the optimizer runs in the backward.
    pub gradients: Bytes,
    /// The optimizer's state, including master copies; zero for a frozen layer.
    pub optimizer: Bytes,
    /// The part of that state which replicas that divide it hold all the same: copies of gradients.
    pub undivided: Bytes,
    /// The parameters of another layer that it also uses; held here too if that layer is elsewhere.
    pub tied_parameters: Bytes,
    /// The gradients of those parameters from this use; zero if that layer is frozen.
    pub tied_gradients: Bytes,
    /// The keys and values of all microbatches, which a prefill writes and generation reads.
    pub cache: Bytes,
    /// Activations of one microbatch saved from forward to backward without recompute, including
    /// the layer's input; zero without a backward. A frozen layer with a backward counts like one
    /// that trains, except that matrices without adapters save no input in a model with adapters.
    pub saved: Bytes,
    /// The same with selective recompute.
    pub saved_selective: Bytes,
    /// The same with full recompute: the layer's input.
    pub input: Bytes,
    /// The output of one microbatch over a cut after the layer: its own output, and the earlier
    /// outputs that later layers read.
    pub boundary: Bytes,
    /// The bytes needed only while a forward or backward runs.
    pub workspace: Bytes,
}

impl LayerMemory {
    /// Computes the memory of layer `id` when parameters and activations are stored in `precision`.
    pub(crate) fn of(
        model: &Model,
        id: LayerId,
        (workload, runtime): (&Workload, &Runtime),
        precision: Precision,
    ) -> Self {
        let outputs = model.crossing(id).map(|id| output(&model.layers()[id], workload, precision));
        let layer = &model.layers()[id];
        // A base with a format of its own keeps embeddings in 16 bits.
        let is_frozen = |owner: LayerId| workload.mode != Mode::Train || !model.layers()[owner].trains;
        let narrow = workload.formats.base.is_some() && layer.tied_to.is_some_and(is_frozen);
        let width = if narrow { precision.bytes().min(Precision::Bf16.bytes()) } else { precision.bytes() };
        let tied = Bytes::new(layer.tied_parameters * width);
        let trains = |owner: LayerId| {
            let owner = &model.layers()[owner];
            owner.trains || owner.adaptation.as_ref().is_some_and(|adaptation| adaptation.copy.is_some())
        };
        let trains = layer.tied_to.is_some_and(|owner| workload.mode == Mode::Train && trains(owner));
        let alone = Self::alone(layer, (workload, runtime), precision);
        let gradient = workload.formats.gradients.map_or(precision.bytes(), GradientFormat::bytes);
        Self {
            updated: if model.lora().is_some() { alone.updated } else { alone.parameters },
            boundary: outputs.sum(),
            workspace: alone.workspace.max(step_temporaries(model, layer, workload)),
            tied_parameters: tied,
            tied_gradients: Bytes::new(if trains { layer.tied_parameters * gradient } else { 0 }),
            ..alone
        }
    }

    /// Computes the memory of `layer` if only its own output crosses the cut after it.
    pub(crate) fn alone(layer: &Layer, (workload, runtime): (&Workload, &Runtime), precision: Precision) -> Self {
        let batch = workload.longest_batch();
        let training = workload.mode == Mode::Train;
        let when = |wanted: bool, bytes: Bytes| if training && wanted { bytes } else { Bytes::ZERO };
        // Of the logits in 32 bits, a chunked loss saves nothing, and one that works in 16 bits half.
        let logits = logits(layer, workload);
        let dropped = match workload.loss(runtime) {
            LossKernel::Chunked => logits,
            LossKernel::FusedInPlace => Bytes::new(logits.get() / 2),
            LossKernel::Fused | LossKernel::Unfused | LossKernel::InPlace => Bytes::ZERO,
        };
        let repeated = repeated(layer, workload, precision);
        let saved = |recompute| {
            let all = layer.saved(batch, precision, recompute, workload.attention);
            let unheld = match recompute {
                Recompute::None => dropped + repeated.0,
                Recompute::Selective => dropped + repeated.1,
                Recompute::Full => Bytes::ZERO,
            };
            // A block that repeats everything keeps its input, whatever else is recomputed.
            let input = match workload.recompute_ops.has(Operation::Block) {
                true => layer.saved(batch, precision, Recompute::Full, workload.attention).min(all),
                false => Bytes::ZERO,
            };
            when(layer.needs_backward, all.saturating_sub(unheld).max(input))
        };
        let copies = if precision.bytes() < 4 { runtime.gradient_copy_bytes() } else { 0 };
        let groups = groups(layer, workload, precision);
        let sum = |part: &dyn Fn(&Group) -> Bytes| groups.iter().map(part).sum::<Bytes>();
        let gradients = sum(&|group| group.training.map_or(Bytes::ZERO, |training| training.gradients));
        let copied =
            |group: &Group| group.training.map_or(Bytes::ZERO, |_| Bytes::new(group.parameters.saturating_mul(copies)));
        let state = |group: &Group| {
            let own = group.training.map_or(Bytes::ZERO, |training| training.state + training.casts);
            own + copied(group)
        };
        let workspace = match runtime.norms() {
            NormKernel::InPlace => layer.workspace_in_place(seen(layer, workload), precision, workload.attention),
            NormKernel::Fused | NormKernel::Unfused => {
                layer.workspace(seen(layer, workload), precision, workload.attention)
            }
        };
        let workspace = match workload.loss(runtime) {
            _ if !training => workspace,
            LossKernel::Fused | LossKernel::InPlace => workspace,
            // Adapters are trained on models that are loaded in 16 bits. Under autocast the logits, their
            // shifted copy, its cast and the softmax take 12 bytes; an engine without it takes 8.
            LossKernel::Unfused if layer.adaptation.is_some() => {
                workspace + if copies > 0 { Bytes::ZERO } else { logits }
            }
            LossKernel::Unfused => workspace + Bytes::new(logits.get() / 2 * 3),
            LossKernel::FusedInPlace => workspace.saturating_sub(logits),
            LossKernel::Chunked => workspace.saturating_sub(logits) + Bytes::new(logits.get() / CHUNKS),
        };
        // An optimizer in the backward holds the gradients of the layer in computation.
        let in_backward = training && workload.formats.optimizer_in_backward;
        let workspace = workspace + if in_backward { gradients } else { Bytes::ZERO };
        // The outputs of repeated operations exist again in the backward of their layer.
        let workspace = workspace + when(layer.needs_backward, repeated.0);
        let cache = if training { Bytes::ZERO } else { layer.cache(batch, precision) * workload.microbatches };
        Self {
            parameters: sum(&|group| group.bytes),
            streamed: streamed(layer, workload, &groups),
            updated: sum(&|group| group.training.map_or(Bytes::ZERO, |_| group.bytes)),
            gradients: if in_backward { Bytes::ZERO } else { gradients },
            optimizer: sum(&state),
            undivided: sum(&copied),
            tied_parameters: Bytes::ZERO,
            tied_gradients: Bytes::ZERO,
            cache,
            saved: saved(Recompute::None),
            saved_selective: saved(Recompute::Selective),
            input: saved(Recompute::Full),
            boundary: output(layer, workload, precision),
            workspace,
        }
    }

    /// Returns the sum of its own parameters, gradients, optimizer state and cache.
    pub fn state(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.cache
    }
}

/// Returns the bytes of `groups` that one copy brings for the microbatches of an iteration. The tokens
/// of a copy are all that the device computes before it leaves the layer, padding too.
fn streamed(layer: &Layer, workload: &Workload, groups: &[Group]) -> Bytes {
    let batch = if workload.mode == Mode::Generate { layer.generated(workload.batch()) } else { workload.mean_batch() };
    let idle = 1.0 - layer.touched_share(batch, workload.microbatches);
    let part = |group: &Group| group.bytes.saturating_sub(Bytes::new((group.experts.as_f64() * idle).round() as u64));
    groups.iter().map(part).sum()
}

/// Returns the temporaries of a step on the copies of embedding and head, which the first of them counts:
/// 4 bytes per parameter, since the step computes on lists of tensors and copies are not narrow for it
/// (inferred from Qwen's LoRA runs with trained embeddings).
fn step_temporaries(model: &Model, layer: &Layer, workload: &Workload) -> Bytes {
    let copied = |layer: &Layer| layer.adaptation.as_ref().map_or(0, |adaptation| adaptation.copied_parameters());
    let first = model.layers().iter().find(|other| copied(other) > 0);
    if workload.mode != Mode::Train || first.is_none_or(|first| first.name != layer.name) {
        return Bytes::ZERO;
    }
    Bytes::new(4 * model.layers().iter().map(copied).sum::<u64>())
}

/// Returns the bytes that a layer does not save because its backward repeats operations: without
/// recompute, and beside a selective one, which drops some of them itself.
fn repeated(layer: &Layer, workload: &Workload, precision: Precision) -> (Bytes, Bytes) {
    let (operations, attention) = (workload.recompute_ops, workload.attention);
    if operations.is_empty() || workload.mode != Mode::Train {
        return (Bytes::ZERO, Bytes::ZERO);
    }
    let unsaved = |operations| layer.unsaved_by(operations, (workload.longest_batch(), precision, attention));
    (unsaved(operations), unsaved(operations.without(selected(attention))))
}

/// Returns the operations that a selective recompute repeats.
pub(crate) fn selected(attention: Attention) -> Operations {
    match attention {
        Attention::Fused => Operations::of(&[Operation::Norms, Operation::Activation]),
        Attention::Materialised => Operations::of(&[Operation::Attention]),
    }
}

/// The chunks of tokens of a chunked loss: torchtune's and Liger's default is 8.
const CHUNKS: u64 = 8;

/// Returns the bytes of the logits of one microbatch in 32 bits; zero without a head. Kernels that are
/// not fused hold them in 16 bits, the 32-bit gradient, and its 16-bit cast beside them (half as much
/// again as the logits, three times). In the backward of those that work in place, the 32-bit gradient
/// has the place of the probabilities, beside the logits and their gradient in 16 bits: as much as
/// a fused loss (Megatron-LM, `vocab_parallel_cross_entropy`).
fn logits(layer: &Layer, workload: &Workload) -> Bytes {
    let LayerKind::Head(head) = &layer.kind else { return Bytes::ZERO };
    let tokens = || layer.batch(workload.longest_batch()).tokens();
    let rows = if head.every_token { tokens() } else { workload.microbatch };
    Bytes::new(4u64.saturating_mul(rows).saturating_mul(head.classes))
}

/// Returns the batch that a pass of `layer` sees.
fn seen(layer: &Layer, workload: &Workload) -> Batch {
    if workload.mode == Mode::Generate { layer.generated(workload.batch()) } else { workload.longest_batch() }
}

/// Returns the output bytes of `layer` for one microbatch.
pub(crate) fn output(layer: &Layer, workload: &Workload, precision: Precision) -> Bytes {
    layer.boundary(seen(layer, workload), precision)
}
