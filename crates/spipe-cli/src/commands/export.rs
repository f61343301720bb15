//! `spipe export`.

use crate::{
    Failure,
    args::{Export, ExportDeepspeed, ExportFolder, ExportPlan, ExportTorch},
    exporting::{Destination, Extras, expectation},
    input,
    nearest::{self, Engine},
    output,
};
use spipe_base::{Diagnostic, Faults};
use spipe_export::{Beside, Folder, Modules};
use spipe_model::Architecture;
use spipe_plan::Plan;
use spipe_schedule::Order;

/// Writes a plan as a folder that another engine runs.
pub fn run(what: &Export) -> Result<(), Failure> {
    match what {
        Export::Torch(ExportTorch { folder, order }) => {
            let order = match order.as_deref() {
                Some(path) => Some(Order::parse(path, &input::text(path)?)?),
                None => None,
            };
            export(folder, &torch(order.as_ref(), folder.modules.into()))
        }
        Export::Fsdp(folder) => export(folder, &fsdp(folder.modules.into())),
        Export::Deepspeed(ExportDeepspeed { folder, nvme }) => {
            export(folder, &deepspeed(nvme.as_deref(), folder.modules.into()))
        }
        Export::Megatron(what) => configure(what, spipe_export::megatron),
        Export::Torchtitan(what) => configure(what, spipe_export::torchtitan),
        Export::Chakra(ExportPlan { plan, output }) => {
            let destination = Destination::open(output)?;
            let plan = input::plan(plan)?;
            destination.write(&spipe_export::chakra(&plan, &spipe_search::program(&plan)?))?;
            output::talk(&format!("wrote `{output}`; its README.md has the files"));
            Ok(())
        }
    }
}

fn torch(order: Option<&Order>, modules: Modules) -> Engine<'_> {
    let make = move |plan: &Plan, beside| spipe_export::torch(plan, order, beside);
    Engine { name: "torch", modules, systems: &nearest::PIPELINES, make: Box::new(make) }
}

fn fsdp(modules: Modules) -> Engine<'static> {
    Engine { name: "fsdp", modules, systems: &nearest::SHARDED, make: Box::new(spipe_export::fsdp) }
}

fn deepspeed(nvme: Option<&str>, modules: Modules) -> Engine<'_> {
    let make = move |plan: &Plan, beside| spipe_export::deepspeed(plan, nvme, beside);
    Engine { name: "deepspeed", modules, systems: &nearest::ZERO, make: Box::new(make) }
}

/// Writes the configuration of an engine that has a model and data of its own.
fn configure(what: &ExportPlan, make: fn(&Plan) -> Result<Folder, Faults>) -> Result<(), Failure> {
    let destination = Destination::open(&what.output)?;
    let folder = make(&input::plan(&what.plan)?)?;
    output::warn(folder.warnings.iter());
    destination.write(&folder.files.into_iter().map(|(name, text)| (name, text.into_bytes())).collect())?;
    output::talk(&format!("wrote `{}`; its README.md has the commands", what.output));
    Ok(())
}

/// Writes the folder that the engine makes of the plan.
fn export(what: &ExportFolder, engine: &Engine<'_>) -> Result<(), Failure> {
    let destination = Destination::open(&what.output)?;
    let plan = input::plan(&what.plan)?;
    let modules: Modules = what.modules.into();
    let beside = Beside { steps: what.data.as_ref().map(|_| what.steps), modules };
    let others = || [torch(None, modules), fsdp(modules), deepspeed(None, modules)];
    let mut folder =
        (engine.make)(&plan, beside).map_err(|faults| nearest::refusal(faults, engine, &others(), &plan))?;
    if let Some(page) = folder.files.get_mut("README.md") {
        page.push_str(modules.page());
        page.push_str(&expectation(&plan)?);
    }
    output::warn(folder.warnings.iter().chain(bytes_warning(what, &plan).iter()));
    let extras = Extras {
        modules,
        config: what.config.as_deref(),
        weights: what.weights.as_deref(),
        draws_weights: what.initial_weights,
        data: what.data.as_deref(),
        tokenizer: what.tokenizer.as_deref(),
        steps: what.steps,
        seed: what.seed,
    };
    destination.write_with(&folder, &plan, &extras)?;
    output::talk(&format!("wrote `{}`; its README.md has the commands", what.output));
    Ok(())
}

/// The most tokens of a model that reads bytes.
const BYTES: u64 = 256;

/// A text that is read byte by byte for a model with more tokens.
fn bytes_warning(what: &ExportFolder, plan: &Plan) -> Option<Diagnostic> {
    let Architecture::Transformer(transformer) = plan.context().model.architecture() else { return None };
    let vocabulary = transformer.vocabulary;
    let data = what.data.as_ref().filter(|_| what.tokenizer.is_none() && vocabulary > BYTES)?;
    let warning = format!("`{data}` is read byte by byte, and the model has {vocabulary} tokens");
    Some(Diagnostic::warning(warning).hint("`--tokenizer FOLDER` writes the tokens of its tokenizer"))
}
