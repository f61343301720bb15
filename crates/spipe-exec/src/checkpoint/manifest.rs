//! The small file that says what a checkpoint is, and that all of it is there.

use super::{CheckpointError, MANIFEST, OPTIMIZER, WEIGHTS, name};
use crate::{Data, Decay, Options, Schedule, tensor_file::open_ordinary};
use serde::{Deserialize, Serialize};
use spipe_plan::Plan;
use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::Path,
};

/// The version that checkpoints carry.
const FORMAT_VERSION: u32 = 1;

/// What is not in the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Manifest {
    pub format_version: u32,
    /// Steps that are done.
    pub step: u32,
    pub seed: u64,
    /// The model's name.
    pub model: String,
    /// A number that differs for models that differ; not in checkpoints that were written before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// A number that differs for plans that differ.
    pub plan: String,
    /// Sequences of a step.
    pub batch: u64,
    /// A number that differs for data that differ; not in checkpoints that were written before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    pub optimizer: OptimizerSettings,
    /// Steps of the moments, by layer.
    pub optimizer_steps: BTreeMap<String, u32>,
    /// Where losses are multiplied with a number that changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    pub files: BTreeMap<String, Sum>,
    /// Of all that is above, as it is written; not in checkpoints that were written before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
}

/// What losses are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct LossScale {
    /// The next one.
    pub scale: f32,
    /// How many steps in a row have not overflowed.
    pub good_steps: u32,
    /// The last one, whose gradients may wait for the next step; not in checkpoints that were written before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<f32>,
}

/// How parameters were updated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct OptimizerSettings {
    pub learning_rate: f64,
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f64,
    /// How the learning rate changes, in words; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
}

impl OptimizerSettings {
    fn of(options: &Options) -> Self {
        let Options { optimizer: adam, schedule, steps, .. } = options;
        let decay = match schedule.decay {
            Decay::Constant => String::new(),
            decay => format!(", {decay:?} decay to step {steps}"),
        };
        let words = format!("{} steps to warm up{decay}", schedule.warmup_steps);
        Self {
            learning_rate: adam.lr,
            betas: [adam.betas.0, adam.betas.1],
            epsilon: adam.eps,
            weight_decay: adam.weight_decay,
            schedule: (*schedule != Schedule::default()).then_some(words),
        }
    }
}

/// What a file must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Sum {
    pub bytes: u64,
    pub crc32: u32,
}

/// What a run is, as far as its checkpoints must know.
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
    /// That of a run.
    pub fn new(plan: &Plan, data: &Data, options: &Options) -> Self {
        let workload = *plan.context().workload();
        let architecture = format!("{:?}", plan.context().model.architecture());
        Self {
            seed: options.seed,
            model: plan.context().model.name().into(),
            architecture: format!("{:08x}", crc32fast::hash(architecture.as_bytes())),
            plan: format!("{:08x}", crc32fast::hash(plan.to_json().as_bytes())),
            batch: workload.microbatch * workload.microbatches,
            data: format!("{:08x}", data.sum()),
            optimizer: OptimizerSettings::of(options),
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
            files,
            crc32: None,
        }
    }

    /// Its text, with its own sum.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(&Self { crc32: Some(self.sum()?), ..self.clone() })?;
        text.push('\n');
        Ok(text)
    }

    fn sum(&self) -> Result<u32, serde_json::Error> {
        Ok(crc32fast::hash(&serde_json::to_vec(&Self { crc32: None, ..self.clone() })?))
    }

    /// Reads a checkpoint's manifest, and its files as far as their sums go.
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
