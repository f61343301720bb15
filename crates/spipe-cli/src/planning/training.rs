//! The trained parameters and their formats, from the options of a command line.

use crate::{Failure, args, text_files};
use spipe_base::Diagnostic;
use spipe_cost::{Formats, Workload, check_training};
use spipe_model::{Adapter, Lora, Model};
use std::path::Path;

/// The name of PEFT's file.
const ADAPTER_CONFIG: &str = "adapter_config.json";

impl args::Training {
    /// The model with its adapters. Without a rank, the rank is 1 if it is `solved` for.
    pub fn adapt(&self, model: Model, solved: bool) -> Result<Model, Failure> {
        let lora = match (&self.lora, &self.adapter) {
            (Some(text), _) => Lora::parse(text, solved.then_some(1)).map_err(Failure::Arguments)?,
            (None, Some(path)) => adapter(path)?,
            (None, None) if solved => {
                return Err(Failure::argument(
                    "there is no rank to solve for",
                    "add `--lora`, such as `--lora targets=q,v`",
                ));
            }
            (None, None) => return Ok(model),
        };
        let given = if self.lora.is_some() { Failure::Arguments } else { Failure::Input };
        model.with_lora(&lora).map_err(given)
    }

    /// The formats that were asked for.
    pub const fn formats(&self) -> Formats {
        Formats {
            base: self.base,
            state: self.state,
            gradients: self.gradients,
            master: self.master,
            optimizer_in_backward: self.optimizer_in_backward,
        }
    }
}

/// Refuses a workload that cannot train `model`.
pub fn check(model: &Model, workload: &Workload) -> Result<(), Failure> {
    check_training(model, workload).map_err(Failure::Arguments)
}

/// The adapters of a folder of PEFT.
fn adapter(given: &str) -> Result<Lora, Failure> {
    let path = Path::new(given);
    let file = if path.is_dir() { path.join(ADAPTER_CONFIG) } else { path.to_owned() };
    if path.is_dir() && !file.is_file() {
        let fault = Diagnostic::error(format!("the folder `{given}` has no {ADAPTER_CONFIG}"));
        return Err(Failure::input(fault.hint("name a folder that PEFT has written")));
    }
    let name = file.to_string_lossy().into_owned();
    Ok(Adapter::from_json(&name, &text_files::text(&name)?)?.lora()?)
}
