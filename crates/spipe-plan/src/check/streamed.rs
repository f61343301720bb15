//! The rules of streamed systems.

use super::found::Found;
use crate::{Context, OrderKind, Placement, Stage, Weights};
use spipe_base::{Diagnostic, LayerId, StageId};
use spipe_hardware::DeviceKind;

/// Checks that every stage may keep its parameters or streams them, that separate backward stages
/// recompute all layers, and that no device waits for itself.
pub(super) fn check(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let fixed_by = placement.fixed_by();
    for (index, stage) in placement.all_stages().enumerate() {
        let id = StageId::from(index);
        if matches!(stage.weights, Weights::Resident) {
            check_kept(context, placement, (id, stage), faults);
        }
        let separate = !placement.backward.is_empty() && index >= placement.stages.len();
        if separate && stage.recomputed < stage.layers.count() {
            faults.push_at(
                id,
                Diagnostic::error(format!(
                    "stage `{id}` of the backward recomputes {} of its layers",
                    stage.recomputed
                ))
                .hint("a separate backward starts from a checkpoint only: recompute all layers"),
            );
        }
    }
    let (devices, microbatches) = (placement.devices().len() as u64, context.workload().microbatches);
    if without_overlap(placement) && devices > 1 {
        faults.push(
            Diagnostic::error(format!("{fixed_by} swaps the layers of one GPU, not of {devices}"))
                .hint("put all stages on one GPU, or use system `superpipeline`"),
        );
    }
    if microbatches < devices {
        faults.push(
            Diagnostic::error(format!("{fixed_by} needs at least as many microbatches as devices"))
                .hint(format!("use at least {devices} microbatches")),
        );
    }
}

/// Whether nothing arrives while layers compute.
const fn without_overlap(placement: &Placement) -> bool {
    matches!(placement.order, OrderKind::Rounds(exchange) if exchange.without_overlap)
}

/// Checks a stage that keeps its parameters: its system allows that, its optimizer step runs on its
/// own GPU, and no layer is tied to a layer of a streamed stage.
fn check_kept(context: &Context<'_>, placement: &Placement, (id, stage): (StageId, &Stage), faults: &mut Found<'_>) {
    let fixed_by = placement.fixed_by();
    let coupled = placement.backward.is_empty() && !placement.update.is_early();
    if !placement.system.may_keep() || !coupled || without_overlap(placement) {
        let message = format!("stage `{id}` keeps its parameters, but {fixed_by} streams them");
        faults.push_at(id, Diagnostic::error(message).hint("name a host memory in `weights-in`"));
        return;
    }
    let device = &context.hardware.devices()[stage.lead()];
    if matches!(device.kind, DeviceKind::Socket { .. }) {
        let message = format!("stage `{id}` stays on `{}`, but {fixed_by} computes on GPUs", device.name);
        faults.push_at(id, Diagnostic::error(message).hint("put it on a GPU, or use system `hybrid`"));
    }
    if let Some(socket) = stage.optimizer.and_then(|socket| context.hardware.devices().get(socket)) {
        let message = format!("stage `{id}` keeps its parameters, but its optimizer step runs on `{}`", socket.name);
        let hint = "leave `optimizer-on` out, or name a host memory in `weights-in`";
        faults.push_at(id, Diagnostic::error(message).hint(hint));
    }
    let ties = [context.model.borrows(stage.layers), context.model.lends(stage.layers)].into_iter().flatten();
    let stays = |layer: LayerId| {
        let holds = |stage: &&Stage| stage.layers.contains(layer);
        placement.stages.iter().find(holds).is_none_or(|stage| matches!(stage.weights, Weights::Resident))
    };
    for tie in ties.filter(|tie| !stays(tie.owner) || !stays(tie.user)) {
        let name = |layer| &context.model.layers()[layer].name;
        let other = if stage.layers.contains(tie.owner) { tie.user } else { tie.owner };
        let layers = format!("layers `{}` and `{}` use the same parameters", name(tie.owner), name(tie.user));
        let message =
            format!("stage `{id}` keeps its parameters, but {layers}, and the stage of `{}` streams them", name(other));
        let hint = "name a host memory in `weights-in` of both, or of neither";
        faults.push_at(id, Diagnostic::error(message).hint(hint));
    }
}
