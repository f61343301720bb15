//! What a plan would gain from a tenth more of each resource: found out by planning again.

use crate::{
    Failure,
    planning::{self, Found, Request},
    tables::{signed_percent, table},
};
use spipe_base::{Bytes, BytesPerSecond, FlopsPerSecond};
use spipe_hardware::{Hardware, HardwareFile};
use spipe_plan::Gain;

/// How much more there is of a resource, as a fraction.
const MORE: f64 = 0.1;

/// A resource by name, and how to have more of it.
type Resource = (&'static str, fn(&mut HardwareFile));

/// Memory of GPUs, capacity of DRAM, bandwidth of links, and peak arithmetic. Measured times of layers stay what they are.
const RESOURCES: [Resource; 4] = [("vram", vram), ("dram", dram), ("pcie", pcie), ("flops", flops)];

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

/// Plans again with more of each resource, starting from the plan that is there.
pub fn gains(request: &Request<'_>, found: &Found) -> Result<Vec<Gain>, Failure> {
    let before = found.solution.simulated.to_ms();
    let gain = |(name, change): &Resource| {
        let mut file = request.hardware.file().clone();
        change(&mut file);
        let hardware = Hardware::from_file(&file.name.clone(), file)?;
        let start = Some(found.solution.placement.clone());
        let again = planning::search(&Request { hardware: &hardware, start, ..request.clone() })?;
        let after = again.solution.simulated.to_ms();
        Ok(Gain {
            resource: (*name).into(),
            more: MORE,
            iteration_ms: after,
            speedup: if after > 0.0 { before / after } else { 1.0 },
        })
    };
    RESOURCES.iter().map(gain).collect()
}

/// The gains for people.
pub fn describe(gains: &[Gain]) -> String {
    let mut rows = table(&["10 % more of", "iteration", "tokens per second"], &[1, 2]);
    for gain in gains {
        let name = match gain.resource.as_str() {
            "vram" => "GPU memory",
            "dram" => "DRAM",
            "pcie" => "bandwidth of links",
            _ => "arithmetic",
        };
        rows.add_row(vec![name.into(), format!("{:.3} ms", gain.iteration_ms), signed_percent(gain.speedup - 1.0)]);
    }
    format!("{rows}\n")
}
