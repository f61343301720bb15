//! Plain data parallelism on a machine of a sweep.

use crate::compare::DATA_PARALLEL;
use spipe_base::Bytes;
use spipe_cost::{Parallelism, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Recompute};
use spipe_whatif::Planned;
use std::collections::BTreeMap;

/// Plain data parallelism over all GPUs, in closed form, if it fits.
pub fn data_parallel(model: &Model, workloads: &[Workload], hardware: &Hardware) -> Option<Planned> {
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count() as u64;
    if gpus == 0 {
        return None;
    }
    let spreads = Recompute::ALL.into_iter().map(|recompute| Parallelism { tensor: 1, data: gpus, recompute });
    let costs = spreads.flat_map(|spread| {
        let cost = move |workload: &Workload| Some((*workload, spread.cost(model, hardware, workload).ok()?));
        workloads.iter().filter_map(cost)
    });
    let fitting = costs.filter(|(_, cost)| cost.fits() && cost.iteration.get() > 0.0);
    let (workload, cost) = fitting.min_by(|left, right| left.1.iteration.cmp(&right.1.iteration))?;
    let share = |part: spipe_base::Seconds| part.get() / cost.iteration.get();
    let busy = share(cost.compute) + share(cost.optimizer);
    let memories = || {
        hardware
            .devices()
            .iter()
            .filter(|device| device.is_gpu())
            .map(|device| hardware.memories()[device.memory].name.clone())
    };
    let free: Bytes = cost.usable.saturating_sub(cost.memory);
    Some(Planned {
        tokens_per_second: workload.tokens() as f64 / cost.iteration.get(),
        iteration_ms: cost.iteration.to_ms(),
        system: DATA_PARALLEL.into(),
        closed_form: true,
        gap: None,
        shares: BTreeMap::from([("GPU compute".into(), busy), ("gradients".into(), share(cost.data_reduction))]),
        gpu_share: busy.min(1.0),
        core_share: 0.0,
        head_room_bytes: memories().map(|name| (name, free.get())).collect(),
        peak_bytes: memories().map(|name| (name, cost.memory.get())).collect(),
    })
}
