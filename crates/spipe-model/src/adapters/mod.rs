//! Low-rank adapters (Hu et al., LoRA, arXiv 2106.09685): small trained matrices beside frozen ones.
//!
//! ```text
//! y = W·x + s·B·(A·x)        W [out, in] frozen, A [rank, in] and B [out, rank] trained
//!                            s = alpha ÷ rank, or alpha ÷ √rank (rsLoRA, arXiv 2312.03732)
//! ```
//!
//! - [`Lora`] says which matrices get adapters and of which rank, as an option or a file does.
//! - [`Matrix`] is a matrix of a block, with the names that files of Hugging Face give it.
//! - [`Adaptation`] is the result for one layer: the adapters that it has, with their shapes and work.

mod adaptation;
mod names;
mod tensor;
mod text;

pub use adaptation::{Adaptation, Adapted};
pub use names::Matrix;
pub(crate) use names::last_part;
pub use tensor::Tensor;

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lora {
    /// The inner width of an adapter, at least 1.
    pub rank: u64,
    /// The numerator of the adapters' scale; twice the rank if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// The share of an adapter's input that training drops, from 0 to below 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropout: f64,
    /// The names of the matrices with adapters, ours or those of Hugging Face.
    pub targets: BTreeSet<String>,
    /// Whether full copies of embedding and head are trained too (PEFT's `modules_to_save`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embeddings: bool,
    /// Whether each adapted matrix also has a trained magnitude per row (DoRA, arXiv 2402.09353).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dora: bool,
    /// Whether the scale is alpha ÷ √rank in place of alpha ÷ rank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rslora: bool,
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl Lora {
    /// Returns the factor on the product of an adapter's two matrices.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        let alpha = self.alpha.unwrap_or(2.0 * rank);
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Returns the same adapters with another rank. An absent alpha follows it.
    pub fn with_rank(&self, rank: u64) -> Self {
        Self { rank, ..self.clone() }
    }
}
