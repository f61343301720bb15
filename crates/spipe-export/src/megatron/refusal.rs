//! Refusals of plans that Megatron cannot express.

use spipe_base::{Diagnostic, Faults};
use spipe_cost::{Formats, GradientFormat, Mode, Optimizer};
use spipe_model::{Architecture, Block, Mlp, Norm, Positions, Precision, QkNorm, Transformer};
use spipe_plan::{GradientsLeave, OrderKind, Plan, Sharding, Update, Weights};

/// The decoder of a plan that Megatron can run.
///
/// # Errors
/// One fault for each reason.
pub fn check(plan: &Plan) -> Result<&Transformer, Faults> {
    let (context, placement) = (plan.context(), plan.placement());
    let mut faults = Faults::new();
    let mut refuse = |reason: &str, nearest: &str| {
        let message = format!("this plan of `{}` cannot be exported: {reason}", placement.name());
        faults.push(Diagnostic::error(message).hint(nearest));
    };
    match placement.order {
        OrderKind::OneForwardOneBackward { head_start: 0 } | OrderKind::Interleaved { .. } => {}
        _ => refuse(
            "Megatron runs 1F1B, with one stage per device or interleaved",
            "nearest: `option system 1f1b` or `interleaved-1f1b`",
        ),
    }
    if matches!(placement.mesh.sharding, Sharding::Parameters { .. }) {
        refuse("its parameters are sharded", "use `command export fsdp`, or plan with `option sharding optimizer`");
    }
    if !matches!(placement.update, Update::AsReady { .. } | Update::Phase { .. })
        || placement.gradients_leave == GradientsLeave::EachMicrobatch
    {
        refuse("its optimizer does not step between iterations on devices", "nearest: `option system 1f1b`");
    }
    let device = |stage: &spipe_plan::Stage| context.hardware.devices()[stage.lead()].is_gpu();
    if !placement.stages.iter().all(device) {
        refuse("a stage is on a CPU", "plan with `option devices` of GPUs alone");
    }
    if placement.stages.iter().any(|stage| context.hardware.devices()[stage.lead()].emulated) {
        refuse("its GPUs are emulated", "use `command run`");
    }
    let on_host = |stage: &spipe_plan::Stage| {
        context.steps(stage) != stage.lead() || stage.offload.is_some() || stage.weights != Weights::Resident
    };
    if placement.stages.iter().any(on_host) {
        refuse(
            "a stage keeps something in host memory",
            "nearest: `option system 1f1b` with `option sharding optimizer`",
        );
    }
    let workload = context.workload();
    if context.model.experts() > 0 {
        let (mesh, half) = (context.mesh(), workload.precision == Precision::Fp16);
        if mesh.tensor() > 1 && !mesh.sequence {
            refuse("its teams share experts, but not activations", "plan with `option sequence-parallel`");
        }
        if mesh.expert > 1 && half {
            refuse("its experts are divided in fp16", "plan with `option precision bf16`");
        }
    }
    if workload.mode != Mode::Train {
        refuse("the script trains, and the plan is for inference", "plan with `option mode train`");
    }
    if !matches!(workload.optimizer, Optimizer::Adamw | Optimizer::Sgd) {
        refuse("its optimizer is neither AdamW nor SGD", "plan with `option optimizer adamw`");
    }
    let wide = workload.formats.gradients == Some(GradientFormat::F32) || workload.formats.gradients.is_none();
    if !wide || (Formats { gradients: None, ..workload.formats }) != Formats::PLAIN {
        refuse("it has other formats of gradients, states or master copies", "plan without these options");
    }
    if context.model.lora().is_some() || context.model.trained_parameters() < context.model.parameters() {
        refuse("not all parameters are trained", "plan without `option lora` and `option freeze`");
    }
    let decoder = match context.model.architecture() {
        Architecture::Transformer(transformer) => Some(transformer),
        _ => None,
    };
    match decoder.map(peculiarity) {
        Some(None) => {}
        Some(Some(word)) => refuse(word, "use `command export torch` with `option modules transformers`"),
        None => refuse("its model is no decoder", "use `command export torch`"),
    }
    faults.or(())?;
    decoder.ok_or_else(Faults::new)
}

/// The first property of a decoder that this export has no words for.
fn peculiarity(model: &Transformer) -> Option<&'static str> {
    let block = &model.block;
    // Experts in all blocks have words.
    let alike = Transformer { block: Block { experts: None, ..model.block }, ..model.clone() };
    let words = [
        (!model.dense_layers.is_empty(), "some of its blocks have no experts"),
        (
            block.experts.is_some_and(|experts| experts.router_bias || experts.shared_gate),
            "its router has a bias, or its shared expert a gate",
        ),
        (model.mtp_layers > 0, "its model predicts further tokens"),
        (matches!(block.mlp, Mlp::GegluTanh | Mlp::Relu), "its feed-forward network is neither SwiGLU nor GELU"),
        (matches!(block.positions, Positions::Alibi | Positions::None), "its positions are neither learned nor rotary"),
        (
            matches!(block.positions, Positions::Rotary { scaling: Some(_), .. }),
            "the angles of its positions are scaled",
        ),
        (block.qk_norm != QkNorm::None, "its queries and keys are normalised"),
        (block.qkv_bias != block.mlp_bias || block.output_bias != block.mlp_bias, "some of its matrices have biases"),
        (!matches!(block.norm, Norm::RmsNorm | Norm::LayerNorm), "its norms are neither RMSNorm nor LayerNorm"),
        (block.sliding_window.is_some(), "its attention has a window"),
    ];
    alike.peculiarity().or_else(|| words.into_iter().find(|(holds, _)| *holds).map(|(_, word)| word))
}
