//! The short name of a plan, by which traces and checkpoints are known to be of it.

use spipe_plan::{Plan, Stage};

/// Returns a short name of a plan's system, batch and stages, by which a trace is known to be of the plan,
/// whatever order was exported.
pub fn fingerprint(plan: &Plan) -> String {
    let (context, placement) = (plan.context(), plan.placement());
    let (workload, devices) = (context.workload(), context.hardware.devices());
    let mut sum = crc32fast::Hasher::new();
    let mesh = context.mesh();
    if !mesh.is_single() {
        sum.update(format!("{} {} {:?}", mesh.data(), mesh.tensor(), (mesh.sharding.name(), mesh.sequence)).as_bytes());
    }
    let batch = (workload.microbatch, workload.microbatches, workload.seq_len);
    sum.update(format!("{} {batch:?}", placement.name()).as_bytes());
    for Stage { team, layers, recomputed, offload, optimizer, .. } in &placement.stages {
        let (first, last) = (layers.first().index(), layers.last().index());
        let chosen = (first, last, recomputed, offload.is_some(), optimizer.map(|socket| &devices[socket].name));
        sum.update(format!("{} {chosen:?}", devices[team.lead()].name).as_bytes());
    }
    format!("{:08x}", sum.finalize())
}
