//! Checks of a denoising network's sizes.

use super::{Check, LARGEST};
use crate::Unet;

/// The largest number of levels: images cannot be halved more often.
const MOST_LEVELS: u64 = 16;
/// The largest number of residual blocks per level, and of transformer blocks after one; no network
/// has more.
const MOST_BLOCKS: u64 = 1 << 8;
/// The largest width of a level or text: the parameters of a layer fit in 64 bits.
const WIDEST: u64 = 1 << 16;

impl Check<'_> {
    /// Refuses sizes that are zero or too large, and widths that groups or heads do not divide.
    pub(crate) fn unet(&mut self, unet: &Unet) {
        self.size("latent", unet.latent, 1 << 12);
        self.size("channels", unet.channels, WIDEST);
        self.size("out-channels", unet.outputs, WIDEST);
        self.size("added-width", unet.condition.added.max(1), WIDEST);
        self.size("blocks-per-level", unet.blocks, MOST_BLOCKS);
        self.size("text-width", unet.condition.text_width, WIDEST);
        self.size("text-tokens", unet.condition.text_tokens, LARGEST);
        self.size("norm-groups", unet.groups, WIDEST);
        if unet.middle_depth > 0 {
            self.size("middle-depth", unet.middle_depth, MOST_BLOCKS);
        }
        if unet.levels.is_empty() {
            self.error("widths", "`widths` is empty".into());
        } else {
            self.size("widths", unet.levels.len() as u64, MOST_LEVELS);
        }
        for (index, level) in unet.levels.iter().enumerate() {
            self.size(&format!("widths.{index}"), level.width, WIDEST);
            self.size(&format!("heads.{index}"), level.heads, WIDEST);
            if level.depth > MOST_BLOCKS {
                let message = format!("{} transformer blocks are more than the {MOST_BLOCKS} supported", level.depth);
                self.error(&format!("depths.{index}"), message);
            }
            for (what, divisor) in [("norm-groups", unet.groups), ("heads", level.heads)] {
                if divisor > 0 && !level.width.is_multiple_of(divisor) {
                    let message = format!("a width of {} is not divisible by `{what}` = {divisor}", level.width);
                    self.error(&format!("widths.{index}"), message);
                }
            }
        }
    }
}
