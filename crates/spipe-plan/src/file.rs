//! Plan files: JSON that carries everything the plan needs, model and machine included.

use crate::{Activations, FORMAT_VERSION, Outcome, OutcomeStatus, Placement, Plan, Stage, System, footprint};
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, Diagnostic, Faults, LayerId, LayerRange, Position, StageId};
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_model::Model;
use std::collections::BTreeMap;

/// An input file carried along, so that a plan means the same when the file has changed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Embedded {
    /// Its name.
    pub name: String,
    /// Its text.
    pub toml: String,
}

/// What happens to a run of layers of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Choice {
    /// The layers, both ends included.
    pub layers: LayerRange,
    /// Their activations.
    pub activations: Activations,
}

/// A stage as the file writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StageFile {
    /// The device's name.
    pub device: String,
    /// The first layer.
    pub first_layer: LayerId,
    /// The last layer, which belongs to the stage.
    pub last_layer: LayerId,
    /// Per-layer choices, in layer order.
    pub choices: Vec<Choice>,
}

/// A plan as the file writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlanFile {
    /// The version of this format.
    pub format_version: u32,
    /// The system that schedules the stages.
    pub system: System,
    /// More warm-up forwards of CPU stages and those before them.
    #[serde(default)]
    pub head_start: u64,
    /// What one iteration consumes.
    pub workload: Workload,
    /// The stages, in model order.
    pub stages: Vec<StageFile>,
    /// How the planner's search ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<OutcomeStatus>,
    /// Which planner.
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
    /// What each memory must hold, by its name; for information, it is counted again when the plan is read.
    #[serde(default)]
    pub peak_bytes: BTreeMap<String, Bytes>,
    /// The model.
    pub model: Embedded,
    /// The machine.
    pub hardware: Embedded,
}

/// The JSON schema of plan files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(PlanFile)
}

impl Plan {
    /// Reads and checks a plan file; `file` is its name in messages.
    pub fn from_json(file: &str, text: &str) -> Result<Self, Faults> {
        let parsed: PlanFile = serde_json::from_str(text).map_err(|error| json_fault(file, text, &error))?;
        if parsed.format_version != FORMAT_VERSION {
            return Err(Diagnostic::error(format!(
                "the plan has format version {}, this program reads version {FORMAT_VERSION}",
                parsed.format_version
            ))
            .at(Position { file: file.into(), line: 1, column: 1 })
            .into());
        }
        let model = Model::from_toml(&format!("{file}#model"), &parsed.model.toml)?;
        let hardware = Hardware::from_toml(&format!("{file}#hardware"), &parsed.hardware.toml)?;
        let placement = place(file, text, &parsed, &hardware)?;
        let position = |stage: StageId| Some(stage_position(file, text, stage.index()));
        let plan = Self::located(model, hardware, parsed.workload, (placement, &position))?;
        Ok(match (parsed.planner, parsed.status) {
            (Some(planner), Some(status)) => plan.with_outcome(Outcome {
                planner,
                status,
                objective_ms: parsed.objective_ms,
                gap: parsed.gap,
                simulated_iteration_ms: parsed.simulated_iteration_ms,
            }),
            _ => plan,
        })
    }

    /// The plan as a file.
    pub fn to_file(&self) -> PlanFile {
        let outcome = self.outcome.as_ref();
        let memories = footprint(&self.context(), &self.placement);
        let peak =
            |stages: &BTreeMap<_, crate::StageFootprint>| stages.values().map(crate::StageFootprint::total).sum();
        PlanFile {
            format_version: FORMAT_VERSION,
            system: self.placement.system,
            head_start: self.placement.head_start,
            workload: *self.cost.workload(),
            stages: self.placement.stages.iter().map(|stage| stage_file(stage, &self.hardware)).collect(),
            status: outcome.map(|outcome| outcome.status),
            planner: outcome.map(|outcome| outcome.planner.clone()),
            objective_ms: outcome.and_then(|outcome| outcome.objective_ms),
            gap: outcome.and_then(|outcome| outcome.gap),
            simulated_iteration_ms: outcome.and_then(|outcome| outcome.simulated_iteration_ms),
            peak_bytes: memories
                .iter()
                .map(|(memory, stages)| (self.hardware.memories()[*memory].name.clone(), peak(stages)))
                .collect(),
            model: Embedded { name: self.model.name().into(), toml: self.model.to_toml() },
            hardware: Embedded { name: self.hardware.name().into(), toml: self.hardware.to_toml() },
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
        "the file ends too early; write it again with `spipe plan`"
    } else {
        "`spipe schema plan` prints what a plan file may hold"
    };
    diagnostic.hint(hint).into()
}

fn stage_file(stage: &Stage, hardware: &Hardware) -> StageFile {
    let first = stage.layers.first().index();
    let split = first + stage.recomputed;
    let run = |from: usize, to: usize, activations| {
        LayerRange::new(from.into(), to.checked_sub(1)?.into())
            .filter(|_| from < to)
            .map(|layers| Choice { layers, activations })
    };
    let end = stage.layers.last().index() + 1;
    StageFile {
        device: hardware.devices()[stage.device].name.clone(),
        first_layer: stage.layers.first(),
        last_layer: stage.layers.last(),
        choices: [run(first, split, Activations::Recomputed), run(split, end, Activations::Saved)]
            .into_iter()
            .flatten()
            .collect(),
    }
}

fn place(file: &str, text: &str, parsed: &PlanFile, hardware: &Hardware) -> Result<Placement, Faults> {
    let mut faults = Faults::new();
    let mut stages = Vec::new();
    for (index, stage) in parsed.stages.iter().enumerate() {
        match resolve(stage, hardware) {
            Ok(stage) => stages.push(stage),
            Err(diagnostic) => faults.push(diagnostic.at(stage_position(file, text, index))),
        }
    }
    faults.or(Placement { system: parsed.system, head_start: parsed.head_start, stages: stages.into_iter().collect() })
}

fn resolve(stage: &StageFile, hardware: &Hardware) -> Result<Stage, Diagnostic> {
    let device = hardware.device(&stage.device).ok_or_else(|| {
        let known: Vec<&str> = hardware.devices().iter().map(|device| device.name.as_str()).collect();
        Diagnostic::error(format!("`{}` has no device `{}`", hardware.name(), stage.device))
            .hint(format!("its devices are {}", known.join(", ")))
    })?;
    let layers = LayerRange::new(stage.first_layer, stage.last_layer).ok_or_else(|| {
        Diagnostic::error(format!(
            "the first layer {} comes after the last layer {}",
            stage.first_layer, stage.last_layer
        ))
    })?;
    let mut next = layers.first();
    let mut recomputed = 0;
    for choice in &stage.choices {
        if choice.layers.first() != next || choice.layers.last() > layers.last() {
            return Err(Diagnostic::error(format!(
                "choices must cover layers {layers} in order, found {}",
                choice.layers
            )));
        }
        if choice.activations == Activations::Recomputed {
            if choice.layers.first().index() != layers.first().index() + recomputed {
                return Err(Diagnostic::error(format!(
                    "recomputed layers {} are not at the front of their stage",
                    choice.layers
                ))
                .hint("recompute the first layers of a stage: they need no more than its input"));
            }
            recomputed += choice.layers.count();
        }
        next = LayerId::from(choice.layers.last().index() + 1);
    }
    if !stage.choices.is_empty() && next.index() != layers.last().index() + 1 {
        return Err(Diagnostic::error(format!("choices end before the last layer of {layers}")));
    }
    Ok(Stage { device, layers, recomputed })
}

/// Where the `index`th stage starts: the `index`th `"device"` key after `"stages"`.
fn stage_position(file: &str, text: &str, index: usize) -> Position {
    let stages = text.find("\"stages\"").unwrap_or(0);
    let offset = text[stages..].match_indices("\"device\"").nth(index).map_or(stages, |(at, _)| stages + at);
    spipe_base::position_of(file, text, offset)
}
