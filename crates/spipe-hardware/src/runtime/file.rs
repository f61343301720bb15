//! The tables of runtime files.
//!
//! ```text
//! RuntimeFile ─┬─ host        HostFile        what each kernel and each iteration take on the host
//!              ├─ kernels     KernelsFile     how many kernels a layer takes, and which
//!              ├─ efficiency  FactorsFile     factors on the rates of the machine
//!              └─ memory      HoldingsFile    what is held beside parameters and activations
//! ```
//!
//! A key that is left out has the value of the runtime `spipe`, which adds nothing to the machine.

use super::words::{AttentionKernel, BackwardPrefetch, CollectiveRates, LossKernel, NormKernel, ProductRates};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, Seconds, Text};

/// The description of a runtime; [`Runtime::from_file`](crate::Runtime::from_file) checks it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuntimeFile {
    /// The version of the file format: 1.
    pub format_version: u32,
    /// The name of the runtime.
    pub name: String,
    /// A description in one or two sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The host's share of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostFile>,
    /// The kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<KernelsFile>,
    /// Factors on the rates of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<FactorsFile>,
    /// Memory beside parameters, gradients, optimizer state and activations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<HoldingsFile>,
    /// The measured runs from which constants were fitted, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fitted_from: Vec<String>,
    /// The systems of which runs on GPUs were measured and compared with predictions of these constants. Plans of
    /// other systems are marked as estimates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_systems: Vec<String>,
}

/// The host's share of the work of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostFile {
    /// The host's time per kernel launch. A device never runs ahead of its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<Text<Seconds>>,
    /// The time of an iteration in which neither kernels nor copies run: data, logging, clocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<Text<Seconds>>,
    /// Whether the host waits for copies between stages, so that the queue of the device runs
    /// empty, and the times of host and device add up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_copies: bool,
    /// The source of these numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The kernels of each layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KernelsFile {
    /// Launches per transformer block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<LaunchesFile>,
    /// Launches per embedding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<LaunchesFile>,
    /// Launches per head, with its loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<LaunchesFile>,
    /// Launches per operation of any other layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_operation: Option<f64>,
    /// Launches per optimizer step of a stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<f64>,
    /// The rate of matrix products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<ProductRates>,
    /// The attention kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionKernel>,
    /// The kernels of norms, activation functions and sums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norms: Option<NormKernel>,
    /// The kernels of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossKernel>,
    /// The rate of collectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collectives: Option<CollectiveRates>,
    /// When the backward gathers the parameters of the next stage, where they are sharded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward_prefetch: Option<BackwardPrefetch>,
    /// The source of these numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The kernel launches of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LaunchesFile {
    /// In a forward.
    pub forward: f64,
    /// In a whole backward.
    pub backward: f64,
}

/// Factors on the rates of the machine: 1 leaves a rate as the profile states it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FactorsFile {
    /// On the rate of matrix products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<f64>,
    /// On the rate of attention kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<f64>,
    /// On the rates of copies and collectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<f64>,
    /// On the rate of optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<f64>,
    /// On the rate of computation while collectives run beside it, which take multiprocessors and memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_collectives: Option<f64>,
    /// The source of these numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Memory that a runtime holds beside parameters, gradients, optimizer state and activations, or
/// cannot use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HoldingsFile {
    /// The context and the libraries on each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Text<Bytes>>,
    /// The communicators on each GPU of a machine with several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicators: Option<Text<Bytes>>,
    /// Workspaces of libraries on each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspaces: Option<Text<Bytes>>,
    /// Communication buckets on each GPU of a machine with several. Gradients that leave a single
    /// GPU pass through slots that plans count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Text<Bytes>>,
    /// Parameters that stay gathered on each GPU of a machine with several, beside those in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gathered: Option<Text<Bytes>>,
    /// Bytes per parameter beside its optimizer state, in 16-bit training: 32-bit copies of
    /// gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_copy_bytes: Option<u32>,
    /// The share of a GPU's memory that fragmentation makes unusable, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator_share: Option<f64>,
    /// The share of host memory that cannot be used, from 0 to 1: pinned memory rounded up, and
    /// copies of the loader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_share: Option<f64>,
    /// The source of these numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Returns the JSON schema of runtime files.
pub fn runtime_schema() -> schemars::Schema {
    schemars::schema_for!(RuntimeFile)
}
