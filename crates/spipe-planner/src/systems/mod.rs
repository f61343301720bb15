//! Placements of the systems that have a shape of their own: generated, checked, simulated, and improved step by step.

mod apart;
mod coarse;
mod counted;
mod cuts;
mod exhaust;
mod heuristics;
mod hinted;
mod hosts;
mod kept;
mod levelled;
mod packed;
mod pipelines;
mod refusal;
mod room;
mod rounds;
mod search;
mod shared;
mod staged;

pub(crate) use coarse::coarse;
pub(crate) use exhaust::has_every_knob;
pub(crate) use hosts::{elsewhere, on_socket, shared_out, socket_of, sockets};
pub(crate) use kept::{
    ends, keep, kept, other_ends, stream, streamed, streams, with_least_recompute, with_so_many_recomputed,
};
pub(crate) use refusal::Shortage;
pub(crate) use rounds::{cross_mapped, equally_slow, in_turn};
pub use search::{generated, plan_all};
pub(crate) use shared::{
    busiest as busiest_of_shared, changed as changed_shared, estimate as estimate_of_shared, least as least_of_shared,
    placements as shared_placements, shares,
};

use rayon::prelude::*;
use spipe_base::DeviceId;
use spipe_cost::Mode;
use spipe_plan::{Context, Family, Placement, System};

/// Everything worth trying under `system`: with what is on the host near its device, and where there is a choice shared out over the sockets.
pub fn candidates(context: &Context<'_>, system: System) -> Vec<Placement> {
    if context.workload().mode != Mode::Train && !system.infers() {
        return Vec::new();
    }
    let candidates = match system.family() {
        Family::Pipeline => pipelines::candidates(context, system),
        Family::Rounds => rounds::candidates(context, system),
        Family::Sharded => shared::candidates(context, system),
    };
    let near = candidates.unwrap_or_default();
    let shared: Vec<Placement> = near.par_iter().filter_map(|placement| shared_out(context, placement)).collect();
    let mut all = [near, shared].concat();
    pipelines::leaving_or_not(&mut all);
    all
}

/// The GPUs of the machine.
fn gpus(context: &Context<'_>) -> Vec<DeviceId> {
    context.hardware.devices().enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id).collect()
}

/// The CPU socket nearest to a device.
pub(crate) fn socket(context: &Context<'_>, device: DeviceId) -> Option<DeviceId> {
    let host = context.hardware.host_memory(device)?;
    context.hardware.memories()[host].device.filter(|socket| context.is_cpu(*socket))
}
