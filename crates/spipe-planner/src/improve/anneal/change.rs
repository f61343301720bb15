//! Small changes of a placement, drawn at random.

use crate::{
    hosts::elsewhere,
    problem::{LARGEST_HEAD_START, MOST_OFFLOAD_SLOTS},
};
use crate::{
    hosts::exchanged,
    improve::{first_on_sockets, left_out, moved_stages, socket_boundary},
    space::stage_edits::{over, saved_elsewhere, stepped_elsewhere},
};
use fastrand::Rng;
use spipe_base::{DeviceId, StageId};
use spipe_plan::{Context, FEWEST_OFFLOAD_SLOTS, Knobs, Placement, Stage, System};

/// How many layers cross a boundary.
const CROSSING: [usize; 3] = [1, 1, 2];

/// `placement` with one change, most of them of that stage; none where what was drawn cannot be changed. `host_offload` says whether the host may do
/// something for stages on GPUs.
pub(crate) fn changed(
    (context, host_offload): (&Context<'_>, bool),
    (placement, id): (&Placement, StageId),
    random: &mut Rng,
) -> Option<Placement> {
    let stage = placement.stages[id];
    let with = |stage: Stage| {
        let mut other = placement.clone();
        other.stages[id] = stage;
        other
    };
    let host_offloads = host_offload && !context.is_cpu(stage.device);
    match random.u32(..100) {
        0..30 if host_offloads => saved_elsewhere(context, &stage).map(with),
        30..50 if host_offloads => stepped_elsewhere(context, &stage).map(with),
        50..60 if host_offloads => random.choice(elsewhere(context, &stage)).map(with),
        60..75 => other_choice((placement, id), random),
        75..80 => Some(placement.clone().with_knobs(other_knobs(placement, random))),
        80..85 => moved_layers((placement, id), random),
        85..87 => swapped(context, (placement, id), random),
        87..89 => random.choice(socket_boundary::changed(context, placement, host_offload)),
        89..91 => {
            let moved = random.choice(moved_stages(context, &placement.stages))?;
            Some(Placement { stages: moved.into_iter().collect(), ..placement.clone() })
        }
        91..93 => {
            let moved = random.choice(first_on_a_socket_or_back(context, placement))?;
            Some(Placement { stages: moved.into_iter().collect(), ..placement.clone() })
        }
        _ => Some(with(stage.with_recomputed(random.usize(..=stage.layers.count())))),
    }
}

/// The first stage on each socket that has none; or, if it is the only one of a socket, on the device of the next one.
fn first_on_a_socket_or_back(context: &Context<'_>, placement: &Placement) -> Vec<Vec<Stage>> {
    let now = placement.stages[StageId::new(0)].device;
    let back =
        left_out(context, &placement.stages).into_iter().filter(|all| context.is_cpu(now) && all[0].device != now);
    back.chain(first_on_sockets(context, &placement.stages)).collect()
}

/// What a device has on another one and the other way round, with what both have on the host near them.
fn swapped(context: &Context<'_>, (placement, id): (&Placement, StageId), random: &mut Rng) -> Option<Placement> {
    let here = placement.stages[id].device;
    let others = placement
        .devices()
        .into_iter()
        .filter(|other| *other != here && context.is_cpu(*other) == context.is_cpu(here));
    let there = random.choice(others.collect::<Vec<_>>())?;
    let instead = |device: DeviceId| match device {
        device if device == here => there,
        device if device == there => here,
        device => device,
    };
    Some(exchanged(context, placement, &instead))
}

/// What is chosen for a stage and for another one of its device with as many layers exchanged.
fn other_choice((placement, id): (&Placement, StageId), random: &mut Rng) -> Option<Placement> {
    let stage = placement.stages[id];
    let like = |(other, stage_of): &(StageId, &Stage)| {
        *other != id && stage_of.device == stage.device && stage_of.layers.count() == stage.layers.count()
    };
    let others: Vec<StageId> = placement.stages.enumerate().filter(like).map(|(id, _)| id).collect();
    let other = random.choice(others)?;
    let mut all = placement.clone();
    all.stages[id] = Stage { layers: stage.layers, ..placement.stages[other] };
    all.stages[other] = Stage { layers: placement.stages[other].layers, ..stage };
    Some(all)
}

/// Some layers of a stage in the next one, or the other way round.
fn moved_layers((placement, id): (&Placement, StageId), random: &mut Rng) -> Option<Placement> {
    let next_id = StageId::from(id.index() + 1);
    let here = &placement.stages[id];
    let next = placement.stages.as_slice().get(next_id.index())?;
    let (first, end, last) = (here.layers.first().index(), next.layers.first().index(), next.layers.last().index());
    let by = random.choice(CROSSING)?;
    let end = if random.bool() { end.checked_sub(by)? } else { end + by };
    (end > first && end <= last).then(|| {
        let mut all = placement.clone();
        all.stages[id] = over(here, first, end);
        all.stages[next_id] = over(next, end, last + 1);
        all
    })
}

/// Another head start, other slots for what is offloaded, or steps in the other order.
fn other_knobs(placement: &Placement, random: &mut Rng) -> Knobs {
    let knobs = placement.knobs;
    match random.u32(..3) {
        0 if placement.system == System::Hybrid => Knobs { head_start: random.u64(..=LARGEST_HEAD_START), ..knobs },
        0 | 1 => {
            let slots = random.u64(FEWEST_OFFLOAD_SLOTS..=MOST_OFFLOAD_SLOTS);
            Knobs { offload_slots: Some(slots).filter(|slots| *slots > FEWEST_OFFLOAD_SLOTS), ..knobs }
        }
        _ => Knobs { urgent_steps: !knobs.urgent_steps, ..knobs },
    }
}
