//! `spipe calibrate`.

use crate::{
    Failure, args,
    args::{CalibratedRuntime, Format, Given},
    calibration::{
        self, Request,
        pytorch::{self, PytorchMachine},
    },
    executors,
    idle::Idle,
    input, output,
    output::Target,
    report::calibration::{data, human},
};
use spipe_base::Diagnostic;
use spipe_cost::{CostError, check_batch};
use spipe_exec::{Backend, Contention, Executor};
use spipe_model::Batch;
use std::path::Path;

/// The numbers of sequences for which generation is measured.
const SEQUENCES: [u64; 4] = [1, 2, 4, 8];

/// Measures and writes a profile.
pub fn run(what: &args::Calibrate, given: &Given, format: Format) -> Result<(), Failure> {
    let alone = what.devices.iter().all(|device| device.starts_with("cpu"));
    Idle::among(given)
        .options_if(
            what.model.is_none(),
            &["seq-len", "microbatch"],
            "without `--model`",
            "name a model, or leave it out",
        )
        .options_if(
            alone,
            &["emulated-memory", "emulated-link"],
            "without an accelerator",
            "add one, such as `--devices emulated:0,cpu:0`, or leave it out",
        )
        .refuse()?;
    let pytorch = what.runtime == CalibratedRuntime::Pytorch;
    Idle::among(given)
        .options_if(!pytorch, &["python", "runtime-output"], "without `--runtime pytorch`", "add it, or leave it out")
        .options_if(pytorch, &["backend", "emulated-link"], "with `--runtime pytorch`", "leave it out")
        .refuse()?;
    let target = Target::open(&what.output)?;
    let runtime_target = what.runtime_output.as_deref().map(Target::open).transpose()?;
    let backend = executors::backend(&what.backend)?;
    let model = what.model.as_deref().map(input::model).transpose()?;
    let batch = |model| {
        let batch = Batch { microbatch: what.microbatch, seq_len: input::seq_len(model, what.seq_len)? };
        let fault = |error: CostError| Failure::argument(error.to_string(), "use at least one sequence of one token");
        check_batch(batch).map(|()| batch).map_err(fault)
    };
    let layers = model.as_ref().map(|model| Ok::<_, Failure>((model, batch(model)?)));
    let layers = layers.transpose()?;
    let request = Request {
        name: "this-machine",
        executors: executors::named(&what.devices, backend)?,
        layers,
        tokens: &SEQUENCES,
        budget: input::limit(what.time_limit)?,
        memory: what.emulated_memory,
        link: what.emulated_link,
        command: &command(what, backend),
    };
    let (file, measured) = if pytorch {
        let names = names(what, &request.executors)?;
        let PytorchMachine { file, measured, runtime } = pytorch::measure(&request, &names, &what.python)?;
        if let Some(target) = runtime_target {
            target.write(runtime.to_toml().as_bytes())?;
        }
        (file, measured)
    } else {
        calibration::measure(&request)?
    };
    if let Some(contention) = measured.contention.filter(Contention::disturbs) {
        let hint = "stop other programs, and measure again";
        output::warn(&[Diagnostic::warning(contention.to_string()).hint(hint)]);
    }
    let hardware = calibration::machine(&file)?;
    let name = |executor: &Executor| if pytorch { short(executor) } else { executor.to_string() };
    let to_stdout = matches!(target, Target::Stdout);
    target.write(hardware.to_toml().as_bytes())?;
    if to_stdout { Ok(()) } else { output::report(format, &human(&measured, &name), &data(&measured, &name)) }
}

/// The devices by the names of PyTorch's script, accelerators first.
fn names(what: &args::Calibrate, executors: &[Executor]) -> Result<Vec<String>, Failure> {
    if executors.iter().any(|executor| matches!(executor, Executor::Wgpu { .. })) {
        return Err(Failure::argument("PyTorch is not measured on wgpu", "name cuda:0, emulated:0 or cpu:0"));
    }
    if let Some(device) = what.devices.iter().find(|device| device.matches(':').count() > 1 || device.contains('@')) {
        let message = format!("`{device}` names a backend or cores, which PyTorch does not take");
        return Err(Failure::argument(message, "set OMP_NUM_THREADS for the threads of each process"));
    }
    Ok(executors.iter().map(short).collect())
}

/// The name of an executor without backend and cores.
fn short(executor: &Executor) -> String {
    let whole = executor.to_string();
    whole.split(['@', ':']).take(2).collect::<Vec<_>>().join(":")
}

/// The command as the profile records it.
fn command(what: &args::Calibrate, backend: Backend) -> String {
    let devices = what.devices.join(",");
    let mut words = match what.runtime {
        CalibratedRuntime::Spipe => format!("spipe calibrate --devices {devices} --backend {backend}"),
        CalibratedRuntime::Pytorch => format!("spipe calibrate --devices {devices} --runtime pytorch"),
    };
    if let Some(model) = &what.model {
        // The folder of a file says nothing about the machine.
        let name = Path::new(model).file_name().and_then(|name| name.to_str()).filter(|_| model.starts_with('/'));
        words += &format!(" --model {} --microbatch {}", name.unwrap_or(model), what.microbatch);
        words += &what.seq_len.map_or_else(String::new, |seq_len| format!(" --seq-len {seq_len}"));
    }
    if what.devices.iter().any(|device| device.starts_with("emulated")) {
        words += &format!(" --emulated-memory '{}'", what.emulated_memory);
        if what.runtime == CalibratedRuntime::Spipe {
            words += &format!(" --emulated-link '{}'", what.emulated_link);
        }
    }
    words + &format!(" --time-limit '{}'", what.time_limit)
}
