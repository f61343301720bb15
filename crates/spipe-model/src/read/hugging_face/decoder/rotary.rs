//! Rotary positions and their scaling, in the spelling of `transformers` 5 (`rope_parameters`) and in the older one
//! (`rope_theta` and `rope_scaling`).

use super::OTHERWISE;
use crate::{Positions, RotaryScaling, Yarn, read::hugging_face::config::Config};

/// The tables of a scaling; the first that is present counts, as in `transformers`.
pub(in crate::read::hugging_face) const TABLES: [&str; 2] = ["rope_scaling", "rope_parameters"];
/// The tables of models whose blocks with and without a sliding window have different positions.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// The number of positions of the pretraining.
const ORIGINAL: &str = "original_max_position_embeddings";
/// The kinds that mean no scaling; `mrope` tells the places of images apart, and texts have plain ones.
const PLAIN: [&str; 2] = ["default", "mrope"];

/// Reads rotary positions of a model of `places` positions.
pub(super) fn read(
    config: &mut Config<'_>,
    base_keys: &[&'static str],
    base: f64,
    (fraction_key, fraction): (&'static str, f64),
    places: u64,
) -> Positions {
    let old_base = config.number(base_keys, base);
    let old_fraction = config.number(&[fraction_key], fraction);
    let (mut base, mut fraction) = (old_base, old_fraction);
    if let Some(mut nested) = config.child(&["rope_parameters"]).map(full) {
        base = nested.number(&["rope_theta"], old_base);
        fraction = nested.number(&["partial_rotary_factor"], old_fraction);
        config.faults.extend(nested.faults);
    }
    warn_of_sliding(config, base);
    Positions::Rotary { base, fraction, scaling: scaling(config, places) }
}

/// Returns the part of a table that is about blocks without a sliding window.
fn full(table: Config<'_>) -> Config<'_> {
    table.child(&[FULL]).unwrap_or(table)
}

/// Warns of blocks with a sliding window whose positions have another base: those of the others are used.
fn warn_of_sliding(config: &mut Config<'_>, base: f64) {
    let nested = config.child(&["rope_parameters"]).and_then(|table| table.child(&[SLIDING]));
    let (key, other) = match nested {
        Some(mut sliding) => ("rope_parameters", sliding.number(&["rope_theta"], base)),
        None => ("rope_local_base_freq", config.number(&["rope_local_base_freq"], base)),
    };
    if (other - base).abs() > 0.0 {
        let message = format!("blocks with a sliding window rotate with the base {base}, not {other}; {OTHERWISE}");
        config.warn(key, message);
    }
}

/// Reads the scaling, and refuses kinds that are not known.
fn scaling(config: &mut Config<'_>, places: u64) -> Option<RotaryScaling> {
    let table = TABLES.into_iter().find(|table| config.child(&[table]).is_some())?;
    let mut nested = full(config.child(&[table])?);
    let kind = nested.word("rope_type").or_else(|| nested.word("type"))?;
    // `Phi3Config` has it beside the table, where it counts first.
    let original = config.nullable_size(&[ORIGINAL], None);
    let original = original.unwrap_or_else(|| nested.size(&[ORIGINAL], places));
    let scaling = match kind {
        _ if PLAIN.contains(&kind) => None,
        "linear" => Some(RotaryScaling::Linear { factor: needed(&mut nested, kind, "factor") }),
        // Its plain frequencies end at the model's places, whatever those of the pretraining are.
        "dynamic" => Some(RotaryScaling::Dynamic { factor: needed(&mut nested, kind, "factor"), original: places }),
        "yarn" => Some(RotaryScaling::Yarn(yarn(&mut nested, original, places))),
        "llama3" => Some(RotaryScaling::Llama3 {
            factor: needed(&mut nested, kind, "factor"),
            original,
            low: needed(&mut nested, kind, "low_freq_factor"),
            high: needed(&mut nested, kind, "high_freq_factor"),
        }),
        // Its older name is that of Phi-3's first release.
        "longrope" | "su" => {
            let message = "the scaling `longrope` of rotary positions is planned, but neither executed nor exported";
            config.warn(table, message);
            Some(RotaryScaling::Longrope)
        }
        other => {
            let message = format!("the scaling `{other}` of rotary positions is unknown");
            nested.refuse_with("rope_type", message, "known: default, linear, dynamic, yarn, llama3, longrope");
            None
        }
    };
    config.faults.extend(nested.faults);
    scaling
}

/// Reads YaRN's parameters; zeros stand for defaults, as in `transformers`.
fn yarn(table: &mut Config<'_>, original: u64, places: u64) -> Yarn {
    let mut number = |key| table.nullable_number(key, None);
    let (mscale, mscale_all_dim) = (number("mscale"), number("mscale_all_dim"));
    let both = mscale.is_some() && mscale_all_dim.is_some();
    Yarn {
        factor: number("factor").unwrap_or(places as f64 / original as f64),
        original,
        beta_fast: number("beta_fast").filter(|beta| *beta != 0.0).unwrap_or(32.0),
        beta_slow: number("beta_slow").filter(|beta| *beta != 0.0).unwrap_or(1.0),
        attention_factor: number("attention_factor"),
        mscale: mscale.filter(|_| both),
        mscale_all_dim: mscale_all_dim.filter(|_| both),
        truncate: table.flag("truncate", true),
    }
}

/// Reads a number without which the scaling `kind` means nothing.
fn needed(table: &mut Config<'_>, kind: &str, key: &'static str) -> f64 {
    if !table.has(key) {
        table.refuse(key, format!("the scaling `{kind}` of rotary positions needs `{key}`"));
    }
    table.number(&[key], 1.0)
}
