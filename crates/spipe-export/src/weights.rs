//! Weights and tokens beside an exported script.

use spipe_base::Diagnostic;
use spipe_model::{Architecture, Model, Positions, QkNorm, RotaryScaling};

/// The fields in which the configuration of a weights folder differs from the plan's model, each
/// with both values.
pub fn different_fields(plan: &Model, folder: &Model) -> Vec<String> {
    let (Architecture::Transformer(here), Architecture::Transformer(there)) =
        (plan.architecture(), folder.architecture())
    else {
        return vec!["it is another kind of network".into()];
    };
    let (block, other) = (&here.block, &there.block);
    let (base, places) = positions(block.positions);
    let (other_base, other_places) = positions(other.positions);
    let pairs = [
        ("vocab_size", here.vocabulary, there.vocabulary),
        ("num_hidden_layers", here.layers, there.layers),
        ("hidden_size", block.hidden, other.hidden),
        ("num_attention_heads", block.heads, other.heads),
        ("num_key_value_heads", block.kv_heads, other.kv_heads),
        ("head_dim", block.head_dim, other.head_dim),
        ("intermediate_size", block.intermediate, other.intermediate),
        ("n_positions", places, other_places),
    ];
    let mut fields: Vec<String> = pairs
        .into_iter()
        .filter(|(_, here, there)| here != there)
        .map(|(field, here, there)| format!("`{field}` is {there}, the plan's model has {here}"))
        .collect();
    let floats =
        [("norm epsilon", block.norm_epsilon, other.norm_epsilon), ("rope_theta", base, other_base)].into_iter();
    fields.extend(
        floats
            .filter(|(_, here, there)| here.to_bits() != there.to_bits())
            .map(|(field, here, there)| format!("`{field}` is {there}, the plan's model has {here}")),
    );
    let words = [
        ("tie_word_embeddings", here.tied, there.tied),
        ("biases of query, key and value", block.qkv_bias, other.qkv_bias),
        ("biases of the feed-forward network", block.mlp_bias, other.mlp_bias),
        ("norms of queries and keys", block.qk_norm != QkNorm::None, other.qk_norm != QkNorm::None),
        ("sliding_window", block.sliding_window.is_some(), other.sliding_window.is_some()),
    ];
    fields.extend(
        words
            .into_iter()
            .filter(|(_, here, there)| here != there)
            .map(|(field, here, there)| format!("`{field}` is {there}, the plan's model has {here}")),
    );
    let (scaling, other_scaling) = (scaling(block.positions), scaling(other.positions));
    if scaling != other_scaling {
        let name = |scaling: Option<RotaryScaling>| scaling.map_or("none", RotaryScaling::name);
        fields.push(match (name(scaling), name(other_scaling)) {
            (here, there) if here == there => format!("`rope_scaling` is `{there}` with other parameters"),
            (here, there) => format!("`rope_scaling` is `{there}`, the plan's model has `{here}`"),
        });
    }
    if (block.norm, block.mlp) != (other.norm, other.mlp) {
        fields.push(format!("its blocks are {:?} with {:?}", other.norm, other.mlp));
    }
    fields
}

/// The base of rotary positions and the number of learned ones; zero where there are none.
const fn positions(positions: Positions) -> (f64, u64) {
    match positions {
        Positions::Rotary { base, .. } => (base, 0),
        Positions::Learned { places } => (0.0, places),
        Positions::Alibi | Positions::None => (0.0, 0),
    }
}

/// The scaling of rotary positions.
const fn scaling(positions: Positions) -> Option<RotaryScaling> {
    match positions {
        Positions::Rotary { scaling, .. } => scaling,
        _ => None,
    }
}

/// A safetensors file with the tokens of each step: `tokens`, i32, steps × sequences × tokens + 1.
///
/// ```text
/// 8 bytes: length of the header ─ header (JSON) ─ numbers, little-endian
/// ```
///
/// # Errors
/// Numbers that are not a whole count of steps.
pub fn listed_tokens(tokens: &[i32], sequences: u64, seq_len: u64) -> Result<Vec<u8>, Diagnostic> {
    let each = sequences * (seq_len + 1);
    let count = tokens.len() as u64;
    if each == 0 || !count.is_multiple_of(each) {
        return Err(Diagnostic::error(format!("{count} tokens are no whole number of steps of {each} tokens")));
    }
    let tensor = serde_json::json!({
        "dtype": "I32",
        "shape": [count / each, sequences, seq_len + 1],
        "data_offsets": [0, 4 * count],
    });
    let mut header = serde_json::json!({ "tokens": tensor }).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_listed_step_by_step() {
        let file = listed_tokens(&(0..12).collect::<Vec<i32>>(), 2, 2).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        assert_eq!(header["tokens"]["shape"], serde_json::json!([2, 2, 3]));
        assert_eq!(file[8 + length..][..8], [0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(file.len(), 8 + length + 48);
        assert!(listed_tokens(&[1, 2, 3], 2, 2).is_err());
    }

    #[test]
    fn fields_that_differ_are_named() {
        let of = |config: &str| Model::from_hugging_face("config.json", config).unwrap().model;
        let here = of(r#"{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}"#);
        let there = of(r#"{"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "rope_theta": 5e5}"#);
        assert_eq!(different_fields(&here, &here), Vec::<String>::new());
        let found = different_fields(&here, &there);
        assert!(found.contains(&"`hidden_size` is 128, the plan's model has 64".to_owned()), "{found:?}");
        assert!(found.contains(&"`rope_theta` is 500000, the plan's model has 10000".to_owned()), "{found:?}");
        let scaled = |factor: u32| {
            of(&format!(r#"{{"model_type": "llama", "rope_scaling": {{"type": "linear", "factor": {factor}}}}}"#))
        };
        let plain = of(r#"{"model_type": "llama"}"#);
        let found = different_fields(&plain, &scaled(2));
        assert_eq!(found, ["`rope_scaling` is `linear`, the plan's model has `none`"]);
        assert_eq!(different_fields(&scaled(4), &scaled(2)), ["`rope_scaling` is `linear` with other parameters"]);
    }
}
