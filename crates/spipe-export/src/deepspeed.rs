//! DeepSpeed: ZeRO-Offload, ZeRO-Infinity and ZeRO-3 as a configuration and a script that takes it.

use crate::{
    folder::{Folder, filled},
    network::Network,
    sharded::{Sharded, check_training},
};
use serde_json::{Map, Value, json};
use spipe_base::{Diagnostic, Faults};
use spipe_model::Precision;
use spipe_plan::{Plan, System};

const SCRIPTS: [(&str, &str); 3] = [
    ("train.py", include_str!("../templates/deepspeed/train.py")),
    ("model.py", include_str!("../templates/torch/model.py")),
    ("storage.py", include_str!("../templates/torch/storage.py")),
];

/// The folder that `deepspeed` or `torchrun` runs: configuration, script and settings. With `nvme`,
/// the shards of ZeRO-Infinity are on the drive mounted there.
///
/// # Errors
/// Plans of systems that are not DeepSpeed's, and what it cannot express, with the nearest plan
/// that it can.
pub fn deepspeed(plan: &Plan, nvme: Option<&str>) -> Result<Folder, Faults> {
    let system = plan.placement().system;
    let mut faults = check_training(plan, "DeepSpeed");
    match system {
        System::Fsdp | System::ZeroInfinity | System::ZeroOffload => {}
        System::ZeroOffloadDelayed => faults.push(
            Diagnostic::error("DeepSpeed's steps are not delayed by one iteration")
                .hint("nearest: `--system zero-offload`"),
        ),
        _ => faults.push(
            Diagnostic::error(format!("this plan of `{system}` is none of DeepSpeed's"))
                .hint("plan with `--system zero-offload`, `zero-infinity` or `fsdp`, or use `spipe export torch`"),
        ),
    }
    if nvme.is_some() && system != System::ZeroInfinity {
        faults.push(
            Diagnostic::error(format!("`{system}` keeps nothing on a drive"))
                .hint("plan with `--system zero-infinity`, or leave `--nvme` out"),
        );
    }
    faults.or(())?;
    let settings = Sharded::new(plan, &Network::of(plan.context().model)?);
    let mut folder = Folder::default();
    let config = serde_json::to_string_pretty(&config(plan, &settings, nvme))
        .map_err(|error| Diagnostic::error(error.to_string()))?;
    folder.add("ds_config.json", config + "\n");
    folder.add("plan.json", settings.to_json()?);
    for (name, text) in SCRIPTS {
        folder.add(name, text);
    }
    let values = [
        ("model", plan.context().model.name().into()),
        ("machine", plan.context().hardware.name().into()),
        ("system", system.to_string()),
        ("ranks", settings.ranks.to_string()),
        ("table", settings.table()),
    ];
    folder.add("README.md", filled(include_str!("../templates/deepspeed/README.md"), &values));
    Ok(folder)
}

/// DeepSpeed's configuration (`deepspeed/runtime/config.py`, `zero/config.py`). The train batch is
/// left out: it follows from microbatch, accumulation and the number of processes.
fn config(plan: &Plan, settings: &Sharded, nvme: Option<&str>) -> Value {
    let (context, placement) = (plan.context(), plan.placement());
    let workload = context.workload();
    let mut config = Map::new();
    config.insert("train_micro_batch_size_per_gpu".into(), json!(workload.microbatch));
    config.insert("gradient_accumulation_steps".into(), json!((workload.microbatches / settings.ranks).max(1)));
    config.insert("optimizer".into(), json!({ "type": "AdamW", "params": { "lr": 1e-3, "weight_decay": 0.01 } }));
    match workload.precision {
        Precision::Bf16 => drop(config.insert("bf16".into(), json!({ "enabled": true }))),
        Precision::Fp16 => drop(config.insert("fp16".into(), json!({ "enabled": true, "initial_scale_power": 16 }))),
        Precision::Fp32 => {}
    }
    if let Some(clip) = workload.clip_norm {
        config.insert("gradient_clipping".into(), json!(f64::from(clip)));
    }
    config.insert("zero_optimization".into(), zero(plan, settings, nvme));
    if nvme.is_some() {
        // DeepSpeed's own defaults for asynchronous reads and writes.
        let aio = json!({ "block_size": 1_048_576, "queue_depth": 8, "single_submit": false, "overlap_events": true });
        config.insert("aio".into(), aio);
    }
    config.insert("steps_per_print".into(), json!(placement.stages.len().max(10)));
    Value::Object(config)
}

/// The section on ZeRO: where shards are, and how much is gathered ahead.
fn zero(plan: &Plan, settings: &Sharded, nvme: Option<&str>) -> Value {
    let (context, placement) = (plan.context(), plan.placement());
    let parameters = |layers: spipe_base::LayerRange| -> u64 {
        layers.iter().map(|layer| context.model.layers()[layer].parameters).sum()
    };
    let largest = placement.stages.iter().map(|stage| parameters(stage.layers)).max().unwrap_or(1).max(1);
    let host = json!({ "device": "cpu", "pin_memory": true });
    if placement.system == System::ZeroOffload {
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
    }
    let gathered = settings.prefetch + 1;
    let mut zero = Map::new();
    zero.insert("stage".into(), json!(3));
    zero.insert("overlap_comm".into(), json!(true));
    zero.insert("contiguous_gradients".into(), json!(true));
    zero.insert("reduce_bucket_size".into(), json!(largest));
    zero.insert("stage3_prefetch_bucket_size".into(), json!(largest * settings.prefetch));
    zero.insert("stage3_max_live_parameters".into(), json!(largest * gathered));
    zero.insert("stage3_max_reuse_distance".into(), json!(largest * gathered));
    zero.insert("stage3_param_persistence_threshold".into(), json!(0));
    zero.insert("sub_group_size".into(), json!(largest));
    match (placement.system, nvme) {
        (System::ZeroInfinity, Some(path)) => {
            let drive = |buffers: u64, size: u64| json!({ "device": "nvme", "nvme_path": path, "pin_memory": true, "buffer_count": buffers, "buffer_size": size });
            zero.insert("offload_param".into(), drive(gathered + 1, largest));
            // Of each parameter AdamW has a master copy, two moments and a gradient.
            let optimizer = json!({ "device": "nvme", "nvme_path": path, "pin_memory": true, "buffer_count": 4 });
            zero.insert("offload_optimizer".into(), optimizer);
        }
        (System::ZeroInfinity, None) => {
            zero.insert("offload_param".into(), host.clone());
            zero.insert("offload_optimizer".into(), host);
        }
        _ if settings.offloads => drop(zero.insert("offload_optimizer".into(), host)),
        _ => {}
    }
    Value::Object(zero)
}
