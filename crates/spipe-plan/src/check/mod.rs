//! The checker of placements.

mod answers;
mod drives;
mod found;
mod memory;
mod mesh;
mod preset;
mod sharded;
mod streamed;

use crate::{Context, Dealing, OrderKind, Placement, Stage, System, Update, Weights, staging};
use found::Found;
pub use mesh::check_mesh;
pub(crate) use mesh::undivided;
pub use sharded::check_groups;
use spipe_base::{Diagnostic, Faults, IdVec, MemoryId, Position, StageId};
use spipe_cost::Mode;

/// Checks everything but memory: whether `placement` would be valid with large enough memories.
///
/// # Errors
/// Every fault.
pub fn check_shape(context: &Context<'_>, placement: &Placement) -> Result<(), Faults> {
    shape(context, placement, &|_| None)
}

/// Checks `placement`.
///
/// # Errors
/// Every fault of its shape, or every memory that is too small.
pub fn check(context: &Context<'_>, placement: &Placement) -> Result<(), Faults> {
    check_at(context, placement, &|_| None)
}

/// The same for a placement from a file; `position` locates its stages there.
pub(crate) fn check_at(
    context: &Context<'_>,
    placement: &Placement,
    position: &dyn Fn(StageId) -> Option<Position>,
) -> Result<(), Faults> {
    shape(context, placement, position)?;
    let mut faults = Found { all: Faults::new(), position };
    memory::check(context, placement, &mut faults);
    faults.all.or(())
}

/// Checks everything but memory.
fn shape(
    context: &Context<'_>,
    placement: &Placement,
    position: &dyn Fn(StageId) -> Option<Position>,
) -> Result<(), Faults> {
    let mut faults = Found { all: Faults::new(), position };
    if placement.stages.is_empty() {
        faults.push(Diagnostic::error("the plan has no stages"));
        return faults.all.or(());
    }
    check_cover(context, (placement, &placement.stages), &mut faults);
    if !placement.backward.is_empty() {
        // In the file, the stages of the backward come after those of the forward.
        let forward = placement.stages.len();
        let behind = |stage: StageId| (position)(StageId::from(stage.index() + forward));
        let mut found = Found { all: Faults::new(), position: &behind };
        check_cover(context, (placement, &placement.backward), &mut found);
        faults.all.extend(found.all);
    }
    check_devices(context, placement, &mut faults);
    check_dealing(context, placement, &mut faults);
    preset::check(placement, &mut faults);
    answers::check(context, placement, &mut faults);
    mesh::check(context, placement, &mut faults);
    if placement.system.steps_on_host() || placement.update == Update::Delayed {
        check_steps(context, placement, &mut faults);
    }
    match placement.order {
        _ if placement.shards_parameters() => sharded::check(context, placement, &mut faults),
        OrderKind::Rounds(_) => streamed::check(context, placement, &mut faults),
        _ => {}
    }
    drives::check(context, placement, &mut faults);
    if context.workload().mode != Mode::Train && !(placement.system.infers() && placement.order.infers()) {
        let what = format!("{} only trains", placement.fixed_by());
        faults.push(Diagnostic::error(what).hint("use gpipe to run forwards"));
    }
    if faults.all.is_harmless() {
        check_links(context, placement, &mut faults);
    }
    faults.all.or(())
}

/// Checks that stages are contiguous, disjoint and cover the model.
fn check_cover(
    context: &Context<'_>,
    (placement, stages): (&Placement, &IdVec<StageId, Stage>),
    faults: &mut Found<'_>,
) {
    let (is_pipeline, layers) = (placement.is_pipeline(), context.model.layers().len());
    let mut next = 0;
    for (id, stage) in stages.enumerate() {
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
        } else if stage.layers.is_empty() && !is_pipeline {
            let what = format!("stage `{id}` has no layers, but {} has layers in every stage", placement.fixed_by());
            faults.push_at(id, Diagnostic::error(what).hint("leave it out, or use system `interleaved-1f1b`"));
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

/// Checks that every stage's device exists and can run its layers, and that the optimizer is on a
/// CPU socket.
fn check_devices(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    for (index, stage) in placement.all_stages().enumerate() {
        let id = StageId::from(index);
        let Some(device) = context.hardware.devices().get(stage.lead()) else {
            faults.push(Diagnostic::error(format!(
                "stage `{id}` is on a device that `{}` lacks",
                context.hardware.name()
            )));
            continue;
        };
        let unable = stage
            .layers
            .iter()
            .filter(|layer| layer.index() < context.model.layers().len())
            .find(|layer| context.cost.time(*layer, stage.lead()).is_none());
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
        if let Some(socket) = stage.optimizer.filter(|socket| !context.is_cpu(*socket)) {
            let name = &context.hardware.devices()[socket].name;
            faults.push_at(
                id,
                Diagnostic::error(format!("the optimizer of stage `{id}` is on `{name}`, which is no CPU socket"))
                    .hint("leave `optimizer-on` out to run the optimizer step on the stage's own device"),
            );
        }
    }
}

/// Checks that stages are on the devices to which their system assigns them.
fn check_dealing(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let (stages, devices) = (placement.stages.as_slice(), placement.devices());
    let name = |stage: usize| context.hardware.devices()[stages[stage].lead()].name.clone();
    if !placement.is_pipeline() || stages.iter().any(|stage| context.hardware.devices().get(stage.lead()).is_none()) {
        return;
    }
    for index in 0..stages.len() {
        let (expected, rule) = match placement.order.dealing() {
            Dealing::RoundRobin => (index % devices.len(), "assigns stages round-robin"),
            Dealing::Vee if index < devices.len() => (index, "goes down the devices and up again"),
            Dealing::Vee => {
                (2 * devices.len() - 1 - index.min(2 * devices.len() - 1), "goes down the devices and up again")
            }
            Dealing::Single => {
                let before = (0..index).rev().find(|before| stages[*before].team == stages[index].team);
                if let Some(before) = before.filter(|before| before + 1 != index) {
                    faults.push_at(
                        StageId::from(index),
                        Diagnostic::error(format!(
                            "stages `s{before}` and `s{index}` are both on `{}` with other stages between them, but {} \
                             visits each device once",
                            name(index),
                            placement.fixed_by()
                        ))
                        .hint("use system `interleaved-1f1b`"),
                    );
                }
                continue;
            }
        };
        if devices[expected] != stages[index].lead() {
            let device = &context.hardware.devices()[devices[expected]].name;
            faults.push_at(
                StageId::from(index),
                Diagnostic::error(format!(
                    "stage `s{index}` is on `{}`, but {} {rule}",
                    name(index),
                    placement.fixed_by()
                ))
                .hint(format!("put it on `{device}`")),
            );
        }
    }
    if placement.order.dealing() == Dealing::Vee && stages.len() != 2 * devices.len() {
        faults.push(Diagnostic::error(format!(
            "{} has two stages per device, but there are {} on {}",
            placement.fixed_by(),
            stages.len(),
            devices.len()
        )));
    } else if placement.order.dealing() == Dealing::RoundRobin && !stages.len().is_multiple_of(devices.len()) {
        faults.push(Diagnostic::error(format!(
            "{} has the same number of stages on every device, but there are {} on {}",
            placement.fixed_by(),
            stages.len(),
            devices.len()
        )));
    }
}

/// Checks that all optimizer steps run on the host (ZeRO-Offload).
fn check_steps(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let stays = |(_, stage): &(StageId, &Stage)| {
        let trained = context.trains(stage.layers);
        trained && stage.optimizer.is_none_or(|socket| socket == stage.lead())
    };
    let host = match placement.system {
        System::Mixed => format!("the update `{}`", placement.update),
        system => format!("system `{system}`"),
    };
    for (id, _) in placement.stages.enumerate().filter(stays) {
        let what = format!("the optimizer step of stage `{id}` runs on its device, but {} runs them on the host", host);
        faults.push_at(id, Diagnostic::error(what).hint("give it a socket in `optimizer-on`, or use system `1f1b`"));
    }
}

/// Checks that a route joins neighbouring stages, stages and their host memories, and tied stages,
/// both ways.
fn check_links(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let memory = |stage: &Stage| context.hardware.devices()[stage.lead()].memory;
    for pair in placement.stages.as_slice().windows(2).chain(placement.backward.as_slice().windows(2)) {
        let (from, to) = (memory(&pair[0]), memory(&pair[1]));
        if context.hardware.route(from, to).is_none() || context.hardware.route(to, from).is_none() {
            let name = |stage: &Stage| context.hardware.devices()[stage.lead()].name.clone();
            faults.push(Diagnostic::error(format!("no link joins `{}` and `{}`", name(&pair[0]), name(&pair[1]))));
        }
    }
    check_ties(context, placement, faults);
    for stage in placement.all_stages() {
        let offload = staging(context, stage).or(stage.offload);
        let homes = [offload, stage.optimizer.map(|socket| context.hardware.devices()[socket].memory)];
        for home in homes.into_iter().flatten().chain(context.host_of(stage)) {
            let here = memory(stage);
            if here != home
                && (context.hardware.route(here, home).is_none() || context.hardware.route(home, here).is_none())
            {
                let name = |memory: MemoryId| &context.hardware.memories()[memory].name;
                faults.push(Diagnostic::error(format!("no link joins `{}` and `{}`", name(here), name(home))));
            }
        }
    }
}

/// Checks that a route joins stages with tied layers, both ways.
fn check_ties(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let device = |stage: &Stage| &context.hardware.devices()[stage.lead()];
    let trains = context.workload().mode == Mode::Train;
    let moves = |stage: &&Stage| match placement.order {
        _ if placement.shards_parameters() => false,
        OrderKind::Rounds(_) => trains && matches!(stage.weights, Weights::Resident),
        _ => trains,
    };
    for stage in placement.stages.iter().filter(moves) {
        let Some(tie) = context.model.borrows(stage.layers) else { continue };
        let owner = placement.stages.iter().find(|owner| owner.layers.contains(tie.owner));
        let Some((to, from)) = owner.map(|owner| (device(owner), device(stage))) else { continue };
        let ways = [(from.memory, to.memory), (to.memory, from.memory)];
        if from.memory != to.memory && ways.iter().any(|(from, to)| context.hardware.route(*from, *to).is_none()) {
            let name = |layer| &context.model.layers()[layer].name;
            let layers = format!("layers `{}` and `{}` use the same parameters", name(tie.owner), name(tie.user));
            faults.push(Diagnostic::error(format!("{layers}, but no link joins `{}` and `{}`", from.name, to.name)));
        }
    }
}
