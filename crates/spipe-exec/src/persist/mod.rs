//! Files: checkpoints, and weights in the layout of Hugging Face's transformers.

pub(crate) mod checkpoint;
pub(crate) mod tensor_file;
pub(crate) mod weights;
