//! `spipe export`.

use crate::{
    Failure, args,
    args::{Export, ExportTorch},
    exporting::{Destination, Extras},
    input, output,
};
use spipe_export::Folder;
use spipe_schedule::Order;

/// Writes a plan as a folder that another engine runs.
pub fn run(what: &Export) -> Result<(), Failure> {
    match what {
        Export::Torch(what) => torch(what),
    }
}

fn torch(what: &args::ExportTorch) -> Result<(), Failure> {
    let destination = Destination::open(&what.output)?;
    let plan = input::plan(&what.plan)?;
    let order = match what.order.as_deref() {
        Some(path) => Some(Order::parse(path, &input::text(path)?)?),
        None => None,
    };
    let folder = spipe_export::torch(&plan, order.as_ref())?;
    warn(&folder);
    let ExportTorch { weights, initial_weights, data, tokenizer, steps, seed, .. } = what;
    let extras = Extras {
        weights: weights.as_deref(),
        draws_weights: *initial_weights,
        data: data.as_deref(),
        tokenizer: tokenizer.as_deref(),
        steps: *steps,
        seed: *seed,
    };
    destination.write(&folder, &plan, &extras)?;
    output::talk(&format!("wrote `{}`; its README.md has the commands", what.output));
    Ok(())
}

fn warn(folder: &Folder) {
    for warning in folder.warnings.iter() {
        output::talk(&warning.to_string());
    }
}
