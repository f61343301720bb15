//! PyTorch's pipeline runtime: one process per device, and the order as `schedule.csv`.

mod mesh;
mod order;
mod refusal;
mod settings;

use crate::{
    Modules,
    folder::{COMMON, Folder, OPTIONS, filled},
    launch::{Beside, Launch, MANIFESTS},
    network::Network,
    program,
    training::Training,
};
pub(crate) use mesh::unequal;
pub(crate) use order::Exported;
pub(crate) use refusal::check as check_runtime;
use settings::Settings;
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults};
use spipe_cost::Optimizer;
use spipe_model::{Architecture, Precision};
use spipe_plan::{Plan, Stage};
use spipe_schedule::{Order, order_of};

const SCRIPTS: [(&str, &str); 10] = [
    ("train.py", include_str!("../../templates/torch/train.py")),
    ("pipeline.py", include_str!("../../templates/torch/pipeline.py")),
    ("rates.py", include_str!("../../templates/common/rates.py")),
    ("rules.py", include_str!("../../templates/torch/rules.py")),
    ("optimizer.py", include_str!("../../templates/torch/optimizer.py")),
    ("axes.py", include_str!("../../templates/torch/axes.py")),
    ("team.py", include_str!("../../templates/torch/team.py")),
    ("sums.py", include_str!("../../templates/torch/sums.py")),
    ("shares.py", include_str!("../../templates/torch/shares.py")),
    ("whole.py", include_str!("../../templates/torch/whole.py")),
];

const TRAINING: Training = Training {
    optimizers: &[Optimizer::Adamw, Optimizer::Adamw8bit, Optimizer::Adafactor, Optimizer::Lion, Optimizer::Sgd],
    adapters: true,
    bases: true,
    meshes: true,
};

/// The folder that `torchrun` runs: scripts, settings and the order of `plan`, or another order of
/// its stages.
///
/// # Errors
/// The parts that PyTorch cannot express, with the reason and the nearest plan that it can; faults of
/// `custom`.
pub fn torch(plan: &Plan, custom: Option<&Order>, beside: Beside) -> Result<Folder, Faults> {
    if custom.is_none() && program::is_needed(plan) {
        return program::folder(plan, beside);
    }
    let mut folder = Folder::default();
    let (network, exported) = checked(plan, custom, beside.modules, &mut folder.warnings)?;
    let settings = Settings::new(plan, &network, &exported);
    folder.warnings.extend(warnings(plan, &settings));
    folder.add("schedule.csv", exported.order.to_string());
    let json = serde_json::to_string_pretty(&settings).map_err(|error| Diagnostic::error(error.to_string()))?;
    folder.add("plan.json", json + "\n");
    for (name, text) in COMMON.into_iter().chain(SCRIPTS) {
        folder.add(name, text);
    }
    beside.modules.add_to(&mut folder);
    let launch = Launch::of(settings.ranks(), beside);
    folder.add("README.md", readme(plan, &settings, &launch));
    folder.add("train.sbatch", launch.sbatch(plan.context().model.name(), MANIFESTS));
    Ok(folder)
}

/// Refuses what PyTorch cannot run.
///
/// # Errors
/// The faults of [`torch`].
pub fn check(plan: &Plan, modules: Modules) -> Result<(), Faults> {
    if program::is_needed(plan) {
        return program::check(plan, modules);
    }
    checked(plan, None, modules, &mut Faults::new()).map(drop)
}

/// The network and the order of a plan that PyTorch can run.
fn checked(
    plan: &Plan,
    custom: Option<&Order>,
    modules: Modules,
    warnings: &mut Faults,
) -> Result<(Network, Exported), Faults> {
    refusal::check(plan)?;
    TRAINING.check(plan, modules)?;
    mesh::check(plan, modules)?;
    let (context, placement) = (plan.context(), plan.placement());
    let network = Network::of(context.model, modules)?.on_base(&context);
    let order = match custom {
        Some(order) => order.clone(),
        None => order_of(&context, placement)?,
    };
    Ok((network, Exported::new(plan, &order, warnings)?))
}

/// The parts of the plan that run otherwise.
fn warnings(plan: &Plan, settings: &Settings) -> Faults {
    let mut warnings = Faults::new();
    if settings.is_mixed() {
        warnings.push(
            Diagnostic::warning("pipelines of GPUs and CPU sockets are untested on a GPU")
                .hint("boundary tensors go through host memory over gloo; `option cpu` runs all ranks on cores"),
        );
    }
    if settings.offloads() {
        warnings.push(
            Diagnostic::warning("PyTorch's hooks copy offloaded activations without overlap")
                .hint("expect longer steps than predicted"),
        );
    }
    if let Some((device, bytes)) = unplanned_sums(plan) {
        warnings.push(
            Diagnostic::warning(format!(
                "gradients are summed in 32 bits: {bytes} more on `{device}` than the plan has"
            ))
            .hint("`option gradients f32` plans for them; `train.py --narrow-sums` sums in 16 bits"),
        );
    }
    let dropout = match plan.context().model.architecture() {
        Architecture::Transformer(transformer) => transformer.block.dropout,
        _ => false,
    };
    if dropout {
        warnings.push(Diagnostic::warning("the model has dropout, which the scripts leave out"));
    }
    warnings
}

/// The device whose sums of gradients in 32 bits exceed the planned gradients by the most bytes: 4 bytes
/// of each parameter instead of 2.
fn unplanned_sums(plan: &Plan) -> Option<(String, Bytes)> {
    let (context, placement) = (plan.context(), plan.placement());
    let workload = context.workload();
    let narrow = workload.precision != Precision::Fp32 && workload.formats.gradients.is_none();
    if !narrow || (workload.microbatches < 2 && context.mesh().data() == 1) {
        return None;
    }
    let parameters =
        |stage: &Stage| stage.layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum::<u64>();
    let more = |device: DeviceId| -> u64 {
        placement.stages.iter().filter(|stage| stage.lead() == device).map(|stage| 2 * parameters(stage)).sum()
    };
    let gpus = placement.devices().into_iter().filter(|device| context.hardware.devices()[*device].is_gpu());
    let (most, device) = gpus.map(|device| (more(device), device)).max()?;
    Some((context.hardware.devices()[device].name.clone(), Bytes::new(most)))
}

/// The page of the folder: what it is, and the commands that start it.
fn readme(plan: &Plan, settings: &Settings, launch: &Launch) -> String {
    let (context, placement) = (plan.context(), plan.placement());
    let state = if settings.has_gpus() { "GPU ranks use NCCL where all ranks are GPUs, gloo otherwise." } else { "" };
    filled(
        include_str!("../../templates/torch/README.md"),
        &[
            ("model", context.model.name().into()),
            ("machine", context.hardware.name().into()),
            ("system", placement.name().into()),
            ("ranks", settings.ranks().len().to_string()),
            ("commands", launch.commands()),
            ("table", settings.table()),
            ("mesh", settings.mesh_words()),
            ("state", state.into()),
            ("options", OPTIONS.into()),
        ],
    )
}
