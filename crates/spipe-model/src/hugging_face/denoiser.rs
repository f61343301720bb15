//! Denoising networks in the format of `diffusers`. Defaults are those of `UNet2DConditionModel`.

use super::config::Config;
use crate::{Level, Unet, file::condition};

/// The types of blocks with a transformer after each residual block.
const ATTENDING: [&str; 3] = ["CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn", "CrossAttnUpBlock2D"];
/// The types of blocks without transformers.
const PLAIN: [&str; 2] = ["DownBlock2D", "UpBlock2D"];
/// Tokens of the text. The config leaves them to the text encoder; CLIP's has 77.
const TEXT_TOKENS: u64 = 77;

pub(super) fn unet(config: &mut Config<'_>) -> Unet {
    let widths = config.sizes("block_out_channels", 4).unwrap_or_else(|| vec![320, 640, 1280, 1280]);
    let count = widths.len();
    let down = config.words("down_block_types").unwrap_or_else(|| {
        let attends = |level: usize| if level + 1 < count { ATTENDING[0] } else { PLAIN[0] };
        (0..count).map(attends).collect()
    });
    if down.len() != count {
        config.refuse("down_block_types", format!("there are {} block types for {count} levels", down.len()));
    }
    let mut up = config.words("up_block_types").unwrap_or_default();
    up.reverse();
    let attending = |kind: &&str| ATTENDING.contains(kind);
    if !up.is_empty() && !up.iter().map(&attending).eq(down.iter().map(&attending)) {
        config.refuse("up_block_types", "the upsampling path does not mirror the downsampling path".into());
    }
    for kind in down.iter().chain(&up).filter(|kind| !attending(kind) && !PLAIN.contains(kind)) {
        config.refuse("down_block_types", format!("blocks of type `{kind}` are not supported"));
    }
    if config.has("addition_embed_type") || config.has("class_embed_type") {
        let key = if config.has("addition_embed_type") { "addition_embed_type" } else { "class_embed_type" };
        config.refuse(key, "networks conditioned on more than a time step and a text are not supported".into());
    }
    // Despite its name, `attention_head_dim` is the number of heads.
    let heads = config.sizes("attention_head_dim", count).unwrap_or_else(|| vec![8; count]);
    let depths = config.sizes("transformer_layers_per_block", count).unwrap_or_else(|| vec![1; count]);
    for (key, found) in [("attention_head_dim", heads.len()), ("transformer_layers_per_block", depths.len())] {
        if found != count {
            config.refuse(key, format!("there are {found} numbers for {count} levels"));
        }
    }
    let channels = config.size(&["in_channels"], 4);
    if config.size(&["out_channels"], 4) != channels {
        config.refuse("out_channels", "input and output have different numbers of channels".into());
    }
    let levels = widths.iter().zip(&heads).zip(&depths).zip(&down);
    Unet {
        latent: config.size(&["sample_size"], 64),
        channels,
        levels: levels
            .map(|(((width, heads), depth), kind)| Level {
                width: *width,
                depth: if attending(kind) { *depth } else { 0 },
                heads: *heads,
            })
            .collect(),
        blocks: config.size(&["layers_per_block"], 2),
        middle_depth: depths.last().copied().unwrap_or(1),
        condition: condition(
            widths.first().copied().unwrap_or(0),
            TEXT_TOKENS,
            config.size(&["cross_attention_dim"], 1280),
        ),
        groups: config.size(&["norm_num_groups"], 32),
    }
}
