//! Model files of kind `unet`.

use crate::{Condition, Level, Unet, read::check::Check};
use serde::{Deserialize, Serialize};

/// A denoising network over latent images.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct UnetFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: UnetKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// Frozen layers: indices, names, or ranges of either including both ends (`"0..3"`); none if
    /// absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Height and width of a latent image.
    pub latent: u64,
    /// Channels of a latent image; 4 if absent.
    #[serde(default = "four")]
    pub channels: u64,
    /// Channels of the output; `channels` if absent.
    pub out_channels: Option<u64>,
    /// Channels of each level, in descending order of image size.
    pub widths: Vec<u64>,
    /// Residual blocks per level of the downsampling path (the upsampling path has one more); 2 if
    /// absent.
    #[serde(default = "two")]
    pub blocks_per_level: u64,
    /// Transformer blocks after each residual block, by level; 0 without attention.
    pub depths: Vec<u64>,
    /// Transformer blocks in the middle; 1 if absent.
    #[serde(default = "one")]
    pub middle_depth: u64,
    /// Heads of the attention, by level.
    pub heads: Vec<u64>,
    /// Width of the text's vectors.
    pub text_width: u64,
    /// Tokens of the text; 77 if absent, as in CLIP's text encoder.
    #[serde(default = "tokens")]
    pub text_tokens: u64,
    /// Width of a further vector that is added to that of the time step; none if absent.
    pub added_width: Option<u64>,
    /// Groups of each group norm; 32 if absent.
    #[serde(default = "groups")]
    pub norm_groups: u64,
}

/// The `kind` of denoising networks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnetKind {
    /// Convolutions with cross-attention on a downsampling and an upsampling path (arXiv
    /// 2112.10752).
    Unet,
}

const fn one() -> u64 {
    1
}

const fn two() -> u64 {
    2
}

const fn four() -> u64 {
    4
}

const fn tokens() -> u64 {
    77
}

const fn groups() -> u64 {
    32
}

/// The width of the time vector relative to the first level.
const TIME_FACTOR: u64 = 4;

/// Returns the conditioning of a network whose first level has this `width`: the sinusoids have the
/// same width, the time vector four times that.
pub(crate) fn condition(width: u64, text_tokens: u64, text_width: u64) -> Condition {
    Condition { sinusoids: width, time: width.saturating_mul(TIME_FACTOR), text_tokens, text_width, added: 0 }
}

impl UnetFile {
    /// Returns the network, and reports lists of different lengths.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Unet {
        let count = self.widths.len();
        for (key, list) in [("depths", &self.depths), ("heads", &self.heads)] {
            if list.len() != count {
                check.error(key, format!("`{key}` has {} levels, `widths` has {count}", list.len()));
            }
        }
        let levels = self.widths.iter().zip(&self.depths).zip(&self.heads);
        Unet {
            latent: self.latent,
            channels: self.channels,
            outputs: self.out_channels.unwrap_or(self.channels),
            levels: levels
                .map(|((width, depth), heads)| Level { width: *width, depth: *depth, heads: *heads })
                .collect(),
            blocks: self.blocks_per_level,
            middle_depth: self.middle_depth,
            condition: Condition {
                added: self.added_width.unwrap_or(0),
                ..condition(self.widths.first().copied().unwrap_or(0), self.text_tokens, self.text_width)
            },
            groups: self.norm_groups,
        }
    }

    /// Returns the file that describes a network.
    pub(crate) fn from_unet(name: &str, source: Option<&str>, unet: &Unet) -> Self {
        Self {
            format_version: super::FORMAT_VERSION,
            kind: UnetKind::Unet,
            name: name.into(),
            source: source.map(str::to_owned),
            frozen: Vec::new(),
            latent: unet.latent,
            channels: unet.channels,
            out_channels: Some(unet.outputs).filter(|outputs| *outputs != unet.channels),
            widths: unet.levels.iter().map(|level| level.width).collect(),
            blocks_per_level: unet.blocks,
            depths: unet.levels.iter().map(|level| level.depth).collect(),
            middle_depth: unet.middle_depth,
            heads: unet.levels.iter().map(|level| level.heads).collect(),
            text_width: unet.condition.text_width,
            text_tokens: unet.condition.text_tokens,
            added_width: Some(unet.condition.added).filter(|width| *width > 0),
            norm_groups: unet.groups,
        }
    }
}
