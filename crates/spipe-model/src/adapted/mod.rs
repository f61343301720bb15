//! Models and layers with adapters: their attachment, and what is trained and stored of a layer.

mod attach;
mod layers;
