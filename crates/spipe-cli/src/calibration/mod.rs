//! Calibration: a profile of this machine, measured.

pub mod pytorch;

use crate::{Failure, output};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spipe_base::{Bytes, BytesPerSecond, Diagnostic, Seconds, readable::percent};
use spipe_exec::{
    Calibration, CalibrationRequest, Contention, Executor, Unmeasured, calibrate, host_memory, measured_machine,
};
use spipe_hardware::{Hardware, HardwareFile, MeasuredFile};
use spipe_model::{Batch, Model};
use std::{io::IsTerminal, time::Duration};

/// The devices and layers to measure, and the figures of the profile that are not measured.
pub struct Request<'a> {
    pub name: &'a str,
    /// Accelerators first, then one CPU.
    pub executors: Vec<Executor>,
    pub layers: Option<(&'a Model, Batch)>,
    /// The numbers of sequences for which the layers are also measured while they generate the next
    /// token.
    pub tokens: &'a [u64],
    /// The time to measure.
    pub budget: Duration,
    /// The memory of each accelerator.
    pub memory: Bytes,
    /// The bandwidth of each accelerator's link, each way.
    pub link: BytesPerSecond,
    /// The command, as the profile records it.
    pub command: &'a str,
}

/// The latency of an emulated link, about that of a small copy over PCIe.
const LATENCY_US: f64 = 20.0;
/// The largest share of the measured copy rate that an emulated link may carry: a paced copy must
/// end before its time is up.
const HEADROOM: f64 = 0.7;

/// Measures the machine and makes a profile of it.
pub fn measure(request: &Request<'_>) -> Result<(HardwareFile, Calibration), Failure> {
    let calibration = {
        let bar = bar();
        let asked = CalibrationRequest {
            executors: request.executors.clone(),
            layers: request.layers,
            tokens: request.tokens.to_vec(),
            budget: request.budget,
        };
        let result = calibrate(&asked, &mut |progress| {
            bar.set_length(progress.of as u64);
            bar.set_position(progress.done as u64);
            bar.set_message(format!("{}: {}", progress.executor, progress.what));
        });
        bar.finish_and_clear();
        result?
    };
    let skipped = calibration.devices.iter().flat_map(|device| &device.skipped);
    let skipped: Vec<Diagnostic> =
        skipped.map(|skipped| Diagnostic::warning(format!("not measured: {skipped}"))).collect();
    output::warn(&skipped);
    let emulated = calibration.devices.iter().filter(|device| device.executor.is_emulated());
    let slowest = emulated.map(|device| device.copy_rate).min();
    let link = slowest.map_or(request.link, |slowest| request.link.min(slowest * HEADROOM));
    if let Some(slowest) = slowest.filter(|_| link < request.link) {
        output::talk(&format!(
            "warning: emulated links carry {link}, because copies reach no more than {slowest} here"
        ));
    }
    let mut file = machine_file(request, &calibration, (link, Seconds::us(LATENCY_US)))?;
    file.description = file.description.map(|text| described(&text, calibration.contention));
    Ok((file, calibration))
}

/// A description of a profile, with the share of the CPU that others had.
fn described(text: &str, contention: Option<Contention>) -> String {
    let note = contention.and_then(|contention| contention.note());
    note.map_or_else(|| text.to_owned(), |note| format!("{text} Note: {note}."))
}

/// A profile of measured devices, whose last one is the socket. Accelerators without measured copies
/// have links of this bandwidth and latency.
fn machine_file(
    request: &Request<'_>,
    calibration: &Calibration,
    (link, latency): (BytesPerSecond, Seconds),
) -> Result<HardwareFile, Failure> {
    let Some((socket, accelerators)) = calibration.devices.split_last() else {
        return Err(Failure::Bug("a calibration of nothing".into()));
    };
    let spread = calibration.devices.iter().map(|device| device.spread).fold(0.0, f64::max);
    let machine = Unmeasured {
        name: request.name.into(),
        memory: request.memory,
        host_memory: host_memory(),
        link,
        latency,
        measured: MeasuredFile {
            date: time::OffsetDateTime::now_utc().date().to_string(),
            command: request.command.into(),
            spread: percent(spread),
        },
    };
    Ok(measured_machine(accelerators, socket, &machine))
}

/// The machine of a measured profile.
pub fn machine(file: &HardwareFile) -> Result<Hardware, Failure> {
    Hardware::from_file("measured", file.clone()).map_err(|faults| {
        Failure::input(Diagnostic::error(format!("the measurements do not make a machine: {faults}")))
    })
}

fn bar() -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("measuring {pos}/{len} {wide_bar} {msg}");
    ProgressBar::with_draw_target(Some(1), target).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
