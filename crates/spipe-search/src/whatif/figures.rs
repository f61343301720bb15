//! The figures of a plan on a machine of a sweep.

use crate::{error::SearchError, evaluator::program, search::found::Found};
use spipe_base::{LaneRole, SimTime};
use spipe_plan::Plan;
use spipe_schedule::{Program, shown_by};
use spipe_sim::{Options, simulate};
use spipe_trace::{Metrics, Trace};
use spipe_whatif::Planned;
use std::collections::{BTreeMap, BTreeSet};

/// The names of the engines that run a plan, whose program is given.
pub type Engines = Box<dyn Fn(&Plan, &Program) -> Vec<String> + Send + Sync>;

/// The figures of a plan, from its simulation, with the trace.
pub fn planned(found: &Found, engines: &Engines) -> Result<(Planned, Trace), SearchError> {
    let program = program(&found.plan)?;
    let trace = simulate(&program, &Options::default()).trace;
    let metrics = Metrics::of(&trace);
    let context = found.plan.context();
    let seconds = metrics.iteration.to_seconds().get();
    let share =
        |time: SimTime| if metrics.iteration == SimTime::ZERO { 0.0 } else { time.to_ms() / metrics.iteration.to_ms() };
    let devices = context.hardware.devices();
    let mut shares = BTreeMap::new();
    let (mut gpus, mut cores) = (0.0, 0.0);
    let mut computers = BTreeSet::new();
    for (lane, busy) in &metrics.busy {
        let own = &trace.lanes[lane.index()];
        let share = share(*busy).min(1.0);
        shares.insert(own.name.clone(), share);
        let Some(id) = context.hardware.device(&own.device) else { continue };
        computers.insert(devices[id].node);
        if devices[id].is_gpu() && own.role == LaneRole::Compute {
            gpus += share * shown_by(&context, &found.solution.placement, id).len() as f64;
        } else if devices[id].is_socket() {
            cores += share;
        }
    }
    let gpu_count = devices.iter().filter(|device| device.is_gpu()).count().max(1) as f64;
    // The computers of the other replicas do the same as those that the program has.
    let sockets = devices.iter().filter(|device| device.is_socket() && computers.contains(&device.node));
    let sockets = sockets.count().max(1) as f64;
    let usable = |name: &str| context.hardware.memory(name).map(|id| context.hardware.memories()[id].usable());
    let peaks: BTreeMap<String, u64> = metrics.peaks.iter().map(|(name, peak)| (name.clone(), peak.get())).collect();
    let room =
        metrics.peaks.iter().filter_map(|(name, peak)| Some((name.clone(), usable(name)?.saturating_sub(*peak).get())));
    let planned = Planned {
        tokens_per_second: context.cost.whole_workload().tokens() as f64 / seconds,
        iteration_ms: metrics.iteration.to_ms(),
        system: found.solution.placement.system.to_string(),
        gap: Some(found.solution.gap),
        gpu_share: (gpus / gpu_count).min(1.0),
        core_share: (cores / sockets).min(1.0),
        head_room_bytes: room.collect(),
        peak_bytes: peaks,
        engines: Some(engines(&found.plan, &program)),
        runtime: Some(context.hardware.runtime().name().into()),
        estimate: found.plan.is_estimate(),
        shares,
    };
    Ok((planned, trace))
}
