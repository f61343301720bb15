//! Measured runs of others beside our predictions, with constants fitted on a part of them.
//!
//! ```text
//! data/runs/*.toml ─► Runs ─(plans from a function)─► predicted without a fit, and fitted ─► page, plots
//! ```

pub mod choice;
pub mod counted;
mod page;

pub use page::{markdown, scatter};

use choice::{Case, Tried, tried};

use spipe_base::Faults;
use spipe_fit::{Errors, Fitted, Outcome, Refusal, Run, Runs, Stated, Usage, Work};
use std::collections::{BTreeMap, BTreeSet};

/// A group of committed runs.
#[derive(Clone, Copy)]
pub struct Group {
    /// Its name, that of its file.
    pub name: &'static str,
    /// The heading on the page.
    pub title: &'static str,
    /// The runs, as TOML.
    pub rows: &'static str,
}

macro_rules! groups {
    ($($name:literal $title:literal;)+) => {
        &[$(Group { name: $name, title: $title, rows: include_str!(concat!("../../data/runs/", $name, ".toml")) }),+]
    };
}

/// All groups, in the order of the page.
pub const GROUPS: &[Group] = groups! {
    "megatron-pipeline" "Megatron-DeepSpeed, pipelines of 2 and 4 (A100)";
    "megatron-tensor-data" "Megatron-DeepSpeed, tensor × data parallelism on one node (A100)";
    "megatron-mixed" "Megatron-DeepSpeed, tensor × data × pipeline parallelism on one node (A100)";
    "megatron-clusters" "Megatron-DeepSpeed, 64 to 512 GPUs (A100)";
    "bert-large" "BERT-large, baseline of data parallelism (nine GPUs)";
    "mpt-fsdp" "MPT, FSDP (A100, H100)";
    "llama-offload" "Llama 3.1 8B, ZeRO-3 with the optimizer on the CPU (H200, B200)";
    "bigscience" "BigScience, Megatron-DeepSpeed, 384 GPUs (A100)";
    "llm-foundry" "LLM Foundry, FSDP on several nodes (H100)";
    "fms-fsdp" "Foundation Model Stack, FSDP (A100, H100)";
    "torchtitan" "torchtitan, FSDP2 (A100, H100, H200)";
    "nanotron" "nanotron, tensor × data × pipeline parallelism (H100)";
    "others" "Other engines";
};

macro_rules! files {
    ($folder:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../data/runs/", $folder, "/", $name, ".toml")))),*]
    };
}

/// The models of these runs that are not shipped: name and text.
pub const MODELS: &[(&str, &str)] = files! { "models":
    "bert-large-squad" "gpt-1024-12" "gpt-1024-16" "gpt-1024-20" "gpt-1024-24" "gpt-12288-96-2048" "gpt-2048-12"
    "gpt-3072-30-2048" "gpt-6144-40-2048" "gpt-8192-48-2048"
    "gpt-2048-16" "gpt-2048-20" "gpt-2048-24" "mpt-125m" "mpt-30b" "mpt-30b-8192" "mpt-350m"
    "gpt-4096-50-1024" "gpt-alibi-13824-78-64" "gpt-alibi-13824-78-96" "gpt-alibi-14336-70-64" "gpt-alibi-14336-72-64"
    "gpt-alibi-14336-82-128" "llama-1b-nanotron" "llama2-34b" "mpt-13b" "mpt-1b"
    "mpt-3b" "mpt-760m" "mpt-7b" "mpt-7b-32768" "mpt-7b-65536" "mpt-7b-8192"
};

/// The machines of these runs that are not shipped: name and text.
pub const MACHINES: &[(&str, &str)] = files! { "machines":
    "a100-40g-x8" "a100-80g-pcie-x2" "a100-80g-sxm-x8" "b200-sxm-x8" "dgx2" "h100-96g-sxm-x8"
    "h100-pcie-x8" "h100-sxm-x8" "h200-sxm-x8" "rtx3090-x4" "rtx4090-x2" "rtxa6000-x8" "v100-16g-x8"
};

/// The runtimes of these runs that are not shipped: name and text.
pub const RUNTIMES: &[(&str, &str)] =
    files! { "runtimes": "deepspeed-liger" "megatron-deepspeed" "pytorch-llm-foundry" };

/// A group with its predictions.
pub struct Made {
    /// The heading on the page.
    pub title: &'static str,
    /// The name of the group.
    pub name: &'static str,
    /// The runtimes of its runs.
    pub runtime: String,
    /// The runs as the shipped machine and runtime predict them.
    pub shipped: Vec<Outcome>,
    /// The meshes of these runs, where they have some of their own.
    pub tried: Vec<Option<(Case, Tried)>>,
    /// The runs with fitted constants; as the shipped ones if none is fitted.
    pub fitted: Fitted,
    /// The sources of the runs.
    pub sources: Vec<String>,
}

impl Made {
    /// Returns the errors without a fit, of the runs of this use or of all.
    pub fn shipped_errors(&self, usage: Option<Usage>) -> Errors {
        let wanted = self.shipped.iter().filter(|run| usage.is_none_or(|usage| run.usage == usage));
        Errors::of(wanted.filter_map(Outcome::error))
    }

    /// Whether constants were fitted on some of its runs.
    pub fn is_fitted(&self) -> bool {
        self.shipped.iter().any(|run| run.usage == Usage::Fit)
    }
}

/// Predicts the runs of a group without and with a fit. `prepare` plans a run.
///
/// # Errors
/// Every fault of the rows.
pub fn make(group: &Group, prepare: &dyn Fn(&Stated) -> Result<Work, Refusal>) -> Result<Made, Faults> {
    let runs = Runs::read(&format!("{}.toml", group.name), group.rows)?;
    let (ready, left_out) = spipe_fit::prepared(&runs, prepare)?;
    let fault = |error: spipe_fit::FitError| Faults::from(error.diagnostic());
    let shipped = spipe_fit::predicted(&ready, &BTreeMap::new()).map_err(fault)?;
    let fitted = match ready.iter().any(|run| run.stated.usage == Usage::Fit) {
        true => spipe_fit::fit(&ready, runs.constants.as_deref(), left_out).map_err(fault)?,
        false => Fitted { constants: Vec::new(), runs: shipped.clone(), left_out },
    };
    let runtimes: BTreeSet<&str> = ready.iter().map(|run: &Run| run.work.hardware().runtime().name()).collect();
    let runtime = runtimes.into_iter().collect::<Vec<_>>().join("`, `");
    let tried = ready.iter().map(tried).collect();
    let mut sources: Vec<String> = runs.runs.iter().filter_map(|run| run.source.clone()).collect();
    sources.sort();
    sources.dedup();
    Ok(Made { title: group.title, name: group.name, runtime, shipped, tried, fitted, sources })
}
