//! `spipe hardware`.

use crate::{Failure, args, args::Format, input, market, output, output::Target, tables::table};
use serde::Serialize;
use spipe_base::{Bytes, LinkId, SimTime};
use spipe_export::{Printed, hardware_from_topology};
use spipe_hardware::{Device, DeviceKind, Hardware};
use spipe_market::{Choice, compose};
use spipe_schedule::Share;
use spipe_sim::Transfer;
use std::collections::BTreeMap;

/// Shows a machine, lists the shipped ones, or simulates copies.
pub fn run(what: &args::Hardware, format: Format) -> Result<(), Failure> {
    match what {
        args::Hardware::Show(show) => self::show(show, format),
        args::Hardware::Transfer(transfer) => self::transfer(transfer, format),
        args::Hardware::List => list(format),
        args::Hardware::Import(import) => self::import(import),
    }
}

/// Writes a profile from what tools print about a machine.
fn import(what: &args::HardwareImport) -> Result<(), Failure> {
    let given: Vec<&str> = [Some(&what.topo), what.lscpu.as_ref(), what.numactl.as_ref(), what.like.as_ref()]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let target = Target::beside(&what.output, &given)?;
    let text = |path: Option<&String>| path.map(|path| input::text(path)).transpose();
    let (lscpu, numactl) = (text(what.lscpu.as_ref())?, text(what.numactl.as_ref())?);
    let matrix = input::text(&what.topo)?;
    let (name, like) = rates(what)?;
    let printed = Printed {
        matrix: (&what.topo, &matrix),
        lscpu: lscpu.as_deref(),
        numactl: numactl.as_deref(),
        like: (&name, &like),
        network: what.network.as_deref().map(args::network).transpose()?,
    };
    let stem = std::path::Path::new(&what.output).file_stem().and_then(|stem| stem.to_str()).unwrap_or("machine");
    let profile = hardware_from_topology(&printed, if stem == "-" { "machine" } else { stem })?;
    Hardware::from_toml(&what.output, &profile)?;
    target.write(profile.as_bytes())
}

/// The name and the text of the profile whose rates are taken: the given one, or one GPU of the
/// catalogue on its platform.
fn rates(what: &args::HardwareImport) -> Result<(String, String), Failure> {
    if let Some(like) = &what.like {
        return Ok((like.clone(), input::hardware_text(like)?));
    }
    let platform = what.platform.clone().unwrap_or_default();
    let choice = Choice {
        gpu: what.gpu.clone(),
        gpus: 1,
        platform: platform.clone(),
        dram: what.dram.as_deref().map(|text| market::counted("dram", text)).transpose()?,
        ..Choice::default()
    };
    let machine =
        compose(&market::shipped()?, &choice).map_err(|error| Failure::Arguments(error.diagnostic().into()))?;
    let name = format!("{} and {platform} in the catalogue", what.gpu.as_deref().unwrap_or_default());
    Ok((name, machine.hardware.to_toml()))
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Shown {
    format_version: u32,
    name: String,
    devices: Vec<ShownDevice>,
    memories: Vec<ShownMemory>,
    links: Vec<ShownLink>,
    routes: Vec<ShownRoute>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ShownDevice {
    name: String,
    kind: &'static str,
    emulated: bool,
    memory: String,
    peak_flops_per_second: BTreeMap<String, f64>,
    memory_bandwidth_bytes_per_second: f64,
    launch_floor_us: f64,
    cores: Option<u32>,
    optimizer_params_per_second: Option<f64>,
    source: String,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ShownMemory {
    name: String,
    capacity_bytes: Bytes,
    reserved_bytes: Bytes,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ShownLink {
    name: String,
    bandwidth_bytes_per_second: f64,
    latency_us: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ShownRoute {
    from: String,
    to: String,
    links: Vec<String>,
    latency_us: f64,
    bandwidth_bytes_per_second: Option<f64>,
}

fn show(what: &args::HardwareShow, format: Format) -> Result<(), Failure> {
    let hardware = input::hardware(&what.profile)?;
    let memory_name = |id| hardware.memories()[id].name.clone();
    let data = Shown {
        format_version: 1,
        name: hardware.name().into(),
        devices: hardware.devices().iter().map(|device| shown_device(device, memory_name(device.memory))).collect(),
        memories: hardware
            .memories()
            .iter()
            .map(|memory| ShownMemory {
                name: memory.name.clone(),
                capacity_bytes: memory.capacity,
                reserved_bytes: memory.reserved,
            })
            .collect(),
        links: hardware
            .links()
            .iter()
            .map(|link| ShownLink {
                name: link.name.clone(),
                bandwidth_bytes_per_second: link.bandwidth.get(),
                latency_us: link.latency.get() * 1e6,
            })
            .collect(),
        routes: routes(&hardware),
    };
    output::report(format, &human(&hardware, &data), &data)
}

fn shown_device(device: &Device, memory: String) -> ShownDevice {
    let (kind, cores, optimizer) = match &device.kind {
        DeviceKind::Gpu => ("gpu", None, None),
        DeviceKind::Socket { cores, optimizer_rate, .. } => ("socket", Some(*cores), Some(optimizer_rate.get())),
    };
    ShownDevice {
        name: device.name.clone(),
        kind,
        emulated: device.emulated,
        memory,
        peak_flops_per_second: device.peak.iter().map(|(kind, rate)| (kind.to_string(), rate.get())).collect(),
        memory_bandwidth_bytes_per_second: device.memory_bandwidth.get(),
        launch_floor_us: device.launch_floor.get() * 1e6,
        cores,
        optimizer_params_per_second: optimizer,
        source: device.source.clone(),
    }
}

fn routes(hardware: &Hardware) -> Vec<ShownRoute> {
    let name = |id| hardware.memories()[id].name.clone();
    hardware
        .routes()
        .filter(|(from, to, _)| from != to)
        .map(|(from, to, route)| {
            // A copy within a memory uses its channels twice.
            let rate = |link: &LinkId| {
                let times = route.links.iter().filter(|other| *other == link).count();
                hardware.links()[*link].bandwidth.get() / times as f64
            };
            let slowest = route.links.iter().map(rate).chain(route.rate_cap.map(|rate| rate.get())).reduce(f64::min);
            ShownRoute {
                from: name(from),
                to: name(to),
                links: route.links.iter().map(|link| hardware.links()[*link].name.clone()).collect(),
                latency_us: route.latency.get() * 1e6,
                bandwidth_bytes_per_second: slowest,
            }
        })
        .collect()
}

fn human(hardware: &Hardware, data: &Shown) -> String {
    let mut devices = table(&["device", "memory", "arithmetic", "memory bandwidth", "source"], &[]);
    for device in hardware.devices() {
        let peaks: Vec<String> =
            device.peak.iter().map(|(kind, rate)| format!("{kind} {rate:.1}").replace(".0 ", " ")).collect();
        let name = if device.emulated { format!("{} (emulated)", device.name) } else { device.name.clone() };
        let name = match &device.kind {
            DeviceKind::Socket { cores, .. } => format!("{name} ({cores} cores)"),
            DeviceKind::Gpu => name,
        };
        let memory = &hardware.memories()[device.memory];
        let held = format!("{} {}", memory.name, memory.capacity);
        devices.add_row(vec![name, held, peaks.join(", "), device.memory_bandwidth.to_string(), device.source.clone()]);
    }
    let mut ways = table(&["from", "to", "bandwidth", "latency", "over"], &[2, 3]);
    let rate = |rate: Option<f64>| {
        rate.and_then(spipe_base::BytesPerSecond::new).map_or_else(|| "–".into(), |rate| rate.to_string())
    };
    for route in &data.routes {
        ways.add_row(vec![
            route.from.clone(),
            route.to.clone(),
            rate(route.bandwidth_bytes_per_second),
            format!("{:.1} us", route.latency_us),
            route.links.join(" → "),
        ]);
    }
    let about = hardware.description().map(|text| format!("{text}\n")).unwrap_or_default();
    format!("{}\n{about}\n{devices}\n\n{ways}\n", data.name)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Finished {
    format_version: u32,
    finish_ms: Vec<f64>,
}

fn transfer(what: &args::HardwareTransfer, format: Format) -> Result<(), Failure> {
    let hardware = input::hardware(&what.profile)?;
    let copies: Vec<Transfer> = what.flows.iter().map(|flow| copy(&hardware, flow)).collect::<Result<_, _>>()?;
    let finished = spipe_sim::transfers(&hardware, &copies).map_err(|error| Failure::input(error.into()))?;
    let mut rows = table(&["copy", "started", "finished", "average rate"], &[1, 2, 3]);
    for ((flow, copy), end) in what.flows.iter().zip(&copies).zip(&finished) {
        let took = (*end - copy.start).to_seconds().get();
        let rate = spipe_base::BytesPerSecond::new(copy.bytes.as_f64() / took);
        let rate = rate.map_or_else(|| "–".into(), |rate| rate.to_string());
        rows.add_row(vec![flow.clone(), copy.start.to_string(), format!("{end:.3}"), rate]);
    }
    let data = Finished { format_version: 1, finish_ms: finished.iter().map(|end| end.to_ms()).collect() };
    output::report(format, &format!("{rows}\n"), &data)
}

/// The latest start of a copy, in seconds: the clock counts nanoseconds in 64 bits.
const LATEST: f64 = 1e9;

/// Reads `FROM:TO:BYTES[@START][*WEIGHT][^PRIORITY]`.
fn copy(hardware: &Hardware, flow: &str) -> Result<Transfer, Failure> {
    let bad = |why: String| {
        Failure::argument(
            format!("`{flow}` is not a copy: {why}"),
            "write dram0:gpu0:2GiB, or dram0:gpu0:2GiB@10ms to start it later; append *2 to double its weight, ^1 to raise its priority",
        )
    };
    let unread = |error: spipe_base::ParseQuantityError| bad(error.to_string());
    let path = flow.split(['@', '*', '^']).next().unwrap_or_default();
    let parts: Vec<&str> = path.split(':').collect();
    let [from, to, bytes] = parts[..] else { return Err(bad("it does not have three parts".into())) };
    let memory = |name: &str| {
        let names: Vec<&str> = hardware.memories().iter().map(|memory| memory.name.as_str()).collect();
        hardware
            .memory(name)
            .ok_or_else(|| bad(format!("`{}` has no memory `{name}`, only {}", hardware.name(), names.join(", "))))
    };
    let bytes: Bytes = bytes.parse().map_err(unread)?;
    let mut copy =
        Transfer { from: memory(from)?, to: memory(to)?, bytes, start: SimTime::ZERO, share: Share::default() };
    let mut rest = &flow[path.len()..];
    while let Some(sign) = rest.chars().next() {
        let end = rest[1..].find(['@', '*', '^']).map_or(rest.len(), |end| end + 1);
        let text = &rest[1..end];
        match sign {
            '@' => {
                let start = text.parse::<spipe_base::Seconds>().map_err(unread)?;
                if start.get() > LATEST {
                    return Err(bad(format!("{start} is more than {LATEST} s")));
                }
                copy.start = SimTime::from_seconds(start);
            }
            '*' => {
                let weight = text.parse().map_err(|_| bad(format!("weight `{text}` is not a whole number from 1")))?;
                copy.share.weight = weight;
            }
            _ => {
                let priority =
                    text.parse().map_err(|_| bad(format!("priority `{text}` is not a number from 0 to 255")))?;
                copy.share.priority = priority;
            }
        }
        rest = &rest[end..];
    }
    Ok(copy)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Listed {
    name: String,
    devices: Vec<String>,
}

fn list(format: Format) -> Result<(), Failure> {
    let mut rows = table(&["profile", "GPUs", "sockets", "GPU memory", "DRAM"], &[1, 2, 3, 4]);
    let mut data = Vec::new();
    for (name, _) in spipe_hardware::shipped() {
        let hardware = input::hardware(name)?;
        let is_gpu = |device: &&Device| matches!(device.kind, DeviceKind::Gpu);
        let capacity = |device: &Device| hardware.memories()[device.memory].capacity;
        let gpus = hardware.devices().iter().filter(is_gpu).count();
        let vram: Bytes = hardware.devices().iter().filter(is_gpu).map(capacity).sum();
        let dram: Bytes = hardware.devices().iter().filter(|device| !is_gpu(device)).map(capacity).sum();
        rows.add_row(vec![
            (*name).to_owned(),
            gpus.to_string(),
            (hardware.devices().len() - gpus).to_string(),
            vram.to_string(),
            dram.to_string(),
        ]);
        let devices = hardware.devices().iter().map(|device| device.name.clone()).collect();
        data.push(Listed { name: (*name).into(), devices });
    }
    output::report(format, &format!("{rows}\n"), &data)
}
