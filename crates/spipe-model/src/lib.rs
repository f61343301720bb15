//! What the network is: layers, tensors, sizes, work; reads TOML and Hugging Face configs.
