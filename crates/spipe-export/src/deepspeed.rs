//! DeepSpeed: ZeRO-Offload, ZeRO-Infinity and ZeRO-3 as a configuration and a script that takes it.

use crate::{
    Modules,
    folder::{COMMON, Folder, OPTIONS, filled},
    launch::{Beside, Launch},
    network::Network,
    sharded::{Sharded, check_training},
    training::Training,
};
use serde_json::{Map, Value, json};
use spipe_base::{Diagnostic, Faults, MemoryId};
use spipe_cost::Optimizer;
use spipe_model::Precision;
use spipe_plan::{OrderKind, Plan, Update, Weights, keeps_parameters_on_drives, keeps_state_on_drives, uses_drives};
use std::collections::BTreeSet;

const SCRIPTS: [(&str, &str); 1] = [("train.py", include_str!("../templates/deepspeed/train.py"))];

/// The stage of DeepSpeed's ZeRO that has the answers of a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    /// All optimizer steps of one GPU run on its host (ZeRO-Offload).
    Two,
    /// Parameters are sharded over GPUs, and perhaps streamed (ZeRO-Infinity).
    Three { streams: bool },
}

impl Zero {
    fn of(plan: &Plan) -> Result<Self, Diagnostic> {
        let (placement, context) = (plan.placement(), plan.context());
        if placement.shards_parameters() {
            if placement.shard_groups().count() > 1 {
                let fault =
                    Diagnostic::error("DeepSpeed divides parameters among all GPUs, and the plan within groups");
                return Err(fault.hint("use `command export fsdp`, or plan without `option shard-group`"));
            }
            let streams = placement.stages.iter().any(|stage| matches!(stage.weights, Weights::Streamed(_)));
            return Ok(Self::Three { streams });
        }
        if placement.update == Update::Delayed {
            let fault = Diagnostic::error("DeepSpeed's steps are not delayed by one iteration");
            return Err(fault.hint("nearest: `option system zero-offload`"));
        }
        let mut trained = placement.stages.iter().filter(|stage| context.trains(stage.layers)).peekable();
        let hosted = trained.peek().is_some() && trained.all(|stage| context.steps(stage) != stage.lead());
        if placement.order != OrderKind::PLAIN_1F1B || !hosted {
            let fault = Diagnostic::error(format!("this plan of `{}` is none of DeepSpeed's", placement.name()));
            return Err(fault.hint(
                "plan with `option system zero-offload`, `zero-infinity` or `fsdp`, or use `command export torch`",
            ));
        }
        match placement.devices().len() {
            1 => Ok(Self::Two),
            devices => Err(Diagnostic::error(format!(
                "this plan is a pipeline of {devices} devices, and DeepSpeed's ZeRO-Offload has all layers on each GPU"
            ))
            .hint(
                "nearest: `option system zero-offload` with one GPU in `option devices`, or use `command export torch`",
            )),
        }
    }
}

const TRAINING: Training = Training { optimizers: &[Optimizer::Adamw], adapters: false, bases: false, meshes: false };

/// The folder that `deepspeed` or `torchrun` runs: configuration, script and settings. `nvme` is the
/// mount point of a drive: it has what the plan keeps on a drive, or else all shards of ZeRO-Infinity.
///
/// # Errors
/// Plans of systems that are not DeepSpeed's, and what it cannot express, with the nearest plan
/// that it can.
pub fn deepspeed(plan: &Plan, nvme: Option<&str>, beside: Beside) -> Result<Folder, Faults> {
    let name = plan.placement().name();
    let (zero, network) = checked(plan, nvme.is_some(), beside.modules)?;
    let settings = Sharded::new(plan, &network);
    let mut folder = Folder::default();
    let config = serde_json::to_string_pretty(&config(plan, (zero, &settings), nvme))
        .map_err(|error| Diagnostic::error(error.to_string()))?;
    folder.add("ds_config.json", config + "\n");
    folder.add("plan.json", settings.to_json()?);
    for (name, text) in COMMON.into_iter().chain(SCRIPTS) {
        folder.add(name, text);
    }
    beside.modules.add_to(&mut folder);
    let launch = Launch::of(&settings.ranks, beside);
    folder.add("train.sbatch", launch.sbatch(plan.context().model.name(), "latest"));
    let values = [
        ("model", plan.context().model.name().into()),
        ("machine", plan.context().hardware.name().into()),
        ("system", name.to_owned()),
        ("ranks", settings.ranks.len().to_string()),
        ("commands", launch.commands()),
        ("table", settings.table()),
        ("options", OPTIONS.into()),
    ];
    folder.add("README.md", filled(include_str!("../templates/deepspeed/README.md"), &values));
    Ok(folder)
}

/// Refuses what DeepSpeed cannot run; a drive of the plan counts as mounted.
///
/// # Errors
/// The faults of [`deepspeed`].
pub fn check(plan: &Plan, modules: Modules) -> Result<(), Faults> {
    checked(plan, uses_drives(&plan.context(), plan.placement()), modules).map(drop)
}

/// The stage of ZeRO and the network of a plan that DeepSpeed can run.
fn checked(plan: &Plan, mounted: bool, modules: Modules) -> Result<(Zero, Network), Faults> {
    let name = plan.placement().name();
    let mut faults = check_training(plan, "DeepSpeed");
    let zero = Zero::of(plan).map_err(|fault| faults.push(fault));
    check_drives(plan, mounted, &mut faults);
    let streams = zero == Ok(Zero::Three { streams: true });
    if mounted && !streams && !keeps_state_on_drives(plan.placement()) {
        faults.push(
            Diagnostic::error(format!("`{name}` keeps nothing on a drive")).hint(
                "leave `option nvme` out, or plan with `option system zero-infinity` and `option state-on DRIVE`",
            ),
        );
    }
    let zero = match zero {
        Ok(zero) => faults.or(zero)?,
        Err(()) => return Err(faults),
    };
    TRAINING.check(plan, modules)?;
    Ok((zero, Network::of(plan.context().model, modules)?))
}

/// Refuses drives that DeepSpeed does not have: its ZeRO-3 keeps the states of all groups on one drive
/// or none, and so the parameters.
fn check_drives(plan: &Plan, mounted: bool, faults: &mut Faults) {
    let (placement, context) = (plan.placement(), plan.context());
    let [parameters, state] = [keeps_parameters_on_drives(&context, placement), keeps_state_on_drives(placement)];
    if !parameters && !state {
        return;
    }
    let streamed = placement.stages.iter().filter(|stage| matches!(stage.weights, Weights::Streamed(_)));
    let homes: BTreeSet<Option<MemoryId>> = streamed.map(|stage| context.drive_of(stage)).collect();
    let drives: BTreeSet<Option<MemoryId>> = placement
        .backward_stages()
        .iter()
        .filter(|stage| context.trains(stage.layers))
        .map(|stage| stage.state)
        .collect();
    let (what, hint) = if !placement.shards_parameters() {
        let what = if state { "optimizer state" } else { "parameters" };
        let what = format!("DeepSpeed keeps no {what} of `{}` on a drive", placement.name());
        (what, "nearest: `option system zero-infinity`")
    } else if drives.len() > 1 {
        let what = "DeepSpeed keeps the optimizer state of all layers on one drive, and the plan that of some";
        (what.into(), "nearest: a plan with `option state-on DRIVE`")
    } else if homes.len() > 1 {
        let what = "DeepSpeed keeps the parameters of all layers on one drive, and the plan those of some";
        (what.into(), "nearest: a plan with `option parameters-on DRIVE`")
    } else if !mounted {
        let kept = if state { "optimizer state" } else { "parameters" };
        let what = format!("the plan keeps {kept} on a drive, which has no mount point");
        (what, "name it with `option nvme PATH`")
    } else {
        return;
    };
    faults.push(Diagnostic::error(what).hint(hint));
}

/// DeepSpeed's configuration (`deepspeed/runtime/config.py`, `zero/config.py`). The train batch is
/// left out: it follows from microbatch, accumulation and the number of processes.
fn config(plan: &Plan, (zero, settings): (Zero, &Sharded), nvme: Option<&str>) -> Value {
    let (context, placement) = (plan.context(), plan.placement());
    let workload = context.workload();
    let mut config = Map::new();
    config.insert("train_micro_batch_size_per_gpu".into(), json!(workload.microbatch));
    config.insert(
        "gradient_accumulation_steps".into(),
        json!((workload.microbatches / settings.ranks.len() as u64).max(1)),
    );
    // Every default that changes a number is written out: they differ from version to version.
    let adam = json!({ "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "bias_correction": true });
    config.insert("optimizer".into(), json!({ "type": "AdamW", "params": adam }));
    config.insert("bf16".into(), json!({ "enabled": workload.precision == Precision::Bf16 }));
    config.insert(
        "fp16".into(),
        json!({
            "enabled": workload.precision == Precision::Fp16,
            "auto_cast": false,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 2000,
            "hysteresis": 1,
            "consecutive_hysteresis": false,
            "min_loss_scale": 1,
        }),
    );
    // Without a norm DeepSpeed 0.19 clips at 1; it clips where the norm is greater than zero.
    config.insert("gradient_clipping".into(), json!(workload.clip_norm.map_or(0.0, f64::from)));
    config.insert("data_types".into(), json!({ "grad_accum_dtype": "fp32" }));
    config.insert("communication_data_type".into(), json!("fp32"));
    config.insert("prescale_gradients".into(), json!(false));
    config.insert("gradient_predivide_factor".into(), json!(1.0));
    config.insert("zero_optimization".into(), zero_section(plan, (zero, settings), nvme));
    if nvme.is_some() {
        // DeepSpeed's own defaults for asynchronous reads and writes.
        let aio = json!({ "block_size": 1_048_576, "queue_depth": 8, "single_submit": false, "overlap_events": true });
        config.insert("aio".into(), aio);
    }
    config.insert("steps_per_print".into(), json!(placement.stages.len().max(10)));
    Value::Object(config)
}

/// The section on ZeRO: where shards are, and how much is gathered ahead.
fn zero_section(plan: &Plan, (zero, settings): (Zero, &Sharded), nvme: Option<&str>) -> Value {
    let (context, placement) = (plan.context(), plan.placement());
    let parameters = |layers: spipe_base::LayerRange| -> u64 {
        layers.iter().map(|layer| context.model.layers()[layer].parameters).sum()
    };
    let largest = placement.stages.iter().map(|stage| parameters(stage.layers)).max().unwrap_or(1).max(1);
    let host = json!({ "device": "cpu", "pin_memory": true });
    let Zero::Three { streams } = zero else {
        // Gradients leave layer by layer: a bucket holds those of the largest layer.
        let layers = context.model.layers();
        let bucket = layers.iter().map(|layer| layer.parameters).max().unwrap_or(1);
        return json!({
            "stage": 2,
            "offload_optimizer": host,
            "overlap_comm": true,
            "contiguous_gradients": true,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        });
    };
    let gathered = settings.prefetch + 1;
    let mut section = Map::new();
    section.insert("stage".into(), json!(3));
    section.insert("overlap_comm".into(), json!(true));
    section.insert("contiguous_gradients".into(), json!(true));
    section.insert("reduce_bucket_size".into(), json!(largest));
    section.insert("stage3_prefetch_bucket_size".into(), json!(largest * settings.prefetch));
    section.insert("stage3_max_live_parameters".into(), json!(largest * gathered));
    section.insert("stage3_max_reuse_distance".into(), json!(largest * gathered));
    section.insert("stage3_param_persistence_threshold".into(), json!(0));
    section.insert("sub_group_size".into(), json!(largest));
    // Of each parameter AdamW has a master copy, two moments and a gradient.
    let optimizer = |path| json!({ "device": "nvme", "nvme_path": path, "pin_memory": true, "buffer_count": 4 });
    let parameters = |path| json!({ "device": "nvme", "nvme_path": path, "pin_memory": true, "buffer_count": gathered + 1, "buffer_size": largest });
    // The plan says what is on the drive; where it says nothing, everything is.
    let kept = [keeps_parameters_on_drives(&context, placement), keeps_state_on_drives(placement)];
    let kept = if kept == [false; 2] { [true; 2] } else { kept };
    let [parameters_on, state_on] = kept.map(|on_drive| nvme.filter(|_| on_drive));
    if streams {
        section.insert("offload_param".into(), parameters_on.map_or_else(|| host.clone(), parameters));
    }
    if settings.offloads || state_on.is_some() {
        section.insert("offload_optimizer".into(), state_on.map_or(host, optimizer));
    }
    Value::Object(section)
}
