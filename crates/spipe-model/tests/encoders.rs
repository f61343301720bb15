//! Text encoders: parameters as `transformers` counts them, files that read back, and refused configs.

use spipe_model::{Batch, Model};

fn config(kind: &str, class: &str, more: &str) -> String {
    format!(r#"{{"model_type": "{kind}", "architectures": ["{class}"]{more}}}"#)
}

const BASE: &str =
    r#", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072"#;
const LARGE: &str =
    r#", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096"#;
const ROBERTA: &str = r#", "max_position_embeddings": 514, "type_vocab_size": 1"#;

#[test]
fn parameters_are_those_of_transformers() {
    for (kind, class, more, wanted) in [
        ("bert", "BertForMaskedLM", BASE.to_owned(), 109_514_298),
        ("bert", "BertForSequenceClassification", BASE.to_owned(), 109_483_778),
        ("bert", "BertForQuestionAnswering", LARGE.to_owned(), 334_094_338),
        ("bert", "BertForMaskedLM", LARGE.to_owned(), 335_174_458),
        ("roberta", "RobertaForMaskedLM", BASE.to_owned() + ROBERTA, 124_697_433),
    ] {
        let imported = Model::from_hugging_face("config.json", &config(kind, class, &more)).unwrap();
        assert_eq!(imported.model.parameters(), wanted, "{class}{more}");
        assert!(imported.warnings.is_empty(), "{:?}", imported.warnings);
        let again = Model::from_toml("again.toml", &imported.model.to_toml()).unwrap();
        assert_eq!(again, imported.model);
    }
}

#[test]
fn a_block_attends_to_both_sides() {
    let model = Model::from_hugging_face("config.json", &config("bert", "BertForMaskedLM", "")).unwrap().model;
    let block = model.layers().iter().find(|layer| layer.name == "block.0").unwrap();
    assert!(!block.as_block().unwrap().causal);
    let head = model.layers().iter().last().unwrap();
    assert_eq!(head.tied_parameters, 30_522 * 768);
    let batch = Batch { microbatch: 2, seq_len: 128 };
    let flops: f64 = head.work(batch).forward.iter().map(|op| op.flops().get()).sum();
    assert_eq!(flops as u64, 2 * 256 * 768 * (768 + 30_522));
}

#[test]
fn other_classes_are_named() {
    let warned = Model::from_hugging_face("config.json", &config("bert", "BertForPreTraining", "")).unwrap();
    assert!(
        warned.warnings.to_string().contains("`BertForPreTraining` is treated as a model that predicts masked tokens")
    );
    let refused = Model::from_hugging_face("config.json", &config("bert", "BertModel", r#", "is_decoder": true"#));
    assert!(refused.unwrap_err().to_string().contains("decoder"));
}
