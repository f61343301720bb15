//! Single changes of a stage: other layers, parts, or another home of its optimizer or activations.

use crate::hosts::{socket, socket_of};
use spipe_base::LayerRange;
use spipe_plan::{Context, Stage};

/// `stage` with layers `from..to`; all are recomputed if all were.
pub(crate) fn over(stage: &Stage, from: usize, to: usize) -> Stage {
    let layers = LayerRange::new(from.into(), (to - 1).into()).unwrap_or(stage.layers);
    let all = stage.recomputed == stage.layers.count();
    Stage { layers, recomputed: if all { layers.count() } else { stage.recomputed.min(layers.count()) }, ..*stage }
}

/// The first `count` layers of `stage`, and the rest.
pub(crate) fn cut_at(stage: &Stage, count: usize) -> [Stage; 2] {
    let (first, end) = (stage.layers.first().index(), stage.layers.last().index() + 1);
    let rest = stage.recomputed.saturating_sub(count);
    [over(stage, first, first + count), over(stage, first + count, end).with_recomputed(rest)]
}

/// `stage` in `parts` parts of about equal length, or one per layer if it has fewer layers.
pub(crate) fn equal_parts(stage: &Stage, parts: usize) -> Vec<Stage> {
    let mut list = Vec::new();
    let mut rest = *stage;
    for left in (2..=parts.min(stage.layers.count())).rev() {
        let [front, back] = cut_at(&rest, rest.layers.count() / left);
        list.push(front);
        rest = back;
    }
    list.push(rest);
    list
}

/// `stage` with its optimizer on the socket that has its other host data, or else on the nearest.
pub(crate) fn stepped_on_socket(context: &Context<'_>, stage: &Stage) -> Option<Stage> {
    let socket = socket_of(context, stage).or_else(|| socket(context, stage.lead()))?;
    Some(stage.with_optimizer_on(socket))
}

/// `stage` with its activations in the DRAM of the socket that has its other host data, or else of
/// the nearest.
pub(crate) fn saved_in_host(context: &Context<'_>, stage: &Stage) -> Option<Stage> {
    let socket = socket_of(context, stage).or_else(|| socket(context, stage.lead()))?;
    Some(stage.with_activations_in(context.hardware.devices()[socket].memory))
}

/// `stage` with its optimizer moved from its device to a socket, or back.
pub(crate) fn stepped_elsewhere(context: &Context<'_>, stage: &Stage) -> Option<Stage> {
    match stage.optimizer {
        Some(_) => Some(Stage { optimizer: None, ..*stage }),
        None => stepped_on_socket(context, stage),
    }
}

/// `stage` with its activations moved from its device to DRAM, or back.
pub(crate) fn saved_elsewhere(context: &Context<'_>, stage: &Stage) -> Option<Stage> {
    match stage.offload {
        Some(_) => Some(Stage { offload: None, ..*stage }),
        None => saved_in_host(context, stage),
    }
}
