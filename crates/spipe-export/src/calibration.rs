//! Measurements under PyTorch: a script, its request, and its answer.

use crate::{Modules, folder::Folder, network::Network};
use serde::{Deserialize, Serialize};
use spipe_base::{DataType, Diagnostic};
use spipe_model::{Batch, Model};
use std::{collections::BTreeMap, time::Duration};

/// The name of the script in the folder, and of the file with its request.
pub const CALIBRATION_SCRIPT: &str = "calibrate.py";
/// The file with the request.
pub const CALIBRATION_REQUEST: &str = "request.json";

/// The largest number of parameters in a chain of copies of one layer.
const MOST_PARAMETERS: u64 = 256 << 20;
/// The largest number of copies in a chain: their weights exceed caches.
const MOST_COPIES: usize = 4;
/// The share of the time for a kind of layer that occurs once, and for another.
const SHARES: [u32; 2] = [1, 4];

/// The measurements that the script is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Calibrated<'a> {
    /// Devices, such as `cuda:0`, `emulated:0` and one `cpu:0`.
    pub devices: &'a [String],
    /// A model whose layers are measured, and the batch.
    pub layers: Option<(&'a Model, Batch)>,
    /// The folder of the script.
    pub folder: &'a str,
    /// The time for everything.
    pub budget: Duration,
    /// The time after which its processes end.
    pub limit: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Request<'a> {
    devices: &'a [String],
    folder: &'a str,
    seconds: f64,
    limit_s: u64,
    model: Option<Network>,
    batch: Option<BatchSize>,
    layers: Vec<Kind>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct BatchSize {
    microbatch: u64,
    seq_len: u64,
}

/// Layers with the same signature.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Kind {
    signature: String,
    index: usize,
    copies: usize,
    share: u32,
}

/// The files with which the script runs.
///
/// # Errors
/// A model that the scripts cannot build.
pub fn calibration(what: &Calibrated<'_>) -> Result<Folder, Diagnostic> {
    let request = Request {
        devices: what.devices,
        folder: what.folder,
        seconds: what.budget.as_secs_f64(),
        limit_s: what.limit.as_secs().max(1),
        model: what.layers.map(|(model, _)| Network::of(model, Modules::Own)).transpose()?,
        batch: what.layers.map(|(_, batch)| BatchSize { microbatch: batch.microbatch, seq_len: batch.seq_len }),
        layers: what.layers.map_or_else(Vec::new, |(model, batch)| kinds(model, batch)),
    };
    let json = serde_json::to_string_pretty(&request).map_err(|error| Diagnostic::error(error.to_string()))?;
    let mut folder = Folder::default();
    folder.add(CALIBRATION_REQUEST, json + "\n");
    folder.add(CALIBRATION_SCRIPT, include_str!("../templates/calibrate/calibrate.py"));
    folder.add("model.py", include_str!("../templates/common/model.py"));
    folder.add("rotary.py", include_str!("../templates/common/rotary.py"));
    Ok(folder)
}

/// The kinds of layers of `model`, each with the first layer of its kind.
fn kinds(model: &Model, batch: Batch) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for (id, layer) in model.layers().enumerate() {
        let signature = layer.signature(batch);
        let most = (MOST_PARAMETERS / layer.parameters.max(1)).clamp(1, MOST_COPIES as u64) as usize;
        match kinds.iter_mut().find(|kind| kind.signature == signature) {
            Some(kind) => (kind.copies, kind.share) = ((kind.copies + 1).min(most), SHARES[1]),
            None => kinds.push(Kind { signature, index: id.index(), copies: 1, share: SHARES[0] }),
        }
    }
    kinds
}

/// The answer of the script.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PytorchRates {
    format_version: u32,
    /// The version of PyTorch.
    pub torch: String,
    /// Seconds that everything took.
    pub took_s: f64,
    /// The accelerators, and then the socket.
    pub devices: Vec<DeviceRates>,
}

/// The rates of one device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceRates {
    /// Its name in the request.
    pub device: String,
    /// Threads that compute.
    pub threads: u32,
    /// The memory of a GPU.
    pub memory_bytes: Option<u64>,
    /// Square products by type: FLOPs of one, FLOPs per second.
    pub matmul: BTreeMap<DataType, Vec<[f64; 2]>>,
    /// Sums: bytes read and written, bytes per second.
    pub elementwise: Vec<[f64; 2]>,
    /// Products of one row: bytes of the matrix, bytes per second.
    pub matvec: Vec<[f64; 2]>,
    /// Products on a GPU in bf16: smallest dimension, FLOPs per second.
    #[serde(default)]
    pub rows: Vec<[f64; 2]>,
    /// Causal attention on a GPU in bf16: length, width of heads, FLOPs of the causal half per
    /// second.
    #[serde(default)]
    pub attention: Vec<[f64; 3]>,
    /// A copy of large arrays, reads and writes together.
    pub memory_bytes_per_second: f64,
    /// A copy of a small array: bytes that arrive.
    pub copy_bytes_per_second: f64,
    /// A copy between buffers of cores while every process computes: bytes that arrive, and its latency.
    #[serde(default)]
    pub busy_copy: Option<BusyCopy>,
    /// Copies between the host and a GPU.
    pub copies: Option<CopyRates>,
    /// Fused AdamW.
    pub optimizer_params_per_second: f64,
    /// The time of a tiny operation on the device.
    pub launch_floor_s: f64,
    /// The host's time to launch it.
    pub launch_s: f64,
    /// The time of a step without layers.
    pub iteration_s: f64,
    /// The layers.
    pub layers: Vec<LayerRates>,
    /// Messages between this process and the next or the one before.
    pub messages: Vec<MessageRates>,
    /// The largest spread of any figure.
    pub spread: f64,
}

/// Copies between buffers of cores, while all processes copy and compute.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BusyCopy {
    /// The time of a small one.
    pub latency_s: f64,
    /// The rate of large ones.
    pub bytes_per_second: f64,
}

/// Rates of copies to a GPU and from it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CopyRates {
    /// With pinned memory on the host's side.
    pub pinned_bytes_per_second: [f64; 2],
    /// With pageable memory.
    pub pageable_bytes_per_second: [f64; 2],
}

/// The times of one kind of layer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayerRates {
    /// The signature.
    pub layer: String,
    /// The type in which it was computed.
    pub data_type: DataType,
    /// The forward.
    pub forward_s: f64,
    /// The gradient of its input.
    pub backward_input_s: f64,
    /// The rest of its backward.
    pub backward_weight_s: f64,
    /// The additional time of PyTorch's split backward.
    pub backward_split_s: f64,
    /// The largest spread of the three.
    pub spread: f64,
}

/// Messages between two processes, one way.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MessageRates {
    /// Both processes.
    pub ranks: [usize; 2],
    /// The time of a small message.
    pub latency_s: f64,
    /// The rate of large ones.
    pub bytes_per_second: f64,
}

impl PytorchRates {
    /// Reads the answer of the script.
    ///
    /// # Errors
    /// A text that is no such answer.
    pub fn parse(text: &str) -> Result<Self, Diagnostic> {
        let fail =
            |what: String| Diagnostic::error(format!("the answer of `{CALIBRATION_SCRIPT}` cannot be read: {what}"));
        let answer: Self = serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
        if answer.format_version != 1 || answer.devices.is_empty() {
            return Err(fail(format!("format {}, {} devices", answer.format_version, answer.devices.len())));
        }
        Ok(answer)
    }
}
