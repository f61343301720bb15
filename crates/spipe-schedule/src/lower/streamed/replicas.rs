//! Replicas of streamed chunks: each streams from the host memory near it, and they sum their gradients on devices.
//!
//! ```text
//! replica 0   backward, last microbatch ─► reduce-scatter ─► all-gather ─► gradients out ─► step on its host
//! replica 1   backward, last microbatch ─► reduce-scatter ─► all-gather ─► gradients out ─► step on its host
//! ```
//!
//! A chunk's gradients are summed once, when its last backward has ended, while devices go on with the chunk before it. Each
//! replica has a copy of parameters and state, and steps all of it: the copies stay alike, since their gradients are.

use super::{StreamedLowering, Visit};
use crate::{Access, Lifetime, NewAction, Part, ProgramBuilder};
use spipe_base::{ActionKind, BufferId, Collective, Faults, LaneRole, SimTime, Subject};
use spipe_hardware::CollectiveKind;
use spipe_plan::shard;

/// Adds the sums of all gradients over replicas, those of the last chunk first.
pub(super) fn sum_gradients(replicas: &mut [StreamedLowering<'_>], builder: &mut ProgramBuilder) -> Result<(), Faults> {
    let chunks = replicas.first().filter(|first| first.summed).map_or(0, |first| first.spec.backward.len());
    for chunk in (0..chunks).rev() {
        let this = Visit { backward: true, chunk };
        let own = |one: &StreamedLowering<'_>| one.gradients.get(&chunk).copied().filter(|_| one.chunk(this).trains);
        let tied = |one: &StreamedLowering<'_>| one.tied_gradients.get(&chunk).copied();
        let all: [Option<Vec<BufferId>>; 2] = [replicas.iter().map(own).collect(), replicas.iter().map(tied).collect()];
        for buffers in all.into_iter().flatten() {
            sum(replicas, builder, (this, &buffers))?;
        }
    }
    Ok(())
}

/// Adds the all-reduce of one tensor of each replica.
fn sum(
    replicas: &mut [StreamedLowering<'_>],
    builder: &mut ProgramBuilder,
    (this, buffers): (Visit, &[BufferId]),
) -> Result<(), Faults> {
    let parts: Vec<Access> = replicas
        .iter()
        .zip(buffers)
        .map(|(one, buffer)| {
            let holders = one.links.holders();
            let part = Part { index: one.replica as u32, of: holders as u32 };
            let (content, memory) = (builder.content_of(*buffer), builder.memory_of(one.chunk(this).device));
            let held = (shard(builder.bytes_of(*buffer), holders), Lifetime::Transient);
            Access::new(builder.part(part, content, memory, held), 1)
        })
        .collect();
    let complete: Vec<Access> = replicas.iter().zip(buffers).map(|(one, buffer)| one.complete(*buffer)).collect();
    let before: Vec<Access> = complete.iter().map(|sum| Access::new(sum.buffer, sum.version - 1)).collect();
    let steps = [
        (CollectiveKind::ReduceScatter, Collective::ReduceScatter, &before, &parts),
        (CollectiveKind::AllGather, Collective::AllGather, &parts, &complete),
    ];
    for (kind, collective, from, to) in steps {
        for (one, write) in replicas.iter().zip(to) {
            let (device, layers) = (one.chunk(this).device, one.chunk(this).layers);
            let bytes = builder.bytes_of(buffers[one.replica]);
            let flows = one.links.collective(device, (kind, bytes))?;
            let lane = builder.lane(device, "collective", LaneRole::Channel);
            builder.action(NewAction {
                lane,
                kind: ActionKind::Collective(collective),
                subject: Subject { layers: Some(layers), ..Subject::stage(one.stage(this)) },
                reads: from.clone(),
                writes: vec![*write],
                work: SimTime::ZERO,
                flows,
                guard: None,
            });
        }
    }
    Ok(())
}
