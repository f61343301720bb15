//! Refusals of plans that torchtitan cannot express.
//!
//! Its configuration takes any degrees, so that what it would not run is refused here.

use crate::{program, torch};
use spipe_base::{Diagnostic, Faults};
use spipe_cost::{Formats, GradientFormat, Optimizer};
use spipe_model::{Architecture, Mlp, Norm, Positions, Precision, QkNorm, RotaryScaling, Transformer};
use spipe_plan::{Plan, Stage};

/// The decoder of a plan that torchtitan can run.
///
/// # Errors
/// One fault for each reason.
pub fn check(plan: &Plan) -> Result<&Transformer, Faults> {
    let (context, placement) = (plan.context(), plan.placement());
    // Its pipelines are PyTorch's.
    torch::check_runtime(plan)?;
    let mut faults = Faults::new();
    let mut refuse = |reason: &str, nearest: &str| {
        let message = format!("this plan of `{}` cannot be exported: {reason}", placement.name());
        faults.push(Diagnostic::error(message).hint(nearest));
    };
    let devices = context.hardware.devices();
    if !placement.stages.iter().all(|stage| devices[stage.lead()].is_gpu()) {
        refuse("a stage is on a CPU", "plan with `option devices` of GPUs alone");
    }
    if placement.stages.iter().any(|stage| devices[stage.lead()].emulated) {
        refuse("its GPUs are emulated", "use `command export torch` or `command run`");
    }
    let on_host = |stage: &Stage| context.steps(stage) != stage.lead() || stage.offload.is_some();
    if program::is_needed(plan) || placement.stages.iter().any(on_host) {
        refuse(
            "a stage keeps something in host memory",
            "nearest: `option system 1f1b` with `option sharding optimizer`",
        );
    }
    let (workload, mesh) = (context.workload(), context.mesh());
    if !matches!(workload.precision, Precision::Bf16 | Precision::Fp32) {
        refuse("it trains in 16 or 32 bits without scaled losses", "nearest: `option precision bf16`");
    }
    if workload.optimizer != Optimizer::Adamw {
        refuse("its optimizer is not AdamW", "plan with `option optimizer adamw`");
    }
    let wide = matches!(workload.formats.gradients, None | Some(GradientFormat::F32));
    if !wide || (Formats { gradients: None, ..workload.formats }) != Formats::PLAIN {
        refuse("it has other formats of gradients, states or master copies", "plan without these options");
    }
    if !workload.recompute_ops.is_empty() {
        refuse(
            "single operations are computed again, and torchtitan's names are others",
            "plan without `option recompute-ops`",
        );
    }
    if context.model.lora().is_some() || context.model.trained_parameters() < context.model.parameters() {
        refuse("not all parameters are trained", "plan without `option lora` and `option freeze`");
    }
    if mesh.context > 1 || mesh.expert > 1 {
        refuse("devices divide sequences or experts", "use `command export megatron`");
    }
    let pipeline = placement.devices().len();
    if pipeline == 1 && mesh.data() > 1 && workload.microbatches > 1 {
        let reason = format!(
            "without a pipeline torchtitan reduces gradients after each of the {} microbatches, and the plan once",
            workload.microbatches
        );
        refuse(&reason, "nearest: a larger `option microbatch`, or `option pipeline-parallel 2`");
    }
    let decoder = match context.model.architecture() {
        Architecture::Transformer(transformer) => Some(transformer),
        _ => None,
    };
    match decoder.map(peculiarity) {
        Some(None) => {}
        Some(Some(word)) => refuse(word, "use `command export torch` or `command export megatron`"),
        None => refuse("its model is no decoder", "use `command export torch`"),
    }
    if let Some(decoder) = decoder {
        if decoder.tied && pipeline > 1 {
            refuse(
                "torchtitan ties embedding and head within one process alone",
                "nearest: `option pipeline-parallel 1`, or `command export megatron`",
            );
        }
        let tokens = ("tokens of a sequence", if mesh.sequence { workload.seq_len } else { 0 });
        if let Some(reason) = torch::unequal(&decoder.block, mesh.tensor(), [tokens]) {
            refuse(&reason, "plan with another `option tensor-parallel`");
        }
    }
    faults.or(())?;
    decoder.ok_or_else(Faults::new)
}

/// The first property of a decoder that the model of Llama in torchtitan does not have.
fn peculiarity(model: &Transformer) -> Option<&'static str> {
    let block = &model.block;
    let words = [
        (model.mtp_layers > 0, "its model predicts further tokens"),
        (block.mlp != Mlp::Swiglu, "its feed-forward network is not SwiGLU"),
        (!matches!(block.norm, Norm::RmsNorm), "its norms are not RMSNorm"),
        (block.qk_norm != QkNorm::None, "its queries and keys are normalised"),
        (block.qkv_bias || block.output_bias || block.mlp_bias, "some of its matrices have biases"),
        (block.sliding_window.is_some(), "its attention has a window"),
        (block.dropout, "it has dropout"),
    ];
    let positions = match block.positions {
        Positions::Rotary { fraction, scaling: None | Some(RotaryScaling::Llama3 { .. }), .. } if fraction >= 1.0 => {
            None
        }
        _ => Some("its positions are not those of Llama"),
    };
    let word = words.into_iter().find(|(holds, _)| *holds).map(|(_, word)| word);
    model.peculiarity().or(word).or(positions)
}
