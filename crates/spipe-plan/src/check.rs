//! The judge of placements.

use crate::{Context, Placement, Stage, System, footprint};
use spipe_base::{Bytes, Diagnostic, Faults, Position, StageId};

/// Accepts `placement` or says everything that is wrong with it.
pub fn check(context: &Context<'_>, placement: &Placement) -> Result<(), Faults> {
    check_file(context, placement, &|_| None)
}

/// The same for a placement from a file, in which `position` finds the stages.
pub(crate) fn check_file(
    context: &Context<'_>,
    placement: &Placement,
    position: &dyn Fn(StageId) -> Option<Position>,
) -> Result<(), Faults> {
    let mut faults = Found { all: Faults::new(), position };
    if placement.stages.is_empty() {
        faults.push(Diagnostic::error("the plan has no stages"));
        return faults.all.or(());
    }
    check_cover(context, placement, &mut faults);
    check_devices(context, placement, &mut faults);
    if placement.head_start > 0 && placement.system != System::Hybrid {
        faults.push(Diagnostic::error(format!("system `{}` has no head start", placement.system)));
    }
    if faults.all.is_harmless() {
        check_links(context, placement, &mut faults);
        check_memory(context, placement, &mut faults);
    }
    faults.all.or(())
}

/// What has been found, and where stages are.
struct Found<'a> {
    all: Faults,
    position: &'a dyn Fn(StageId) -> Option<Position>,
}

impl Found<'_> {
    fn push(&mut self, diagnostic: Diagnostic) {
        self.all.push(diagnostic);
    }

    /// A fault of one stage.
    fn push_at(&mut self, stage: StageId, diagnostic: Diagnostic) {
        self.all.push(match (self.position)(stage) {
            Some(position) => diagnostic.at(position),
            None => diagnostic,
        });
    }
}

/// Stages are contiguous, disjoint and cover the model.
fn check_cover(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let layers = context.model.layers().len();
    let mut next = 0;
    for (id, stage) in placement.stages.enumerate() {
        let first = stage.layers.first().index();
        if first < next {
            faults.push_at(
                id,
                Diagnostic::error(format!(
                    "stage `{id}` has layers {}, but layer {first} is already in an earlier stage",
                    stage.layers
                ))
                .hint(format!("start it at layer {next}")),
            );
        } else if first > next {
            faults.push(Diagnostic::error(format!("layers {next}..{} are in no stage", first - 1)));
        }
        if stage.recomputed > stage.layers.count() {
            faults.push_at(
                id,
                Diagnostic::error(format!(
                    "stage `{id}` recomputes {} of its {} layers",
                    stage.recomputed,
                    stage.layers.count()
                )),
            );
        }
        next = next.max(stage.layers.last().index() + 1);
    }
    if next > layers {
        faults.push(Diagnostic::error(format!(
            "the stages end at layer {}, but `{}` has layers 0..{}",
            next - 1,
            context.model.name(),
            layers - 1
        )));
    } else if next < layers {
        faults.push(Diagnostic::error(format!("layers {next}..{} are in no stage", layers - 1)));
    }
}

/// Every stage's device exists, has one stage, and can run its layers.
fn check_devices(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let mut used = std::collections::BTreeMap::new();
    for (id, stage) in placement.stages.enumerate() {
        let Some(device) = context.hardware.devices().get(stage.device) else {
            faults.push(Diagnostic::error(format!(
                "stage `{id}` is on a device that `{}` lacks",
                context.hardware.name()
            )));
            continue;
        };
        if let Some(other) = used.insert(stage.device, id) {
            faults.push_at(
                id,
                Diagnostic::error(format!(
                    "stages `{other}` and `{id}` are both on `{}`, but system `{}` runs one stage per device",
                    device.name, placement.system
                )),
            );
        }
        let unable = stage
            .layers
            .iter()
            .filter(|layer| layer.index() < context.model.layers().len())
            .find(|layer| context.cost.time(*layer, stage.device).is_none());
        if let Some(layer) = unable {
            faults.push_at(
                id,
                Diagnostic::error(format!(
                    "layer `{}` of stage `{id}` has no time on `{}`",
                    context.model.layers()[layer].name,
                    device.name
                )),
            );
        }
    }
}

/// Neighbouring stages can reach each other, both ways.
fn check_links(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let memory = |stage: &Stage| context.hardware.devices()[stage.device].memory;
    for pair in placement.stages.as_slice().windows(2) {
        let (from, to) = (memory(&pair[0]), memory(&pair[1]));
        if context.hardware.route(from, to).is_none() || context.hardware.route(to, from).is_none() {
            let name = |stage: &Stage| context.hardware.devices()[stage.device].name.clone();
            faults.push(Diagnostic::error(format!("no link joins `{}` and `{}`", name(&pair[0]), name(&pair[1]))));
        }
    }
}

/// What each memory must hold fits.
fn check_memory(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    for (id, stages) in footprint(context, placement) {
        let memory = &context.hardware.memories()[id];
        let usable = memory.capacity.saturating_sub(memory.reserved);
        let needed: Bytes = stages.values().map(crate::StageFootprint::total).sum();
        if needed > usable {
            let names: Vec<String> = stages.keys().map(StageId::to_string).collect();
            faults.push(
                Diagnostic::error(format!(
                    "{} `{}` needs {needed} on `{}`, which has {usable}",
                    if names.len() == 1 { "stage" } else { "stages" },
                    names.join("`, `"),
                    memory.name
                ))
                .hint(advice(&stages)),
            );
        }
    }
}

/// What would help most: the largest part of the need that a plan can change.
fn advice(stages: &std::collections::BTreeMap<StageId, crate::StageFootprint>) -> String {
    let sum = |part: fn(&crate::StageFootprint) -> Bytes| stages.values().map(part).sum::<Bytes>();
    let (state, activations) = (sum(|stage| stage.state), sum(|stage| stage.per_microbatch * stage.in_flight));
    if activations > state {
        format!("activations hold {activations} of it: recompute more layers, or use a smaller microbatch")
    } else {
        format!("parameters, gradients and optimizer state hold {state} of it: move layers to another device")
    }
}
