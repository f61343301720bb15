//! Files around models: wrappers, quantized weights, adapters, pipelines, unknown architectures.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_model::{Adapter, Imported, Model, components};

const LLAMA: &str = "\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \
                     \"intermediate_size\": 128, \"vocab_size\": 100";

fn read(text: &str) -> Imported {
    Model::from_hugging_face("config.json", text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn refused(text: &str) -> String {
    Model::from_hugging_face("config.json", text).unwrap_err().to_string()
}

#[test]
fn wrappers_are_read_as_the_model_inside() {
    let plain = read(&format!("{{\"model_type\": \"llama\", {LLAMA}}}")).model;
    for key in ["text_config", "llm_config", "language_config"] {
        let text = format!("{{\"model_type\": \"wrapper\",\n \"{key}\": {{\"model_type\": \"llama\", {LLAMA}}}}}");
        let imported = read(&text);
        assert_eq!(imported.model.parameters(), plain.parameters(), "{key}");
        let said = imported.warnings.to_string();
        assert!(said.contains("`wrapper` wraps a `llama`") && said.contains("config.json:2:2"), "{said}");
    }
    let tower = format!(
        "{{\"model_type\": \"llava\", \"text_config\": {{\"model_type\": \"llama\", {LLAMA}}}, \
         \"vision_config\": {{\"model_type\": \"clip_vision_model\", \"hidden_size\": 1024, \"intermediate_size\": 4096, \
         \"num_hidden_layers\": 24, \"image_size\": 336, \"patch_size\": 14}}}}"
    );
    let said = read(&tower).warnings.to_string();
    // CLIP's ViT-L/14 at 336 pixels: 303.5 million.
    assert!(said.contains("a `clip_vision_model` of 303 507 456 parameters"), "{said}");
    let tied = format!(
        "{{\"model_type\": \"wrapper\", \"tie_word_embeddings\": true, \"text_config\": {{\"model_type\": \"llama\", {LLAMA}}}}}"
    );
    assert_eq!(read(&tied).model.parameters() + 64 * 100, plain.parameters());
    // A tower of CLIP is no wrapped model.
    assert!(
        read("{\"model_type\": \"clip\", \"text_config\": {\"model_type\": \"llama\"}}").model.parameters() > 1 << 26
    );
}

#[test]
fn unknown_architectures_name_the_nearest_known_ones() {
    for (config, nearest) in [
        ("\"model_type\": \"qwen2_vl\"", "the nearest known: qwen2 "),
        ("\"model_type\": \"lama\"", "the nearest known: llama "),
        ("\"model_type\": \"yyy\", \"n_routed_experts\": 256", "the nearest known: mixtral, qwen3_moe "),
        ("\"model_type\": \"zz\", \"rms_norm_eps\": 1e-6", "the nearest known: llama, mistral, qwen2 "),
        ("\"model_type\": \"zz\", \"patch_size\": 16", "the nearest known: vit, clip "),
    ] {
        let said = refused(&format!("{{{config}}}"));
        assert!(said.contains("unknown model type") && said.contains(nearest), "{said}");
    }
    let said = refused("{\"_class_name\": \"FluxTransformer3DModel\"}");
    assert!(said.contains("unknown class `FluxTransformer3DModel`") && said.contains("UNet2DConditionModel"), "{said}");
}

#[test]
fn quantized_weights_are_said() {
    for (config, words) in [
        (
            "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128}",
            "gptq: 4 bits, groups of 128, about 4.156 bits",
        ),
        (
            "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\", \
             \"bnb_4bit_use_double_quant\": true}",
            "bitsandbytes: nf4, doubly quantized, about 4.127 bits",
        ),
        ("{\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}", "bitsandbytes: int8, about 8.000 bits"),
        ("{\"quant_method\": \"fp8\"}", "fp8: 8 bits"),
    ] {
        let said = read(&format!("{{\"model_type\": \"llama\", {LLAMA}, \"quantization_config\": {config}}}"))
            .warnings
            .to_string();
        assert!(said.contains(words) && said.contains("precision of the run"), "{said}");
    }
}

#[test]
fn adapters_say_what_they_change() {
    let text = "{\"peft_type\": \"LORA\", \"r\": 4, \"base_model_name_or_path\": \"org/base\", \
                \"target_modules\": [\"q_proj\", \"down_proj\"]}";
    let said = refused(text);
    assert!(
        said.contains("an adapter of kind LORA") && said.contains("name the config or the folder of `org/base`"),
        "{said}"
    );
    let adapter = Adapter::from_json("adapter_config.json", text).unwrap();
    let model = read(&format!("{{\"model_type\": \"llama\", {LLAMA}}}")).model;
    // Two blocks, rank 4: q is 64 × 64, down 128 × 64.
    assert_eq!(adapter.parameters(&model), Some(2 * 4 * (64 + 64 + 128 + 64)));
    let remark = adapter.remark(&model).to_string();
    assert!(remark.contains("LoRA of rank 4 on q_proj, down_proj") && remark.contains("2 560 trained"), "{remark}");
}

#[test]
fn pipelines_have_parts() {
    let text = "{\"_class_name\": \"StableDiffusionPipeline\", \"_diffusers_version\": \"0.6.0\",\n\
                \"scheduler\": [\"diffusers\", \"PNDMScheduler\"], \"tokenizer\": [\"transformers\", \"CLIPTokenizer\"],\n\
                \"safety_checker\": [null, null], \"unet\": [\"diffusers\", \"UNet2DConditionModel\"]}";
    let parts = components("model_index.json", text).unwrap();
    let names: Vec<(&str, bool)> = parts.iter().map(|part| (part.name.as_str(), part.has_parameters())).collect();
    assert_eq!(names, [("scheduler", false), ("tokenizer", false), ("unet", true)]);
    assert!(components("x", "{\"a\": 1}").unwrap_err().to_string().contains("no key is a part"));
    assert!(components("x", "[").is_err());
    assert!(refused(text).contains("pipeline of several models"));
}

#[test]
fn scalings_of_rotary_positions_are_read_or_refused_by_name() {
    let config = |scaling: &str| {
        format!(
            "{{\"model_type\": \"llama\", {LLAMA}, \"max_position_embeddings\": 4096,\n \"rope_scaling\": {{{scaling}}}}}"
        )
    };
    let imported = read(&config(
        "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \
         \"original_max_position_embeddings\": 512",
    ));
    assert!(imported.warnings.is_empty(), "{}", imported.warnings);
    let text = imported.model.to_toml();
    for line in ["[rotary-scaling]", "type = \"llama3\"", "original-places = 512", "high-frequency-factor = 4.0"] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
    for plain in ["\"type\": \"default\"", "\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]"] {
        let model = read(&config(plain)).model;
        assert!(!model.to_toml().contains("rotary-scaling"), "{plain}");
    }
    let said = read(&config("\"type\": \"su\", \"short_factor\": [1.0], \"long_factor\": [2.0]")).warnings.to_string();
    assert!(said.contains("the scaling `longrope` of rotary positions is planned, but neither executed nor"), "{said}");
    assert_eq!(
        refused(&config("\"rope_type\": \"ntk\", \"factor\": 2.0")),
        "error: the scaling `ntk` of rotary positions is unknown\n  --> config.json:2:19\n\
         hint: known: default, linear, dynamic, yarn, llama3, longrope"
    );
    let said = refused(&config("\"rope_type\": \"yarn\", \"factor\": -2.0"));
    assert!(said.contains("`factor` is -2, not a positive number\n  --> config.json:2:"), "{said}");
    let said = refused(&config("\"rope_type\": \"linear\""));
    assert!(said.contains("the scaling `linear` of rotary positions needs `factor`"), "{said}");
}

#[test]
fn blocks_with_a_sliding_window_that_rotate_otherwise_are_warned_of() {
    let gemma = |rope: &str| {
        format!("{{\"model_type\": \"gemma3_text\", {LLAMA}, \"num_key_value_heads\": 4, \"head_dim\": 16, {rope}}}")
    };
    let said = read(&gemma("\"rope_theta\": 1e6, \"rope_local_base_freq\": 1e4")).warnings.to_string();
    assert!(said.contains("blocks with a sliding window rotate with the base 1000000, not 10000"), "{said}");
    let tables = "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": 2e6},\n\
                  \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}";
    let imported = read(&gemma(tables));
    let said = imported.warnings.to_string();
    assert!(said.contains("rotate with the base 2000000, not 10000"), "{said}");
    let text = imported.model.to_toml();
    assert!(text.contains("rotary-base = 2000000.0") && text.contains("factor = 8.0"), "{text}");
}
