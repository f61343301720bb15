//! Properties of every block and batch.

use proptest::prelude::*;
use spipe_base::Flops;
use spipe_model::{
    Attention, Batch, Block, Experts, Latent, Layer, LayerKind, LayerWork, Mlp, Model, Norm, NormPlaces, Op, Positions,
    Precision, QkNorm, Recompute, shipped,
};

fn sizes() -> impl Strategy<Value = Block> {
    let widths = (1_u64..5, 0_u32..3, 1_u64..20, 1_u64..300);
    let flags = proptest::collection::vec(any::<bool>(), 8);
    let norms = proptest::sample::select(vec![
        (NormPlaces::Before, Norm::RmsNorm),
        (NormPlaces::After, Norm::RmsNorm),
        (NormPlaces::Around, Norm::RmsNormPlusOne),
        (NormPlaces::AfterSum, Norm::LayerNorm),
        (NormPlaces::Shared, Norm::LayerNormNoBias),
    ]);
    let experts = proptest::option::of((1_u64..9, 1_u64..9, 0_u64..40));
    let latent = proptest::option::weighted(0.3, (proptest::option::of(1_u64..30), 1_u64..30, 1_u64..30));
    (widths, flags, experts, proptest::option::of(1_u64..64), norms, latent).prop_map(
        |((kv_heads, group, half, intermediate), flags, experts, sliding_window, (norms, norm), latent)| {
            let heads = kv_heads << group;
            Block {
                kv_heads: if latent.is_some() { heads } else { kv_heads },
                latent: latent.map(|(query_rank, kv_rank, value_dim)| Latent {
                    query_rank,
                    kv_rank,
                    rotary: 1,
                    value_dim,
                }),
                norm,
                norms,
                mlp: if flags[1] { Mlp::Swiglu } else { Mlp::Gelu },
                positions: if flags[2] {
                    Positions::Alibi
                } else {
                    Positions::Rotary { base: 1e4, fraction: 1.0, scaling: None }
                },
                qkv_bias: flags[3],
                output_bias: flags[3],
                mlp_bias: flags[4],
                qk_norm: if flags[5] { QkNorm::Head } else { QkNorm::None },
                parallel_residual: flags[6] || norms == NormPlaces::Shared,
                sliding_window,
                experts: experts.map(|(a, b, shared)| Experts {
                    shared,
                    shared_gate: flags[0] && shared > 0,
                    router_bias: flags[0],
                    ..Experts::new(a.max(b), a.min(b))
                }),
                dropout: flags[7],
                ..Block::new((8 * half, heads, 2 * half), intermediate)
            }
        },
    )
}

fn layer(block: Block) -> Layer {
    Layer {
        name: "block".into(),
        kind: LayerKind::Block(block),
        parameters: block.parameters(),
        inputs: vec![],
        tied_to: None,
        tied_parameters: 0,
        tokens: None,
        sequence_parts: 1,
        trains: true,
        adaptation: None,
        needs_backward: true,
        passes_gradient: true,
    }
}

fn flops(work: &LayerWork) -> [f64; 3] {
    [&work.forward, &work.backward_input, &work.backward_weight]
        .map(|ops| ops.iter().map(Op::flops).sum::<Flops>().get())
}

proptest! {
    #[test]
    fn a_stronger_recompute_keeps_less(block in sizes(), microbatch in 1_u64..5, seq_len in 1_u64..100) {
        let (layer, batch) = (layer(block), Batch { microbatch, seq_len });
        for attention in Attention::ALL {
            for precision in Precision::ALL {
                let kept = Recompute::ALL.map(|recompute| layer.saved(batch, precision, recompute, attention));
                prop_assert!(kept[0] >= kept[1] && kept[1] >= kept[2], "{kept:?}");
                prop_assert!(kept[2] >= layer.boundary(batch, precision), "the input is as large as the output");
                for recompute in Recompute::ALL {
                    let brought_back = layer.recomputed(batch, precision, recompute, attention);
                    prop_assert_eq!(layer.saved(batch, precision, recompute, attention) + brought_back, kept[0]);
                }
            }
        }
    }

    #[test]
    fn more_of_anything_is_not_less_work(block in sizes(), microbatch in 1_u64..5, seq_len in 1_u64..100) {
        let base = flops(&layer(block).work(Batch { microbatch, seq_len }));
        let wider = Block { intermediate: block.intermediate + 1, ..block };
        let more = [
            layer(block).work(Batch { microbatch: microbatch + 1, seq_len }),
            layer(block).work(Batch { microbatch, seq_len: seq_len + 1 }),
            layer(wider).work(Batch { microbatch, seq_len }),
        ];
        for work in more {
            for (less, more) in base.into_iter().zip(flops(&work)) {
                prop_assert!(less <= more, "{less} {more}");
            }
        }
    }

    #[test]
    fn each_product_has_two_gradients_of_its_size(block in sizes(), microbatch in 1_u64..5, seq_len in 1_u64..100) {
        let work = layer(block).work(Batch { microbatch, seq_len });
        let [forward, input, weight] = flops(&work);
        prop_assert!(block.active_parameters() <= block.parameters());
        let attention = forward - weight;
        prop_assert!(attention > 0.0);
        prop_assert!((input - (weight + 2.0 * attention)).abs() <= 1e-9 * input);
        for attention in Attention::ALL {
            for op in work.forward.iter().chain(&work.backward_input).chain(&work.backward_weight) {
                prop_assert!(op.kernels(attention) > 0);
                prop_assert!(op.elements_moved(attention) > 0);
            }
        }
    }

    #[test]
    fn profiles_survive_writing(
        layers in proptest::collection::vec((1_u64..5, 0_u64..1 << 40, 0_u64..1 << 40, 0.0..1.0_f64), 1..6),
        microbatch in 1_u64..9,
    ) {
        let mut text = format!("format-version = 1\nkind = \"profiled\"\nname = \"p\"\nmicrobatch = {microbatch}\nseq-len = 64\n");
        for (index, (count, parameters, bytes, seconds)) in layers.iter().enumerate() {
            text += &format!(
                "[[layer]]\nname = \"n{index}\"\ncount = {count}\nparameters = {parameters}\n\
                 boundary-activation = \"{bytes} B\"\nsaved-activation = \"{} B\"\n\
                 time = {{ gpu = {{ forward = \"{seconds} s\", backward-input = \"1 us\", backward-weight = \"0 s\" }} }}\n",
                bytes * 2,
            );
        }
        let model = Model::from_toml("p.toml", &text).map_err(|faults| TestCaseError::fail(faults.to_string()))?;
        prop_assert_eq!(model.layers().len() as u64, layers.iter().map(|layer| layer.0).sum::<u64>());
        prop_assert_eq!(Model::from_toml("p.toml", &model.to_toml()), Ok(model));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        prop_assert!(Model::from_toml("x.toml", &text).is_err());
        prop_assert!(Model::from_hugging_face("x.json", &text).is_err());
    }

    #[test]
    fn any_size_is_read_or_refused(sizes in proptest::collection::vec(prop_oneof![0_u64..50, 0..i64::MAX as u64], 8)) {
        let text = format!(
            "format-version = 1\nkind = \"transformer\"\nname = \"x\"\nvocabulary = {}\nseq-len = {}\nhidden = {}\n\
             layers = {}\nheads = {}\nkv-heads = {}\nhead-dim = {}\nintermediate = {}\n",
            sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7],
        );
        if let Ok(model) = Model::from_toml("x.toml", &text) {
            prop_assert!(model.parameters() > 0);
        }
        let config = format!(
            "{{\"model_type\": \"llama\", \"vocab_size\": {}, \"hidden_size\": {}, \"num_hidden_layers\": {}, \
             \"num_attention_heads\": {}, \"num_key_value_heads\": {}, \"intermediate_size\": {}}}",
            sizes[0], sizes[2], sizes[3], sizes[4], sizes[5], sizes[7],
        );
        if let Ok(imported) = Model::from_hugging_face("x.json", &config) {
            prop_assert!(imported.model.parameters() > 0);
        }
    }

    /// A valid file with one value replaced is read, or refused with a position.
    #[test]
    fn a_wrong_value_has_a_place(file in 0..shipped().len(), line in any::<prop::sample::Index>(), value in toml_value()) {
        let (name, text) = shipped()[file];
        let lines: Vec<&str> = text.lines().collect();
        let (position, key) = {
            let keys: Vec<(usize, &str)> = lines
                .iter()
                .enumerate()
                .filter(|(_, line)| !line.starts_with('#'))
                .filter_map(|(index, line)| Some((index, line.split_once(" = ")?.0)))
                .collect();
            keys[line.index(keys.len())]
        };
        let mut changed: Vec<String> = lines.iter().map(ToString::to_string).collect();
        changed[position] = format!("{key} = {value}");
        match Model::from_toml(name, &changed.join("\n")) {
            Ok(model) => prop_assert_eq!(Model::from_toml(name, &model.to_toml()), Ok(model)),
            Err(faults) => prop_assert!(faults.iter().all(|fault| fault.position.is_some()), "{faults}"),
        }
    }

    /// The same for configs.
    #[test]
    fn a_wrong_value_in_a_config_has_a_place(
        model_type in prop::sample::select(vec!["llama", "qwen3", "gpt2", "gpt_neox", "bloom", "mixtral", "vit", "clip"]),
        key in prop::sample::select(vec![
            "hidden_size", "n_embd", "num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "vocab_size",
            "rope_parameters", "rope_theta", "rotary_pct", "layer_norm_eps", "image_size", "patch_size", "id2label",
            "text_config", "vision_config", "projection_dim", "num_local_experts", "tie_word_embeddings", "architectures",
        ]),
        value in json_value(),
    ) {
        let config = format!("{{\"model_type\": \"{model_type}\", \"{key}\": {value}}}");
        match Model::from_hugging_face("config.json", &config) {
            Ok(imported) => {
                prop_assert_eq!(Model::from_toml("config.toml", &imported.model.to_toml()), Ok(imported.model));
            }
            Err(faults) => prop_assert!(faults.iter().all(|fault| fault.position.is_some()), "{faults}"),
        }
    }

    /// A config with any scaling of its positions is read or refused with a place, and its file is read as the same model.
    #[test]
    fn a_scaling_round_trips(
        kind in prop::sample::select(vec!["linear", "dynamic", "yarn", "llama3", "longrope", "default", "none"]),
        keys in proptest::collection::btree_map(
            prop::sample::select(vec![
                "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                "attention_factor", "mscale", "mscale_all_dim", "truncate",
            ]),
            prop_oneof![4 => (1_u32..5000).prop_map(|n| n.to_string()), 2 => Just("1.5".into()), 1 => json_value()],
            0..10,
        ),
        table in prop::sample::select(vec!["rope_scaling", "rope_parameters"]),
    ) {
        let keys: String = keys.iter().map(|(key, value)| format!(", \"{key}\": {value}")).collect();
        let config = format!("{{\"model_type\": \"llama\", \"{table}\": {{\"rope_type\": \"{kind}\"{keys}}}}}");
        match Model::from_hugging_face("config.json", &config) {
            Ok(imported) => {
                prop_assert!(kind != "none");
                prop_assert_eq!(Model::from_toml("config.toml", &imported.model.to_toml()), Ok(imported.model));
            }
            Err(faults) => prop_assert!(faults.iter().all(|fault| fault.position.is_some()), "{faults}"),
        }
    }
}

fn toml_value() -> impl Strategy<Value = String> {
    let words = [
        "\"gelu\"",
        "\"learned\"",
        "\"alibi\"",
        "\"layer-norm\"",
        "true",
        "[]",
        "[1, 2]",
        "{ a = 1 }",
        "1e300",
        "nan",
        "-1",
    ];
    prop_oneof![
        (0_u64..200).prop_map(|size| size.to_string()),
        any::<i64>().prop_map(|size| size.to_string()),
        prop::sample::select(words.to_vec()).prop_map(str::to_owned),
    ]
}

fn json_value() -> impl Strategy<Value = String> {
    let words = [
        "null",
        "true",
        "\"64\"",
        "[]",
        "[224, 224]",
        "[224, 16]",
        "{}",
        "{\"hidden_size\": 7}",
        "{\"rope_theta\": -1}",
        "{\"image_size\": 0}",
        "1e300",
        "-1",
        "0.5",
        "18446744073709551615",
    ];
    prop_oneof![
        (0_u64..2000).prop_map(|size| size.to_string()),
        any::<u64>().prop_map(|size| size.to_string()),
        prop::sample::select(words.to_vec()).prop_map(str::to_owned),
    ]
}
