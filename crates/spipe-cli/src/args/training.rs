//! The arguments that say what is trained, and in which formats.

use clap::Args as Group;
use spipe_cost::{Base, GradientFormat, Master, StateFormat};

/// The trained parameters and their formats.
#[derive(Debug, Default, Group)]
pub struct Training {
    /// Train low-rank adapters in place of the model: rank=16,targets=q,k,v,o. Targets are q, k, v, o,
    /// gate, up, down, names of Hugging Face, or all-linear (the default); alpha=32, dropout=0.05,
    /// embeddings, dora and rslora may be added
    #[arg(long, conflicts_with = "adapter")]
    pub lora: Option<String>,
    /// Train the adapters of this folder of PEFT, or of its adapter_config.json
    #[arg(long)]
    pub adapter: Option<String>,
    /// Storage of the frozen blocks' matrices: bf16, int8, nf4, fp4, fp8, gptq-int4; 4-bit formats take
    /// a block and single or double quantisation, such as nf4:block=64:single
    #[arg(long)]
    pub base: Option<Base>,
    /// Storage of the optimizer's state: f32, bf16, 8bit; the optimizer's own if not given
    #[arg(long)]
    pub state: Option<StateFormat>,
    /// Storage of gradients: f32 or bf16; that of the parameters if not given
    #[arg(long)]
    pub gradients: Option<GradientFormat>,
    /// Master copy of 16-bit parameters: f32 or none; f32 if not given
    #[arg(long)]
    pub master: Option<Master>,
    /// Update each layer within the backward, so that the gradients of one layer exist at a time
    #[arg(long)]
    pub optimizer_in_backward: bool,
}
