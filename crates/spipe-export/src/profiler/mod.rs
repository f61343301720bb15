//! Traces of PyTorch's profiler (Kineto's JSON), one file per process.
//!
//! | event of the profiler | here |
//! |---|---|
//! | `PP:2F0` on a GPU (`gpu_user_annotation`), otherwise on its thread | a span of `DEVICE.compute` |
//! | `Optimizer.step#…` | an optimizer step, on the compute lane if its thread is that of the actions |
//! | `gpu_memcpy`, HtoD and DtoH | copies of `DEVICE.h2d` and `DEVICE.d2h` |
//! | kernels of NCCL | copies of `DEVICE.channel` |
//! | `[memory]`, and the bytes held before | the bytes of the device |
//! | actions of the interpreter of programs | the same actions, on the lanes of the program |
//!
//! On a thread, an action begins with its first operation: before that it waits for its input. Times
//! of several files are compared by their common clock. If their steps lie further apart than a
//! step takes, their clocks differ; then the starts of their steps coincide.

mod document;
mod label;
mod process;
mod program;

use document::Document;
use process::Process;
use spipe_base::{LaneId, SimTime};
use spipe_trace::{FORMAT_VERSION, Lane, MemoryTrack, Origin, Span, Status, Trace, idle_intervals};

/// A file of the profiler.
#[derive(Clone, Copy, Debug)]
pub struct ProfilerFile<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// A trace from files of the profiler.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The trace.
    pub trace: Trace,
    /// The fingerprint of the exported plan, if a file states it.
    pub plan: Option<String>,
}

/// Why files of the profiler are no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// A file is not the profiler's JSON.
    #[error("`{file}` is no trace of PyTorch's profiler: {message}")]
    Json {
        /// The file.
        file: String,
        /// The error of the JSON reader.
        message: String,
        /// The line, counted from one.
        line: usize,
        /// The column, counted from one.
        column: usize,
    },
    /// A file without actions of a pipeline.
    #[error("`{file}` has no actions such as `PP:0F0`")]
    NoActions {
        /// The file.
        file: String,
    },
    /// Two files of one device.
    #[error("`{file}` is a second trace of `{device}`")]
    Twice {
        /// The second file.
        file: String,
        /// The device.
        device: String,
    },
    /// Files of different plans.
    #[error("`{file}` is of another plan than the file before")]
    Plans {
        /// The second file.
        file: String,
    },
    /// No files.
    #[error("there is no file")]
    Nothing,
}

/// Reads the profiler's files of one step, one per process.
///
/// # Errors
/// A file that is not the profiler's, has no actions of a pipeline, or does not belong to the
/// others.
pub fn import(files: &[ProfilerFile<'_>]) -> Result<Imported, ImportError> {
    let mut processes: Vec<Process> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let document = Document::read(file)?;
        let process = match document.spipe.as_ref().filter(|added| !added.lanes.is_empty()) {
            Some(added) => program::process(&document, added),
            None => Process::new(&document, index),
        };
        let process = process.ok_or_else(|| ImportError::NoActions { file: file.name.into() })?;
        if processes.iter().any(|other| other.device == process.device) {
            return Err(ImportError::Twice { file: file.name.into(), device: process.device });
        }
        if processes.first().is_some_and(|first| first.plan != process.plan) {
            return Err(ImportError::Plans { file: file.name.into() });
        }
        processes.push(process);
    }
    let plan = processes.first().ok_or(ImportError::Nothing)?.plan.clone();
    let profiled = processes.iter().any(|process| process.period.is_none());
    let mut notes: Vec<String> =
        profiled.then(|| "measured with PyTorch's profiler, which takes time itself".to_owned()).into_iter().collect();
    if processes.iter().any(|process| !process.states_memory) {
        notes.push("memories are those of the step alone: a file does not state what its process held before".into());
    }
    if aligned(&mut processes) {
        notes.push("the clocks of the processes differ; the starts of their steps coincide here".into());
    }
    Ok(Imported { trace: joined(processes, notes), plan })
}

/// Shifts the processes so that their steps begin together, if their clocks differ.
fn aligned(processes: &mut [Process]) -> bool {
    let start = processes.iter().map(|process| process.start).min().unwrap_or(0);
    let longest = processes.iter().map(|process| process.end - process.start).max().unwrap_or(0);
    let differ = processes.iter().any(|process| process.start - start > longest);
    for process in processes.iter_mut().filter(|_| differ) {
        process.shift(process.start - start);
    }
    differ
}

/// One trace of all processes, from the first start on.
fn joined(mut processes: Vec<Process>, mut notes: Vec<String>) -> Trace {
    let start = processes.iter().map(|process| process.start).min().unwrap_or(0);
    let end = processes.iter().map(|process| process.end).max().unwrap_or(start);
    let at = |time: u64| SimTime::ns(time.saturating_sub(start));
    processes.sort_by_key(|process| process.rank);
    let (mut lanes, mut spans) = (Vec::new(), Vec::new());
    let mut memories: Vec<MemoryTrack> = Vec::new();
    let mut iterations = Vec::new();
    let measured = processes.iter().filter_map(|process| process.period).max();
    for process in processes {
        for lane in process.lanes {
            let id = LaneId::from(lanes.len());
            lanes.push(Lane { name: lane.name, device: lane.device, role: lane.role });
            spans.extend(lane.spans.into_iter().map(|span| Span {
                lane: id,
                kind: span.kind,
                subject: span.subject,
                start: at(span.start),
                end: at(span.end),
                bytes: span.bytes,
                waited_for: span.waited_for,
            }));
        }
        memories.extend(process.memories.into_iter().map(|memory| memory.track(start)));
        if iterations.is_empty() {
            iterations = process.iterations;
        }
    }
    let iteration_without_profiler = median(&iterations).filter(|_| measured.is_none());
    if iteration_without_profiler.is_some() {
        notes.push(
            "iterations are those of the steps without the profiler; lanes and kinds are of the profiled step".into(),
        );
    }
    let period = measured.unwrap_or_else(|| at(end));
    Trace {
        format_version: FORMAT_VERSION,
        name: "PyTorch".into(),
        origin: Origin::Measured,
        notes,
        status: Status::Ok,
        iteration: period,
        iteration_without_profiler,
        folds: Vec::new(),
        iterations,
        tokens: None,
        idle: idle_intervals(&lanes, &spans, period),
        lanes,
        spans,
        arrows: Vec::new(),
        memories,
        explanation: None,
    }
}

/// The median time, without the first step, which warms up, if there are others.
fn median(times: &[SimTime]) -> Option<SimTime> {
    let mut times = times.get(usize::from(times.len() > 1)..)?.to_vec();
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? / 2).copied()
}
