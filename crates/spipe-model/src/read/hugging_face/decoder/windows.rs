//! Sliding windows: the blocks that have one, and its size.

use super::{Window, blocks};
use crate::{Transformer, read::hugging_face::config::Config};

/// The word of a block without a window in `layer_types`.
const FULL: &str = "full_attention";
/// The key that states the window.
const SIZE: &[&str] = &["sliding_window"];
/// The default window of Qwen's classes, and the default block at which it starts.
const QWEN: (u64, u64) = (4096, 28);

/// Reads the window by the rule of its class. A list `layer_types` decides which blocks have it, if
/// the class has such a list.
pub(super) fn read(config: &mut Config<'_>, transformer: &mut Transformer, rule: Window) {
    let layers = transformer.layers;
    match rule {
        Window::No => {}
        Window::All(default) => transformer.block.sliding_window = config.nullable_size(SIZE, default),
        Window::Qwen => {
            let window = config.nullable_size(SIZE, Some(QWEN.0));
            if config.flag("use_sliding_window", false) {
                let full = listed(config, layers).unwrap_or_else(|| {
                    let first = config.size(&["max_window_layers"], QWEN.1);
                    blocks(layers, |index| index < first)
                });
                set(transformer, window, full);
            }
        }
        Window::Every { size, key, pattern } => {
            let window = config.nullable_size(SIZE, Some(size));
            let pattern = config.size(&[key], pattern).max(1);
            let full =
                listed(config, layers).unwrap_or_else(|| blocks(layers, |index| (index + 1).is_multiple_of(pattern)));
            set(transformer, window, full);
        }
    }
}

/// Returns the blocks with full attention of `layer_types`, if the config has the list.
fn listed(config: &Config<'_>, layers: u64) -> Option<Vec<u64>> {
    let words = config.words("layer_types")?;
    Some(blocks(layers, |index| words.get(index as usize).is_none_or(|word| *word == FULL)))
}

/// Sets a window for all blocks but the `full` ones. Leading ones are stated by their number.
fn set(transformer: &mut Transformer, window: Option<u64>, full: Vec<u64>) {
    if window.is_none() || full.len() as u64 == transformer.layers {
        return;
    }
    transformer.block.sliding_window = window;
    let leading = full.iter().zip(0..).take_while(|(block, index)| **block == *index).count();
    transformer.full_attention_layers = leading as u64;
    transformer.full_attention = full.into_iter().skip(leading).collect();
}
