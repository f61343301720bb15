//! Programs as files, and the folder that interprets them on PyTorch.

mod file;
mod place;
mod ranks;
mod refusal;

use crate::{
    Modules,
    folder::{COMMON, Folder, filled},
    launch::{Beside, Launch, MANIFESTS},
    network::Network,
    training::Training,
};
use file::ProgramFile;
pub use file::schema;
use spipe_base::{Diagnostic, Faults};
use spipe_cost::Optimizer;
use spipe_plan::{GradientsLeave, OrderKind, Plan, Update, uses_drives};
use spipe_schedule::lower;

const SCRIPTS: [(&str, &str); 19] = [
    ("train.py", include_str!("../../templates/program/train.py")),
    ("rates.py", include_str!("../../templates/common/rates.py")),
    ("program.py", include_str!("../../templates/program/program.py")),
    ("engine.py", include_str!("../../templates/program/engine.py")),
    ("actions.py", include_str!("../../templates/program/actions.py")),
    ("compute.py", include_str!("../../templates/program/compute.py")),
    ("passes.py", include_str!("../../templates/program/passes.py")),
    ("copies.py", include_str!("../../templates/program/copies.py")),
    ("drives.py", include_str!("../../templates/program/drives.py")),
    ("offload.py", include_str!("../../templates/program/offload.py")),
    ("steps.py", include_str!("../../templates/program/steps.py")),
    ("adamw.py", include_str!("../../templates/program/adamw.py")),
    ("store.py", include_str!("../../templates/program/store.py")),
    ("memory.py", include_str!("../../templates/program/memory.py")),
    ("world.py", include_str!("../../templates/program/world.py")),
    ("evaluate.py", include_str!("../../templates/program/evaluate.py")),
    ("worker.py", include_str!("../../templates/program/worker.py")),
    ("bell.py", include_str!("../../templates/program/bell.py")),
    ("traces.py", include_str!("../../templates/program/traces.py")),
];

const TRAINING: Training = Training { optimizers: &[Optimizer::Adamw], adapters: true, bases: false, meshes: false };

/// Whether a plan is beyond PyTorch's pipeline runtime and its hooks, and needs the interpreter.
pub fn is_needed(plan: &Plan) -> bool {
    let placement = plan.placement();
    let offloads = placement.stages.iter().any(|stage| stage.offload.is_some());
    let drives = !placement.shards_parameters() && uses_drives(&plan.context(), placement);
    matches!(placement.order, OrderKind::Rounds(_) | OrderKind::Uniform)
        || placement.update == Update::Delayed
        || placement.gradients_leave == GradientsLeave::EachMicrobatch
        // Hooks copy without overlap, but also between GPUs and sockets, and where processes share no memory.
        || (offloads || drives) && is_one_computer(plan) && !sockets_compute(plan)
}

/// Whether a CPU socket computes passes. What passes between it and a GPU is on lanes of the GPU, in both directions.
pub fn sockets_compute(plan: &Plan) -> bool {
    plan.placement().computing().into_iter().any(|device| plan.context().is_cpu(device))
}

/// Whether all devices of a plan are of one computer.
pub fn is_one_computer(plan: &Plan) -> bool {
    let node = |device| plan.context().hardware.devices()[device].node;
    let computing = plan.placement().computing();
    computing.windows(2).all(|pair| node(pair[0]) == node(pair[1]))
}

/// Refuses what the interpreter cannot run.
///
/// # Errors
/// The faults of [`folder`].
pub fn check(plan: &Plan, modules: Modules) -> Result<(), Faults> {
    refusal::check(plan)?;
    TRAINING.check(plan, modules)?;
    Ok(Network::of(plan.context().model, modules).map(drop)?)
}

/// The folder of a plan whose program is interpreted.
///
/// # Errors
/// The parts that the interpreter does not have, with the reason and the nearest plan.
pub fn folder(plan: &Plan, beside: Beside) -> Result<Folder, Faults> {
    refusal::check(plan)?;
    TRAINING.check(plan, beside.modules)?;
    let context = plan.context();
    let program = lower(&context, plan.placement())?;
    let file = ProgramFile::new(plan, &Network::of(context.model, beside.modules)?, &program);
    let mut folder = Folder::default();
    let json = serde_json::to_string(&file).map_err(|error| Diagnostic::error(error.to_string()))?;
    folder.add("program.json", json + "\n");
    for (name, text) in COMMON.into_iter().chain(SCRIPTS) {
        folder.add(name, text);
    }
    beside.modules.add_to(&mut folder);
    let launch = Launch::of(file.ranks(), beside).with_drives(file.drives());
    folder.add("train.sbatch", launch.sbatch(context.model.name(), MANIFESTS));
    let values = [
        ("commands", launch.commands()),
        ("traced", launch.traced()),
        ("model", context.model.name().into()),
        ("machine", context.hardware.name().into()),
        ("system", plan.placement().name().into()),
        ("ranks", file.ranks().len().to_string()),
        ("table", file.table()),
        ("memories", file.places()),
    ];
    folder.add("README.md", filled(include_str!("../../templates/program/README.md"), &values));
    Ok(folder)
}
