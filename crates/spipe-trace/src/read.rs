//! Trace files.

use crate::{FORMAT_VERSION, Idle, Trace};

/// Why a text is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum ReadTraceError {
    /// The text is not the JSON of a trace.
    #[error("{message}")]
    Json {
        /// What is wrong.
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
    /// The trace contradicts itself.
    #[error("span {span} {fault}")]
    Span {
        /// Its index.
        span: usize,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The same of the idle time.
    #[error("idle stretch {stretch} {fault}")]
    Idle {
        /// Its index.
        stretch: usize,
        /// What is wrong with it.
        fault: &'static str,
    },
}

/// Reads a trace and checks what its readers rely on.
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

/// The trace as JSON, one line per top-level list element, ending in a newline.
pub fn to_json(trace: &Trace) -> String {
    match serde_json::to_string(trace) {
        Ok(json) => json + "\n",
        Err(error) => unreachable!("a trace has string keys and finite numbers only: {error}"),
    }
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
            fault: "is named by an arrow and does not exist",
        });
    }
    let fault = |stretch: &Idle| match stretch {
        _ if stretch.lane.index() >= trace.lanes.len() => Some("is on a lane that does not exist"),
        _ if stretch.end < stretch.start => Some("ends before it starts"),
        _ => None,
    };
    match trace.idle.iter().enumerate().find_map(|(stretch, idle)| Some((stretch, fault(idle)?))) {
        Some((stretch, fault)) => Err(ReadTraceError::Idle { stretch, fault }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lane, Origin, Status};
    use spipe_base::{IdleCause, LaneId, LaneRole, SimTime};

    /// What reading a trace of one lane says that was idle like this.
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
        };
        from_json(&to_json(&trace)).err().map(|error| error.to_string())
    }

    #[test]
    fn idle_time_is_that_of_a_lane() {
        assert_eq!(read(0, (2, 9)), None);
        assert_eq!(read(1, (2, 9)).unwrap(), "idle stretch 0 is on a lane that does not exist");
        assert_eq!(read(0, (9, 2)).unwrap(), "idle stretch 0 ends before it starts");
    }
}
