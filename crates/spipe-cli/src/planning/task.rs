//! The task that the options of `spipe plan` describe: model, machine and workload.

use super::training;
use crate::{
    Failure, args,
    args::{Given, Unknown},
    idle::Idle,
    input,
    options::OPTIONS,
    output,
};
use spipe_cost::{DataShape, Mode, Workload};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Attention, Model, Operations};
use spipe_plan::{Knob, Placement, System};
use spipe_search::{Chosen, Conditions, Machine, Words, attends};

/// The model, machine and workload to plan for.
pub struct Task {
    pub model: Model,
    /// The machine, before a runtime is chosen; that of a plan to start from is under the plan's.
    pub hardware: Hardware,
    /// The workload, apart from the sizes of microbatches.
    pub template: Workload,
    pub global_batch: u64,
    /// The plan to start from.
    pub start: Option<Placement>,
}

impl Task {
    /// The task of a command line.
    pub fn new(what: &args::Plan) -> Result<Self, Failure> {
        if let Some(path) = &what.improve {
            let plan = input::plan(path)?;
            let context = plan.context();
            return Ok(Self {
                model: context.model.clone(),
                hardware: context.hardware.clone(),
                template: context.cost.whole_workload(),
                global_batch: context.cost.whole_workload().global_batch(),
                start: Some(plan.placement().clone()),
            });
        }
        let given = |value: &Option<String>| value.clone().unwrap_or_default();
        let model = input::model_part(&given(&what.model), what.component.as_deref())?;
        Self::on(what, model, input::hardware(&given(&what.hardware))?)
    }

    /// The task on this model and machine, whatever the options name.
    pub fn on(what: &args::Plan, model: Model, hardware: Hardware) -> Result<Self, Failure> {
        let solves_for_rank = what.solve_for == Some(Unknown::Rank);
        let model = what.training.adapt(frozen(model, &what.freeze)?, solves_for_rank)?;
        let hardware = what.mesh.computers(hardware)?;
        let hardware = input::part(hardware, &args::Devices::names(&what.devices))?;
        let mode = input::mode(&model, what.mode)?;
        let global_batch = match (what.global_batch, what.solve_for) {
            (Some(given), _) => given,
            (None, Some(Unknown::GlobalBatch)) => 1,
            (None, _) => {
                let hint = "add `--global-batch`, the sequences per iteration";
                return Err(Failure::argument("the global batch is not given", hint));
            }
        };
        let template = Workload {
            mode,
            seq_len: input::seq_len(&model, what.seq_len)?,
            microbatch: 1,
            microbatches: 1,
            precision: what.precision,
            optimizer: what.optimizer,
            attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
            clip_norm: what.clip_norm,
            formats: what.training.formats(),
            data: DataShape::PLAIN,
            recompute_ops: Operations::NONE,
            loss: None,
        };
        let template = what.shape.shape(template)?;
        training::check(&model, &template)?;
        Ok(Self { model, hardware, template, global_batch, start: None })
    }

    /// The machine under the runtime of the options or of the plan to start from, or under the default of each
    /// system.
    pub fn machine(&self, what: &args::Plan) -> Result<Machine, Failure> {
        let runtime = what.runtime.as_deref().map(input::runtime).transpose()?;
        let machine = match (&runtime, &self.start) {
            (None, Some(start)) => Machine::of_plan(&self.hardware, start.system, self.template.mode)?,
            _ => Machine::new(&self.hardware, runtime.as_ref(), self.template.mode)?,
        };
        roomy(&machine, what)
    }

    /// The same under `runtime`, if there is one; constants that were fitted before are not used.
    pub fn unfitted(&self, what: &args::Plan, runtime: Option<Runtime>) -> Result<Machine, Failure> {
        let named = || what.runtime.as_deref().map(input::runtime).transpose();
        let runtime = runtime.map_or_else(named, |runtime| Ok(Some(runtime)))?;
        roomy(&Machine::unfitted(&self.hardware, runtime.as_ref(), self.template.mode)?, what)
    }
}

/// The conditions of a command line on the plan of a task, and the systems that they leave.
pub fn conditions(what: &args::Plan, task: &Task) -> Result<Chosen, Failure> {
    let devices = args::Devices::names(&what.devices);
    let group = what.group.map(|group| format!("{}={group}", Knob::Group));
    let of_mesh = what.mesh.pins(&task.model)?;
    let pins: Vec<String> = what.pin.iter().cloned().chain(group).chain(of_mesh).collect();
    let words = Words { pins: &pins, system: &what.system, microbatch: &what.microbatch };
    let asked = Conditions { layout: what.layout.as_deref(), words, devices: &devices };
    let chosen = spipe_search::conditions(&asked, (&task.model, &task.hardware), &task.template, OPTIONS)?;
    if let Some(warning) = &chosen.warning {
        output::talk(&warning.to_string());
    }
    Ok(chosen)
}

/// The machine with the head-room that was asked for.
fn roomy(machine: &Machine, what: &args::Plan) -> Result<Machine, Failure> {
    let Some(given) = &what.head_room else { return Ok(machine.clone()) };
    let share = input::fraction(given)?;
    if share < 1.0 {
        return machine.changed(|hardware| Ok(hardware.clone().with_head_room(share)));
    }
    Err(Failure::argument("the head-room is all of the memory", "leave less, such as 10%"))
}

/// Refuses options that do nothing in this mode, for this model, these systems, or this unknown.
pub fn idle(what: &args::Plan, given: &Given, (task, systems): (&Task, &[System])) -> Result<(), Failure> {
    let planner_has_a_system = match what.planner.as_str() {
        "dp" | "greedy" | "exhaustive" => systems.iter().any(|system| spipe_planner::SYSTEMS.contains(system)),
        "mobius-mip" => systems.contains(&System::Mobius),
        _ => true,
    };
    let solves_for = |unknown| what.solve_for == Some(unknown);
    if solves_for(Unknown::Microbatch) && what.pin.iter().any(|pin| pin.starts_with("microbatch=")) {
        return Err(Failure::argument("a pin of the microbatch does nothing when it is solved for", "drop the pin"));
    }
    if task.start.is_none() {
        args::DataOptions::idle(given, (&task.model, task.template.mode))?;
    }
    let solved = "when it is solved for";
    Idle::among(given)
        .options_if(
            task.template.mode != Mode::Train,
            &[
                "optimizer",
                "clip-norm",
                "freeze",
                "lora",
                "adapter",
                "state",
                "gradients",
                "master",
                "optimizer-in-backward",
                "state-on",
                "activations-on",
            ],
            "in inference",
            "leave it out, or plan with `--mode train`",
        )
        .options_if(
            !attends(&task.model),
            &["materialised-attention"],
            "to a model without known attention",
            "leave it out",
        )
        .options_if(
            !planner_has_a_system,
            &["planner"],
            "to these systems",
            "`dp`, `greedy` and `exhaustive` plan `gpipe`, `1f1b` and `hybrid`, `mobius-mip` plans `mobius`; leave it out",
        )
        .options_if(solves_for(Unknown::Microbatch), &["microbatch"], solved, "leave it out")
        .options_if(solves_for(Unknown::SeqLen), &["seq-len"], solved, "leave it out")
        .options_if(solves_for(Unknown::GlobalBatch), &["global-batch"], solved, "leave it out")
        .refuse()
}

/// `model` with these layers frozen too.
fn frozen(model: Model, more: &[String]) -> Result<Model, Failure> {
    if more.is_empty() {
        return Ok(model);
    }
    let mut ranges = model.frozen();
    for text in more {
        let range = model.layer_range(text).ok_or_else(|| {
            let last = model.layers().len().saturating_sub(1);
            Failure::argument(
                format!("`{text}` names no layers of `{}`", model.name()),
                format!("write 0..{last}, or names such as `spipe model show` prints"),
            )
        })?;
        ranges.push(range);
    }
    Ok(model.with_frozen(&ranges)?)
}
