//! FSDP2: every process has a shard of each layer's parameters, gradients and optimizer state.

use crate::{
    Modules,
    folder::{COMMON, Folder, OPTIONS, filled},
    launch::{Beside, Launch, MANIFESTS},
    network::Network,
    sharded::{Sharded, check_training},
    training::Training,
};
use spipe_base::{Diagnostic, Faults};
use spipe_cost::Optimizer;
use spipe_plan::{Plan, uses_drives};

const SCRIPTS: [(&str, &str); 1] = [("train.py", include_str!("../templates/fsdp/train.py"))];

const TRAINING: Training = Training { optimizers: &[Optimizer::Adamw], adapters: true, bases: false, meshes: false };

/// The folder that `torchrun` runs: scripts and settings of a plan of FSDP, or of ZeRO-Infinity,
/// whose shards are in host memory.
///
/// # Errors
/// Plans of other systems, and what FSDP2 cannot express, with the nearest plan that it can.
pub fn fsdp(plan: &Plan, beside: Beside) -> Result<Folder, Faults> {
    let settings = Sharded::new(plan, &checked(plan, beside.modules)?);
    let mut folder = Folder::default();
    folder.add("plan.json", settings.to_json()?);
    for (name, text) in COMMON.into_iter().chain(SCRIPTS) {
        folder.add(name, text);
    }
    beside.modules.add_to(&mut folder);
    let launch = Launch::of(&settings.ranks, beside);
    folder.add("train.sbatch", launch.sbatch(plan.context().model.name(), MANIFESTS));
    let values = [
        ("model", plan.context().model.name().into()),
        ("machine", plan.context().hardware.name().into()),
        ("sharded", sharded_over(settings.ranks.len(), settings.shard_group)),
        ("commands", launch.commands()),
        ("table", settings.table()),
        ("options", OPTIONS.into()),
        ("home", if settings.offloads { "host memory, and so is AdamW" } else { "the devices" }.into()),
        ("prefetch", settings.prefetch.to_string()),
    ];
    folder.add("README.md", filled(include_str!("../templates/fsdp/README.md"), &values));
    Ok(folder)
}

/// The processes among which everything is divided.
fn sharded_over(ranks: usize, group: usize) -> String {
    match group {
        group if group == ranks => format!("{ranks} processes"),
        group => format!("groups of {group} of {ranks} processes, which sum their gradients (hybrid sharding)"),
    }
}

/// Refuses what FSDP2 cannot run.
///
/// # Errors
/// The faults of [`fsdp`].
pub fn check(plan: &Plan, modules: Modules) -> Result<(), Faults> {
    checked(plan, modules).map(drop)
}

/// The network of a plan that FSDP2 can run.
fn checked(plan: &Plan, modules: Modules) -> Result<Network, Faults> {
    let placement = plan.placement();
    let mut faults = check_training(plan, "FSDP");
    if !placement.shards_parameters() {
        let message = format!("this plan of `{}` shards no parameters over devices", placement.name());
        faults.push(Diagnostic::error(message).hint("use `command export torch`, or plan with `option system fsdp`"));
    }
    if uses_drives(&plan.context(), placement) {
        let message = "the plan keeps something on a drive, and FSDP2 keeps everything in memory";
        faults.push(
            Diagnostic::error(message)
                .hint("use `command export deepspeed`, or plan without `option state-on` and `option parameters-on`"),
        );
    }
    faults.or(())?;
    TRAINING.check(plan, modules)?;
    Ok(Network::of(plan.context().model, modules)?)
}
