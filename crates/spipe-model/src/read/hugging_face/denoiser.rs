//! Denoising networks in the format of `diffusers`. Defaults are those of `UNet2DConditionModel`.

use super::config::Config;
use crate::{
    Block, Condition, Level, Mlp, Modulation, Norm, PatchEmbedding, Unet, Vision, VisionEnd,
    read::check::Check,
    read::toml::{condition, encoder_block},
};

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
    let added = added(config);
    // Despite its name, `attention_head_dim` is the number of heads.
    let heads = config.sizes("attention_head_dim", count).unwrap_or_else(|| vec![8; count]);
    let depths = config.sizes("transformer_layers_per_block", count).unwrap_or_else(|| vec![1; count]);
    for (key, found) in [("attention_head_dim", heads.len()), ("transformer_layers_per_block", depths.len())] {
        if found != count {
            config.refuse(key, format!("there are {found} numbers for {count} levels"));
        }
    }
    let channels = config.size(&["in_channels"], 4);
    let levels = widths.iter().zip(&heads).zip(&depths).zip(&down);
    Unet {
        latent: config.size(&["sample_size"], 64),
        channels,
        outputs: config.size(&["out_channels"], 4),
        levels: levels
            .map(|(((width, heads), depth), kind)| Level {
                width: *width,
                depth: if attending(kind) { *depth } else { 0 },
                heads: *heads,
            })
            .collect(),
        blocks: config.size(&["layers_per_block"], 2),
        middle_depth: depths.last().copied().unwrap_or(1),
        condition: Condition {
            added,
            ..condition(widths.first().copied().unwrap_or(0), TEXT_TOKENS, config.size(&["cross_attention_dim"], 1280))
        },
        groups: config.size(&["norm_num_groups"], 32),
    }
}

/// The width of SDXL's further vector: the pooled text beside six sizes of the image.
fn added(config: &mut Config<'_>) -> u64 {
    let kind = config.word("addition_embed_type");
    let other = ["class_embed_type", "encoder_hid_dim_type"].into_iter().find(|key| config.has(key));
    if let Some(key) = other.or_else(|| kind.filter(|kind| *kind != "text_time").map(|_| "addition_embed_type")) {
        let message = "networks conditioned on more than a time step, a text and its pooled vector are not supported";
        config.refuse(key, message.into());
    }
    if kind != Some("text_time") {
        return 0;
    }
    let width = config.size(&["projection_class_embeddings_input_dim"], 0);
    if width == 0 {
        let message = "`text_time` needs `projection_class_embeddings_input_dim`, the width of its vector";
        config.refuse("addition_embed_type", message.into());
    }
    width
}

/// A transformer over patches of latent images (DiT), in the format of `DiTTransformer2DModel`.
pub(super) fn dit(config: &mut Config<'_>) -> Vision {
    let heads = config.size(&["num_attention_heads"], 16);
    let head_dim = config.size(&["attention_head_dim"], 72);
    let hidden = heads.saturating_mul(head_dim);
    let channels = config.size(&["in_channels"], 4);
    let outputs = config.nullable_size(&["out_channels"], None).unwrap_or(channels);
    let patch = config.side("patch_size", 2);
    let mut silent = Check::new(&|_| None);
    let block =
        encoder_block(&mut silent, (hidden, heads, hidden.saturating_mul(4)), config.number(&["norm_eps"], 1e-5));
    let kind = config.word("norm_type").unwrap_or("ada_norm_zero");
    if kind != "ada_norm_zero" {
        config.refuse("norm_type", format!("norms of type `{kind}` are not supported"));
    }
    if config.flag("norm_elementwise_affine", false) {
        config.refuse("norm_elementwise_affine", "norms with weights are not supported".into());
    }
    let classes = config.size(&["num_embeds_ada_norm"], 1000);
    Vision {
        embedding: PatchEmbedding {
            image: config.side("sample_size", 32),
            patch,
            channels,
            hidden,
            bias: true,
            class_token: false,
            mask_token: false,
            norm: None,
        },
        layers: config.size(&["num_layers"], 28),
        block: Block {
            head_dim,
            norm: Norm::LayerNormPlain,
            mlp: Mlp::GeluTanh,
            qkv_bias: config.flag("attention_bias", true),
            modulation: Some(Modulation { classes }),
            dropout: config.number(&["dropout"], 0.0) > 0.0,
            ..block
        },
        end: VisionEnd::Patches(patch.saturating_mul(patch).saturating_mul(outputs)),
    }
}
