//! `spipe export`.

use crate::{
    Failure,
    args::{Export, ExportChakra, ExportDeepspeed, ExportFolder, ExportTorch},
    exporting::{Destination, Extras, expectation},
    input, output,
};
use spipe_base::Faults;
use spipe_export::{Beside, Folder};
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
            export(folder, &|plan, beside| spipe_export::torch(plan, order.as_ref(), beside))
        }
        Export::Fsdp(folder) => export(folder, &spipe_export::fsdp),
        Export::Deepspeed(ExportDeepspeed { folder, nvme }) => {
            export(folder, &|plan, beside| spipe_export::deepspeed(plan, nvme.as_deref(), beside))
        }
        Export::Chakra(ExportChakra { plan, output }) => {
            let destination = Destination::open(output)?;
            let plan = input::plan(plan)?;
            destination.write(&spipe_export::chakra(&plan, &spipe_search::program(&plan)?))?;
            output::talk(&format!("wrote `{output}`; its README.md has the files"));
            Ok(())
        }
    }
}

/// Writes the folder that `make` makes of the plan.
fn export(what: &ExportFolder, make: &dyn Fn(&Plan, Beside) -> Result<Folder, Faults>) -> Result<(), Failure> {
    let destination = Destination::open(&what.output)?;
    let plan = input::plan(&what.plan)?;
    if let Some(fault) = spipe_plan::beyond_export(&plan.context()) {
        return Err(Faults::from(fault).into());
    }
    let beside = Beside { steps: what.data.as_ref().map(|_| what.steps) };
    let mut folder = make(&plan, beside)?;
    if let Some(page) = folder.files.get_mut("README.md") {
        page.push_str(&expectation(&plan)?);
    }
    output::warn(folder.warnings.iter());
    let extras = Extras {
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
