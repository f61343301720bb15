//! Measuring this machine; shared by `calibrate` and `demo`.

use crate::{Failure, output, tables::percent, training};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spipe_base::{Bytes, BytesPerSecond, Diagnostic, Seconds};
use spipe_exec::{
    Backend, Calibration, CalibrationRequest, Executor, Unmeasured, calibrate, host_memory, measured_machine,
};
use spipe_hardware::{Hardware, HardwareFile, MeasuredFile};
use spipe_model::{Batch, Model};
use std::{io::IsTerminal, time::Duration};

/// What to measure, and what to say of what is not measured.
pub struct Request<'a> {
    pub name: &'a str,
    /// Accelerators first, then one CPU.
    pub executors: Vec<Executor>,
    pub layers: Option<(&'a Model, Batch)>,
    /// Of how many sequences they are also measured as they find the next token of a text.
    pub tokens: &'a [u64],
    pub budget: Duration,
    /// Of each accelerator.
    pub memory: Bytes,
    pub link: BytesPerSecond,
    /// The command, as the profile records it.
    pub command: &'a str,
}

/// What an emulated link adds to every copy.
const LATENCY_US: f64 = 20.0;
/// The share of what one thread can copy that an emulated link may carry: a copy is paced, so it must be through before its time.
const HEADROOM: f64 = 0.7;

/// Executors from words such as `cpu:0` or `emulated:0`, on this backend unless they name one: accelerators first.
pub fn executors(words: &[String], backend: Backend) -> Result<Vec<Executor>, Failure> {
    let mut executors = Vec::new();
    for word in words {
        executors.push(on_backend(word.parse()?, word, backend));
    }
    executors.sort_by_key(|executor| matches!(executor, Executor::Cpu { .. }));
    match executors.iter().filter(|executor| matches!(executor, Executor::Cpu { .. })).count() {
        1 => Ok(executors),
        count => Err(Failure::argument(
            format!("{count} CPU devices are named, and a profile has one socket here"),
            "name one, such as --devices emulated:0,cpu:0",
        )),
    }
}

/// An executor on this backend, unless the words that name it name one.
pub fn on_backend(executor: Executor, words: &str, backend: Backend) -> Executor {
    let names_one = Backend::ALL.iter().any(|backend| words.contains(backend.name()));
    if names_one { executor } else { executor.with_backend(backend) }
}

/// Measures and makes a profile of it.
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
        result.map_err(training::refuse)?
    };
    for skipped in calibration.devices.iter().flat_map(|device| &device.skipped) {
        output::talk(&format!("warning: not measured: {skipped}"));
    }
    let Some((socket, accelerators)) = calibration.devices.split_last() else {
        return Err(Failure::Bug("a calibration of nothing".into()));
    };
    let spread = calibration.devices.iter().map(|device| device.spread).fold(0.0, f64::max);
    let emulated = accelerators.iter().filter(|device| device.executor.is_emulated());
    let slowest = emulated.map(|device| device.copy_rate).min();
    let link = slowest.map_or(request.link, |slowest| request.link.min(slowest * HEADROOM));
    if let Some(slowest) = slowest.filter(|_| link < request.link) {
        output::talk(&format!(
            "warning: emulated links carry {link}, because copies reach no more than {slowest} here"
        ));
    }
    let machine = Unmeasured {
        name: request.name.into(),
        memory: request.memory,
        host_memory: host_memory(),
        link,
        latency: Seconds::us(LATENCY_US),
        measured: MeasuredFile {
            date: time::OffsetDateTime::now_utc().date().to_string(),
            command: request.command.into(),
            spread: percent(spread),
        },
    };
    Ok((measured_machine(accelerators, socket, &machine), calibration))
}

/// The machine of a measured profile.
pub fn machine(file: &HardwareFile) -> Result<Hardware, Failure> {
    Hardware::from_file("measured", file.clone())
        .map_err(|faults| Failure::from(Diagnostic::error(format!("the measurements do not make a machine: {faults}"))))
}

fn bar() -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("measuring {pos}/{len} {wide_bar} {msg}");
    ProgressBar::with_draw_target(Some(1), target).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
