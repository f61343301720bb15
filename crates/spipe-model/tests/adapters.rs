//! Adapters: which matrices they get, how many parameters and how much work they add.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::Flops;
use spipe_model::{Adapter, Attention, Batch, LayerWork, Lora, Model, Op, Precision, Recompute, shipped};

fn shipped_model(name: &str) -> Model {
    let text = shipped().iter().find(|(known, _)| *known == name).unwrap().1;
    Model::from_toml(name, text).unwrap()
}

fn adapted(model: &str, lora: &str) -> Model {
    shipped_model(model)
        .with_lora(&Lora::parse(lora, None).unwrap())
        .unwrap_or_else(|faults| panic!("{lora}: {faults}"))
}

/// Hidden 4096, 32 heads, 32 layers, inner width 11008: 4·2h and 3·(h + f) per block and rank.
/// GPT-2 packs queries, keys and values: (h + 3h), (h + h), twice (h + 4h) for hidden 768, 12 layers.
#[test]
fn parameters_are_rank_times_inputs_and_outputs() {
    let (h, f) = (4096, 11008);
    for (model, lora, expected) in [
        ("llama2-7b", "rank=8,targets=q,v", 32 * 8 * 4 * h),
        ("llama2-7b", "rank=8,targets=q_proj,v_proj", 32 * 8 * 4 * h),
        ("llama2-7b", "rank=16,targets=q,k,v,o,gate,up,down", 32 * 16 * (8 * h + 3 * (h + f))),
        ("llama2-7b", "rank=16", 32 * 16 * (8 * h + 3 * (h + f))),
        ("llama2-7b", "rank=64,targets=c_attn,c_proj,w1,w2", 32 * 64 * (4 * h + 2 * h + 3 * (h + f))),
        ("llama2-7b", "rank=4,targets=qkv_proj,q,gate_up_proj,down_proj", 32 * 4 * (4 * h + (h + 2 * f) + (h + f))),
        ("llama2-7b", "rank=8,targets=q,dora", 32 * (8 * 2 * h + h)),
        ("gpt2", "rank=8,targets=q,k,v", 12 * 8 * 4 * 768),
        ("gpt2", "rank=8,targets=c_attn", 12 * 8 * 4 * 768),
        ("gpt2", "rank=8,targets=c_proj", 12 * 8 * (2 * 768 + 5 * 768)),
        ("gpt2", "rank=8,targets=attn.c_proj", 12 * 8 * 2 * 768),
        ("llama2-7b", "rank=8,targets=q,embeddings", 32 * 8 * 2 * h + 2 * 32_000 * h),
        ("llama2-7b", "rank=8,targets=q,lm_head", 32 * 8 * 2 * h + 8 * (h + 32_000)),
    ] {
        assert_eq!(adapted(model, lora).trained_parameters(), expected, "{model} {lora}");
    }
}

#[test]
fn a_frozen_matrix_has_no_weight_gradient() {
    let plain = shipped_model("llama2-7b");
    let lora = adapted("llama2-7b", "rank=8");
    let batch = Batch { microbatch: 1, seq_len: 512 };
    let flops = |work: &LayerWork| {
        [&work.forward, &work.backward_input, &work.backward_weight]
            .map(|ops| ops.iter().map(Op::flops).sum::<Flops>().get())
    };
    let block = plain.layer("block.3").unwrap();
    let ([forward, input, _], work) = (flops(&plain.layers()[block].work(batch)), lora.layers()[block].work(batch));
    // Each adapter multiplies 2·t·r·(in + out) in each of the three passes.
    let added = 2.0 * 512.0 * lora.layers()[block].trained_parameters() as f64;
    for (got, expected) in flops(&work).into_iter().zip([forward + added, input + added, added]) {
        assert!((got - expected).abs() < 1.0, "{got} but {expected}");
    }
    let frozen = &lora.layers()[lora.layer("head").unwrap()];
    assert!(frozen.work(batch).backward_weight.is_empty() && frozen.needs_backward && !frozen.learns());
    let embedding = &lora.layers()[lora.layer("embedding").unwrap()];
    assert!(!embedding.needs_backward && !lora.layers()[lora.layer("block.0").unwrap()].passes_gradient);
}

/// The work and bytes that PEFT 0.21 takes for magnitudes beyond the adapter itself, counted by PyTorch (`python/dora.py`):
/// operations of forward and backward, and saved numbers.
#[test]
fn magnitudes_take_what_pytorch_counts() {
    for ((tokens, hidden, inner, rank), dropout, expected) in [
        ((32, 64, 48, 4), "", [57_344.0, 0.0, 96.0]),
        ((32, 64, 48, 4), ",dropout=0.1", [253_952.0, 196_608.0, 96.0]),
        ((16, 32, 96, 8), "", [65_536.0, 0.0, 192.0]),
        ((16, 32, 96, 8), ",dropout=0.1", [163_840.0, 98_304.0, 192.0]),
    ] {
        let text = format!(
            "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 100\nseq-len = 64\nhidden = {hidden}\n\
             layers = 2\nheads = 4\nintermediate = {inner}\nnorm = \"rms-norm\"\nmlp = \"swiglu\"\npositions = \"rotary\"\n"
        );
        let batch = Batch { microbatch: 1, seq_len: tokens };
        let counted = |dora: &str| {
            let lora = Lora::parse(&format!("rank={rank},targets=gate{dropout}{dora}"), None).unwrap();
            let model = Model::from_toml("m.toml", &text).unwrap().with_lora(&lora).unwrap();
            let layer = &model.layers()[model.layer("block.1").unwrap()];
            let work = layer.work(batch);
            let flops = |ops: &[Op]| ops.iter().map(Op::flops).sum::<Flops>().get();
            let bytes = |bytes: spipe_base::Bytes| bytes.as_f64() / 2.0;
            (
                [
                    flops(&work.forward),
                    flops(&work.backward_input) + flops(&work.backward_weight),
                    bytes(layer.saved(batch, Precision::Bf16, Recompute::None, Attention::Fused)) / tokens as f64,
                ],
                bytes(layer.workspace(batch, Precision::Bf16, Attention::Fused)),
            )
        };
        let ((with, more), (without, less)) = (counted(",dora"), counted(""));
        for ((with, without), expected) in with.into_iter().zip(without).zip(expected) {
            assert!((with - without - expected).abs() < 0.5, "{hidden}{dropout}: {with} {without} {expected}");
        }
        // B·A, its product with the scale, and the sum with the base.
        assert!((more - less - 3.0 * (hidden * inner) as f64).abs() < 0.5, "{hidden}{dropout}");
    }
}

#[test]
fn matrices_without_adapters_save_no_inputs() {
    let batch = Batch { microbatch: 1, seq_len: 512 };
    let saved = |model: &Model| {
        model.layers()[model.layer("block.0").unwrap()]
            .saved(batch, Precision::Bf16, Recompute::None, Attention::Fused)
            .get()
    };
    let plain = saved(&shipped_model("llama2-7b"));
    let (tokens, h, f) = (512 * 2, 4096, 11008);
    assert_eq!(saved(&adapted("llama2-7b", "rank=8")), plain + 7 * 8 * tokens);
    assert_eq!(saved(&adapted("llama2-7b", "rank=8,targets=q")), plain + 8 * tokens - (h + f) * tokens);
    // With dropout each adapter keeps its own input and mask.
    let dropped = saved(&adapted("llama2-7b", "rank=8,dropout=0.05,targets=q"));
    assert_eq!(dropped, plain + 8 * tokens - (h + f) * tokens + h * (tokens + 512));
}

#[test]
fn adapters_keep_what_was_frozen_before() {
    let text = shipped().iter().find(|(known, _)| *known == "gpt2").unwrap().1;
    let model = Model::from_toml("gpt2", text).unwrap();
    let front = model.layer_range("embedding..block.3").unwrap();
    let model =
        model.with_frozen(&[front]).unwrap().with_lora(&Lora::parse("rank=8,targets=o", None).unwrap()).unwrap();
    assert_eq!(model.trained_parameters(), 8 * 8 * 2 * 768);
    assert_eq!(model.frozen(), [front]);
    assert_eq!(model.layers().iter().take_while(|layer| !layer.needs_backward).count(), 5);
}

#[test]
fn the_scale_is_alpha_over_rank_or_its_root() {
    let scale = |text: &str| Lora::parse(text, None).unwrap().scale();
    assert_eq!(scale("rank=64,alpha=16").to_bits(), 0.25_f64.to_bits());
    assert_eq!(scale("rank=64,alpha=16,rslora").to_bits(), 2.0_f64.to_bits());
    assert_eq!(scale("rank=64").to_bits(), 2.0_f64.to_bits());
}

#[test]
fn faults_say_what_is_wrong_and_what_is_near() {
    for (model, lora, expected) in [
        (
            "llama2-7b",
            "rank=8,targets=q_prj",
            "no layer of `llama2-7b` has a matrix `q_prj`\nhint: the nearest is `q_proj`",
        ),
        ("gpt2", "rank=8,targets=gate", "no layer of `gpt2` has a matrix `gate`"),
        ("gpt2", "rank=769,targets=o", "rank 769 is above a side of the matrix `o`, which is 768 × 768"),
        ("stable-diffusion-unet", "rank=8,targets=q", "adapters need blocks"),
    ] {
        let faults = shipped_model(model).with_lora(&Lora::parse(lora, None).unwrap()).unwrap_err();
        assert!(faults.to_string().contains(expected), "{lora}: {faults}");
    }
    for (lora, expected) in [
        ("targets=q", "`option lora` has no rank"),
        ("rank=0", "`rank=0` is not a rank"),
        ("rank=8,alpha=-1", "`alpha=-1` is not a number above 0"),
        ("rank=8,dropout=1", "`dropout=1` is not a share"),
        ("rank=8,dra", "did you mean `dora`"),
        ("rank=8,,dora", "an empty item"),
    ] {
        let faults = Lora::parse(lora, None).unwrap_err();
        assert!(faults.to_string().contains(expected), "{lora}: {faults}");
    }
}

#[test]
fn files_of_peft_are_read() {
    let read = |text: &str| Adapter::from_json("adapter_config.json", text).unwrap().lora();
    let lora = read(
        r#"{"peft_type": "LORA", "r": 64, "lora_alpha": 16, "lora_dropout": 0.05, "use_rslora": true, "bias": "none",
            "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens", "lm_head"], "rank_pattern": {}}"#,
    )
    .unwrap();
    assert_eq!(
        lora,
        Lora::parse("rank=64,alpha=16,dropout=0.05,rslora,targets=q_proj,v_proj,embeddings", None).unwrap()
    );
    let pattern = read(r#"{"peft_type": "LORA", "r": 4, "target_modules": ".*attn\\.(q_proj|k_proj)$"}"#).unwrap();
    assert_eq!(pattern.targets.iter().map(String::as_str).collect::<Vec<_>>(), ["k_proj", "q_proj"]);
    for (text, expected) in [
        (r#"{"peft_type": "IA3", "target_modules": ["k"]}"#, "of kind `IA3`"),
        (r#"{"peft_type": "LORA", "target_modules": ["q_proj"], "bias": "all"}"#, "trains biases"),
        (
            r#"{"peft_type": "LORA", "target_modules": ["q_proj"], "modules_to_save": ["score"]}"#,
            "trains `score` in full",
        ),
        (r#"{"peft_type": "LORA"}"#, "names no matrices"),
    ] {
        let faults = read(text).unwrap_err();
        assert!(faults.to_string().contains(expected), "{faults}");
    }
}
