//! `spipe calibrate`.

use crate::{
    Failure, args,
    args::{Format, Given},
    calibration::{self, Request},
    executors,
    idle::Idle,
    input, output,
    output::Target,
    report::calibration::{data, human},
};
use spipe_cost::{CostError, check_batch};
use spipe_exec::Backend;
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
    let target = Target::open(&what.output)?;
    let backend = executors::backend(&what.backend)?;
    let model = what.model.as_deref().map(input::model).transpose()?;
    let batch = |model| {
        let batch = Batch { microbatch: what.microbatch, seq_len: input::seq_len(model, what.seq_len)? };
        let fault = |error: CostError| Failure::argument(error.to_string(), "use at least one sequence of one token");
        check_batch(batch).map(|()| batch).map_err(fault)
    };
    let layers = model.as_ref().map(|model| Ok::<_, Failure>((model, batch(model)?)));
    let layers = layers.transpose()?;
    let (file, measured) = calibration::measure(&Request {
        name: "this-machine",
        executors: executors::named(&what.devices, backend)?,
        layers,
        tokens: &SEQUENCES,
        budget: input::limit(what.time_limit)?,
        memory: what.emulated_memory,
        link: what.emulated_link,
        command: &command(what, backend),
    })?;
    let hardware = calibration::machine(&file)?;
    let to_stdout = matches!(target, Target::Stdout);
    target.write(hardware.to_toml().as_bytes())?;
    if to_stdout { Ok(()) } else { output::report(format, &human(&measured), &data(&measured)) }
}

/// The command as the profile records it.
fn command(what: &args::Calibrate, backend: Backend) -> String {
    let mut words = format!("spipe calibrate --devices {} --backend {backend}", what.devices.join(","));
    if let Some(model) = &what.model {
        // The folder of a file says nothing about the machine.
        let name = Path::new(model).file_name().and_then(|name| name.to_str()).filter(|_| model.starts_with('/'));
        words += &format!(" --model {} --microbatch {}", name.unwrap_or(model), what.microbatch);
        words += &what.seq_len.map_or_else(String::new, |seq_len| format!(" --seq-len {seq_len}"));
    }
    if what.devices.iter().any(|device| device.starts_with("emulated")) {
        words += &format!(" --emulated-memory '{}' --emulated-link '{}'", what.emulated_memory, what.emulated_link);
    }
    words + &format!(" --time-limit '{}'", what.time_limit)
}
