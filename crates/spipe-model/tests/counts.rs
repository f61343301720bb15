//! Parameter counts are exact.
//!
//! Each count comes from the class of transformers 5.23 that the fixture names, instantiated
//! without storage:

use spipe_model::{Block, Experts, Model, shipped};
use std::{collections::BTreeSet, fs, path::Path};

const IMPORTED: [(&str, u64); 27] = [
    ("bloom-176b", 176_247_271_424),
    ("bloom-560m", 559_214_592),
    ("clip-vit-b-32", 151_277_313),
    ("clip-vit-l-14", 427_616_513),
    ("gpt-neox-20b", 20_554_567_680),
    ("gpt2-xl", 1_557_611_200),
    ("gpt2", 124_439_808),
    ("gpt3-175b", 174_604_259_328),
    ("llama-biased", 75_456),
    ("llama2-13b", 13_015_864_320),
    ("llama2-70b", 68_976_648_192),
    ("llama2-7b", 6_738_415_616),
    ("llama3-8b", 8_030_261_248),
    ("llama3.2-1b", 1_235_814_400),
    ("mistral-7b", 7_241_732_096),
    ("mistral-nemo-12b", 12_247_782_400),
    ("mixtral-8x22b", 140_630_071_296),
    ("mixtral-8x7b", 46_702_792_704),
    ("phi-3-mini", 3_821_079_552),
    ("pythia-160m", 162_322_944),
    ("qwen2-0.5b", 494_032_768),
    ("qwen2-7b", 7_615_616_512),
    ("qwen3-0.6b", 596_049_920),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-8b", 8_190_735_360),
    ("vit-b-16", 86_567_656),
    ("vit-l-16", 303_303_682),
];

/// Class defaults alone: the config states only a model type.
const DEFAULTS: [(&str, u64); 12] = [
    ("bloom", 16_156_544),
    ("clip", 151_277_313),
    ("gpt2", 124_439_808),
    ("gpt_neox", 20_554_567_680),
    ("llama", 6_738_415_616),
    ("mistral", 7_241_732_096),
    ("mixtral", 46_702_792_704),
    ("phi3", 3_821_079_552),
    ("qwen2", 12_049_846_272),
    ("qwen3", 12_049_461_248),
    ("qwen3_moe", 15_350_731_776),
    ("vit", 85_800_194),
];

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/hugging-face/{name}.json"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn model(name: &str) -> Model {
    let text = shipped().iter().find(|(shipped, _)| *shipped == name).expect("a shipped model").1;
    Model::from_toml(name, text).unwrap_or_else(|faults| panic!("{faults}"))
}

#[test]
fn configs_count_exactly_and_become_files_that_read_back() {
    for (name, parameters) in IMPORTED {
        let imported = Model::from_hugging_face(&format!("{name}.json"), &fixture(name))
            .unwrap_or_else(|faults| panic!("{name}: {faults}"));
        assert_eq!(imported.model.parameters(), parameters, "{name}");
        let text = imported.model.to_toml();
        assert_eq!(Model::from_toml(name, &text).as_ref(), Ok(&imported.model), "{text}");
    }
}

#[test]
fn class_defaults_count_exactly() {
    for (model_type, parameters) in DEFAULTS {
        let imported = Model::from_hugging_face("config.json", &format!("{{\"model_type\": \"{model_type}\"}}"))
            .unwrap_or_else(|faults| panic!("{model_type}: {faults}"));
        assert_eq!(imported.model.parameters(), parameters, "{model_type}");
        assert!(!imported.warnings.is_empty(), "{model_type}: sizes are missing");
    }
}

#[test]
fn complete_configs_bring_no_warnings() {
    for (name, _) in IMPORTED {
        let imported = Model::from_hugging_face("config.json", &fixture(name)).unwrap();
        assert!(imported.warnings.is_empty(), "{name}: {}", imported.warnings);
        let scaled = imported.model.to_toml().contains("type = \"llama3\"");
        assert_eq!(scaled, name == "llama3.2-1b", "{name}: {}", imported.model.to_toml());
    }
}

#[test]
fn every_model_file_is_shipped_and_reads_back() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let files: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|file| file.ends_with(".toml"))
        .collect();
    let listed: BTreeSet<String> = shipped().iter().map(|(name, _)| format!("{name}.toml")).collect();
    assert_eq!(files, listed);
    for (name, text) in shipped() {
        let model = model(name);
        assert_eq!(model.name(), *name);
        assert!(text.starts_with('#'), "{name} opens with its source");
        assert_eq!(Model::from_toml(name, &model.to_toml()), Ok(model));
    }
}

#[test]
fn shipped_models_are_the_published_ones() {
    let names = ["bloom-176b", "gpt2", "gpt2-xl", "gpt3-175b", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b"];
    for name in names.into_iter().chain(["mixtral-8x7b", "vit-b-16"]) {
        let imported = Model::from_hugging_face("config.json", &fixture(name)).unwrap().model;
        let shipped = model(name);
        assert_eq!(shipped.parameters(), imported.parameters(), "{name}");
        assert_eq!(shipped.layers(), imported.layers(), "{name}");
    }
    // 48 (4h² + 2hf + 9h + f) + patches, places, class token, two norms and the projection, for h =
    // 1664 and f = 8192.
    assert_eq!(model("vit-bigG").parameters(), 1_844_907_264);
    // 2·256h + 8 (4h² + 3hf + 2h) + h, for h = 384 and f = 1024.
    assert_eq!(model("demo").parameters(), 14_358_912);
}

/// The models with which systems were measured have the sizes stated in their papers, to the digits
/// given there.
#[test]
fn evaluated_models_have_their_published_sizes() {
    let spipe = [
        ("10b", 10.13),
        ("19b", 17.45),
        ("30b", 29.46),
        ("40b", 39.95),
        ("52b", 52.03),
        ("69b", 68.72),
        ("88b", 87.59),
        ("110b", 110.77),
    ];
    for (name, billions) in spipe {
        let parameters = model(&format!("spipe-{name}")).parameters() as f64 / 1e9;
        assert!((parameters - billions).abs() < 0.006, "{name}: {parameters}");
    }
    let named = ["pipeoffload-", "zero-bubble-"];
    let mut found = 0;
    for (name, _) in shipped() {
        let Some(size) = named.iter().find_map(|prefix| name.strip_prefix(prefix)) else { continue };
        let billions: f64 = size.trim_end_matches('b').parse().unwrap();
        let parameters = model(name).parameters() as f64 / 1e9;
        assert!((parameters - billions).abs() < 0.051, "{name}: {parameters}");
        found += 1;
    }
    assert_eq!(found, 10);
}

/// One layer and one embedding of SPipe's 10B model, in millions: 202.4 and 206.0.
#[test]
fn the_parts_of_an_evaluated_model_have_their_sizes() {
    let model = model("spipe-10b");
    let millions = |name: &str| model.layers()[model.layer(name).unwrap()].parameters as f64 / 1e6;
    assert!((millions("block.0") - 202.4).abs() < 0.05, "{}", millions("block.0"));
    assert!((millions("embedding") - 206.0).abs() < 0.05, "{}", millions("embedding"));
}

#[test]
fn tied_heads_count_once_and_say_what_they_share() {
    let model = model("gpt2");
    let (id, head) = model.layers().enumerate().last().unwrap();
    assert_eq!(head.parameters, 2 * 768, "the norm is the head's own");
    assert_eq!((head.tied_to, head.tied_parameters), (model.layer("embedding"), 50_257 * 768));
    assert_eq!(head.inputs, vec![spipe_base::LayerId::from(id.index() - 1)]);
}

#[test]
fn two_towers_are_a_graph() {
    let model = Model::from_hugging_face("config.json", &fixture("clip-vit-l-14")).unwrap().model;
    assert_eq!(model.places(), Some(77), "longer texts have no positions");
    let named = |name: &str| model.layer(name).unwrap();
    let contrast = &model.layers()[named("contrast")];
    assert_eq!(contrast.inputs, vec![named("text.projection"), named("vision.projection")]);
    assert_eq!(model.layers()[named("vision.embedding")].inputs, vec![]);
    assert_eq!(model.layers()[named("vision.block.0")].tokens, Some(257));
    assert_eq!(model.seq_len(), 77);
    let runs: Vec<usize> = model.runs().iter().map(|run| run.count()).collect();
    assert_eq!(runs, [1, 12, 1, 1, 24, 1, 1]);
}

#[test]
fn dropout_in_a_tower_reads_back() {
    let config = fixture("clip-vit-b-32").replace("\"hidden_act\"", "\"attention_dropout\": 0.1, \"hidden_act\"");
    let model = Model::from_hugging_face("config.json", &config).unwrap().model;
    assert!(model.layers()[model.layer("text.block.0").unwrap()].as_block().unwrap().dropout);
    assert_eq!(Model::from_toml("clip.toml", &model.to_toml()), Ok(model));
}

#[test]
fn a_sliding_window_splits_the_runs() {
    let config = r#"{"model_type": "qwen2", "num_hidden_layers": 6, "use_sliding_window": true, "sliding_window": 512,
        "max_window_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 1000}"#;
    let model = Model::from_hugging_face("tiny.json", config).unwrap().model;
    assert_eq!(model.runs().iter().map(|run| run.count()).collect::<Vec<_>>(), [1, 4, 2, 1]);
    assert_eq!(Model::from_toml("tiny.toml", &model.to_toml()), Ok(model));
}

#[test]
fn experts_are_used_in_part() {
    let model = Model::from_hugging_face("config.json", &fixture("mixtral-8x7b")).unwrap().model;
    let used = |block: &Block| {
        let experts = block.experts.map(|experts| Experts { count: experts.per_token, ..experts });
        Block { experts, ..*block }.parameters()
    };
    let active: u64 = model.layers().iter().map(|layer| layer.as_block().map_or(layer.parameters, used)).sum();
    // The paper says 13 B (Mixtral of Experts, arXiv 2401.04088).
    assert_eq!(active / 100_000_000, 128);
}

/// Qwen3-MoE with some dense blocks: attention 2 × 4 × 8 × 8 (no biases) + 16 for the norms of heads, two norms
/// of 8 …, counted here by hand.
#[test]
fn dense_blocks_among_experts_count_exactly() {
    let config = |more: &str| {
        format!(
            "{{\"model_type\": \"qwen3_moe\", \"hidden_size\": 8, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, \
             \"num_key_value_heads\": 1, \"head_dim\": 4, \"intermediate_size\": 32, \"moe_intermediate_size\": 16, \
             \"num_experts\": 4, \"num_experts_per_tok\": 2, \"vocab_size\": 10{more}}}"
        )
    };
    // q 8·8, k and v 8·4 each, o 8·8, norms of heads 2·4, norms of the block 2·8.
    let attention = 64 + 32 + 32 + 64 + 8 + 16;
    let (sparse, dense) = (attention + 4 * 3 * 8 * 16 + 4 * 8, attention + 3 * 8 * 32);
    let ends = 2 * 10 * 8 + 8;
    for (more, dense_blocks) in [
        ("", 0),
        (", \"decoder_sparse_step\": 2", 2),
        (", \"decoder_sparse_step\": 3", 3),
        (", \"mlp_only_layers\": [0]", 1),
        (", \"mlp_only_layers\": [1, 2], \"decoder_sparse_step\": 2", 3),
        (", \"decoder_sparse_step\": 5", 4),
    ] {
        let imported =
            Model::from_hugging_face("config.json", &config(more)).unwrap_or_else(|faults| panic!("{faults}"));
        let expected = ends + (4 - dense_blocks) * sparse + dense_blocks * dense;
        assert_eq!(imported.model.parameters(), expected, "{more}");
        assert!(imported.warnings.is_empty(), "{}", imported.warnings);
        let text = imported.model.to_toml();
        assert_eq!(Model::from_toml("again.toml", &text).as_ref(), Ok(&imported.model), "{text}");
    }
    let refused = Model::from_hugging_face("config.json", &config(", \"decoder_sparse_step\": 0")).unwrap_err();
    assert!(refused.to_string().contains("`decoder_sparse_step` is zero"), "{refused}");
}

/// DeepSeek-V3 (arXiv 2412.19437): 671 billion parameters, of which each token uses 37 billion; the
/// module that predicts a second token shares embedding and head.
#[test]
fn latent_attention_and_shared_experts_count_exactly() {
    let config = "{\"model_type\": \"deepseek_v3\", \"num_nextn_predict_layers\": 1}";
    let model = Model::from_hugging_face("config.json", config).unwrap().model;
    assert_eq!(model.parameters(), 671_026_419_200);
    assert_eq!(model.active_parameters() / 100_000_000, 375);
    // A block with experts, a matrix of twice the width, three norms.
    let block = model.layers()[model.layer("block.60").unwrap()].parameters;
    assert_eq!(model.mtp_parameters(), block + 2 * 7168 * 7168 + 3 * 7168);
    assert_eq!(Model::from_toml("v3.toml", &model.to_toml()), Ok(model));
}
