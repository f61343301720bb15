//! Every fault of a file is reported, each with its place.

use spipe_base::Seconds;
use spipe_model::{Attention, Batch, Model, Precision, Recompute, schema};

fn faults(text: &str) -> String {
    Model::from_toml("m.toml", text).expect_err("the file is at fault").to_string()
}

#[test]
fn keys_and_types() {
    let text = "format-version = 1\nkind = \"transformer\"\nname = \"x\"\nvocabulary = \"many\"\nseq-len = 128\nhiden = 64\n\
                layers = -2\nheads = 4\nintermediate = 96\nnorm = \"rmsnorm\"\ntied = 1\nkv_heads = 2\n";
    assert_eq!(
        faults(text),
        "error: unknown key `hiden`\n  --> m.toml:6:1\nhint: did you mean `hidden`\n\
         error: unknown key `kv_heads`\n  --> m.toml:12:1\nhint: did you mean `kv-heads`\n\
         error: `layers` is negative\n  --> m.toml:7:10\n\
         error: `norm` cannot be `rmsnorm`\n  --> m.toml:10:8\nhint: did you mean `rms-norm`\n\
         error: `tied` is a TOML integer, not a boolean\n  --> m.toml:11:8\n\
         error: `vocabulary` is a TOML string, not an integer\n  --> m.toml:4:14\n\
         error: the key `hidden` is missing\n  --> m.toml:1:1"
    );
}

#[test]
fn sizes_and_options() {
    let text = "format-version = 1\nkind = \"transformer\"\nname = \"x\"\nvocabulary = 0\nseq-len = 128\nhidden = 100\n\
                layers = 2\nheads = 6\nkv-heads = 4\nintermediate = 96\npositions = \"learned\"\nplaces = 64\nrotary-base = 1e4\n\
                experts = 4\nexperts-per-token = 5\nfull-attention-layers = 1\n";
    assert_eq!(
        faults(text),
        "error: `hidden` = 100 is not divisible by `heads` = 6\n  --> m.toml:6:10\n\
         hint: state `head-dim` if heads are not `hidden` / `heads` wide\n\
         error: `rotary-base` has no effect unless `positions` is `rotary`\n  --> m.toml:13:15\n\
         error: `full-attention-layers` has no effect without `sliding-window`\n  --> m.toml:16:25\n\
         error: `vocabulary` is zero\n  --> m.toml:4:14\n\
         error: `heads` = 6 is not divisible by `kv-heads` = 4\n  --> m.toml:8:9\n\
         error: each token uses 5 of 4 experts\n  --> m.toml:15:21\n\
         error: `seq-len` is 128, but there are learned positions for 64 tokens\n  --> m.toml:5:11"
    );
}

#[test]
fn versions_and_kinds() {
    assert_eq!(
        faults("kind = \"transformer\"\n"),
        "error: the key `format-version` is missing\n  --> m.toml:1:1\nhint: write `format-version = 1`"
    );
    assert_eq!(
        faults("format-version = 2\n"),
        "error: the file has format version 2, this program reads version 1\n  --> m.toml:1:18"
    );
    assert_eq!(
        faults("format-version = 1\nkind = \"transfomer\"\n"),
        "error: unknown kind of model `transfomer`\n  --> m.toml:2:8\nhint: did you mean `transformer`"
    );
    assert!(faults("format-version = = 1\nkind = \n").contains("m.toml:1:18"));
}

#[test]
fn images() {
    let text = "format-version = 1\nkind = \"vit\"\nname = \"x\"\nimage = 225\npatch = 16\nhidden = 64\nlayers = 1\nheads = 4\n\
                intermediate = 128\n";
    assert_eq!(
        faults(text),
        "error: one of the keys `classes` and `projection` is missing\n  --> m.toml:1:1\n\
         error: `image` = 225 is not divisible by `patch` = 16\n  --> m.toml:4:9"
    );
}

const SIX_LAYERS: &str = r#"
format-version = 1
kind = "profiled"
name = "six-layers"
microbatch = 1
seq-len = 1024
[[layer]]
name = "embed"
parameters = 1_000_000
boundary-activation = "8 MiB"
saved-activation = "8 MiB"
time = { gpu = { forward = "0.2 ms", backward-input = "0.1 ms", backward-weight = "0.2 ms" }, cpu = { forward = "2 ms", backward-input = "1 ms", backward-weight = "2 ms" } }
[[layer]]
name = "block"
count = 4
inputs = ["embed"]
parameters = 12_000_000
boundary-activation = "8 MiB"
saved-activation = "120 MiB"
time = { gpu = { forward = "1 ms", backward-input = "1 ms", backward-weight = "1 ms" }, gpu1 = { forward = "3 ms", backward-input = "3 ms", backward-weight = "3 ms" } }
[[layer]]
name = "head"
parameters = 1_000_000
boundary-activation = "4 B"
saved-activation = "16 MiB"
recompute-activation = "8 MiB"
time = { cpu = { forward = "2 ms", backward-input = "1 ms", backward-weight = "2 ms" } }
"#;

#[test]
fn profiled_layers_have_the_stated_figures() {
    let model = Model::from_toml("six.toml", SIX_LAYERS).unwrap();
    let names: Vec<_> = model.layers().iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["embed", "block.0", "block.1", "block.2", "block.3", "head"]);
    assert_eq!((model.parameters(), model.seq_len()), (50_000_000, 1024));
    let inputs = |name: &str| {
        model.layers()[model.layer(name).unwrap()].inputs.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!((inputs("block.0"), inputs("block.2")), (vec!["l0".into()], vec!["l0".into(), "l2".to_string()]));
    let block = &model.layers()[model.layer("block.2").unwrap()];
    let batch = Batch { microbatch: 2, seq_len: 1024 };
    let forward = |device: &str, is_gpu| block.profile(device, is_gpu, batch).map(|time| time.forward);
    assert_eq!(forward("gpu0", true), Some(Seconds::ms(2.0)));
    assert_eq!(forward("gpu1", true), Some(Seconds::ms(6.0)));
    assert_eq!(forward("cpu0", false), None);
    let saved = |recompute| block.saved(batch, Precision::Bf16, recompute, Attention::Fused).to_string();
    assert_eq!(saved(Recompute::None), "240.0 MiB");
    assert_eq!(saved(Recompute::Full), "32.0 MiB", "both inputs");
    assert!(block.work(batch).forward.is_empty());
    assert_eq!(Model::from_toml("six.toml", &model.to_toml()), Ok(model));
}

#[test]
fn runs_keep_skip_connections_apart() {
    let text = SIX_LAYERS.replace("inputs = [\"embed\"]\n", "");
    let counts = |text: &str| -> Vec<usize> {
        Model::from_toml("six.toml", text).unwrap().runs().iter().map(|run| run.count()).collect()
    };
    assert_eq!(counts(&text), [1, 4, 1]);
    let skip = text.replace("name = \"head\"", "name = \"head\"\ninputs = [\"block.1\"]");
    assert_eq!(counts(&skip), [1, 1, 1, 2, 1], "the layer that the head also reads is by itself");
}

#[test]
fn profiles_name_every_fault() {
    let text = SIX_LAYERS
        .replace("inputs = [\"embed\"]", "inputs = [\"embd\", \"head\"]")
        .replace("saved-activation = \"16 MiB\"", "saved-activation = \"4 MiB\"")
        .replace("\"120 MiB\"", "\"120 megabytes\"")
        .replace("\"3 ms\", backward-input", "\"3\", backward-input");
    assert_eq!(
        faults(&text),
        "error: layer `block` reads `embd`, which does not exist\n  --> m.toml:16:11\nhint: did you mean `embed`\n\
         error: layer `block` reads `head`, which is not before it\n  --> m.toml:16:19\n\
         hint: layers are listed in the order in which they compute\n\
         error: `saved-activation`: `megabytes` is not a unit of size (known: B, KB, kB, MB, GB, TB, KiB, MiB, GiB, TiB)\n  \
         --> m.toml:19:20\n\
         error: `forward`: `3` has no unit (write a duration like \"18.5 ms\")\n  --> m.toml:20:108\n\
         error: `recompute-activation` is 8.0 MiB, more than `saved-activation`, which is 4.0 MiB\n  --> m.toml:26:24"
    );
}

#[test]
fn layers_have_names_of_their_own() {
    let text = SIX_LAYERS.replace("name = \"head\"", "name = \"block.1\"");
    assert_eq!(faults(&text), "error: there is another layer `block.1`\n  --> m.toml:22:8");
}

#[test]
fn configs() {
    let refused = |text: &str| Model::from_hugging_face("config.json", text).expect_err("at fault").to_string();
    assert_eq!(
        refused("{\n  \"model_type\": \"zz\"\n}"),
        "error: unknown model type `zz`\n  --> config.json:2:3\n\
         hint: the nearest known: gpt2, gpt_neox, llama (known: bert, bloom, clip, clip_vision_model, cohere, cohere2, deepseek_v2, deepseek_v3, dinov2, falcon, gemma, \
         gemma2, gemma3_text, gpt2, gpt_neox, gpt_oss, gptj, granite, internlm2, llama, mistral, mixtral, olmo, olmo2, olmo3, opt, phi, phi3, \
         qwen2, qwen2_moe, qwen3, qwen3_moe, roberta, siglip_vision_model, starcoder2, t5, vit, whisper)"
    );
    let text = "{\n  \"model_type\": \"llama\",\n  \"hidden_size\": 100,\n  \"num_attention_heads\": 7,\n  \
                \"num_hidden_layers\": \"32\",\n  \"intermediate_size\": 0,\n  \"vocab_size\": 10\n}";
    assert_eq!(
        refused(text),
        "error: `num_hidden_layers` is \"32\", not a whole number\n  --> config.json:5:3\n\
         error: `hidden` = 100 is not divisible by `heads` = 7\n  --> config.json:3:3\n\
         hint: state `head-dim` if heads are not `hidden` / `heads` wide\n\
         error: `intermediate` is zero\n  --> config.json:6:3"
    );
    assert!(refused("{\n\"model_type\": llama}").starts_with("error: not JSON"));
    assert!(refused("[]").contains("a config is a JSON object"));
    let clip = "{\"model_type\": \"clip\", \"text_config\": {\"hidden_size\": 512},\n \"vision_config\":\n \
                {\"hidden_size\": 0}}";
    assert!(refused(clip).contains("error: `hidden` is zero\n  --> config.json:3:3"), "{}", refused(clip));
}

#[test]
fn ignored_settings_of_a_config_are_warnings() {
    let text = "{\n\"model_type\": \"gpt2\", \"n_embd\": 64, \"n_head\": 4, \"n_layer\": 2, \"vocab_size\": 100,\n\
                \"activation_function\": \"quick_gelu\",\n\"architectures\": [\"GPT2ForSequenceClassification\"]\n}";
    let warnings = Model::from_hugging_face("small.json", text).unwrap().warnings.to_string();
    assert_eq!(
        warnings,
        "warning: the activation function `quick_gelu` is treated as `gelu_new`, which costs the same; weights trained with it give \
         slightly different results\n  --> small.json:3:1\n\
         warning: `GPT2ForSequenceClassification` is treated as a language model with its head\n  --> small.json:4:1"
    );
}

#[test]
fn scores_and_activations_that_are_not_computed_are_warnings() {
    let sizes = "\"n_embd\": 64, \"n_head\": 4, \"n_layer\": 2, \"vocab_size\": 100";
    for (key, value, warns) in [
        ("scale_attn_weights", false, true),
        ("scale_attn_by_inverse_layer_idx", true, true),
        ("scale_attn_by_inverse_layer_idx", false, false),
    ] {
        let text = format!("{{\"model_type\": \"gpt2\", {sizes},\n\"{key}\": {value}}}");
        let warnings = Model::from_hugging_face("small.json", &text).unwrap().warnings.to_string();
        assert_eq!(warnings.contains("scores are divided by the square root"), warns, "{key}: {warnings}");
    }
    for (word, warns) in [("gelu", false), ("gelu_new", false), ("relu", false), ("quick_gelu", true)] {
        let text = format!(
            "{{\"model_type\": \"vit\", \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_hidden_layers\": 2,\n\
             \"intermediate_size\": 128, \"hidden_act\": \"{word}\"}}"
        );
        let warnings = Model::from_hugging_face("small.json", &text).unwrap().warnings.to_string();
        assert_eq!(warnings.contains(&format!("activation function `{word}`")), warns, "{word}: {warnings}");
    }
}

#[test]
fn the_schema_knows_every_kind() {
    let schema = schema();
    let kinds = schema.as_value()["oneOf"].as_array().map(Vec::len);
    assert_eq!(kinds, Some(7));
    let text = schema.as_value().to_string();
    for word in ["format-version", "sliding-window", "boundary-activation", "patch-bias", "projection"] {
        assert!(text.contains(word), "{word}");
    }
}

#[test]
fn scalings_of_rotary_positions() {
    let start = "format-version = 1\nkind = \"transformer\"\nname = \"x\"\nvocabulary = 100\nseq-len = 128\nhidden = 64\n\
                 layers = 2\nheads = 4\nintermediate = 96\n";
    let table = |rest: &str| format!("{start}[rotary-scaling]\n{rest}");
    assert_eq!(
        faults(&table("type = \"lama3\"\nfactor = \"8\"\n")),
        "error: `factor` is a TOML string, not a number\n  --> m.toml:12:10\n\
         error: `type` cannot be `lama3`\n  --> m.toml:11:8\nhint: did you mean `llama3`"
    );
    assert_eq!(
        faults(&table("type = \"linear\"\nbeta-fast = 2\n")),
        "error: the scaling `linear` of rotary positions needs `factor`\n  --> m.toml:11:8\n\
         error: `beta-fast` has no effect with the scaling `linear`\n  --> m.toml:12:13"
    );
    assert_eq!(
        faults(&table(
            "type = \"llama3\"\nfactor = 0\noriginal-places = 0\nlow-frequency-factor = 4\nhigh-frequency-factor = 1\n"
        )),
        "error: `original-places` is zero\n  --> m.toml:13:19\n\
         error: `factor` is 0, not a positive number\n  --> m.toml:12:10\n\
         error: `high-frequency-factor` is 1, not above `low-frequency-factor` = 4\n  --> m.toml:15:25"
    );
    assert_eq!(
        faults(&format!("{start}positions = \"none\"\n[rotary-scaling]\ntype = \"linear\"\nfactor = 2\n")),
        "error: `rotary-scaling` has no effect unless `positions` is `rotary`\n  --> m.toml:11:1"
    );
}
