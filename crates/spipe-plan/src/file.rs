//! Plan files: JSON that contains the plan with its model and machine.

use crate::{
    EngineCommand, ExpectedError, Gain, GradientsLeave, Incumbent, Knob, Layout, MemoryParts, MeshFile, Offload,
    OrderKind, Outcome, OutcomeStatus, Placement, Plan, SearchRecord, StageFile, System, Update,
};
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, Diagnostic, Faults, Position, StageId};
use spipe_cost::{Workload, check_training};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Lora, Model};
use std::collections::BTreeMap;

/// The version that plan files carry.
pub const FORMAT_VERSION: u32 = 2;

/// The version before, which is read: it has `knobs` instead of answers.
const LAST_VERSION: u32 = 1;

/// A copy of an input file, so that a plan keeps its meaning when the file changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Embedded {
    /// The name of the model or machine.
    pub name: String,
    /// The text of the file.
    pub toml: String,
}

/// The value of an option in files of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Setting {
    /// Of a switch.
    Switch(bool),
    /// Of all others.
    Number(u64),
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The content of a plan file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlanFile {
    /// The version of this format.
    pub format_version: u32,
    /// The preset that the answers fit, or `mixed`.
    pub system: System,
    /// The replicas, and what is divided among them; by default one replica, or one on each GPU if the system shards
    /// parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshFile>,
    /// The order in which devices compute; by default that of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderKind>,
    /// The time of optimizer steps; by default that of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,
    /// The time at which gradients leave for hosts that run steps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gradients_leave: GradientsLeave,
    /// The copies of offloaded activations; by default those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// The options of the system in files of version 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<Knob, Setting>,
    /// The workload of one iteration.
    pub workload: Workload,
    /// The stages, in model order.
    pub stages: Vec<StageFile>,
    /// The stages of the backward, in model order, if they differ from those of the forward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backward: Vec<StageFile>,
    /// How the planner's search ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<OutcomeStatus>,
    /// The planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// A proven lower bound of the iteration time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective_ms: Option<f64>,
    /// (simulated − bound) ÷ simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<f64>,
    /// The simulated iteration time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_iteration_ms: Option<f64>,
    /// The gain from more of each resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Gain>,
    /// The error that its class of runs had, if the machine's constants are fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_error: Option<ExpectedError>,
    /// Why the search ended. This and the four that follow are for information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The iteration time of the fastest plan, where a more readable one within 1 % was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fastest_iteration_ms: Option<f64>,
    /// The plans that were faster than all before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incumbents: Vec<Incumbent>,
    /// By memory, the least capacity with which some plan exists; null if the limit came first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub least_bytes: BTreeMap<String, Option<Bytes>>,
    /// By memory, the least capacity with which a plan was found; at least that of `least-bytes`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub least_bytes_found: BTreeMap<String, Bytes>,
    /// By memory, the iteration time of a plan with that capacity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub least_iteration_ms: BTreeMap<String, Option<f64>>,
    /// The engines that run the plan, as `plan --format json` has them. For information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<Vec<EngineCommand>>,
    /// The devices that compute or run an optimizer step. For information only: they follow from the
    /// stages.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The other devices of the machine, which the plan leaves without work. For information only.
    #[serde(default)]
    pub idle_devices: Vec<String>,
    /// Why they have no work, for GPUs and for sockets. For information only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_because: Vec<String>,
    /// The stages as a layout of Megatron (`--pipeline-model-parallel-layout`), for `1f1b` and
    /// `interleaved-1f1b` on GPUs alone. For information only: it follows from the stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// The peak of each memory, by name. For information only: it is computed again when the plan
    /// is read.
    #[serde(default)]
    pub peak_bytes: BTreeMap<String, Bytes>,
    /// The bytes that fill each memory at its peak, by name of the memory and of the part: `weights`,
    /// `gradients`, `optimizer-state`, `activations`, `cache`, `buffers`. The parts of a memory add up
    /// to its peak. For information only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memory_parts: BTreeMap<String, MemoryParts>,
    /// The adapters that are trained in place of the model's own parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// The number of trained parameters, if adapters are trained. For information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_parameters: Option<u64>,
    /// The model.
    pub model: Embedded,
    /// The machine.
    pub hardware: Embedded,
    /// The runtime that executes the plan; by default the runtime `spipe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Embedded>,
    /// Whether predictions of the runtime's constants were never compared with measured runs of the system. For
    /// information only.
    #[serde(default)]
    pub estimate: bool,
    /// The share of each memory that the planner left free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_room: Option<f64>,
}

/// The JSON schema of plan files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(PlanFile)
}

impl Plan {
    /// Reads and checks a plan file; `file` is its name in messages.
    ///
    /// # Errors
    /// Every fault of the text and of the placement, with its position.
    pub fn from_json(file: &str, text: &str) -> Result<Self, Faults> {
        let parsed: PlanFile = serde_json::from_str(text).map_err(|error| json_fault(file, text, &error))?;
        if !(LAST_VERSION..=FORMAT_VERSION).contains(&parsed.format_version) {
            return Err(Diagnostic::error(format!(
                "the plan has format version {}, this program reads versions {LAST_VERSION} and {FORMAT_VERSION}",
                parsed.format_version
            ))
            .at(Position { file: file.into(), line: 1, column: 1 })
            .into());
        }
        let model = Model::from_toml(&format!("{file}#model"), &parsed.model.toml)?;
        let model = match &parsed.lora {
            Some(lora) => model.with_lora(lora)?,
            None => model,
        };
        check_training(&model, &parsed.workload)?;
        let hardware = Hardware::from_toml(&format!("{file}#hardware"), &parsed.hardware.toml)?;
        let runtime = parsed.runtime.as_ref();
        let runtime =
            runtime.map(|runtime| Runtime::from_toml(&format!("{file}#runtime"), &runtime.toml)).transpose()?;
        let hardware = hardware.under(runtime.unwrap_or_default()).with_head_room(parsed.head_room.unwrap_or(0.0));
        let placement = place(file, text, &parsed, &hardware)?;
        check_figures(file, text, &parsed)?;
        let position = |stage: StageId| Some(stage_position(file, text, stage.index()));
        let plan = Self::located(model, hardware, parsed.workload, (placement, &position))?;
        Ok(match (parsed.planner, parsed.status) {
            (Some(planner), Some(status)) => plan.with_outcome(Outcome {
                planner,
                status,
                objective_ms: parsed.objective_ms,
                gap: parsed.gap,
                simulated_iteration_ms: parsed.simulated_iteration_ms,
                sensitivity: parsed.sensitivity,
                expected_error: parsed.expected_error,
                search: SearchRecord::default(),
            }),
            _ => plan,
        })
    }

    /// The plan as the content of a plan file.
    pub fn to_file(&self) -> PlanFile {
        let outcome = self.outcome.as_ref();
        let search = outcome.map(|outcome| outcome.search.clone()).unwrap_or_default();
        let name = |id| self.hardware.devices()[id].name.clone();
        PlanFile {
            format_version: FORMAT_VERSION,
            system: self.placement.system,
            mesh: Some(MeshFile::of(&self.placement, &self.hardware)),
            order: Some(self.placement.order),
            update: Some(self.placement.update),
            gradients_leave: self.placement.gradients_leave,
            offload: Some(self.placement.offload).filter(|offload| *offload != Offload::default()),
            knobs: BTreeMap::new(),
            workload: self.cost.whole_workload(),
            stages: self.placement.stages.iter().map(|stage| StageFile::of(stage, &self.hardware)).collect(),
            backward: self.placement.backward.iter().map(|stage| StageFile::of(stage, &self.hardware)).collect(),
            status: outcome.map(|outcome| outcome.status),
            planner: outcome.map(|outcome| outcome.planner.clone()),
            objective_ms: outcome.and_then(|outcome| outcome.objective_ms),
            gap: outcome.and_then(|outcome| outcome.gap),
            simulated_iteration_ms: outcome.and_then(|outcome| outcome.simulated_iteration_ms),
            sensitivity: outcome.map(|outcome| outcome.sensitivity.clone()).unwrap_or_default(),
            expected_error: outcome.and_then(|outcome| outcome.expected_error.clone()),
            ended: search.ended,
            fastest_iteration_ms: search.fastest_iteration_ms,
            incumbents: search.incumbents,
            least_bytes: search.least_bytes,
            least_bytes_found: search.least_bytes_found,
            least_iteration_ms: search.least_iteration_ms,
            engines: search.engines,
            devices: self.devices().into_iter().map(name).collect(),
            idle_devices: self.idle_devices().into_iter().map(name).collect(),
            idle_because: self.idle().into_iter().map(|idle| idle.why).collect(),
            layout: Layout::of(&self.context(), &self.placement).map(|layout| layout.to_string()),
            peak_bytes: self
                .peaks()
                .into_iter()
                .map(|(memory, peak)| (self.hardware.memories()[memory].name.clone(), peak))
                .collect(),
            memory_parts: self
                .memory_parts()
                .into_iter()
                .map(|(memory, parts)| (self.hardware.memories()[memory].name.clone(), parts))
                .collect(),
            lora: self.model.lora().cloned(),
            trained_parameters: self.model.lora().map(|_| self.model.trained_parameters()),
            model: Embedded { name: self.model.name().into(), toml: self.model.to_toml() },
            hardware: Embedded { name: self.hardware.name().into(), toml: self.hardware.to_toml() },
            runtime: Some(Embedded {
                name: self.hardware.runtime().name().into(),
                toml: self.hardware.runtime().to_toml(),
            }),
            estimate: self.is_estimate(),
            head_room: Some(self.hardware.head_room()).filter(|share| *share > 0.0),
        }
    }

    /// The plan as JSON, ending in a newline.
    pub fn to_json(&self) -> String {
        match serde_json::to_string_pretty(&self.to_file()) {
            Ok(json) => json + "\n",
            Err(error) => unreachable!("a plan has string keys and finite numbers only: {error}"),
        }
    }
}

fn json_fault(file: &str, text: &str, error: &serde_json::Error) -> Faults {
    let position = Position { file: file.into(), line: error.line().max(1), column: error.column().max(1) };
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    let diagnostic = Diagnostic::error(format!("not a plan: {message}")).at(position);
    let hint = if error.is_eof() && !text.is_empty() {
        "the file ends too early; write it again with `command plan`"
    } else {
        "`command schema plan` prints what a plan file may hold"
    };
    diagnostic.hint(hint).into()
}

/// Refuses figures of a planner's report that are out of range.
fn check_figures(file: &str, text: &str, parsed: &PlanFile) -> Result<(), Faults> {
    const HINT: &str = "write it again with `command plan` and `option improve`";
    let figures = [
        ("objective-ms", parsed.objective_ms, f64::INFINITY, "0 or more"),
        ("gap", parsed.gap, 1.0, "from 0 to 1"),
        ("simulated-iteration-ms", parsed.simulated_iteration_ms, f64::INFINITY, "0 or more"),
        ("head-room", parsed.head_room, 1.0, "from 0 to 1"),
    ];
    let mut faults = Faults::new();
    for (key, figure, most, range) in figures {
        let Some(figure) = figure.filter(|figure| !(0.0..=most).contains(figure)) else { continue };
        let offset = text.find(&format!("\"{key}\":")).unwrap_or(0);
        let fault = Diagnostic::error(format!("`{key}` is {figure}, expected a number {range}"));
        faults.push(fault.at(spipe_base::position_of(file, text, offset)).hint(HINT));
    }
    faults.or(())
}

fn place(file: &str, text: &str, parsed: &PlanFile, hardware: &Hardware) -> Result<Placement, Faults> {
    let mut faults = Faults::new();
    let mut stages = Vec::new();
    for (index, stage) in parsed.stages.iter().chain(&parsed.backward).enumerate() {
        match stage.resolve(hardware) {
            Ok(stage) => stages.push(stage),
            Err(diagnostic) => faults.push(diagnostic.at(stage_position(file, text, index))),
        }
    }
    faults.or(())?;
    let backward = stages.split_off(parsed.stages.len());
    let placement = Placement::new(parsed.system, stages).with_backward(backward);
    let found = answered(parsed, hardware, placement);
    found.map_err(|(key, fault)| {
        let offset = text.find(&format!("\"{key}\":")).unwrap_or(0);
        fault.at(spipe_base::position_of(file, text, offset)).into()
    })
}

/// `placement` with the answers of a file; otherwise the fault, and the key at which it is.
fn answered(
    parsed: &PlanFile,
    hardware: &Hardware,
    placement: Placement,
) -> Result<Placement, (&'static str, Diagnostic)> {
    let system = parsed.system;
    if parsed.format_version == LAST_VERSION {
        return of_knobs(parsed, hardware, placement);
    }
    if !parsed.knobs.is_empty() {
        let hint = "set options in `order`, `update`, `gradients-leave` and `offload`";
        return Err(("knobs", Diagnostic::error("plans of format version 2 have no `knobs`").hint(hint)));
    }
    if let (System::Mixed, None, _) | (System::Mixed, _, None) = (system, parsed.order, parsed.update) {
        let hint = "`command schema plan` prints what they may be; plans of every system have both";
        let fault = Diagnostic::error("a plan of no preset needs its `order` and its `update`").hint(hint);
        return Err(("system", fault));
    }
    let placement = match &parsed.mesh {
        Some(mesh) => {
            let unknown = |name| {
                ("mesh", Diagnostic::error(format!("`{name}` of the mesh is no device of `{}`", hardware.name())))
            };
            Placement { mesh: mesh.resolve(hardware).map_err(unknown)?, ..placement }
        }
        None => placement,
    };
    let all = placement.shards_parameters() && placement.mesh.replicas.is_empty();
    let placement = if all { placement.over_gpus(hardware, None) } else { placement };
    Ok(Placement {
        order: parsed.order.unwrap_or(placement.order),
        update: parsed.update.unwrap_or(placement.update),
        gradients_leave: parsed.gradients_leave,
        offload: parsed.offload.unwrap_or(placement.offload),
        ..placement
    })
}

/// `placement` with the options of a file of version 1.
fn of_knobs(
    parsed: &PlanFile,
    hardware: &Hardware,
    mut placement: Placement,
) -> Result<Placement, (&'static str, Diagnostic)> {
    let mut shards = None;
    for (knob, setting) in &parsed.knobs {
        let value = match setting {
            Setting::Switch(on) if knob.is_switch() => u64::from(*on),
            Setting::Number(number) if !knob.is_switch() => *number,
            _ => {
                let kind = if knob.is_switch() { "true or false" } else { "a number" };
                return Err(("knobs", Diagnostic::error(format!("the knob `{knob}` is not {kind}"))));
            }
        };
        let no_head_start = *knob == Knob::HeadStart && value == 0;
        let off = knob.is_switch() && value == 0;
        if !knob.is_of(parsed.system) && !no_head_start && !off {
            let message = format!("system `{}` has no {}", parsed.system, knob.noun());
            return Err(("knobs", Diagnostic::error(message)));
        }
        match knob {
            Knob::Shards => shards = Some(value),
            _ if knob.is_of(parsed.system) => placement = placement.with(*knob, value),
            _ => {}
        }
    }
    if !placement.shards_parameters() {
        return Ok(placement);
    }
    let gpus = hardware.gpus().count() as u64;
    if let Some(shards) = shards.filter(|shards| !(1..=gpus).contains(shards)) {
        let message = format!("the plan has {shards} shards, but `{}` has {gpus} GPUs", hardware.name());
        return Err(("knobs", Diagnostic::error(message).hint(format!("use between 1 and {gpus}"))));
    }
    Ok(placement.over_gpus(hardware, shards))
}

/// The position of the `index`th stage: that of the `index`th `"device"` key after `"stages"`.
fn stage_position(file: &str, text: &str, index: usize) -> Position {
    let stages = text.find("\"stages\"").unwrap_or(0);
    let offset = text[stages..].match_indices("\"device\"").nth(index).map_or(stages, |(at, _)| stages + at);
    spipe_base::position_of(file, text, offset)
}
