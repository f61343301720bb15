//! A measurement of this machine.

use crate::tables::table;
use serde::Serialize;
use spipe_base::{BytesPerSecond, DataType, FlopsPerSecond, readable::percent};
use spipe_exec::{Calibration, Copies, Executor, Measured};
use std::collections::BTreeMap;

/// A measurement for programs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CalibrationOutput {
    format_version: u32,
    took_ms: f64,
    devices: Vec<Device>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Device {
    executor: String,
    matmul_flops_per_second: f64,
    products_flops_per_second: BTreeMap<String, f64>,
    memory_bandwidth_bytes_per_second: f64,
    copy_bytes_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<Link>,
    optimizer_params_per_second: f64,
    launch_floor_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<f64>,
    spread: f64,
}

/// Copies to a device with a memory of its own, and back.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Link {
    pinned_bytes_per_second: [f64; 2],
    pageable_bytes_per_second: [f64; 2],
    run_bytes_per_second: [f64; 2],
}

impl Link {
    fn of(copies: Copies) -> Self {
        let numbers = |rates: [BytesPerSecond; 2]| rates.map(BytesPerSecond::get);
        Self {
            pinned_bytes_per_second: numbers(copies.pinned),
            pageable_bytes_per_second: numbers(copies.pageable),
            run_bytes_per_second: numbers(copies.run),
        }
    }
}

/// The measurement for programs. `name` names the devices.
pub fn data(calibration: &Calibration, name: &dyn Fn(&Executor) -> String) -> CalibrationOutput {
    let best = |device: &Measured, width: DataType| Some((width.to_string(), device.best_rate(width)?.get()));
    let devices = calibration.devices.iter().map(|device| Device {
        executor: name(&device.executor),
        matmul_flops_per_second: device.best_rate(DataType::F32).map_or(0.0, FlopsPerSecond::get),
        products_flops_per_second: device.matmul.keys().filter_map(|width| best(device, *width)).collect(),
        memory_bandwidth_bytes_per_second: device.memory_bandwidth.get(),
        copy_bytes_per_second: device.copy_rate.get(),
        link: device.copies.map(Link::of),
        optimizer_params_per_second: device.optimizer_rate.get(),
        launch_floor_us: device.launch_floor.get() * 1e6,
        round_trip_us: device.round_trip.map(|time| time.get() * 1e6),
        spread: device.spread,
    });
    CalibrationOutput { format_version: 1, took_ms: calibration.took.as_secs_f64() * 1e3, devices: devices.collect() }
}

/// The measured devices, copies, and layers on each device, as tables.
pub fn human(calibration: &Calibration, name: &dyn Fn(&Executor) -> String) -> String {
    let mut devices = table(
        &[
            "device",
            "best matmul",
            "memory bandwidth",
            "host copy",
            "optimizer",
            "launch floor",
            "round trip",
            "spread",
        ],
        &[1, 2, 3, 4, 5, 6, 7],
    );
    let mut layers = table(&["layer", "device", "forward", "backward", "spread"], &[2, 3, 4]);
    for device in &calibration.devices {
        // The data type is named only where a device has several.
        let named = |what: String, data_type: DataType| match device.matmul.len() {
            1 => what,
            _ => format!("{what} in {data_type}"),
        };
        let rate = |data_type: &DataType| Some(named(device.best_rate(*data_type)?.to_string(), *data_type));
        let best: Vec<String> = device.matmul.keys().filter_map(rate).collect();
        devices.add_row(vec![
            name(&device.executor),
            best.join("\n"),
            device.memory_bandwidth.to_string(),
            device.copy_rate.to_string(),
            device.optimizer_rate.to_string(),
            device.launch_floor.to_string(),
            device.round_trip.map_or_else(|| "–".into(), |time| time.to_string()),
            percent(device.spread),
        ]);
        for layer in &device.layers {
            layers.add_row(vec![
                layer.signature.clone(),
                named(name(&device.executor), layer.data_type),
                format!("{:.3}", layer.forward),
                format!("{:.3}", layer.backward_input + layer.backward_weight),
                percent(layer.spread),
            ]);
        }
    }
    let columns = ["copies of 64 MiB", "pinned, in", "out", "pageable, in", "out", "in, of a run", "out"];
    let mut copies = table(&columns, &[1, 2, 3, 4, 5, 6]);
    for (device, found) in calibration.devices.iter().filter_map(|device| Some((device, device.copies?))) {
        let rates = found.pinned.iter().chain(&found.pageable).chain(&found.run).map(ToString::to_string);
        copies.add_row([name(&device.executor)].into_iter().chain(rates).collect::<Vec<_>>());
    }
    let copies = if copies.is_empty() { String::new() } else { format!("\n\n{copies}") };
    let layers = if layers.is_empty() { String::new() } else { format!("\n\n{layers}") };
    let note = calibration.contention.and_then(|contention| contention.note());
    let note = note.map_or_else(String::new, |note| format!("note: {note}\n"));
    format!("{devices}{copies}{layers}\n{note}")
}
