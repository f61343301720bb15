//! Whether a plan needs the host: what it keeps there, and whether the GPUs alone would do.

use crate::{request::Request, search::fits::fits};
use spipe_cost::Mode;
use spipe_hardware::Hardware;
use spipe_plan::{Plan, Stage, System, Weights};
use spipe_planner::{Fit, Options};
use std::time::Duration;

/// The systems that keep everything on GPUs where the host gives no help.
const ON_GPUS: [System; 4] = [System::GpuOnly, System::Checkpointing, System::Gpipe, System::OneForwardOneBackward];

/// The time to find out whether the GPUs alone hold the model.
const LIMIT: Duration = Duration::from_secs(2);

/// A sentence on what `plan` keeps in DRAM, for trainings with adapters or formats of their own; empty
/// otherwise.
pub fn sentence(request: &Request, plan: &Plan) -> String {
    let (context, workload) = (plan.context(), *plan.context().workload());
    if workload.mode != Mode::Train || (context.model.lora().is_none() && workload.formats.is_plain()) {
        return String::new();
    }
    let hosted = |stage: &Stage| {
        let offloads = stage.offload.is_some() || stage.optimizer.is_some() || context.is_cpu(stage.lead());
        offloads || matches!(stage.weights, Weights::Streamed(_))
    };
    if !plan.placement().all_stages().any(hosted) {
        return "Without offload: everything is on the GPUs.\n".into();
    }
    match without(request) {
        Fit::Found(_) => {
            "The plan offloads to DRAM because that is faster here; it would fit without offload too.\n".into()
        }
        Fit::Never => "It fits with offload to DRAM only: without, the GPUs are too small.\n".into(),
        Fit::NotFound | Fit::Late => "It fits with offload to DRAM; no plan without was found.\n".into(),
    }
}

/// Whether the GPUs hold the model without the host.
fn without(request: &Request) -> Fit {
    let gpus = request.machine.hardware().devices().iter().filter(|device| device.is_gpu());
    let names: Vec<String> = gpus.map(|device| device.name.clone()).collect();
    // A machine without GPUs is left as it is.
    let part =
        |hardware: &Hardware| if names.is_empty() { Ok(hardware.clone()) } else { hardware.restricted_to(&names) };
    let Ok(machine) = request.machine.changed(part) else { return Fit::Never };
    let mut best = Fit::Never;
    for workload in &request.workloads {
        let options = Options { time_limit: LIMIT, host_help: false, ..Options::default() };
        match fits((&request.model, &machine), (workload, &ON_GPUS), &options) {
            Fit::Never => {}
            found @ Fit::Found(_) => return found,
            Fit::NotFound | Fit::Late => best = Fit::NotFound,
        }
    }
    best
}
