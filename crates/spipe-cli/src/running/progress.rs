//! The progress of a run: a bar on a terminal, lines of JSON for programs, and signals that end the
//! run.

use super::{outputs, tokenizer::Encoding};
use crate::{Failure, args::Format, interrupt, output};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use spipe_base::readable::per_second;
use spipe_exec::{Outputs, Report, Step, ThreadWork};
use std::{
    collections::BTreeMap,
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Watches a run and reports it.
pub struct Progress {
    bar: ProgressBar,
    format: Format,
    steps: u32,
    /// Steps that are done, in all.
    over: u32,
    /// Steps that are done in this run.
    here: u32,
    seconds: f64,
    interrupted: Arc<AtomicBool>,
}

/// One step as a line of JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct StepLine<'a> {
    format_version: u32,
    event: &'static str,
    step: u32,
    loss: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    duration_ms: f64,
    tokens_per_second: f64,
    remaining_s: f64,
    peak_bytes: BTreeMap<&'a str, u64>,
    threads: Vec<ThreadLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launches: Option<u64>,
}

/// The work of a lane's thread, or of the cores of a device, with memory in one step.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ThreadLine<'a> {
    name: &'a str,
    page_faults: u64,
    large_allocations: u64,
    moved_bytes: u64,
    copied_bytes: u64,
}

impl<'a> From<&'a ThreadWork> for ThreadLine<'a> {
    fn from(thread: &'a ThreadWork) -> Self {
        Self {
            name: &thread.name,
            page_faults: thread.work.faults,
            large_allocations: thread.work.allocations,
            moved_bytes: thread.work.moved.get(),
            copied_bytes: thread.work.copied.get(),
        }
    }
}

/// The end of a run as a line of JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct EndLine<'a> {
    format_version: u32,
    event: &'static str,
    steps: u32,
    asked_steps: u32,
    iteration_ms: f64,
    lane_overhead: f64,
    memories: Vec<MemoryLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ms_per_token: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<&'a [Vec<i32>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct MemoryLine<'a> {
    name: &'a str,
    planned_bytes: u64,
    held_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
}

impl Progress {
    /// The progress of a run of `steps` steps, `over` of which are done. From now on the first
    /// Ctrl-C or SIGTERM lets the running step end; the second ends the process.
    pub fn start((over, steps): (u32, u32), format: Format) -> Self {
        let shown = std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("step {pos}/{len} {wide_bar} {msg}, {eta} left");
        let bar = ProgressBar::with_draw_target(Some(u64::from(steps)), target)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(u64::from(over));
        bar.reset_eta();
        Self { bar, format, steps, over, here: 0, seconds: 0.0, interrupted: interrupt::flag() }
    }

    /// Reports a step that is done.
    pub fn step(&mut self, step: &Step) -> Result<(), Failure> {
        self.over += 1;
        self.here += 1;
        self.seconds += step.duration.as_secs_f64();
        let rate = rate(step);
        let held: Vec<String> = step.peaks.iter().map(|(memory, bytes)| format!("{memory} {bytes}")).collect();
        let norm = match step.norm {
            _ if step.left_out => ", no optimizer step: gradients in fp16 have overflowed".to_owned(),
            Some(norm) => format!(", gradient norm {norm:.3}"),
            None => String::new(),
        };
        let (rate_in_words, held) = (per_second(rate), held.join(", "));
        let message = format!("loss {:.4}{norm}, {rate_in_words} tokens/s, {held}", step.loss);
        tracing::info!(step = step.index, "{message}");
        self.bar.set_message(message);
        self.bar.inc(1);
        if self.format == Format::Human {
            return Ok(());
        }
        let left = self.steps.saturating_sub(self.over);
        line(&StepLine {
            format_version: 1,
            event: "step",
            step: step.index,
            loss: step.loss,
            gradient_norm: step.norm,
            left_out: step.left_out,
            duration_ms: step.duration.as_secs_f64() * 1e3,
            tokens_per_second: rate,
            remaining_s: self.seconds / f64::from(self.here) * f64::from(left),
            peak_bytes: step.peaks.iter().map(|(memory, bytes)| (memory.as_str(), bytes.get())).collect(),
            threads: step.work.iter().map(ThreadLine::from).collect(),
            launches: step.launches,
        })
    }

    /// Whether a signal has asked the run to end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Reports the end of the run.
    pub fn end(&self, report: &Report, encoding: &Encoding) -> Result<(), Failure> {
        if self.is_interrupted() && self.over < self.steps {
            output::talk(&format!("stopped after {} of {} steps", self.over, self.steps));
        }
        if self.format == Format::Human {
            return Ok(());
        }
        let memories = report.memories.iter().map(|memory| MemoryLine {
            name: &memory.name,
            planned_bytes: memory.planned.get(),
            held_bytes: memory.held.get(),
            reserved_bytes: memory.reserved.map(spipe_base::Bytes::get),
            capacity_bytes: memory.capacity.map(spipe_base::Bytes::get),
        });
        line(&EndLine {
            format_version: 1,
            event: "end",
            steps: self.over,
            asked_steps: self.steps,
            iteration_ms: report.trace.iteration.to_ms(),
            lane_overhead: report.lane_overhead,
            memories: memories.collect(),
            resident_bytes: report.resident.map(spipe_base::Bytes::get),
            ms_per_token: outputs::ms_per_token(report),
            tokens: match &report.outputs {
                Some(Outputs::Tokens { tokens, .. }) => Some(tokens),
                _ => None,
            },
            texts: outputs::texts(report, encoding),
            images: match &report.outputs {
                Some(Outputs::Images { width, rows }) => Some(rows.len() / (*width).max(1)),
                _ => None,
            },
        })
    }
}

/// The end of a run that has nothing left to do.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct NothingLine {
    format_version: u32,
    event: &'static str,
    steps: u32,
    asked_steps: u32,
}

/// Reports a run whose checkpoint is after its last step.
pub fn nothing_left(steps: u32, format: Format) -> Result<(), Failure> {
    match format {
        Format::Human => Ok(()),
        Format::Json => line(&NothingLine { format_version: 1, event: "end", steps, asked_steps: steps }),
    }
}

/// Tokens per second of a step.
fn rate(step: &Step) -> f64 {
    step.tokens as f64 / step.duration.as_secs_f64().max(1e-9)
}

fn line(data: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(data)
        .map_err(|error| Failure::Bug(format!("a line cannot be written as JSON: {error}")))?;
    output::print(&(json + "\n"))
}
