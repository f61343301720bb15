//! `spipe run`.

use super::{calibrate, simulate};
use crate::{
    Failure, args,
    args::Format,
    data::{self, Words},
    input, output,
    output::Target,
    outputs,
    resuming::Resuming,
    tables::{percent, table},
    training::{self, Training},
};
use spipe_base::Bytes;
use spipe_cost::Mode;
use spipe_exec::{AdamW, Report, Schedule};
use std::fmt::Write;

/// Runs the plan, prints the losses, writes the measured trace.
pub fn run(what: &args::Run, format: Format) -> Result<(), Failure> {
    let read = [Some(&what.plan), Some(&what.data), what.tokenizer.as_ref(), what.weights.as_ref()];
    let read: Vec<&str> = read.into_iter().flatten().map(String::as_str).collect();
    let open = |path: &str| Target::beside(path, &read);
    let target = what.output.as_deref().map(open).transpose()?;
    let found = what.save_outputs.as_deref().map(open).transpose()?;
    if target.is_some() && what.output == what.save_outputs {
        return Err(Failure::argument(
            "`--output` and `--save-outputs` are one file",
            "name another file for one of them",
        ));
    }
    let backend = calibrate::backend(&what.backend)?;
    let plan = input::plan(&what.plan)?;
    let words = Words::new(what.tokenizer.as_deref())?;
    let data = data::read(&what.data, &words, plan.context().model, plan.context().workload().seq_len)?;
    let program = spipe_schedule::lower(&plan.context(), plan.placement()).map_err(Failure::Input)?;
    let training = Training {
        plan: &plan,
        program: &program,
        data: &data,
        words: &words,
        bindings: training::bindings(&plan, &what.bindings, backend)?,
        steps: what.steps,
        seed: what.seed,
        optimizer: AdamW { lr: what.learning_rate, weight_decay: what.weight_decay, ..AdamW::default() },
        schedule: Schedule { warmup_steps: what.warmup_steps, decay: what.decay.into() },
        resuming: Resuming::new(what)?,
    };
    if found.is_some() && plan.context().workload().mode == Mode::Train {
        return Err(Failure::argument(
            "`--save-outputs` is for plans that infer, this one trains",
            "leave it out, or plan with `--mode infer`",
        ));
    }
    if training.is_done() {
        return training.conclude(format);
    }
    let report = training::train(&training, format)?;
    // A trace that cannot be written must not take the losses along.
    if format == Format::Human {
        output::print(&human(&report, &words))?;
    }
    if let Some((target, outputs)) = found.zip(report.outputs.as_ref()) {
        let bytes = outputs.to_safetensors().map_err(|error| Failure::Bug(error.to_string()))?;
        target.write(&bytes)?;
    }
    if let Some(target) = target {
        target.write(spipe_trace::to_json(&report.trace).as_bytes())?;
    }
    Ok(())
}

/// Losses, memory, and what the measured iteration comes to.
fn human(report: &Report, words: &Words) -> String {
    let mut text = String::new();
    let losses: Vec<String> = report.losses.iter().map(|loss| format!("{loss:.4}")).collect();
    text += &outputs::human(report, words);
    let _ = writeln!(text, "Loss by step: {}\n", losses.join(" "));
    let mut memories = table(&["memory", "planned", "held", "capacity"], &[1, 2, 3]);
    for memory in &report.memories {
        memories.add_row(vec![
            memory.name.clone(),
            memory.planned.to_string(),
            memory.held.to_string(),
            memory.capacity.map_or_else(|| "–".into(), |capacity| capacity.to_string()),
        ]);
    }
    let reserved = report.memories.iter().filter_map(|memory| Some((memory, memory.reserved?)));
    let reserved: String =
        reserved.map(|(memory, bytes)| format!("\nThe allocator of {} has reserved {bytes}.", memory.name)).collect();
    let grown = report.resident.map_or_else(String::new, |grown| {
        let (planned, held) = report
            .memories
            .iter()
            .fold(<(Bytes, Bytes)>::default(), |sum, memory| (sum.0 + memory.planned, sum.1 + memory.held));
        format!("\nThe process grew by {grown} at most; its memories were to hold {planned} and held {held}.")
    });
    let devices: Vec<String> = report.devices.iter().map(ToString::to_string).collect();
    let _ = writeln!(
        text,
        "{memories}{reserved}{grown}\n\nRan on {}; lane overhead {}.\n",
        devices.join(", "),
        percent(report.lane_overhead)
    );
    text + &simulate::human(&report.trace)
}
