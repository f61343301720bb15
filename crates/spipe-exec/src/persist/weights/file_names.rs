//! The names of files in folders of weights and of adapters.

/// The file of weights in a folder.
pub(super) const FILE: &str = "model.safetensors";
/// The index of several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The files of an adapter's folder.
pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const TENSORS: &str = "adapter_model.safetensors";
