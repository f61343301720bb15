//! The judge of placements.

mod knobs;
mod shards;

use crate::{Context, Dealing, Family, Footprint, Placement, Stage, System, Weights, footprint, footprint::add};
use spipe_base::{Bytes, Diagnostic, Faults, IdVec, LayerId, MemoryId, Position, StageId};
use spipe_cost::Mode;
use spipe_hardware::DeviceKind;

/// The same as [`check`] but for what memories must hold: whether the placement would do if they were large enough.
pub fn check_shape(context: &Context<'_>, placement: &Placement) -> Result<(), Faults> {
    shape(context, placement, &|_| None)
}

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
    shape(context, placement, position)?;
    let mut faults = Found { all: Faults::new(), position };
    check_memory(context, placement, &mut faults);
    faults.all.or(())
}

/// Everything but memory.
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
    check_cover(context, &placement.stages, &mut faults);
    if !placement.backward.is_empty() {
        // Positions are those of the forward's stages; the backward's come after them in the file.
        let forward = placement.stages.len();
        let behind = |stage: StageId| (position)(StageId::from(stage.index() + forward));
        let mut found = Found { all: Faults::new(), position: &behind };
        check_cover(context, &placement.backward, &mut found);
        faults.all.extend(found.all);
    }
    check_devices(context, placement, &mut faults);
    check_dealing(context, placement, &mut faults);
    knobs::check(placement, &mut faults);
    if placement.system.steps_on_host() {
        check_steps(context, placement, &mut faults);
    }
    if placement.system.family() == Family::Rounds {
        check_rounds(context, placement, &mut faults);
    }
    if placement.system.family() == Family::Sharded {
        shards::check_shards(context, placement, &mut faults);
    }
    if context.workload().mode != Mode::Train && !placement.system.infers() {
        faults.push(
            Diagnostic::error(format!("system `{}` only trains", placement.system)).hint("use gpipe to run forwards"),
        );
    }
    if faults.all.is_harmless() {
        check_links(context, placement, &mut faults);
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
fn check_cover(context: &Context<'_>, stages: &IdVec<StageId, Stage>, faults: &mut Found<'_>) {
    let layers = context.model.layers().len();
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

/// Every stage's device exists and can run its layers; so does the socket of its optimizer.
fn check_devices(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    for (index, stage) in placement.all_stages().enumerate() {
        let id = StageId::from(index);
        let Some(device) = context.hardware.devices().get(stage.device) else {
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
        if let Some(socket) = stage.optimizer.filter(|socket| !context.is_cpu(*socket)) {
            let name = &context.hardware.devices()[socket].name;
            faults.push_at(
                id,
                Diagnostic::error(format!("the optimizer of stage `{id}` is on `{name}`, which is no CPU socket"))
                    .hint("leave `optimizer-on` out to step the parameters on their own device"),
            );
        }
    }
}

/// Stages lie on devices as their system deals them out.
fn check_dealing(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let (stages, devices) = (placement.stages.as_slice(), placement.devices());
    let name = |stage: usize| context.hardware.devices()[stages[stage].device].name.clone();
    if placement.system.family() != Family::Pipeline
        || stages.iter().any(|stage| context.hardware.devices().get(stage.device).is_none())
    {
        return;
    }
    for index in 0..stages.len() {
        let (expected, rule) = match placement.system.dealing() {
            Dealing::RoundRobin => (index % devices.len(), "deals stages out in turn"),
            Dealing::Vee if index < devices.len() => (index, "goes down the devices and up again"),
            Dealing::Vee => {
                (2 * devices.len() - 1 - index.min(2 * devices.len() - 1), "goes down the devices and up again")
            }
            Dealing::Single => {
                let before = (0..index).rev().find(|before| stages[*before].device == stages[index].device);
                if let Some(before) = before.filter(|before| before + 1 != index) {
                    faults.push_at(
                        StageId::from(index),
                        Diagnostic::error(format!(
                            "stages `s{before}` and `s{index}` are both on `{}` with other stages between them, but system `{}` \
                             comes to each device once",
                            name(index),
                            placement.system
                        ))
                        .hint("interleaved-1f1b takes turns between devices"),
                    );
                }
                continue;
            }
        };
        if devices[expected] != stages[index].device {
            let device = &context.hardware.devices()[devices[expected]].name;
            faults.push_at(
                StageId::from(index),
                Diagnostic::error(format!(
                    "stage `s{index}` is on `{}`, but system `{}` {rule}",
                    name(index),
                    placement.system
                ))
                .hint(format!("put it on `{device}`")),
            );
        }
    }
    if placement.system.dealing() == Dealing::Vee && stages.len() != 2 * devices.len() {
        faults.push(Diagnostic::error(format!(
            "system `{}` has two stages per device, but there are {} on {}",
            placement.system,
            stages.len(),
            devices.len()
        )));
    } else if placement.system.dealing() == Dealing::RoundRobin && !stages.len().is_multiple_of(devices.len()) {
        faults.push(Diagnostic::error(format!(
            "system `{}` has the same number of stages on every device, but there are {} on {}",
            placement.system,
            stages.len(),
            devices.len()
        )));
    }
}

/// Parameters come from host memory or stay, backward chunks of their own start from checkpoints, and no device waits for itself.
fn check_rounds(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let system = placement.system;
    for (index, stage) in placement.all_stages().enumerate() {
        let id = StageId::from(index);
        if matches!(stage.weights, Weights::Resident) {
            check_kept(context, placement, (id, stage), faults);
        }
        let apart = !placement.backward.is_empty() && index >= placement.stages.len();
        if apart && stage.recomputed < stage.layers.count() {
            faults.push_at(
                id,
                Diagnostic::error(format!(
                    "stage `{id}` of the backward recomputes {} of its layers",
                    stage.recomputed
                ))
                .hint("a backward apart from its forward has only a checkpoint: recompute all layers"),
            );
        }
    }
    let (devices, microbatches) = (placement.devices().len() as u64, context.workload().microbatches);
    if system == System::NaiveSwap && devices > 1 {
        faults.push(
            Diagnostic::error(format!("system `{system}` swaps the layers of one GPU, not of {devices}"))
                .hint("put all stages on one GPU, or use system `superpipeline`"),
        );
    }
    if microbatches < devices {
        faults.push(
            Diagnostic::error(format!("system `{system}` needs at least as many microbatches as devices"))
                .hint(format!("use at least {devices} microbatches")),
        );
    }
}

/// A stage that keeps its parameters has a system that lets it, steps them itself, and shares none with one that streams them.
fn check_kept(context: &Context<'_>, placement: &Placement, (id, stage): (StageId, &Stage), faults: &mut Found<'_>) {
    let system = placement.system;
    if !system.may_keep() {
        let message = format!("stage `{id}` keeps its parameters, but system `{system}` streams them");
        faults.push_at(id, Diagnostic::error(message).hint("name a host memory in `weights-in`"));
        return;
    }
    let device = &context.hardware.devices()[stage.device];
    if matches!(device.kind, DeviceKind::Socket { .. }) {
        let message = format!("stage `{id}` stays on `{}`, but system `{system}` computes on GPUs", device.name);
        faults.push_at(id, Diagnostic::error(message).hint("put it on a GPU, or use system `hybrid`"));
    }
    if let Some(socket) = stage.optimizer.and_then(|socket| context.hardware.devices().get(socket)) {
        let message = format!("stage `{id}` keeps its parameters, but they are stepped on `{}`", socket.name);
        let hint = "leave `optimizer-on` out, or name a host memory in `weights-in`";
        faults.push_at(id, Diagnostic::error(message).hint(hint));
    }
    let ties = [context.model.borrows(stage.layers), context.model.lends(stage.layers)].into_iter().flatten();
    let stays = |layer: LayerId| {
        let holds = |stage: &&Stage| stage.layers.contains(layer);
        placement.stages.iter().find(holds).is_none_or(|stage| matches!(stage.weights, Weights::Resident))
    };
    for tie in ties.filter(|tie| !stays(tie.owner) || !stays(tie.user)) {
        let name = |layer| &context.model.layers()[layer].name;
        let other = if stage.layers.contains(tie.owner) { tie.user } else { tie.owner };
        let layers = format!("layers `{}` and `{}` use the same parameters", name(tie.owner), name(tie.user));
        let message =
            format!("stage `{id}` keeps its parameters, but {layers}, which the stage of `{}` streams", name(other));
        let hint = "name a host memory in `weights-in` of both, or of neither";
        faults.push_at(id, Diagnostic::error(message).hint(hint));
    }
}

/// With ZeRO-Offload everything that is trained is stepped on the host.
fn check_steps(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let stays = |(_, stage): &(StageId, &Stage)| {
        let trained = context.trains(stage.layers);
        trained && stage.optimizer.is_none_or(|socket| socket == stage.device)
    };
    for (id, _) in placement.stages.enumerate().filter(stays) {
        let what =
            format!("stage `{id}` is stepped on its device, but system `{}` steps on the host", placement.system);
        faults.push_at(id, Diagnostic::error(what).hint("give it a socket in `optimizer-on`, or use system `1f1b`"));
    }
}

/// Neighbouring stages can reach each other, both ways.
fn check_links(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let memory = |stage: &Stage| context.hardware.devices()[stage.device].memory;
    for pair in placement.stages.as_slice().windows(2).chain(placement.backward.as_slice().windows(2)) {
        let (from, to) = (memory(&pair[0]), memory(&pair[1]));
        if context.hardware.route(from, to).is_none() || context.hardware.route(to, from).is_none() {
            let name = |stage: &Stage| context.hardware.devices()[stage.device].name.clone();
            faults.push(Diagnostic::error(format!("no link joins `{}` and `{}`", name(&pair[0]), name(&pair[1]))));
        }
    }
    check_shared(context, placement, faults);
    for stage in placement.all_stages() {
        let homes = [stage.offload, stage.optimizer.map(|socket| context.hardware.devices()[socket].memory)];
        let streamed = match stage.weights {
            Weights::Streamed(memory) => Some(memory),
            Weights::Resident => None,
        };
        for home in homes.into_iter().flatten().chain(streamed) {
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

/// Stages with layers that use the same parameters can reach each other, both ways.
fn check_shared(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let device = |stage: &Stage| &context.hardware.devices()[stage.device];
    let trains = context.workload().mode == Mode::Train;
    let moves = |stage: &&Stage| match placement.system.family() {
        Family::Pipeline => trains,
        Family::Rounds => trains && matches!(stage.weights, Weights::Resident),
        _ => false,
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

/// What each memory must hold fits, a DRAM and its pageable view together.
fn check_memory(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let mut pools = Footprint::new();
    for (memory, stages) in footprint(context, placement) {
        stages.into_iter().for_each(|need| add(&mut pools, context.hardware.pool(memory), need));
    }
    for (id, stages) in pools {
        let memory = &context.hardware.memories()[id];
        let usable = memory.usable();
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
                .hint(advice(&stages, context.workload().mode == Mode::Train)),
            );
        }
    }
}

/// What would help most: the largest part of the need that a plan can change.
fn advice(stages: &std::collections::BTreeMap<StageId, crate::StageFootprint>, training: bool) -> String {
    let sum = |part: fn(&crate::StageFootprint) -> Bytes| stages.values().map(part).sum::<Bytes>();
    let (state, activations) = (sum(|stage| stage.state), sum(|stage| stage.per_microbatch * stage.in_flight));
    if activations > state {
        format!("activations hold {activations} of it: recompute more layers, or use a smaller microbatch")
    } else {
        let what = if training { "parameters, gradients and optimizer state" } else { "parameters and caches" };
        format!("{what} hold {state} of it: move layers to another device")
    }
}
