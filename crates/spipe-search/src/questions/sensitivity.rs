//! Sensitivity: the gain from 10 % more of each resource, found by planning again.

use crate::{
    error::SearchError,
    request::{Request, machine::Machine},
    search::{
        found::{End, Found, gap},
        search,
    },
    setting::Setting,
};
use spipe_base::{Bytes, BytesPerSecond, FlopsPerSecond, ParamsPerSecond, SimTime};
use spipe_cost::Workload;
use spipe_hardware::HardwareFile;
use spipe_plan::{Gain, Outcome, Placement, Plan};
use spipe_planner::Solution;

/// The enlargement of a resource, as a fraction.
const MORE: f64 = 0.1;

/// A resource: its name, and the change of a machine that has more of it.
type Resource = (&'static str, fn(&mut HardwareFile));

/// The resources. Measured times of layers are left as they are.
const RESOURCES: [Resource; 5] =
    [("vram", vram), ("dram", dram), ("dram-bandwidth", dram_bandwidth), ("pcie", pcie), ("flops", flops)];

fn more(bytes: Bytes) -> Bytes {
    Bytes::new((bytes.as_f64() * (1.0 + MORE)) as u64)
}

fn faster(rate: BytesPerSecond) -> BytesPerSecond {
    BytesPerSecond::new(rate.get() * (1.0 + MORE)).unwrap_or(rate)
}

fn vram(file: &mut HardwareFile) {
    for gpu in &mut file.gpu {
        gpu.memory.0 = more(gpu.memory.0);
    }
}

fn dram(file: &mut HardwareFile) {
    for socket in &mut file.socket {
        socket.dram.capacity.0 = more(socket.dram.capacity.0);
    }
}

/// The bandwidth of DRAM, and the rate of optimizers on sockets, which it bounds.
fn dram_bandwidth(file: &mut HardwareFile) {
    for socket in &mut file.socket {
        let rate = &mut socket.optimizer_rate.0;
        *rate = ParamsPerSecond::new(rate.get() * (1.0 + MORE)).unwrap_or(*rate);
        let dram = &mut socket.dram;
        for rate in std::iter::once(&mut dram.bandwidth).chain(&mut dram.pageable_bandwidth) {
            rate.0 = faster(rate.0);
        }
    }
}

fn pcie(file: &mut HardwareFile) {
    for link in &mut file.link {
        for rate in [&mut link.up, &mut link.down, &mut link.bandwidth].into_iter().flatten() {
            rate.0 = faster(rate.0);
        }
    }
}

fn flops(file: &mut HardwareFile) {
    let devices = file.gpu.iter_mut().map(|gpu| (&mut gpu.peak, &mut gpu.matmul));
    let sockets = file.socket.iter_mut().map(|socket| (&mut socket.peak, &mut socket.matmul));
    let higher = |rate: &mut FlopsPerSecond| *rate = FlopsPerSecond::new(rate.get() * (1.0 + MORE)).unwrap_or(*rate);
    for (peak, matmul) in devices.chain(sockets) {
        peak.values_mut().for_each(|rate| higher(&mut rate.0));
        matmul.values_mut().flatten().for_each(|(_, rate)| higher(&mut rate.0));
    }
}

/// Plans again with more of each resource, starting from `found`, and returns it with the gain of
/// each.
///
/// Every plan found on the way is evaluated on all machines. So a gain that is possible without the
/// resource does not count for it: a plan that is faster on the machine as it is replaces `found`.
/// The gain is never negative, since a resource need not be used.
///
/// # Errors
/// A larger machine is not valid.
pub fn with_gains(request: &Request, found: Found) -> Result<Found, SearchError> {
    let larger = RESOURCES.iter().map(|(_, change)| {
        request.machine.changed(|hardware| {
            let mut file = hardware.file().clone();
            change(&mut file);
            hardware.changed(file)
        })
    });
    let larger: Vec<Machine> = larger.collect::<Result<_, _>>()?;
    let start = Some(found.solution.placement.clone());
    let again = |machine: &Machine| {
        let machine = machine.clone();
        search(&Request { machine, start: start.clone(), watch: None, hint: false, ..request.clone() }).ok()
    };
    let plan = |found: &Found| (*found.plan.context().workload(), found.solution.placement.clone());
    let plans: Vec<(Workload, Placement)> =
        std::iter::once(plan(&found)).chain(larger.iter().filter_map(again).map(|found| plan(&found))).collect();
    let fastest = |machine: &Machine| {
        let iteration = |(workload, placement): &(Workload, Placement)| time(request, machine, workload, placement);
        let timed = plans.iter().enumerate().filter_map(|(index, plan)| Some((iteration(plan)?, index)));
        timed.min()
    };
    let found = match fastest(&request.machine) {
        Some((simulated, index)) if simulated < found.solution.simulated => {
            let (workload, placement) = plans[index].clone();
            let bound = found.solution.bound.min(simulated);
            let gap = gap(simulated, bound);
            let solution = Solution { placement, simulated, bound, gap, ..found.solution };
            Found::new(request, &request.machine, workload, End { solution, ended: found.ended, fastest: None })?
        }
        _ => found,
    };
    let before = found.solution.simulated;
    let gain = |((name, _), machine): (&Resource, &Machine)| {
        let after = fastest(machine).map_or(before, |(time, _)| time.min(before));
        Gain {
            resource: (*name).into(),
            more: MORE,
            iteration_ms: after.to_ms(),
            speedup: if after > SimTime::ZERO { before.to_ms() / after.to_ms() } else { 1.0 },
        }
    };
    let sensitivity = RESOURCES.iter().zip(&larger).map(gain).collect();
    let outcome = found.plan.outcome().cloned().map(|outcome| Outcome { sensitivity, ..outcome });
    let plan = outcome.into_iter().fold(found.plan, Plan::with_outcome);
    Ok(Found { plan, ..found })
}

/// The simulated iteration of a placement that is accepted and runs on a machine.
fn time(request: &Request, machine: &Machine, workload: &Workload, placement: &Placement) -> Option<SimTime> {
    let setting = Setting::new(&request.model, machine.of(placement.system), workload).ok()?;
    setting.evaluator().checked_iteration(placement)
}
