//! Adapters in PEFT's layout.
//!
//! ```text
//! DIR/adapter_config.json         rank, alpha, the names of the adapted modules
//! DIR/adapter_model.safetensors   base_model.model.MODULE.lora_A.weight, rank × inputs
//!                                 base_model.model.MODULE.lora_B.weight, outputs × rank
//!                                 base_model.model.MODULE.weight, a module that is trained in full
//! ```
//!
//! MODULE is the name of the adapted matrix in the files of transformers, without `.weight`.

use super::{
    LISTED, WeightsError, by,
    file_names::{CONFIG, TENSORS},
    layout::Family,
    save::{Numbers, in_place},
};
use crate::{
    nn::layers::{Initialisation, Parameter, Unit, lone_units},
    persist::tensor_file::{self, Entry, TensorFile},
    task_error::{NotFinite, TaskError},
};
use serde_json::{Value, json};
use spipe_base::LayerId;
use spipe_model::{Adapter, Architecture, Layer, Lora, Model};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// The prefix of a module's name.
pub(super) const PREFIX: &str = "base_model.model.";
/// The suffixes of a module's name in the names of A and B.
pub(super) const ENDS: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// The place of an adapter's matrix in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AdapterPlace {
    /// The module that it adapts.
    module: String,
    tensor: String,
    /// Rows and columns in the file.
    shape: [usize; 2],
    /// Whether these are the parameter's turned round.
    turned: bool,
    /// Whether it is the whole module, not a part of an adapter.
    whole: bool,
}

/// The place of a parameter of an adapter; none if the model's files have no such module.
fn place(family: Family, layer: &Layer, parameter: &Parameter) -> Option<AdapterPlace> {
    if let Some(original) = parameter.original() {
        let there = family.place(layer, &original).filter(|place| place.parts() == 1)?;
        let module = there.tensor.strip_suffix(".weight")?.to_owned();
        let [rows, columns] = there.shape[..] else { return None };
        let tensor = format!("{PREFIX}{}", there.tensor);
        return Some(AdapterPlace {
            module,
            tensor,
            shape: [rows, columns],
            turned: there.is_transposed(),
            whole: true,
        });
    }
    let (name, end) = ENDS.iter().zip([".lora-a", ".lora-b"]).find_map(|(end, ours)| {
        let name = parameter.name.strip_suffix(ours)?;
        Some((name, *end))
    })?;
    // GPT-2's matrix of queries, keys and values is the tensor of each of the three.
    let (name, parts) = match name {
        "attention.query-key-value" => ("attention.query", 3),
        name => (name, 1),
    };
    let initialisation = Initialisation::Normal;
    let weight = Parameter { name: format!("{name}.weight").into(), shape: [1, 1], initialisation };
    let there = family.place(layer, &weight).filter(|place| place.parts() == parts)?;
    let module = there.tensor.strip_suffix(".weight")?.to_owned();
    let [rows, columns] = parameter.shape;
    let tensor = format!("{PREFIX}{module}{end}");
    Some(AdapterPlace { module, tensor, shape: [columns, rows], turned: true, whole: false })
}

/// The places of all parameters of adapters, by layer and index.
fn places(model: &Model, parameters: &[Vec<Parameter>]) -> Result<Vec<(LayerId, usize, AdapterPlace)>, WeightsError> {
    let family = Family::of(model).ok_or_else(|| WeightsError::NoLayout { model: model.name().into() })?;
    // PEFT copies a tied table for each of its users.
    let ties = model.layers().iter().any(|layer| layer.tied_to.is_some());
    let copies = parameters.iter().flatten().any(|parameter| parameter.original().is_some());
    if ties && copies {
        return Err(WeightsError::TiedCopy { model: model.name().into() });
    }
    let mut all = Vec::new();
    for ((id, layer), parameters) in model.layers().enumerate().zip(parameters) {
        for (index, parameter) in parameters.iter().enumerate().filter(|(_, parameter)| parameter.is_adapter()) {
            let place = place(family, layer, parameter).ok_or_else(|| WeightsError::NoModule {
                model: model.name().into(),
                matrix: parameter.name.rsplit_once('.').map_or("", |(name, _)| name).into(),
            })?;
            all.push((id, index, place));
        }
    }
    Ok(all)
}

/// An open adapter that matches a model.
#[derive(Debug)]
pub(crate) struct AdapterFile {
    file: TensorFile,
    /// The place of each parameter.
    tensors: BTreeMap<(LayerId, String), AdapterPlace>,
}

impl AdapterFile {
    /// Opens the adapter in `folder`, and checks that it is one of `model`, whose layers have
    /// `parameters`.
    pub fn open(folder: &Path, model: &Model, parameters: &[Vec<Parameter>]) -> Result<Self, WeightsError> {
        let places = places(model, parameters)?;
        let (found, _) = read_config(folder)?;
        let path = folder.join(TENSORS);
        let file = TensorFile::open(&path).map_err(|error| WeightsError::file("read", &path, &error))?;
        let mut differences: Vec<String> = model.lora().map(|wanted| settings(wanted, &found)).unwrap_or_default();
        let mut known = BTreeSet::new();
        for (_, _, place) in &places {
            known.insert(place.tensor.clone());
            match file.shape(&place.tensor) {
                None => differences.push(format!("it has no `{}`", place.tensor)),
                Some(shape) if shape != place.shape => {
                    let (found, wanted) = (by(shape), by(&place.shape));
                    differences.push(format!("its `{}` is {found}, the plan's is {wanted}", place.tensor));
                }
                Some(_) => {}
            }
        }
        let more = file.names().into_iter().filter(|name| !known.contains(name));
        differences.extend(more.map(|name| format!("the plan has no place for its `{name}`")));
        if !differences.is_empty() {
            return Err(WeightsError::adapter(folder, model.name(), differences));
        }
        let named = |(layer, index, place): (LayerId, usize, AdapterPlace)| {
            ((layer, parameters[layer.index()][index].name.clone().into_owned()), place)
        };
        Ok(Self { file, tensors: places.into_iter().map(named).collect() })
    }

    /// The numbers of a parameter of `layer`.
    pub fn parameter(&self, layer: LayerId, parameter: &Parameter) -> Result<Vec<f32>, TaskError> {
        let place = self.tensors.get(&(layer, parameter.name.clone().into_owned()));
        let AdapterPlace { tensor: name, turned: is_turned, shape, .. } = place
            .ok_or_else(|| TaskError::inconsistent(format!("`{}` has no place in the adapter", parameter.name)))?;
        let numbers = self.file.read(name).map_err(|error| TaskError::io(name, &error))?;
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(NotFinite::Weights { tensor: name.clone() }.into());
        }
        Ok(if *is_turned { turned(&numbers, *shape) } else { numbers })
    }
}

/// Reads the settings of an adapter's folder, and whether bases store inputs × outputs.
pub(super) fn read_config(folder: &Path) -> Result<(Lora, bool), WeightsError> {
    let path = folder.join(CONFIG);
    let text = fs::read_to_string(&path).map_err(|error| WeightsError::file("read", &path, &error))?;
    let lora = Adapter::from_json(&path.to_string_lossy(), &text).and_then(|adapter| adapter.lora());
    let turned = serde_json::from_str::<Value>(&text).is_ok_and(|value| value["fan_in_fan_out"] == json!(true));
    Ok((lora.map_err(|faults| WeightsError::Config { path, faults })?, turned))
}

/// The settings of an adapter that differ from those of a plan.
fn settings(wanted: &Lora, found: &Lora) -> Vec<String> {
    let mut differences = Vec::new();
    if found.rank != wanted.rank {
        differences.push(format!("its rank is {}, the plan's is {}", found.rank, wanted.rank));
    } else if (found.scale() - wanted.scale()).abs() > 1e-9 * wanted.scale() {
        differences.push(format!("its scale is {}, the plan's is {}", found.scale(), wanted.scale()));
    }
    if found.dora {
        differences.push("it has magnitudes (DoRA)".into());
    }
    differences
}

/// Creates the folder for the adapters of `model`, so that one that cannot be written to, and adapters
/// without a place in the layout, are found before the first step.
pub(crate) fn prepare(folder: &Path, model: &Model, units: &[Unit]) -> Result<(), WeightsError> {
    places(model, &units.iter().map(Unit::parameters).collect::<Vec<_>>())?;
    super::prepare(folder, model)
}

/// Saves the adapters of `model`, whose layers have `parameters`, to `folder`. `base` is the path or name
/// of the model that they were trained on.
pub(crate) fn save(
    folder: &Path,
    (model, parameters): (&Model, &[Vec<Parameter>]),
    base: &str,
    numbers: Numbers<'_>,
) -> Result<(), WeightsError> {
    let places = places(model, parameters)?;
    let fail = |path: &Path, error: &io::Error| WeightsError::file("write", path, error);
    fs::create_dir_all(folder).map_err(|error| fail(folder, &error))?;
    let entry = |(_, _, place): &(LayerId, usize, AdapterPlace)| Entry {
        name: place.tensor.clone(),
        shape: place.shape.to_vec(),
    };
    let entries: Vec<Entry> = places.iter().map(entry).collect();
    let path = folder.join(TENSORS);
    let written = in_place(&path, &mut |out| {
        tensor_file::write(out, &entries, &mut |index| {
            let (layer, parameter, place) = &places[index];
            let [rows, columns] = place.shape;
            let numbers = numbers(*layer, *parameter)?;
            Ok(if place.turned { turned(&numbers, [columns, rows]) } else { numbers })
        })
    });
    written.map_err(|error| fail(&path, &error))?;
    let path = folder.join(CONFIG);
    let config = serde_json::to_string_pretty(&config(model, &places, base)).map_err(io::Error::other);
    let written = config.and_then(|text| in_place(&path, &mut |out| out.write_all(text.as_bytes())));
    written.map_err(|error| fail(&path, &error))
}

/// The settings as PEFT writes them.
fn config(model: &Model, places: &[(LayerId, usize, AdapterPlace)], base: &str) -> Value {
    let Some(lora) = model.lora() else { return Value::Null };
    let alpha = lora.alpha.unwrap_or(2.0 * lora.rank as f64);
    let alpha = if alpha.fract() == 0.0 && alpha < 1e15 { json!(alpha as u64) } else { json!(alpha) };
    let is_decoder = matches!(model.architecture(), Architecture::Transformer(_));
    json!({
        "peft_type": "LORA",
        "task_type": is_decoder.then_some("CAUSAL_LM"),
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": target_modules(model, places),
        "modules_to_save": modules_to_save(places),
        "bias": "none",
        "fan_in_fan_out": Family::of(model) == Some(Family::Gpt2),
        "use_dora": false,
        "use_rslora": lora.rslora,
        "inference_mode": true,
    })
}

/// The last words of the names of modules that are trained in full; none without any.
fn modules_to_save(places: &[(LayerId, usize, AdapterPlace)]) -> Option<BTreeSet<&str>> {
    let whole = places.iter().map(|(_, _, place)| place).filter(|place| place.whole);
    let words: BTreeSet<&str> = whole.filter_map(|place| place.module.rsplit('.').next()).collect();
    (!words.is_empty()).then_some(words)
}

/// The ends of the adapted modules' names, as short as they select these modules alone.
fn target_modules(model: &Model, places: &[(LayerId, usize, AdapterPlace)]) -> Vec<String> {
    let adapters = places.iter().map(|(_, _, place)| place).filter(|place| !place.whole);
    let adapted: BTreeSet<&str> = adapters.map(|place| place.module.as_str()).collect();
    let others = modules(model);
    let selects = |end: &str, module: &str| module == end || module.ends_with(&format!(".{end}"));
    let of = |module: &&str| {
        let words: Vec<&str> = module.split('.').collect();
        let ends = (0..words.len()).rev().map(|first| words[first..].join("."));
        let is_exact = |end: &String| {
            others.iter().filter(|other| selects(end, other)).all(|other| adapted.contains(other.as_str()))
        };
        { ends }.find(is_exact).unwrap_or_else(|| (*module).to_owned())
    };
    let ends: BTreeSet<String> = adapted.iter().map(of).collect();
    ends.into_iter().collect()
}

/// The modules of all matrices of a model.
fn modules(model: &Model) -> BTreeSet<String> {
    let family = Family::of(model);
    let units = lone_units(model).unwrap_or_default();
    let all = model.layers().iter().zip(&units).flat_map(|(layer, unit)| {
        let matrices = unit.parameters().into_iter().filter(|parameter| parameter.name.ends_with(".weight"));
        matrices.filter_map(move |parameter| family?.place(layer, &parameter)).collect::<Vec<_>>()
    });
    all.filter_map(|place| Some(place.tensor.strip_suffix(".weight")?.to_owned())).collect()
}

/// The numbers of a matrix of `rows` × `columns`, column by column.
pub(super) fn turned(numbers: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| numbers[row * columns + column])).collect()
}

impl WeightsError {
    /// An adapter of another model, with the first of its differences.
    pub(super) fn adapter(folder: &Path, model: &str, mut differences: Vec<String>) -> Self {
        let rest = differences.len().saturating_sub(LISTED);
        if rest > 0 {
            differences.truncate(LISTED);
            differences.push(format!("and {rest} more"));
        }
        Self::OtherAdapter { path: folder.into(), model: model.into(), differences }
    }
}
