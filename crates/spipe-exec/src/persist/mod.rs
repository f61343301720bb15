//! Files: checkpoints, optimizer state on drives, and weights in the layout of Hugging Face's
//! transformers.

pub(crate) mod checkpoint;
pub(crate) mod drive;
pub(crate) mod tensor_file;
pub(crate) mod weights;
