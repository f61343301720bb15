//! The network: its layers with their tensors, sizes and work, read from TOML or a Hugging Face
//! config.
//!
//! ```text
//! model.toml ──┐                      ┌─ work       kernels of the three passes
//!              ├─► Model ─► Layer … ──┼─ saved      bytes saved for the backward
//! config.json ─┘     │                ├─ workspace  bytes that live within a pass
//!                    └─ runs          └─ boundary   bytes passed to the next layer
//! ```
//!
//! All figures follow from shapes, except those of profiled layers, which are measured:
//!
//! ```
//! use spipe_base::Bytes;
//! use spipe_model::{Attention, Batch, Model, Precision, Recompute, shipped};
//!
//! let text = shipped().iter().find(|(name, _)| *name == "llama2-7b").unwrap().1;
//! let model = Model::from_toml("llama2-7b.toml", text)?;
//! assert_eq!(model.parameters(), 6_738_415_616);
//!
//! let block = model.layers().iter().find(|layer| layer.name == "block.0").unwrap();
//! let batch = Batch { microbatch: 1, seq_len: 4096 };
//! let kept = block.saved(batch, Precision::Bf16, Recompute::Full, Attention::Fused);
//! assert_eq!(kept, Bytes::mib(32));
//! # Ok::<(), spipe_base::Faults>(())
//! ```
//!
#![doc = include_str!("../README.md")]

mod adapters;
mod architecture;
mod block;
mod layer;
mod model;
mod precision;
mod read;
mod unet;
mod work;

pub use adapters::{Adaptation, Adapted, Lora, Matrix, Tensor};
pub use architecture::{
    Architecture, Counted, CountedPart, Encoder, Profiled, ProfiledGroup, TextTower, Transformer, TwoTowers, Vision,
    VisionEnd,
};
pub use block::{
    Block, Experts, Latent, Linear, Mlp, Modulation, Norm, NormPlaces, Operation, Operations, Positions, QkNorm,
    RotaryFrequencies, RotaryScaling, Yarn,
};
pub use layer::{
    Contrast, Embedding, EncoderEnd, EncoderHead, Head, Layer, LayerKind, PatchEmbedding, ProfiledLayer, ProfiledTime,
    Projection,
};
pub use model::{Imported, Model, Tie};
pub use precision::{Attention, Batch, Precision, Recompute};
pub use read::{Adapter, Component, components, schema, shipped};
pub use unet::{Condition, Convolution, Denoising, Level, Unet, UnetLayer};
pub use work::{LayerWork, Op};
