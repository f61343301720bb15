//! What a plan would gain from a tenth more of each resource: found out by planning again.

use crate::{
    Failure,
    planning::{self, Found, Request},
    tables::{signed_percent, table},
};
use spipe_base::{Bytes, BytesPerSecond, FlopsPerSecond, ParamsPerSecond, Seconds, SimTime};
use spipe_cost::Workload;
use spipe_hardware::{Hardware, HardwareFile};
use spipe_plan::{Gain, Outcome, Placement, Plan};
use spipe_planner::Solution;

/// How much more there is of a resource, as a fraction.
const MORE: f64 = 0.1;

/// A resource by name, and how to have more of it.
type Resource = (&'static str, fn(&mut HardwareFile));

/// Memory of GPUs, capacity of DRAM and its bandwidth, bandwidth of links, and peak arithmetic. Measured times of layers stay what they are.
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

/// With what it bounds: steps of optimizers on sockets.
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

/// Plans again with more of each resource, starting from the plan that is there, which comes back with what each gains.
///
/// Every plan that is found is tried with and without each resource, so that nothing counts as a gain of a resource that can be had
/// without it: a plan that is faster on the machine as it is takes the place of the one that was there. More of a resource is never a
/// loss, because it need not be used.
pub fn with_gains(request: &Request<'_>, found: Found) -> Result<Found, Failure> {
    let larger = RESOURCES.iter().map(|(_, change)| {
        let mut file = request.hardware.file().clone();
        change(&mut file);
        Hardware::from_file(&file.name.clone(), file)
    });
    let larger: Vec<Hardware> = larger.collect::<Result<_, _>>()?;
    let start = Some(found.solution.placement.clone());
    let again = |hardware| planning::search(&Request { hardware, start: start.clone(), ..request.clone() }).ok();
    let plan = |found: &Found| (*found.plan.context().workload(), found.solution.placement.clone());
    let plans: Vec<(Workload, Placement)> =
        std::iter::once(plan(&found)).chain(larger.iter().filter_map(again).map(|found| plan(&found))).collect();
    let fastest = |hardware: &Hardware| {
        let time = |(workload, placement): &(Workload, Placement)| {
            planning::time((request.model, hardware), workload, placement)
        };
        let timed = plans.iter().enumerate().filter_map(|(index, plan)| Some((time(plan)?, index)));
        timed.min()
    };
    let found = match fastest(request.hardware) {
        Some((simulated, index)) if simulated < found.solution.simulated => {
            let (workload, placement) = plans[index].clone();
            let bound = found.solution.bound.min(simulated);
            let gap = planning::gap(simulated, bound);
            let solution = Solution { placement, simulated, bound, gap, ..found.solution };
            planning::found(request, workload, solution)?
        }
        _ => found,
    };
    let before = found.solution.simulated;
    let gain = |((name, _), hardware): (&Resource, &Hardware)| {
        let after = fastest(hardware).map_or(before, |(time, _)| time.min(before));
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

/// The gains for people.
pub fn describe(gains: &[Gain]) -> String {
    let mut rows = table(&["10 % more of", "iteration", "tokens per second"], &[1, 2]);
    for gain in gains {
        let name = match gain.resource.as_str() {
            "vram" => "GPU memory",
            "dram" => "DRAM",
            "dram-bandwidth" => "bandwidth of DRAM",
            "pcie" => "bandwidth of links",
            _ => "arithmetic",
        };
        rows.add_row(vec![
            name.into(),
            format!("{:.3}", Seconds::new(gain.iteration_ms / 1e3).unwrap_or(Seconds::ZERO)),
            signed_percent(gain.speedup - 1.0),
        ]);
    }
    format!("{rows}\n")
}
