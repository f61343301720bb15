//! Calibration under PyTorch: a script measures, and its answer becomes a profile.

use super::{Request, described, machine_file};
use crate::{Failure, output};
use spipe_base::{Bytes, BytesPerSecond, DataType, Diagnostic, Flops, FlopsPerSecond, ParamsPerSecond, Seconds, Text};
use spipe_exec::{Calibration, Copies, Executor, Measured, MeasuredLayer, Watch};
use spipe_export::{
    BusyCopy, CALIBRATION_REQUEST, CALIBRATION_SCRIPT, Calibrated, DeviceRates, LayerRates, PytorchRates, calibration,
};
use spipe_hardware::{AttentionFile, EfficiencyFile, GpuFile, HardwareFile, LinkFile, Runtime};
use std::{
    io::ErrorKind,
    process::{Command, Stdio},
    time::Duration,
};

/// The exit code of a script that finds no PyTorch, or no such device.
const NO_PYTORCH: i32 = 7;
/// Time for what does not shrink with the budget: starting processes, large products, slow cores.
const START_UP: Duration = Duration::from_secs(240);
/// The shipped runtime whose constants are measured.
const RUNTIME: &str = "pytorch";
/// Messages faster than copies by this factor go over a link of their own.
const OWN_LINK: f64 = 1.2;

/// A machine measured under PyTorch.
pub struct PytorchMachine {
    /// The profile.
    pub file: HardwareFile,
    /// The rates, for reports.
    pub measured: Calibration,
    /// PyTorch with its time per launch and iteration.
    pub runtime: Runtime,
}

/// Measures the devices with the PyTorch of `python`.
pub fn measure(request: &Request<'_>, devices: &[String], python: &str) -> Result<PytorchMachine, Failure> {
    let watch = Watch::start();
    let rates = rates(request, devices, python)?;
    let contention = watch.contention();
    let measured = Calibration {
        devices: rates
            .devices
            .iter()
            .zip(&request.executors)
            .map(|(rates, executor)| measured(rates, executor))
            .collect(),
        took: Duration::try_from_secs_f64(rates.took_s).unwrap_or_default(),
        contention,
    };
    let (latency, rate) = copy_of_cores(&rates);
    let mut file = machine_file(request, &measured, (rate, latency))?;
    file.description = Some(described(&format!("This machine, measured under PyTorch {}.", rates.torch), contention));
    for (gpu, found) in file.gpu.iter_mut().zip(&rates.devices) {
        describe(gpu, found);
    }
    // The socket is the last one.
    let accelerators = &rates.devices[..rates.devices.len() - 1];
    for (link, _) in file.link.iter_mut().zip(accelerators).filter(|(_, found)| found.copies.is_none()) {
        link.source =
            Some("measured under PyTorch: copies between buffers while all processes copy and compute".into());
    }
    add_messages(&mut file, &rates);
    add_peers(&mut file, &rates);
    let runtime = runtime(&rates, request.command)?;
    Ok(PytorchMachine { file, measured, runtime })
}

/// Runs the script; its answer.
fn rates(request: &Request<'_>, devices: &[String], python: &str) -> Result<PytorchRates, Failure> {
    let fail = |error: &std::io::Error| Failure::file("a temporary folder", "write", error);
    let folder = tempfile::tempdir().map_err(|error| fail(&error))?;
    let place = folder.path().display().to_string();
    let limit = request.budget * 3 + START_UP;
    let files =
        calibration(&Calibrated { devices, layers: request.layers, folder: &place, budget: request.budget, limit })?;
    for (name, text) in &files.files {
        std::fs::write(folder.path().join(name), text).map_err(|error| fail(&error))?;
    }
    let script = folder.path().join(CALIBRATION_SCRIPT);
    let asked = folder.path().join(CALIBRATION_REQUEST);
    let mut command = Command::new(python);
    command.arg("-B").arg(script).arg(asked).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    output::talk(&format!("measuring under PyTorch, for about {:.0} s", request.budget.as_secs_f64()));
    let done = command.output().map_err(|error| no_python(python, &error))?;
    if !done.status.success() {
        return Err(failed(python, done.status.code(), &String::from_utf8_lossy(&done.stderr)));
    }
    Ok(PytorchRates::parse(&String::from_utf8_lossy(&done.stdout))?)
}

fn no_python(python: &str, error: &std::io::Error) -> Failure {
    let reason =
        if error.kind() == ErrorKind::NotFound { "there is no such program".into() } else { error.to_string() };
    let message = format!("cannot start `{python}`: {reason}");
    Failure::NoDevice(
        Diagnostic::error(message).hint("name a Python that has PyTorch, such as `--python .venv/bin/python`"),
    )
}

/// The failure of a script that ended with `code`.
fn failed(python: &str, code: Option<i32>, said: &str) -> Failure {
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim();
    let last = last.strip_prefix("error: ").unwrap_or(last);
    match code {
        Some(NO_PYTORCH) => Failure::NoDevice(
            Diagnostic::error(last)
                .hint(format!("`{python} -m pip install torch` installs PyTorch; `--python` names another")),
        ),
        Some(code) => Failure::Check(
            Diagnostic::error(format!("the measurement under PyTorch ended with code {code}: {last}"))
                .hint("free the devices and their memory, or name a smaller model"),
        ),
        None => Failure::Check(
            Diagnostic::error("the measurement under PyTorch was stopped, as it took too long")
                .hint("free the processor cores, or name a smaller model"),
        ),
    }
}

/// The device, with as many cores as threads.
fn measured(rates: &DeviceRates, executor: &Executor) -> Measured {
    let bandwidths = |points: &[[f64; 2]]| {
        points.iter().map(|[bytes, rate]| (Bytes::new(*bytes as u64), BytesPerSecond::bytes(*rate))).collect()
    };
    let products = |points: &Vec<[f64; 2]>| {
        points.iter().map(|[work, rate]| (Flops::flop(*work), FlopsPerSecond::flops(*rate))).collect()
    };
    let both = |rates: [f64; 2]| rates.map(BytesPerSecond::bytes);
    Measured {
        executor: with_cores(executor, rates.threads),
        matmul: rates.matmul.iter().map(|(data_type, points)| (*data_type, products(points))).collect(),
        elementwise: bandwidths(&rates.elementwise),
        matvec: bandwidths(&rates.matvec),
        memory_bandwidth: BytesPerSecond::bytes(rates.memory_bytes_per_second),
        copy_rate: BytesPerSecond::bytes(rates.copy_bytes_per_second),
        copies: rates.copies.as_ref().map(|copies| Copies {
            pinned: both(copies.pinned_bytes_per_second),
            pageable: both(copies.pageable_bytes_per_second),
            // Exports copy from and to pinned memory.
            run: both(copies.pinned_bytes_per_second),
        }),
        optimizer_rate: ParamsPerSecond::params(rates.optimizer_params_per_second),
        launch_floor: Seconds::s(rates.launch_floor_s),
        round_trip: None,
        layers: rates.layers.iter().map(layer).collect(),
        skipped: Vec::new(),
        spread: rates.spread,
    }
}

fn layer(rates: &LayerRates) -> MeasuredLayer {
    MeasuredLayer {
        signature: rates.layer.clone(),
        data_type: rates.data_type,
        forward: Seconds::s(rates.forward_s),
        backward_input: Seconds::s(rates.backward_input_s),
        backward_weight: Seconds::s(rates.backward_weight_s),
        // PyTorch's hooks save and restore every tensor of the graph.
        replay: Seconds::ZERO,
        split: Seconds::s(rates.backward_split_s),
        spread: rates.spread,
    }
}

/// The executor with a number of cores, if it has cores.
fn with_cores(executor: &Executor, count: u32) -> Executor {
    let mut executor = executor.clone();
    if let Executor::Cpu { cores, .. } | Executor::Emulated { cores, .. } = &mut executor {
        *cores = (0..count as usize).collect();
    }
    executor
}

/// Latency and rate of copies between the buffers of a process on cores: those of the slowest process.
fn copy_of_cores(rates: &PytorchRates) -> (Seconds, BytesPerSecond) {
    let accelerators = &rates.devices[..rates.devices.len() - 1];
    let copies = || accelerators.iter().chain(&rates.devices).filter_map(|device| device.busy_copy);
    let copies: Vec<BusyCopy> = copies().take(accelerators.len().max(1)).collect();
    let latency = copies.iter().map(|copy| copy.latency_s).fold(0.0, f64::max);
    let rate = copies.iter().map(|copy| copy.bytes_per_second).reduce(f64::min);
    // Of GPUs alone nothing but their own copies is used.
    (Seconds::s(latency), BytesPerSecond::bytes(rate.unwrap_or(rates.devices[0].copy_bytes_per_second)))
}

/// Adds links between accelerators on cores, whose processes send messages: each pair has the figures of the slowest.
fn add_messages(file: &mut HardwareFile, rates: &PytorchRates) {
    let on_cores: Vec<usize> = (0..file.gpu.len()).filter(|rank| rates.devices[*rank].copies.is_none()).collect();
    let messages = || on_cores.iter().flat_map(|rank| &rates.devices[*rank].messages);
    let Some(rate) = messages().map(|message| message.bytes_per_second).reduce(f64::min) else { return };
    let latency = messages().map(|message| message.latency_s).fold(0.0, f64::max);
    for (index, first) in on_cores.iter().enumerate() {
        for second in &on_cores[index + 1..] {
            let [from, to] = [first, second].map(|rank| format!("gpu{rank}"));
            let mut link =
                LinkFile::new(format!("messages{first}-{second}"), [&from, &to], BytesPerSecond::bytes(rate));
            link.latency = Some(Text(Seconds::s(latency)));
            link.source = Some("measured under PyTorch: messages between processes".into());
            file.link.push(link);
        }
    }
    for rank in on_cores {
        // A process does not copy from another's memory: without its link, a message goes through the host.
        file.gpu[rank].peer_access = Some(false);
    }
}

/// Memory, products by smallest dimension and attention of a GPU, in the form that PyTorch's runtime
/// reads.
fn describe(gpu: &mut GpuFile, rates: &DeviceRates) {
    let Some(memory) = rates.memory_bytes else { return };
    gpu.memory = Text(Bytes::new(memory));
    let best = rates.rows.iter().map(|[_, rate]| *rate).fold(0.0, f64::max);
    if best > 0.0 {
        let peak = gpu.peak.get(&DataType::Bf16).map_or(best, |peak| peak.0.get().max(best));
        gpu.peak.insert(DataType::Bf16, Text(FlopsPerSecond::flops(peak)));
        gpu.matmul.clear();
        let source = Some("measured under PyTorch: shares of the largest measured rate, in bf16".to_owned());
        gpu.efficiency = Some(EfficiencyFile {
            rows: rates.rows.iter().map(|[row, _]| *row as u32).collect(),
            fraction: rates.rows.iter().map(|[_, rate]| rate / peak).collect(),
            source: source.clone(),
            ..Default::default()
        });
        let of_width = |width: f64| rates.attention.iter().filter(move |point| (point[1] - width).abs() < 0.5);
        gpu.attention = Some(AttentionFile {
            length: of_width(128.0).map(|[length, ..]| *length as u32).collect(),
            head_64: of_width(64.0).map(|[.., rate]| rate / peak).collect(),
            head_128: of_width(128.0).map(|[.., rate]| rate / peak).collect(),
            flash_2: None,
            source,
        });
    }
}

/// Adds links between GPUs whose messages are faster than their copies to the host.
fn add_peers(file: &mut HardwareFile, rates: &PytorchRates) {
    for (rank, device) in rates.devices.iter().enumerate() {
        let Some(copies) = &device.copies else { continue };
        let slowest = copies.pinned_bytes_per_second[0].min(copies.pinned_bytes_per_second[1]);
        for message in device.messages.iter().filter(|message| message.ranks[0] == rank) {
            if message.bytes_per_second > slowest * OWN_LINK {
                let [from, to] = message.ranks.map(|rank| format!("gpu{rank}"));
                let rate = BytesPerSecond::bytes(message.bytes_per_second);
                let mut link = LinkFile::new(format!("peers{rank}"), [&from, &to], rate);
                link.latency = Some(Text(Seconds::s(message.latency_s)));
                link.source = Some("measured under PyTorch: messages over NCCL".into());
                file.link.push(link);
            }
        }
    }
}

/// PyTorch's runtime with the measured time per launch, and of a step without layers.
fn runtime(rates: &PytorchRates, command: &str) -> Result<Runtime, Failure> {
    let shipped = Runtime::shipped(RUNTIME).ok_or_else(|| Failure::Bug("PyTorch's runtime is not shipped".into()))?;
    let largest = |of: fn(&DeviceRates) -> f64| rates.devices.iter().map(of).fold(0.0, f64::max);
    let mut file = shipped.file().clone();
    let host = file.host.get_or_insert_default();
    host.launch = Some(Text(Seconds::s(largest(|device| device.launch_s))));
    host.iteration = Some(Text(Seconds::s(largest(|device| device.iteration_s))));
    host.source = Some(format!("measured under PyTorch {} by `{command}`", rates.torch));
    file.name = "pytorch-measured".into();
    Ok(Runtime::from_file("measured", file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_fail_say_why() {
        let code = |code, said| failed("python3", code, said).exit_code();
        assert_eq!(code(Some(7), "error: `python3` has no PyTorch\n"), 7);
        assert_eq!(code(Some(1), "Traceback\nMemoryError\n\n"), 6);
        assert_eq!(code(None, ""), 6);
        assert!(failed("python3", Some(1), "Traceback\nMemoryError\n\n").to_string().contains("code 1: MemoryError"));
    }
}
