//! Denoising networks: their parameters, their work, and the bytes that cross a cut.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, Flops, LayerId};
use spipe_model::{Architecture, Attention, Batch, Model, Op, Precision, Recompute, shipped};

const ONE: Batch = Batch { microbatch: 1, seq_len: 4096 };

fn flops(ops: &[Op]) -> f64 {
    ops.iter().map(Op::flops).sum::<Flops>().get()
}

fn stable_diffusion() -> Model {
    let text = shipped().iter().find(|(name, _)| *name == "stable-diffusion-unet").unwrap().1;
    Model::from_toml("unet.toml", text).unwrap()
}

/// Two levels of 8 and 16 channels over 4 × 4 latents, one block each, attention on the first.
fn small(extra: &str) -> Model {
    let text = format!(
        "format-version = 1\nkind = \"unet\"\nname = \"small\"\n{extra}\nlatent = 4\nwidths = [8, 16]\n\
         blocks-per-level = 1\ndepths = [1, 0]\nheads = [2, 2]\ntext-width = 6\ntext-tokens = 3\nnorm-groups = 4\n"
    );
    Model::from_toml("small.toml", &text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn named(model: &Model, name: &str) -> LayerId {
    model.layer(name).unwrap_or_else(|| panic!("no layer `{name}`"))
}

/// The parameters of the released network, from the shapes in its state dict.
#[test]
fn stable_diffusion_has_the_released_parameters() {
    let model = stable_diffusion();
    assert_eq!(model.parameters(), 859_520_964);
    let of = |name: &str| model.layers()[named(&model, name)].parameters;
    // time_embedding.linear_1 and linear_2; conv_in; conv_norm_out and conv_out.
    assert_eq!(of("conditioning"), 320 * 1280 + 1280 + 1280 * 1280 + 1280);
    assert_eq!(of("in"), 4 * 320 * 9 + 320);
    assert_eq!(of("out"), 2 * 320 + 320 * 4 * 9 + 4);
    // mid_block.resnets.1: two norms, two convolutions, time_emb_proj.
    let residual = 2 * 1280 + 2 * (1280 * 1280 * 9 + 1280) + (1280 * 1280 + 1280) + 2 * 1280;
    assert_eq!(of("middle.1"), residual);
    assert_eq!(of("down.3.0"), residual);
    // up_blocks.3.resnets.0 reads 640 + 320 channels.
    let denoising = &model.layers()[named(&model, "up.0.0")];
    let spipe_model::LayerKind::Unet(spipe_model::UnetLayer::Denoising(shapes)) = denoising.kind else { panic!() };
    assert_eq!((shapes.inputs, shapes.outputs, shapes.side), (960, 320, 64));
}

/// BK-SDM (Kim et al., arXiv 2305.15798) counts 339 G multiply-adds for a step of Stable Diffusion
/// 1.4. It counts modules, so the products of queries, keys and values are missing.
#[test]
fn a_step_of_stable_diffusion_is_as_much_work_as_published() {
    let model = stable_diffusion();
    let modules: f64 = model
        .layers()
        .iter()
        .flat_map(|layer| layer.work(ONE).forward)
        .filter(|op| !matches!(op, Op::Attention { .. }))
        .map(|op| op.flops().get())
        .sum();
    assert!((modules / 2.0 / 339e9 - 1.0).abs() < 0.005, "{modules:e} operations");
}

#[test]
fn every_output_of_the_way_down_is_read_on_the_way_up() {
    let model = stable_diffusion();
    let read_twice = |name: &str| {
        let id = named(&model, name);
        model.layers().iter().filter(|layer| layer.inputs.contains(&id)).count() == 2
    };
    for name in ["in", "down.0.0", "down.0.1", "down.0.end", "down.1.0", "down.2.1", "down.2.end", "down.3.0"] {
        assert!(read_twice(name), "{name}");
    }
    let inputs = |name: &str| {
        let inputs = &model.layers()[named(&model, name)].inputs;
        inputs.iter().map(|id| model.layers()[*id].name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(inputs("up.3.0"), ["conditioning", "down.3.1", "middle.1"]);
    assert_eq!(inputs("up.0.2"), ["conditioning", "in", "up.0.1"]);
    assert_eq!(inputs("up.1.end"), ["up.1.2"]);
}

#[test]
fn a_cut_is_crossed_by_every_live_skip_connection() {
    let model = small("");
    let elements = |name: &str| {
        let bytes = model.cut_bytes(named(&model, name), Batch { microbatch: 3, seq_len: 16 }, Precision::Bf16);
        bytes.get() / (2 * 3)
    };
    let condition = 32 + 3 * 6;
    let (large, small) = (16 * 8, 4 * 16);
    assert_eq!(elements("in"), condition + large);
    assert_eq!(elements("down.0.0"), condition + 2 * large);
    assert_eq!(elements("down.0.end"), condition + 2 * large + 4 * 8);
    // The skips of `in`, `down.0.0` and `down.0.end`, and `down.1.0` itself.
    assert_eq!(elements("down.1.0"), condition + 2 * large + 4 * 8 + small);
    assert_eq!(elements("middle.1"), condition + 2 * large + 4 * 8 + 2 * small);
    assert_eq!(elements("up.1.1"), condition + 2 * large + small);
    assert_eq!(elements("up.0.0"), condition + 2 * large);
    assert_eq!(elements("up.0.1"), large, "no later layer reads the conditioning");
    assert_eq!(elements("out"), 16 * 4);
}

#[test]
fn a_chain_is_cut_at_its_boundary() {
    let text = shipped().iter().find(|(name, _)| *name == "gpt2").unwrap().1;
    let model = Model::from_toml("gpt2.toml", text).unwrap();
    let batch = Batch { microbatch: 2, seq_len: 64 };
    for (id, layer) in model.layers().enumerate() {
        assert_eq!(model.cut_bytes(id, batch, Precision::Bf16), layer.boundary(batch, Precision::Bf16));
    }
}

#[test]
fn measured_layers_skip_too() {
    let layer = |name: &str, rest: &str| {
        format!(
            "[[layer]]\nname = \"{name}\"\nparameters = 1\nboundary-activation = \"8 B\"\nsaved-activation = \"9 B\"\n\
             time = {{ gpu = {{ forward = \"1 ms\", backward-input = \"1 ms\", backward-weight = \"1 ms\" }} }}\n{rest}\n"
        )
    };
    let text = format!(
        "format-version = 1\nkind = \"profiled\"\nname = \"p\"\nmicrobatch = 1\nseq-len = 1\nfrozen = [\"embed\"]\n{}{}{}",
        layer("embed", ""),
        layer("block", "count = 3\ninputs = [\"embed\"]"),
        layer("head", "")
    );
    let model = Model::from_toml("p.toml", &text).unwrap();
    let batch = Batch { microbatch: 1, seq_len: 1 };
    let cuts: Vec<u64> = model.layers().ids().map(|id| model.cut_bytes(id, batch, Precision::Fp32).get()).collect();
    assert_eq!(cuts, [8, 16, 16, 8, 8]);
    let runs: Vec<usize> = model.runs().iter().map(|run| run.count()).collect();
    assert_eq!(runs, [1, 1, 1, 1, 1], "the first reads `embed` once and passes no gradient, the last ends the skip");
    assert_eq!(Model::from_toml("p.toml", &model.to_toml()), Ok(model));
}

/// A residual block alone, after the table of `unet::memory`: down.1.0 reads 8 channels of 2 × 2
/// pixels and outputs 16.
#[test]
fn a_residual_block_keeps_what_its_backward_reads() {
    let model = small("");
    let block = &model.layers()[named(&model, "down.1.0")];
    let saved = |recompute| block.saved(ONE, Precision::Bf16, recompute, Attention::Fused).get() / 2;
    let input = 4 * 8 + 32 + 3 * 6;
    assert_eq!(saved(Recompute::Full), input);
    assert_eq!(saved(Recompute::Selective), input + 4 * 16);
    assert_eq!(saved(Recompute::None), input + 4 * 16 + 2 * 4 * 8 + 2 * 4 * 16);
}

/// The whole of down.0.0: 16 pixels, 8 channels in and out, a transformer block with 2 heads.
#[test]
fn a_transformer_over_pixels_keeps_and_computes_what_its_formulas_say() {
    let model = small("");
    let block = &model.layers()[named(&model, "down.0.0")];
    let (p, d, t) = (16, 8, 3);
    let input = p * d + 32 + t * 6;
    let kept = p * d * (1 + 2 + 5 + 3 + 9) + 2 * t * d;
    let cheap = p * d * (4 + 1 + 3 + 4);
    let saved = |recompute, attention| block.saved(ONE, Precision::Bf16, recompute, attention);
    let sums = 2 * 4 * p * 2;
    assert_eq!(saved(Recompute::Selective, Attention::Fused), Bytes::new(2 * (input + kept) + sums));
    assert_eq!(saved(Recompute::None, Attention::Fused), Bytes::new(2 * (input + kept + cheap) + sums));
    let scores = 2 * 2 * p * (p + t);
    assert_eq!(saved(Recompute::None, Attention::Materialised), Bytes::new(2 * (input + kept + cheap) + scores));

    let work = block.work(ONE);
    let convolutions = 2 * 2 * 9 * d * d * p;
    let time = 2 * 32 * d;
    let around = 2 * 2 * p * d * d;
    let attention = 2 * p * 6 * d * d + 4 * p * p * d + 2 * t * 2 * 6 * d + 4 * p * t * d;
    let network = 2 * p * 12 * d * d;
    let forward = convolutions + time + around + attention + network;
    assert_eq!(flops(&work.forward).to_bits(), (forward as f64).to_bits());
    let scores = 4 * p * p * d + 4 * p * t * d;
    assert_eq!(flops(&work.backward_input).to_bits(), ((forward + scores) as f64).to_bits());
    assert_eq!(flops(&work.backward_weight).to_bits(), ((forward - scores) as f64).to_bits());
}

#[test]
fn a_convolution_moves_images_and_weights_once() {
    let model = small("");
    let first = model.layers()[named(&model, "in")].work(Batch { microbatch: 5, seq_len: 16 });
    assert!(first.backward_input.is_empty(), "latents need no gradient");
    let Some(op @ Op::Convolution { .. }) = first.forward.first() else { panic!("{first:?}") };
    assert_eq!(op.elements_moved(Attention::Fused), 5 * 16 * 4 + 5 * 16 * 8 + 9 * 4 * 8);
}

#[test]
fn frozen_layers_train_nothing_and_pass_on_what_must_be() {
    let model = small("frozen = [\"0..3\", \"middle.1\"]");
    let flags = |name: &str| {
        let layer = &model.layers()[named(&model, name)];
        (layer.trains, layer.needs_backward, layer.passes_gradient)
    };
    assert_eq!(flags("conditioning"), (false, false, false));
    assert_eq!(flags("down.0.end"), (false, false, false));
    assert_eq!(flags("down.1.0"), (true, true, false), "nothing before it trains");
    assert_eq!(flags("middle.0"), (true, true, true));
    assert_eq!(flags("middle.1"), (false, true, true), "down.1.0 wants its gradient");
    let frozen: u64 = ["conditioning", "in", "down.0.0", "down.0.end", "middle.1"]
        .map(|name| model.layers()[named(&model, name)].parameters)
        .iter()
        .sum();
    assert_eq!(model.trained_parameters(), model.parameters() - frozen);
    let Architecture::Unet(unet) = model.architecture() else { panic!() };
    assert_eq!((unet.side(0), unet.side(1)), (4, 2));
    assert_eq!(Model::from_toml("small.toml", &model.to_toml()), Ok(model));
}

#[test]
fn faults_have_places() {
    let text = "format-version = 1\nkind = \"unet\"\nname = \"x\"\nfrozen = [\"7\"]\nlatent = 0\nwidths = [8, 12]\n\
                depths = [1]\nheads = [3, 2]\ntext-width = 6\nnorm-groups = 4\n";
    let faults = Model::from_toml("x.toml", text).unwrap_err().to_string();
    assert_eq!(
        faults,
        "error: `depths` has 1 levels, `widths` has 2\n  --> x.toml:7:10\n\
         error: `latent` is zero\n  --> x.toml:5:10\n\
         error: a width of 8 is not divisible by `heads` = 3\n  --> x.toml:6:11"
    );
    let text = "format-version = 1\nkind = \"unet\"\nname = \"x\"\nfrozen = [\"0\", \"77\"]\nlatent = 4\nwidths = [8]\n\
                depths = [1]\nheads = [2]\ntext-width = 6\nnorm-groups = 4\n";
    let faults = Model::from_toml("x.toml", text).unwrap_err().to_string();
    assert_eq!(
        faults,
        "error: this model has no layer or range of layers `77`\n  --> x.toml:4:16\n\
         hint: layers are counted from 0 to 9; `0..9` and their names work too"
    );
}

const DIFFUSERS: &str = r#"{"_class_name": "UNet2DConditionModel", "sample_size": 64, "in_channels": 4, "out_channels": 4,
  "block_out_channels": [320, 640, 1280, 1280], "layers_per_block": 2, "cross_attention_dim": 768, "attention_head_dim": 8,
  "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
  "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
  "norm_num_groups": 32}"#;

#[test]
fn a_config_of_diffusers_is_the_shipped_network() {
    let imported = Model::from_hugging_face("unet.json", DIFFUSERS).unwrap();
    assert!(imported.warnings.is_empty(), "{}", imported.warnings);
    assert_eq!(imported.model.layers(), stable_diffusion().layers());
    assert_eq!(imported.model.parameters(), 859_520_964);
    // Stable Diffusion 2: text vectors of width 1024, heads of 64 channels (865,910,724
    // parameters).
    let second = DIFFUSERS
        .replace("768", "1024")
        .replace("\"attention_head_dim\": 8", "\"attention_head_dim\": [5, 10, 20, 20]");
    assert_eq!(Model::from_hugging_face("unet.json", &second).unwrap().model.parameters(), 865_910_724);
}

#[test]
fn networks_of_other_blocks_are_refused_with_a_place() {
    let text_time = DIFFUSERS.replace("\"norm_num", "\"addition_embed_type\": \"text_time\", \"norm_num");
    let faults = Model::from_hugging_face("unet.json", &text_time).unwrap_err().to_string();
    assert_eq!(
        faults,
        "error: `text_time` needs `projection_class_embeddings_input_dim`, the width of its vector\n  --> unet.json:5:3"
    );
    let classes = DIFFUSERS.replace("\"norm_num", "\"class_embed_type\": \"timestep\", \"norm_num");
    let faults = Model::from_hugging_face("unet.json", &classes).unwrap_err().to_string();
    assert_eq!(
        faults,
        "error: networks conditioned on more than a time step, a text and its pooled vector are not supported\n  --> unet.json:5:3"
    );
    let other = DIFFUSERS.replace("[\"UpBlock2D\"", "[\"CrossAttnUpBlock2D\"");
    let faults = Model::from_hugging_face("unet.json", &other).unwrap_err().to_string();
    assert_eq!(faults, "error: the upsampling path does not mirror the downsampling path\n  --> unet.json:4:3");
    let short = DIFFUSERS.replace("\"attention_head_dim\": 8", "\"attention_head_dim\": [5, 10, 20]");
    let faults = Model::from_hugging_face("unet.json", &short).unwrap_err().to_string();
    assert!(faults.starts_with("error: there are 3 numbers for 4 levels\n  --> unet.json:2:"), "{faults}");
}
