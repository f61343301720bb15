//! Room for what has changed: what else a device holds leaves it until everything fits, or comes back where there is room.

use crate::{
    candidates::repair::left,
    space::stage_edits::{saved_in_host, stepped_on_socket},
};
use fastrand::Rng;
use spipe_base::{DeviceId, StageId};
use spipe_plan::{Context, Placement, Stage, footprint};

/// How often steps make room where what is saved could as well: sockets have little time for them.
const STEPS: f64 = 0.25;

/// What leaves a device or comes back.
type Change = (StageId, Stage);

/// `placement` with stages of each GPU that has too little room, drawn at random, that leave some of what they hold; none where that is not
/// enough. `host_offload` says whether the host may take it, otherwise it is computed again.
pub(crate) fn made(
    (context, host_offload): (&Context<'_>, bool),
    placement: Placement,
    random: &mut Rng,
) -> Option<Placement> {
    let mut all = placement;
    let full = |all: &Placement| -> Option<DeviceId> {
        let needs = footprint(context, all);
        all.devices().into_iter().find(|device| left(context, &needs, *device).is_none())
    };
    while let Some(device) = full(&all) {
        let steps = |(id, stage): &Change| stage.optimizer != all.stages[*id].optimizer;
        let (steps, saved): (Vec<Change>, Vec<Change>) =
            leaving((context, host_offload), &all, device).into_iter().partition(steps);
        let steps_first = random.f64() < STEPS;
        let [one, other] = if steps_first { [steps, saved] } else { [saved, steps] };
        let (id, stage) = random.choice(one).or_else(|| random.choice(other))?;
        all.stages[id] = stage;
    }
    Some(all)
}

/// `placement` with something more on one GPU that has room for it, if there is any.
pub(crate) fn used(context: &Context<'_>, placement: Placement, random: &mut Rng) -> Placement {
    let device = placement.stages[StageId::from(random.usize(..placement.stages.len()))].device;
    let mut back = coming_back(&placement, device);
    random.shuffle(&mut back);
    let with = |(id, stage): Change| {
        let mut all = placement.clone();
        all.stages[id] = stage;
        all
    };
    let fits = |all: &Placement| left(context, &footprint(context, all), device).is_some();
    back.into_iter().map(with).find(fits).unwrap_or(placement)
}

/// What may leave a device.
fn leaving((context, host_offload): (&Context<'_>, bool), placement: &Placement, device: DeviceId) -> Vec<Change> {
    if context.is_cpu(device) {
        return Vec::new();
    }
    let own = placement.stages.enumerate().filter(|(_, stage)| stage.device == device);
    let of = |(id, stage): (StageId, &Stage)| -> Vec<Change> {
        let saves = stage.offload.is_none() && stage.recomputed < stage.layers.count();
        let saved = match saves {
            true if host_offload => saved_in_host(context, stage),
            true => Some(stage.with_everything_recomputed()),
            false => None,
        };
        let stepped = if host_offload && stage.optimizer.is_none() { stepped_on_socket(context, stage) } else { None };
        [saved, stepped].into_iter().flatten().map(|stage| (id, stage)).collect()
    };
    own.flat_map(of).collect()
}

/// What may come back to a device.
fn coming_back(placement: &Placement, device: DeviceId) -> Vec<Change> {
    let own = placement.stages.enumerate().filter(|(_, stage)| stage.device == device);
    let of = |(id, stage): (StageId, &Stage)| -> Vec<Change> {
        let saved = (stage.offload.is_some() || stage.recomputed > 0)
            .then(|| Stage { offload: None, ..stage.with_recomputed(0) });
        let stepped = stage.optimizer.is_some().then_some(Stage { optimizer: None, ..*stage });
        [saved, stepped].into_iter().flatten().map(|stage| (id, stage)).collect()
    };
    own.flat_map(of).collect()
}
