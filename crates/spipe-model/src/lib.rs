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

mod adapted;
mod architecture;
mod block;
mod block_memory;
mod block_modulation;
mod block_operations;
mod block_parts;
mod block_work;
mod check;
mod counted;
mod encoder;
mod ends;
mod file;
mod hugging_face;
mod layer;
mod lora;
mod model;
mod op;
mod operation;
mod precision;
mod profiled;
mod shard;
mod shipped;
mod unet;

pub use architecture::{Architecture, Profiled, ProfiledGroup, TextTower, Transformer, TwoTowers, Vision, VisionEnd};
pub use block::{Block, Experts, Latent, Mlp, Modulation, Norm, NormPlaces, Positions, QkNorm};
pub use block_parts::Linear;
pub use counted::{Counted, CountedPart};
pub use encoder::{Encoder, EncoderEnd, EncoderHead};
pub use ends::{Contrast, Embedding, Head, PatchEmbedding, Projection};
pub use file::schema;
pub use hugging_face::{Adapter, Component, components};
pub use layer::{Layer, LayerKind};
pub use lora::{Adaptation, Adapted, Lora, Matrix, Tensor};
pub use model::{Imported, Model, Tie};
pub use op::{LayerWork, Op};
pub use operation::{Operation, Operations};
pub use precision::{Attention, Batch, Precision, Recompute};
pub use profiled::{ProfiledLayer, ProfiledTime};
pub use shipped::shipped;
pub use unet::{Condition, Convolution, Denoising, Level, Unet, UnetLayer};
