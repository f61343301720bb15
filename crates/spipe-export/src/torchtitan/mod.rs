//! torchtitan: a Python module with the configuration of its trainer.

mod parts;
mod refusal;
mod settings;

use crate::folder::{Folder, filled};
use settings::Settings;
use spipe_base::{Diagnostic, Faults};
use spipe_plan::Plan;

/// The version of torchtitan whose configuration is written.
const VERSION: &str = "0.3.0";

/// The folder of a plan that torchtitan runs.
///
/// # Errors
/// Everything that torchtitan cannot express, with the nearest plan that it can.
pub fn torchtitan(plan: &Plan) -> Result<Folder, Faults> {
    let mut folder = Folder::default();
    let settings = Settings::new(plan, &mut folder.warnings)?;
    let json = serde_json::to_string_pretty(&settings).map_err(|error| Diagnostic::error(error.to_string()))?;
    folder.add("plan.json", json + "\n");
    folder.add("plan.py", include_str!("../../templates/torchtitan/plan.py"));
    if let Some(order) = settings.order() {
        folder.add("schedule.csv", order.to_string());
    }
    let values = settings.words(plan).into_iter().chain([("version", VERSION.into())]).collect::<Vec<_>>();
    folder.add("README.md", filled(include_str!("../../templates/torchtitan/README.md"), &values));
    Ok(folder)
}

/// Refuses what torchtitan cannot run.
///
/// # Errors
/// One fault for each reason.
pub fn check(plan: &Plan) -> Result<(), Faults> {
    Settings::new(plan, &mut Faults::new()).map(drop)
}
