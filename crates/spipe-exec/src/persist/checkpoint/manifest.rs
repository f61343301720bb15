//! The manifest of a checkpoint: its identity, and the checksums of its files.

use super::{CheckpointError, MANIFEST, OPTIMIZER, WEIGHTS, name};
use crate::{
    data::Data,
    device::tuned,
    optimizer::{AdamW, Decay, Schedule, StepSettings},
    persist::tensor_file::open_ordinary,
};
use serde::{Deserialize, Serialize};
use spipe_cost::Optimizer;
use spipe_plan::Plan;
use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::Path,
};

/// Version of the manifest's format.
const FORMAT_VERSION: u32 = 1;

/// Everything in a checkpoint besides the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Manifest {
    pub format_version: u32,
    /// Number of steps that are done.
    pub step: u32,
    pub seed: u64,
    /// The model's name.
    pub model: String,
    /// Hash of the model; absent from checkpoints older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Hash of the plan.
    pub plan: String,
    /// Sequences per step.
    pub batch: u64,
    /// Hash of the data; absent from checkpoints older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    pub optimizer: OptimizerSettings,
    /// Number of steps in the moments, by layer.
    pub optimizer_steps: BTreeMap<String, u32>,
    /// The loss scale, if losses are scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The choices of the tuner of GPUs, each by the checksum of its question; absent where no GPU
    /// was used, and from checkpoints older than this field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tuned: BTreeMap<String, u64>,
    pub files: BTreeMap<String, Sum>,
    /// Checksum of everything above as written; absent from checkpoints older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
}

/// The state of loss scaling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct LossScale {
    /// The scale of the next iteration.
    pub scale: f32,
    /// Number of consecutive steps without an overflow.
    pub good_steps: u32,
    /// The scale of the last iteration, which gradients of a delayed step carry; absent from
    /// checkpoints older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<f32>,
}

/// Settings of the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct OptimizerSettings {
    /// Absent for AdamW, and from checkpoints older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub learning_rate: f64,
    /// Of AdamW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// Of AdamW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    pub weight_decay: f64,
    /// The schedule of the learning rate in words; none if it is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
}

impl OptimizerSettings {
    /// The settings of a run of `steps` steps with the optimizer `kind`.
    pub fn new(kind: Optimizer, settings: StepSettings, schedule: Schedule, steps: u32) -> Self {
        let decay = match schedule.decay {
            Decay::Constant => String::new(),
            decay => format!(", {decay:?} decay to step {steps}"),
        };
        let words = format!("{} steps to warm up{decay}", schedule.warmup_steps);
        let adam = (kind == Optimizer::Adamw).then(AdamW::default);
        Self {
            name: (kind != Optimizer::Adamw).then(|| kind.name().into()),
            learning_rate: settings.lr,
            betas: adam.map(|adam| [adam.betas.0, adam.betas.1]),
            epsilon: adam.map(|adam| adam.eps),
            weight_decay: settings.weight_decay,
            schedule: (schedule != Schedule::default()).then_some(words),
        }
    }

    /// The optimizer's name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(Optimizer::Adamw.name())
    }
}

/// Size and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Sum {
    pub bytes: u64,
    pub crc32: u32,
}

/// The identity of a run, which its checkpoints carry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub seed: u64,
    pub model: String,
    pub architecture: String,
    pub plan: String,
    pub batch: u64,
    pub data: String,
    pub optimizer: OptimizerSettings,
}

impl Identity {
    /// The identity of a run.
    pub fn new(plan: &Plan, data: &Data, seed: u64, optimizer: OptimizerSettings) -> Self {
        let workload = plan.context().cost.whole_workload();
        let architecture = format!("{:?}", plan.context().model.architecture());
        Self {
            seed,
            model: plan.context().model.name().into(),
            architecture: format!("{:08x}", crc32fast::hash(architecture.as_bytes())),
            plan: format!("{:08x}", crc32fast::hash(plan.to_json().as_bytes())),
            batch: workload.microbatch * workload.microbatches,
            data: format!("{:08x}", data.sum()),
            optimizer,
        }
    }
}

impl Manifest {
    pub fn new(
        identity: &Identity,
        step: u32,
        (optimizer_steps, loss_scale): (BTreeMap<String, u32>, Option<LossScale>),
        files: BTreeMap<String, Sum>,
    ) -> Self {
        let Identity { seed, model, architecture, plan, batch, data, optimizer } = identity.clone();
        Self {
            format_version: FORMAT_VERSION,
            step,
            seed,
            model,
            architecture: Some(architecture),
            plan,
            batch,
            data: Some(data),
            optimizer,
            optimizer_steps,
            loss_scale,
            tuned: tuned(),
            files,
            crc32: None,
        }
    }

    /// Its text, with its own checksum.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(&Self { crc32: Some(self.sum()?), ..self.clone() })?;
        text.push('\n');
        Ok(text)
    }

    fn sum(&self) -> Result<u32, serde_json::Error> {
        Ok(crc32fast::hash(&serde_json::to_vec(&Self { crc32: None, ..self.clone() })?))
    }

    /// Reads the manifest of a checkpoint, and checks the sizes and checksums of its files.
    pub fn read(checkpoint: &Path) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Damaged { path: checkpoint.into(), reason };
        let text = open_ordinary(&checkpoint.join(MANIFEST))
            .and_then(|mut file| {
                let mut text = Vec::new();
                file.read_to_end(&mut text).map(|_| text)
            })
            .map_err(|error| damaged(format!("`{MANIFEST}` cannot be read: {error}")))?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("`{MANIFEST}` is not valid: {error}")))?;
        if manifest.format_version != FORMAT_VERSION {
            return Err(damaged(format!(
                "its format-version is {}, this program reads {FORMAT_VERSION}",
                manifest.format_version
            )));
        }
        let own = manifest.sum().map_err(|error| damaged(error.to_string()))?;
        if manifest.crc32.is_some_and(|written| written != own) {
            return Err(damaged(format!("`{MANIFEST}` is not what was written")));
        }
        if checkpoint.file_name().is_none_or(|found| found != name(manifest.step).as_str()) {
            return Err(damaged(format!("`{MANIFEST}` is that of step {}", manifest.step)));
        }
        for file in [WEIGHTS, OPTIMIZER] {
            let wanted =
                manifest.files.get(file).ok_or_else(|| damaged(format!("`{MANIFEST}` does not name `{file}`")))?;
            let found =
                sum(&checkpoint.join(file)).map_err(|error| damaged(format!("`{file}` cannot be read: {error}")))?;
            if found.bytes != wanted.bytes {
                return Err(damaged(format!("`{file}` has {} bytes instead of {}", found.bytes, wanted.bytes)));
            }
            if found.crc32 != wanted.crc32 {
                return Err(damaged(format!("`{file}` is not what was written")));
            }
        }
        Ok(manifest)
    }
}

fn sum(path: &Path) -> io::Result<Sum> {
    let mut file = open_ordinary(path)?;
    let (mut hasher, mut bytes, mut buffer) = (crc32fast::Hasher::new(), 0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Sum { bytes, crc32: hasher.finalize() }),
            count => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}
