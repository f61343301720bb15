//! `spipe model`.

use crate::{
    Failure, args,
    args::{Format, Given},
    idle::Idle,
    input,
    model_files::{self, Part},
    output,
    output::Target,
    running::checkpoints::copy_companions,
    tables::table,
};
use serde::Serialize;
use spipe_base::{
    Bytes, Flops, LayerRange,
    readable::{count, grouped},
};
use spipe_exec::RunError;
use spipe_model::{Architecture, Attention, Batch, Layer, Model, Op, Recompute};
use std::path::Path;

/// Shows, imports, merges or lists.
pub fn run(what: &args::Model, given: &Given, format: Format) -> Result<(), Failure> {
    match what {
        args::Model::Show(show) => self::show(show, format),
        args::Model::Import(import) => self::import(import, given),
        args::Model::Merge(merge) => self::merge(merge, given),
        args::Model::List => list(format),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Shown {
    format_version: u32,
    name: String,
    parameters: u64,
    /// The parameters that each token uses.
    active_parameters: u64,
    /// The parameters of modules that predict further tokens, which are not among the others.
    #[serde(skip_serializing_if = "is_zero")]
    mtp_parameters: u64,
    seq_len: u64,
    microbatch: u64,
    precision: String,
    forward_flops: f64,
    backward_flops: f64,
    layers: Vec<ShownLayer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    components: Vec<Part>,
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The parts of a pipeline of models.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Parts<'a> {
    format_version: u32,
    name: &'a str,
    components: &'a [Part],
}

fn list_parts(name: &str, parts: &[Part], format: Format) -> Result<(), Failure> {
    let mut rows = table(&["component", "class", "library", "parameters"], &[3]);
    for part in parts {
        let size = part.parameters.map_or_else(|| "unknown".into(), grouped);
        rows.add_row(vec![part.component.clone(), part.class.clone(), part.library.clone(), size]);
    }
    let read = parts.iter().find(|part| part.parameters.is_some_and(|parameters| parameters > 0));
    let hint = read.map(|part| format!("Show one with `--component {}`.\n", part.component)).unwrap_or_default();
    output::report(format, &format!("{rows}\n{hint}"), &Parts { format_version: 1, name, components: parts })
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ShownLayer {
    name: String,
    kind: String,
    parameters: u64,
    inputs: Vec<String>,
    forward_flops: f64,
    backward_flops: f64,
    parameter_bytes: Bytes,
    saved_activation_bytes: Bytes,
    saved_activation_selective_bytes: Bytes,
    saved_activation_full_recompute_bytes: Bytes,
    boundary_bytes: Bytes,
    workspace_bytes: Bytes,
}

fn show(what: &args::ModelShow, format: Format) -> Result<(), Failure> {
    let parts = model_files::parts(&what.model).transpose()?;
    if let (Some(parts), None) = (&parts, &what.component) {
        return list_parts(&what.model, parts, format);
    }
    let model = input::shown_part(&what.model, what.component.as_deref())?;
    let seq_len = input::seq_len(&model, what.seq_len)?;
    if seq_len == 0 || what.microbatch == 0 {
        return Err(Failure::argument("a batch of zero tokens has no cost", "use at least one"));
    }
    let batch = Batch { microbatch: what.microbatch, seq_len };
    let layers: Vec<ShownLayer> = model.layers().iter().map(|layer| shown(&model, layer, batch, what)).collect();
    let data = Shown {
        format_version: 1,
        name: model.name().into(),
        parameters: model.parameters(),
        active_parameters: model.active_parameters(),
        mtp_parameters: model.mtp_parameters(),
        seq_len,
        microbatch: what.microbatch,
        precision: what.precision.to_string(),
        forward_flops: layers.iter().map(|layer| layer.forward_flops).sum(),
        backward_flops: layers.iter().map(|layer| layer.backward_flops).sum(),
        layers,
        components: parts.unwrap_or_default(),
    };
    output::report(format, &human(&model, &data), &data)
}

fn shown(model: &Model, layer: &Layer, batch: Batch, what: &args::ModelShow) -> ShownLayer {
    let work = layer.work(batch);
    let flops = |ops: &[Op]| ops.iter().map(Op::flops).sum::<Flops>().get();
    let saved = |recompute| layer.saved(batch, what.precision, recompute, Attention::Fused);
    ShownLayer {
        name: layer.name.clone(),
        kind: layer.signature(batch).split(' ').next().unwrap_or_default().into(),
        parameters: layer.parameters,
        inputs: layer.inputs.iter().map(|input| model.layers()[*input].name.clone()).collect(),
        forward_flops: flops(&work.forward),
        backward_flops: flops(&work.backward_input) + flops(&work.backward_weight),
        parameter_bytes: Bytes::new(layer.parameters * what.precision.bytes()),
        saved_activation_bytes: saved(Recompute::None),
        saved_activation_selective_bytes: saved(Recompute::Selective),
        saved_activation_full_recompute_bytes: saved(Recompute::Full),
        boundary_bytes: layer.boundary(batch, what.precision),
        workspace_bytes: layer.workspace(batch, what.precision, Attention::Fused),
    }
}

fn human(model: &Model, data: &Shown) -> String {
    let mut rows = table(
        &["layers", "name", "parameters", "forward", "backward", "weights", "saved", "boundary"],
        &[2, 3, 4, 5, 6, 7],
    );
    for run in model.runs() {
        let layer = &data.layers[run.first().index()];
        let flops = |flops: f64| Flops::new(flops).unwrap_or(Flops::ZERO).to_string();
        rows.add_row(vec![
            run.to_string(),
            named(run, data),
            grouped(layer.parameters),
            flops(layer.forward_flops),
            flops(layer.backward_flops),
            layer.parameter_bytes.to_string(),
            layer.saved_activation_bytes.to_string(),
            layer.boundary_bytes.to_string(),
        ]);
    }
    if let Architecture::Counted(counted) = model.architecture() {
        let (name, parameters) = (&data.name, grouped(data.parameters));
        return format!("{name}: {parameters} parameters; a `{}` is counted, not planned\n\n{rows}\n", counted.what);
    }
    let mut further = String::new();
    if data.active_parameters < data.parameters {
        further += &format!(" Each token uses {} parameters.", grouped(data.active_parameters));
    }
    if data.mtp_parameters > 0 {
        let mtp = grouped(data.mtp_parameters);
        further += &format!(" Modules that predict further tokens have {mtp} more, which are not planned.");
    }
    let model_flops = Flops::new(data.forward_flops + data.backward_flops).unwrap_or(Flops::ZERO);
    let state = Bytes::new(data.parameters * 16);
    format!(
        "{}: {} parameters ({})\n\n{rows}\n\n\
         Figures are per layer and per microbatch of {} × {} tokens, {}. Saved activations are those without recompute, with fused attention.\n\
         One microbatch forward and backward: {model_flops}. Training state with AdamW: {state}, 16 bytes per parameter.{further}\n",
        data.name,
        grouped(data.parameters),
        count(data.parameters as f64),
        data.microbatch,
        data.seq_len,
        data.precision,
    )
}

/// The name of a run of layers: of its only layer, or of its first and last.
fn named(run: LayerRange, data: &Shown) -> String {
    let name = |index: usize| data.layers[index].name.as_str();
    match run.count() {
        1 => name(run.first().index()).into(),
        several => format!("{} … {} (× {several})", name(run.first().index()), name(run.last().index())),
    }
}

fn merge(what: &args::ModelMerge, given: &Given) -> Result<(), Failure> {
    Idle::among(given).options(&["format"], "to weights", "leave it out").refuse()?;
    let [weights, adapter, output] = [&what.weights, &what.adapter, &what.output].map(Path::new);
    spipe_exec::merge_adapter(weights, adapter, output).map_err(RunError::Weights)?;
    copy_companions(weights, output)?;
    output::talk(&format!("the weights with the adapter are in `{}`", what.output));
    Ok(())
}

fn import(what: &args::ModelImport, given: &Given) -> Result<(), Failure> {
    Idle::among(given).options(&["format"], "to a model file", "leave it out").refuse()?;
    let target = Target::beside(&what.output, &[&what.config])?;
    let folder = std::path::Path::new(&what.config).is_dir() || what.config.ends_with("model_index.json");
    let imported = match (folder, &what.component) {
        (true, part) => model_files::folder(&what.config, part.as_deref())?,
        (false, Some(part)) => return Err(model_files::no_parts(&what.config, part)),
        (false, None) => model_files::config(&what.config, &input::text(&what.config)?)?,
    };
    let model = model_files::with_remarks(imported);
    target.write(model.to_toml().as_bytes())?;
    if what.output != "-" {
        let parameters = grouped(model.parameters());
        output::talk(&format!("{}: {parameters} parameters, written to {}", model.name(), what.output));
    }
    Ok(())
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Listed {
    name: String,
    parameters: u64,
    layers: usize,
}

fn list(format: Format) -> Result<(), Failure> {
    let mut rows = table(&["model", "parameters", "layers"], &[1, 2]);
    let mut data = Vec::new();
    for (name, _) in spipe_model::shipped() {
        let model = input::model(name)?;
        rows.add_row(vec![(*name).to_owned(), grouped(model.parameters()), model.layers().len().to_string()]);
        data.push(Listed { name: (*name).into(), parameters: model.parameters(), layers: model.layers().len() });
    }
    output::report(format, &format!("{rows}\n"), &data)
}
