//! Reading and writing of trace files.

use crate::{Idle, Trace};
use std::io;

/// The version of the trace file format.
pub const FORMAT_VERSION: u32 = 1;

/// The error of a text that is not a valid trace.
#[derive(Debug, thiserror::Error)]
pub enum ReadTraceError {
    /// The text is not the JSON of a trace.
    #[error("{message}")]
    Json {
        /// The error of the JSON reader.
        message: String,
        /// The line, counted from one.
        line: usize,
        /// The column, counted from one.
        column: usize,
        /// Whether the text ends too early.
        truncated: bool,
    },
    /// The file has another version.
    #[error("the trace has format version {found}, this program reads version {FORMAT_VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A span contradicts the rest of the trace.
    #[error("span {span} {fault}")]
    Span {
        /// The index of the span.
        span: usize,
        /// The fault.
        fault: &'static str,
    },
    /// An idle interval contradicts the rest of the trace.
    #[error("idle interval {interval} {fault}")]
    Idle {
        /// The index of the interval.
        interval: usize,
        /// The fault.
        fault: &'static str,
    },
}

/// Reads a trace and checks the properties on which its users rely.
pub fn from_json(text: &str) -> Result<Trace, ReadTraceError> {
    let trace: Trace = serde_json::from_str(text).map_err(|error| ReadTraceError::Json {
        message: error.to_string(),
        line: error.line(),
        column: error.column(),
        truncated: error.is_eof(),
    })?;
    if trace.format_version != FORMAT_VERSION {
        return Err(ReadTraceError::Version { found: trace.format_version });
    }
    check(&trace)?;
    Ok(trace)
}

/// Formats the trace as one line of JSON.
pub fn to_json(trace: &Trace) -> String {
    match serde_json::to_string(trace) {
        Ok(json) => json + "\n",
        Err(error) => unreachable!("a trace has string keys and finite numbers only: {error}"),
    }
}

/// Writes the same text as it is made, so that it is never in memory as a whole.
///
/// # Errors
/// The errors of `out`.
pub fn write_json(trace: &Trace, out: &mut impl io::Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, trace)?;
    out.write_all(b"\n")
}

fn check(trace: &Trace) -> Result<(), ReadTraceError> {
    for (index, span) in trace.spans.iter().enumerate() {
        let fault = if span.lane.index() >= trace.lanes.len() {
            Some("is on a lane that does not exist")
        } else if span.end < span.start {
            Some("ends before it starts")
        } else if index > 0 && (trace.spans[index - 1].lane, trace.spans[index - 1].start) > (span.lane, span.start) {
            Some("is out of order (spans are sorted by lane and start)")
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(ReadTraceError::Span { span: index, fault });
        }
    }
    let spans = trace.spans.len();
    let broken = trace.arrows.iter().find(|arrow| arrow.from as usize >= spans || arrow.to as usize >= spans);
    if let Some(arrow) = broken {
        return Err(ReadTraceError::Span {
            span: arrow.from.max(arrow.to) as usize,
            fault: "is named by an arrow but does not exist",
        });
    }
    let fault = |interval: &Idle| match interval {
        _ if interval.lane.index() >= trace.lanes.len() => Some("is on a lane that does not exist"),
        _ if interval.end < interval.start => Some("ends before it starts"),
        _ => None,
    };
    match trace.idle.iter().enumerate().find_map(|(interval, idle)| Some((interval, fault(idle)?))) {
        Some((interval, fault)) => Err(ReadTraceError::Idle { interval, fault }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lane, Origin, Status};
    use spipe_base::{IdleCause, LaneId, LaneRole, SimTime};

    /// Reads back a trace of one lane with this idle interval, and returns the error.
    fn read(lane: u32, (start, end): (u64, u64)) -> Option<String> {
        let idle = Idle {
            lane: LaneId::new(lane),
            start: SimTime::ns(start),
            end: SimTime::ns(end),
            cause: IdleCause::WarmUp,
        };
        let trace = Trace {
            format_version: FORMAT_VERSION,
            name: "nothing".into(),
            origin: Origin::Measured,
            notes: Vec::new(),
            status: Status::Ok,
            iteration: SimTime::ns(9),
            iterations: Vec::new(),
            tokens: None,
            lanes: vec![Lane { name: "gpu0.compute".into(), device: "gpu0".into(), role: LaneRole::Compute }],
            spans: Vec::new(),
            arrows: Vec::new(),
            idle: vec![idle],
            memories: Vec::new(),
            iteration_without_profiler: None,
            folds: Vec::new(),
            explanation: None,
        };
        from_json(&to_json(&trace)).err().map(|error| error.to_string())
    }

    #[test]
    fn idle_time_is_that_of_a_lane() {
        assert_eq!(read(0, (2, 9)), None);
        assert_eq!(read(1, (2, 9)).unwrap(), "idle interval 0 is on a lane that does not exist");
        assert_eq!(read(0, (9, 2)).unwrap(), "idle interval 0 ends before it starts");
    }
}
