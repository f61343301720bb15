//! Megatron-LM: arguments of its pretraining script, and values of Megatron Core's configurations.

mod refusal;
mod settings;

use crate::folder::{Folder, filled};
use settings::Settings;
use spipe_base::Faults;
use spipe_plan::Plan;

/// The version of Megatron Core whose fields are written.
const VERSION: &str = "0.16.1";

/// The folder of a plan that Megatron runs.
///
/// # Errors
/// Everything that Megatron cannot express, with the nearest plan that it can.
pub fn megatron(plan: &Plan) -> Result<Folder, Faults> {
    let settings = Settings::new(plan)?;
    let mut folder = Folder::default();
    let json = serde_json::to_string_pretty(&settings.to_json()).unwrap_or_default();
    folder.add("megatron.json", json + "\n");
    folder.add("arguments.txt", settings.arguments().join("\n") + "\n");
    let values = settings.words().into_iter().chain([("version", VERSION.into())]).collect::<Vec<_>>();
    folder.add("README.md", filled(include_str!("../../templates/megatron/README.md"), &values));
    Ok(folder)
}

/// Refuses what Megatron cannot run.
///
/// # Errors
/// One fault for each reason.
pub fn check(plan: &Plan) -> Result<(), Faults> {
    Settings::new(plan).map(drop)
}
