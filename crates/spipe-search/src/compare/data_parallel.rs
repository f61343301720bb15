//! The figures of the baseline beside systems: plain data parallelism in closed form.

use super::{
    figures::{Compared, Status, host_traffic, utilisation},
    tensor_data::{Priced, data_parallel},
};
use crate::setting::Setting;
use spipe_base::Bytes;
use spipe_cost::{Mode, ParallelCost, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use std::{collections::BTreeMap, sync::Arc};

/// The kind of its figures.
const ESTIMATE: &str =
    "baseline: the estimate of a closed form in which nothing overlaps, without plan, trace or export";

/// The fastest that fits, over all sizes of microbatches and choices of recompute.
pub fn baseline(model: &Arc<Model>, hardware: &Arc<Hardware>, workloads: &[Workload]) -> Compared {
    let refused = |reason| Compared::baseline(Status::Infeasible, reason);
    match data_parallel((model.as_ref(), hardware.as_ref()), workloads) {
        Ok(Priced { workload, cost, .. }) if cost.fits() => priced((model, hardware), &workload, &cost),
        Ok(Priced { cost, .. }) => refused(format!("each GPU needs at least {}, and has {}", cost.memory, cost.usable)),
        Err(reason) => refused(reason),
    }
}

fn priced((model, hardware): (&Arc<Model>, &Arc<Hardware>), workload: &Workload, cost: &ParallelCost) -> Compared {
    let seconds = cost.iteration.get();
    let gpus = || hardware.devices().iter().filter(|device| device.is_gpu());
    let peaks = gpus().map(|gpu| (hardware.memories()[gpu.memory].name.clone(), cost.memory));
    let links = link_bytes(model, hardware, workload);
    Compared {
        peak_bytes: peaks.collect(),
        iteration_ms: Some(cost.iteration.to_ms()),
        tokens_per_second: (seconds > 0.0).then(|| workload.tokens() as f64 / seconds),
        // GPUs compute and step; they wait for each other's gradients.
        bubble_fraction: (seconds > 0.0).then(|| cost.data_reduction.get() / seconds),
        host_traffic: Some(host_traffic(hardware, &links)),
        link_bytes: links,
        utilisation: utilisation((model, hardware), workload, seconds),
        microbatch: Some(workload.microbatch),
        runtime: Some(hardware.runtime().name().into()),
        ..Compared::baseline(Status::Feasible, ESTIMATE.into())
    }
}

/// The bytes of one ring all-reduce of the gradients: each GPU sends 2(n − 1)/n of them to the next.
fn link_bytes(model: &Arc<Model>, hardware: &Arc<Hardware>, workload: &Workload) -> BTreeMap<String, Bytes> {
    let mut all = BTreeMap::new();
    let gpus: Vec<_> = hardware.devices().enumerate().filter(|(_, device)| device.is_gpu()).collect();
    let Some((first, _)) = gpus.first().filter(|_| gpus.len() > 1 && workload.mode == Mode::Train) else { return all };
    let Ok(setting) = Setting::new(model, hardware, workload) else { return all };
    let cost = setting.table();
    let gradients: Bytes = cost.layers().map(|layer| cost.memory(layer, *first).gradients).sum();
    let sent = Bytes::new(gradients.get() / gpus.len() as u64 * 2 * (gpus.len() as u64 - 1));
    for ((_, from), (_, to)) in gpus.iter().zip(gpus.iter().cycle().skip(1)) {
        for link in hardware.route(from.memory, to.memory).into_iter().flat_map(|route| &route.links) {
            *all.entry(hardware.links()[*link].name.clone()).or_insert(Bytes::ZERO) += sent;
        }
    }
    all
}
