//! What makes sizes a denoising network.

use super::Unet;
use crate::check::{Check, LARGEST};

/// More levels than images can be halved.
const MOST_LEVELS: u64 = 16;
/// More residual blocks of a level, or transformer blocks behind one, than any network has.
const MOST_BLOCKS: u64 = 1 << 8;
/// Wider than any level or text; the parameters of a layer stay within 64 bits.
const WIDEST: u64 = 1 << 16;

impl Check<'_> {
    /// Refuses sizes that are zero or absurd, and widths that groups or heads do not divide.
    pub(crate) fn unet(&mut self, unet: &Unet) {
        self.size("latent", unet.latent, 1 << 12);
        self.size("channels", unet.channels, WIDEST);
        self.size("blocks-per-level", unet.blocks, MOST_BLOCKS);
        self.size("text-width", unet.condition.text_width, WIDEST);
        self.size("text-tokens", unet.condition.text_tokens, LARGEST);
        self.size("norm-groups", unet.groups, WIDEST);
        if unet.middle_depth > 0 {
            self.size("middle-depth", unet.middle_depth, MOST_BLOCKS);
        }
        if unet.levels.is_empty() {
            self.error("widths", "there is no level".into());
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
                    let message = format!("a width is {}, which `{what}` = {divisor} does not divide", level.width);
                    self.error(&format!("widths.{index}"), message);
                }
            }
        }
    }
}
