//! Plain data parallelism in closed form: every GPU holds the whole model, and the GPUs share the
//! sequences.

use super::figures::{Compared, Status, host_traffic, utilisation};
use crate::setting::Setting;
use spipe_base::Bytes;
use spipe_cost::{Mode, ParallelCost, Parallelism, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Recompute};
use std::{collections::BTreeMap, sync::Arc};

/// The name of plain data parallelism, which is no system of plans.
pub const DATA_PARALLEL: &str = "data-parallel";

/// The fastest that fits, over all sizes of microbatches and choices of recompute.
pub fn data_parallel(model: &Arc<Model>, hardware: &Arc<Hardware>, workloads: &[Workload]) -> Compared {
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count() as u64;
    if gpus == 0 {
        return Compared::bare(DATA_PARALLEL, Status::Infeasible, Some("the machine has no GPU".into()));
    }
    let (mut best, mut least, mut refused) = (None::<(ParallelCost, &Workload)>, None::<ParallelCost>, None);
    for workload in workloads {
        let choices = if workload.mode == Mode::Train { Recompute::ALL.to_vec() } else { vec![Recompute::None] };
        for recompute in choices {
            match (Parallelism { tensor: 1, data: gpus, recompute }).cost(model, hardware, workload) {
                Ok(cost) if cost.fits() => {
                    let faster = best.as_ref().is_none_or(|(best, _)| cost.iteration < best.iteration);
                    best = if faster { Some((cost, workload)) } else { best };
                }
                Ok(cost) => least = least.filter(|least| least.memory <= cost.memory).or(Some(cost)),
                Err(error) => refused = Some(error.to_string()),
            }
        }
    }
    match (best, least) {
        (Some((cost, workload)), _) => priced((model, hardware), workload, &cost),
        (None, Some(least)) => {
            let reason = format!("each GPU needs at least {}, and has {}", least.memory, least.usable);
            Compared::bare(DATA_PARALLEL, Status::Infeasible, Some(reason))
        }
        (None, None) => Compared::bare(DATA_PARALLEL, Status::Infeasible, refused),
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
        ..Compared::bare(DATA_PARALLEL, Status::Feasible, Some("closed form, nothing overlaps".into()))
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
