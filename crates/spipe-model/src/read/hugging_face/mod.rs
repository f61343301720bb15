//! Hugging Face `config.json` files. Absent sizes have the defaults of their class. The spellings
//! of `transformers` before and since version 5 are understood.

mod adapter;
mod config;
mod counted;
mod decoder;
mod denoiser;
mod encoder;
mod index;
mod nearest;
mod quantization;
mod wrapper;

pub use adapter::Adapter;
pub use index::{Component, components};

use crate::{Architecture, Block, Imported, Model, VisionEnd, read::check::Check, read::toml::head_dim};
use config::Config;
use serde_json::Value;
use spipe_base::{Diagnostic, Faults, Position, position_of, readable::grouped};

/// The class name that `diffusers` writes in place of a model type.
const DENOISER: &str = "UNet2DConditionModel";
/// The class of transformers over patches of latent images, and its older name.
const DIT: &str = "DiTTransformer2DModel";
const OLD_DIT: &str = "Transformer2DModel";

/// The known model types beside decoders.
const OTHERS: [&str; 5] = ["bert", "clip", "dinov2", "roberta", "vit"];

/// Whether a type is a class name of `diffusers`.
fn is_class(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_uppercase())
}

/// Returns the known class names of `diffusers`.
fn known_classes() -> Vec<&'static str> {
    let counted = counted::ROWS.iter().map(|row| row.0).filter(|name| is_class(name));
    [DENOISER, DIT].into_iter().chain(counted).collect()
}

/// Returns the known model types, sorted.
fn known() -> Vec<&'static str> {
    let counted = counted::ROWS.iter().map(|row| row.0).filter(|name| !is_class(name));
    let mut known: Vec<&str> = decoder::ROWS.iter().map(|row| row.name).chain(OTHERS).chain(counted).collect();
    known.sort_unstable();
    known
}

impl Model {
    /// Reads a Hugging Face config; `file` is its name in messages.
    ///
    /// ```
    /// let config = r#"{"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48,
    ///                  "vocab_size": 50257}"#;
    /// let imported = spipe_model::Model::from_hugging_face("gpt2-xl.json", config)?;
    /// assert_eq!(imported.model.parameters(), 1_557_611_200);
    /// assert!(imported.warnings.is_empty());
    /// # Ok::<(), spipe_base::Faults>(())
    /// ```
    ///
    /// # Errors
    /// If the text is not a config of a known `model_type`: every fault of its values.
    pub fn from_hugging_face(file: &str, text: &str) -> Result<Imported, Faults> {
        let mut value = parse(file, text)?;
        let start = position_of(file, text, 0);
        let wrapped = wrapper::inner(&mut value, &known());
        let Some(table) = value.as_object() else {
            return Err(Diagnostic::error("a config is a JSON object").at(start).into());
        };
        let outer = Config::new(file, text, table);
        if let Some(fault) = adapter::refusal(&outer).or_else(|| index::refusal(&outer)) {
            return Err(fault.at(start).into());
        }
        let mut config = match wrapped {
            Some(key) => outer.child(&[key]).unwrap_or(Config::new(file, text, table)),
            None => Config::new(file, text, table),
        };
        let Some(model_type) = type_of(&config) else { return Err(nearest::no_type(&outer).at(start).into()) };
        if let Some(key) = wrapped {
            let wrapper = outer.word("model_type").unwrap_or("the file");
            let rest = match wrapper::tower(&outer) {
                Some((tower, parameters)) => {
                    format!("a `{tower}` of {} parameters and what joins them are left out", grouped(parameters))
                }
                None => "the rest is left out".into(),
            };
            let message = format!("`{wrapper}` wraps a `{model_type}`: that is read, and {rest}");
            config.faults.push(Diagnostic::warning(message).at(outer.locate(&[key])));
        }
        let architecture = architecture(&mut config, model_type)?;
        warn(&mut config, &architecture);
        if wrapped.is_some() {
            config.faults.extend(quantization::warning(&outer).map(Faults::from).unwrap_or_default());
        }
        let mut faults = std::mem::take(&mut config.faults);
        let locate = |path: &str| Some(locate(&config, path));
        let mut check = Check::new(&locate);
        check_architecture(&mut check, &architecture, config.has("head_dim"));
        faults.extend(check.faults);
        if !faults.is_harmless() {
            return Err(faults);
        }
        let source = format!("Hugging Face config, model type {model_type}");
        let model = Model::freeze(name(&config, file, model_type), Some(source), architecture);
        Ok(Imported { model, warnings: faults })
    }
}

/// Parses the text of a config.
fn parse(file: &str, text: &str) -> Result<Value, Faults> {
    serde_json::from_str(text).map_err(|error| {
        let position = Position { file: file.into(), line: error.line(), column: error.column() };
        Diagnostic::error(format!("not JSON: {error}")).at(position).into()
    })
}

/// Returns the model type, or the class of `diffusers`.
fn type_of<'a>(config: &Config<'a>) -> Option<&'a str> {
    let known = |class: &&str| *class == OLD_DIT || known_classes().contains(class);
    config.word("model_type").or_else(|| config.word("_class_name").filter(known))
}

fn architecture(config: &mut Config<'_>, model_type: &str) -> Result<Architecture, Faults> {
    if let Some(row) = decoder::ROWS.iter().find(|row| row.name == model_type) {
        return Ok(Architecture::Transformer(row.read(config)));
    }
    Ok(match model_type {
        DENOISER => Architecture::Unet(denoiser::unet(config)),
        DIT | OLD_DIT => Architecture::Vision(denoiser::dit(config)),
        "bert" => Architecture::Encoder(encoder::text(config, &encoder::BERT)),
        "roberta" => Architecture::Encoder(encoder::text(config, &encoder::ROBERTA)),
        "vit" => Architecture::Vision(encoder::vit(config)),
        "dinov2" => Architecture::Vision(encoder::dinov2(config)),
        "clip" => Architecture::TwoTowers(Box::new(encoder::clip(config))),
        other => match counted::read(config, other) {
            Some(counted) => Architecture::Counted(counted),
            None => return Err(nearest::unknown(config, other).into()),
        },
    })
}

/// Warns of settings of the network that the model cannot express.
fn warn(config: &mut Config<'_>, architecture: &Architecture) {
    if let Some(warning) = quantization::warning(config) {
        config.faults.push(warning);
    }
    if matches!(architecture, Architecture::Encoder(_) | Architecture::Counted(_)) {
        return;
    }
    let expected = match architecture {
        Architecture::Vision(_) => "ForImageClassification",
        Architecture::TwoTowers(_) => "CLIPModel",
        _ => "LM",
    };
    if matches!(architecture, Architecture::Vision(vision) if vision.end == VisionEnd::Features) {
        return;
    }
    let other = config.words("architectures").and_then(|classes| {
        let fits = |class: &&str| class.ends_with(expected) || class.ends_with("LMHeadModel");
        classes.into_iter().find(|class| !fits(class))
    });
    if let Some(class) = other {
        let message = match architecture {
            Architecture::Vision(_) => format!("`{class}` is treated as an image classifier"),
            Architecture::TwoTowers(_) => format!("`{class}` is treated as both towers with their loss"),
            _ => format!("`{class}` is treated as a language model with its head"),
        };
        config.warn("architectures", message);
    }
}

fn check_architecture(check: &mut Check<'_>, architecture: &Architecture, head_dim_stated: bool) {
    let share = |check: &mut Check<'_>, block: &Block| {
        if !head_dim_stated {
            head_dim(check, None, block.hidden, block.heads);
        }
    };
    match architecture {
        Architecture::Transformer(transformer) => {
            share(check, &transformer.block);
            check.transformer(transformer);
        }
        Architecture::Encoder(encoder) => {
            share(check, &encoder.block);
            check.encoder(encoder);
        }
        Architecture::Vision(vision) => {
            if vision.embedding.class_token {
                share(check, &vision.block);
            }
            check.vision(vision);
            check.vision_end(vision.end);
        }
        Architecture::TwoTowers(towers) => {
            check.within("text", |check| share(check, &towers.text.block));
            check.within("vision", |check| share(check, &towers.vision.block));
            check.two_towers(towers);
        }
        Architecture::Unet(unet) => check.unet(unet),
        Architecture::Counted(counted) => check.counted(counted),
        // Configs do not describe measurements.
        Architecture::Profiled(_) => {}
    }
}

/// Returns the names in configs of the model file's key `key`.
fn keys(key: &str) -> &'static [&'static str] {
    match key {
        "vocabulary" => &["vocab_size"],
        "hidden" => &["hidden_size", "n_embd", "n_embed"],
        "layers" => &["num_hidden_layers", "n_layer"],
        "heads" => &["num_attention_heads", "n_head"],
        "kv-heads" => &["num_key_value_heads"],
        "head-dim" => &["head_dim"],
        "intermediate" => &["intermediate_size", "n_inner"],
        "seq-len" | "places" => &["max_position_embeddings", "n_positions", "seq_length"],
        "norm-epsilon" => &["rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"],
        "rotary-base" => &["rope_theta", "rotary_emb_base", "rope_parameters"],
        "rotary-fraction" => &["rotary_pct", "partial_rotary_factor", "rope_parameters"],
        "rotary-scaling" => &decoder::rotary::TABLES,
        "type" => &["rope_type", "type"],
        "factor" => &["factor"],
        "original-places" => &["original_max_position_embeddings"],
        "low-frequency-factor" => &["low_freq_factor"],
        "high-frequency-factor" => &["high_freq_factor"],
        "beta-fast" => &["beta_fast"],
        "beta-slow" => &["beta_slow"],
        "attention-factor" => &["attention_factor"],
        "sliding-window" => &["sliding_window"],
        "experts" => &["num_local_experts", "num_experts"],
        "experts-per-token" => &["num_experts_per_tok"],
        "image" => &["image_size"],
        "patch" => &["patch_size"],
        "channels" => &["num_channels"],
        "classes" => &["id2label", "num_labels"],
        "projection" => &["projection_dim"],
        _ => &[],
    }
}

/// Returns the position of the value that a model file would have at `path`.
fn locate(config: &Config<'_>, path: &str) -> Position {
    let Some((tower, key)) = path.split_once('.') else { return config.locate(keys(path)) };
    let table = config.child(match tower {
        "rotary-scaling" => &decoder::rotary::TABLES,
        "text" => encoder::TEXT,
        _ => encoder::VISION,
    });
    table.map_or_else(|| config.locate(&[]), |table| table.locate(keys(key)))
}

/// Returns the name in the config, otherwise that of the file or of its folder, otherwise the model
/// type.
fn name(config: &Config<'_>, file: &str, model_type: &str) -> String {
    let last = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or("").to_owned();
    let stated = config.word("_name_or_path").map(last);
    let stem = last(file);
    let stem = stem.strip_suffix(".json").unwrap_or(&stem).to_owned();
    let folder = file.trim_end_matches(|c| !matches!(c, '/' | '\\'));
    let folder = last(folder.trim_end_matches(['/', '\\']));
    // A hash names a snapshot in a cache, not the model.
    let hash = |name: &String| name.len() >= 32 && name.chars().all(|c| c.is_ascii_hexdigit());
    let usable = |name: &String| !name.trim().is_empty() && !name.starts_with('.') && !hash(name);
    stated
        .filter(usable)
        .or_else(|| Some(stem).filter(|stem| usable(stem) && stem != "config" && stem != "-"))
        .or_else(|| Some(folder).filter(usable))
        .unwrap_or_else(|| model_type.into())
}
