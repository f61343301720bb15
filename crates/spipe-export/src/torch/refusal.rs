//! Plans that PyTorch's pipeline runtime cannot express.

use spipe_base::{Diagnostic, Faults};
use spipe_cost::Mode;
use spipe_plan::{GradientsLeave, OrderKind, Plan, Update, Weights, uses_drives};

/// Refuses what the runtime cannot express.
///
/// # Errors
/// One fault for each reason, with the nearest plan that can be exported.
pub fn check(plan: &Plan) -> Result<(), Faults> {
    let (context, placement) = (plan.context(), plan.placement());
    let (name, order) = (placement.name(), placement.order);
    let mut faults = Faults::new();
    let mut refuse = |reason: &str, nearest: &str| {
        faults.push(Diagnostic::error(format!("this plan of `{name}` cannot be exported: {reason}")).hint(nearest));
    };
    if context.workload().mode != Mode::Train {
        refuse("the scripts train, and the plan is for inference", "plan with `option mode train`");
    }
    match order {
        _ if placement.shards_parameters() => refuse(
            "its parameters are sharded over all GPUs, which is no pipeline",
            "use `command export fsdp` or `command export deepspeed`",
        ),
        OrderKind::Rounds(_) => refuse(
            "its parameters are streamed from the host across passes, and PyTorch's stages keep theirs on the device",
            "nearest: a plan with `option system zero-offload` or `1f1b` here, or one with `option system zero-infinity` for \
             `command export deepspeed`",
        ),
        OrderKind::Uniform => refuse(
            "its offloads take turns between devices, and PyTorch's hooks copy each activation at once",
            "nearest: `option system gis-h`, which has the same order without offloads",
        ),
        _ => {}
    }
    if placement.update == Update::Delayed {
        refuse("its optimizer steps use gradients one iteration old", "nearest: `option system zero-offload`");
    }
    if uses_drives(&context, placement) {
        refuse(
            "it keeps something on a drive, and PyTorch's stages keep everything in memory",
            "nearest: a plan without `option state-on` and `option activations-on`, or `command export deepspeed` of one with \
             `option system zero-infinity`",
        );
    }
    if placement.gradients_leave == GradientsLeave::EachMicrobatch {
        refuse(
            "its gradients leave the GPU with each microbatch, and PyTorch adds them up on the device",
            "nearest: `option system zero-offload` without `gradients-leave`",
        );
    }
    let pipeline = placement.is_pipeline();
    if pipeline && !placement.backward.is_empty() {
        refuse("its backward has stages of its own", "nearest: a plan with the same stages in both passes");
    }
    if pipeline {
        if placement.stages.iter().any(|stage| matches!(stage.weights, Weights::Streamed(_))) {
            refuse("a stage streams its parameters", "nearest: `option pin` without `stream`");
        }
        if let Some((id, _)) = placement.stages.enumerate().find(|(_, stage)| stage.layers.is_empty()) {
            refuse(&format!("stage `{id}` has no layers"), "nearest: a layout with layers in every stage");
        }
        let frozen = placement.stages.enumerate().find(|(_, stage)| context.backward_of(stage.layers).is_none());
        if let Some((id, _)) = frozen.filter(|_| context.workload().mode == Mode::Train) {
            refuse(
                &format!("stage `{id}` has no backward, and PyTorch's runtime wants one for every microbatch"),
                "nearest: stages that each have a layer that trains, or fewer devices",
            );
        }
    }
    faults.or(())
}
